//! Messages of chitchat 0.11.1 by hand, also those that chitchat itself never writes.

use std::net::{IpAddr, SocketAddr};

/// A replica as chitchat names it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Its id.
    pub(crate) id: String,
    /// Its generation.
    pub(crate) generation: u64,
    /// Its gossip address.
    pub(crate) address: SocketAddr,
}

/// What a digest holds of a node.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// The node.
    pub(crate) node: Node,
    /// Its heartbeat.
    pub(crate) heartbeat: u64,
    /// Its greatest key version.
    pub(crate) version: u64,
}

/// What a delta holds of a node.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// The node.
    pub(crate) node: Node,
    /// Keys, values, versions.
    pub(crate) values: Vec<(String, String, u64)>,
    /// The greatest version, if it is sent apart.
    pub(crate) version: Option<u64>,
}

/// A question: what the sender knows.
pub(crate) fn syn(cluster: &str, digest: &[Standing]) -> Vec<u8> {
    let mut out = head(0);
    put_digest(&mut out, digest);
    put_text(&mut out, cluster);
    out
}

/// The answer to a question.
pub(crate) fn syn_ack(digest: &[Standing], changes: &[Change]) -> Vec<u8> {
    let mut out = head(1);
    put_digest(&mut out, digest);
    put_blocks(&mut out, &operations(changes));
    out
}

/// The end of an exchange.
pub(crate) fn ack(changes: &[Change]) -> Vec<u8> {
    let mut out = head(2);
    put_blocks(&mut out, &operations(changes));
    out
}

/// "You are of another cluster."
pub(crate) fn bad_cluster() -> Vec<u8> {
    head(3)
}

/// Compressed blocks of zeroes: 65 kB that become 195 MB.
pub(crate) fn bomb() -> Vec<u8> {
    let block = zstd::bulk::compress(&vec![0; 65_000], 19).expect("zstd");
    let mut out = head(2);
    while out.len() + block.len() + 4 < 65_500 {
        out.push(1);
        out.extend((block.len() as u16).to_le_bytes());
        out.extend(&block);
    }
    out.push(0);
    out
}

fn head(kind: u8) -> Vec<u8> {
    vec![0x53, 0xb0, 0, kind]
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_node(out: &mut Vec<u8>, node: &Node) {
    put_text(out, &node.id);
    out.extend(node.generation.to_le_bytes());
    let IpAddr::V4(ip) = node.address.ip() else {
        panic!("tests use IPv4");
    };
    out.push(4);
    out.extend(ip.octets());
    out.extend(node.address.port().to_le_bytes());
}

fn put_digest(out: &mut Vec<u8>, digest: &[Standing]) {
    out.extend((digest.len() as u16).to_le_bytes());
    for standing in digest {
        put_node(out, &standing.node);
        for number in [standing.heartbeat, 0, standing.version] {
            out.extend(number.to_le_bytes());
        }
    }
}

fn operations(changes: &[Change]) -> Vec<u8> {
    let mut out = Vec::new();
    for change in changes {
        out.push(0);
        put_node(&mut out, &change.node);
        out.extend([0; 16]);
        for (key, value, version) in &change.values {
            out.push(1);
            put_text(&mut out, key);
            put_text(&mut out, value);
            out.extend(version.to_le_bytes());
            out.push(0);
        }
        if let Some(version) = change.version {
            out.push(2);
            out.extend(version.to_le_bytes());
        }
    }
    out
}

fn put_blocks(out: &mut Vec<u8>, operations: &[u8]) {
    for block in operations.chunks(usize::from(u16::MAX)) {
        out.push(2);
        out.extend((block.len() as u16).to_le_bytes());
        out.extend(block);
    }
    out.push(0);
}
