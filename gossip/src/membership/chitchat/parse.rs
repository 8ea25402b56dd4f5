//! Bounded reading of chitchat 0.11.1 messages, and writing them again.
//!
//! Pure. Own code, because chitchat's reader inflates without a limit and trusts every count. What
//! is read here borrows from the message, so that a refused message costs no copies. The writer
//! produces the bytes that chitchat finally sees: it never sees those of a peer.
//!
//! Layout (little-endian): magic u16, version u8, kind u8, then by kind digest, cluster id or delta.
//! A delta is a stream of blocks (1 = zstd, 2 = plain, each with a u16 length; 0 ends it) that holds
//! operations: 0 opens a node, 1 sets a key, 2 sets the node's greatest version.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::peers::{KEYS_MAX, Reason};
use crate::transport::CHITCHAT_BYTES_MAX;

/// One message, its digest read, its delta inflated but still to be read.
pub(super) enum Message<'a> {
    Syn {
        digest: Vec<Standing<'a>>,
        cluster: &'a str,
    },
    SynAck {
        digest: Vec<Standing<'a>>,
        delta: Inflated,
    },
    Ack {
        delta: Inflated,
    },
    BadCluster,
}

/// The operations of a delta.
pub(super) struct Inflated {
    bytes: Vec<u8>,
    /// There was more than [`INFLATED_BYTES_MAX`] of it.
    is_cut: bool,
}

/// A replica as chitchat names it; all three parts are its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Node<'a> {
    pub(super) id: &'a str,
    pub(super) generation: u64,
    pub(super) address: SocketAddr,
}

/// One digest entry: how much of a node the sender has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing<'a> {
    pub(super) node: Node<'a>,
    pub(super) heartbeat: u64,
    pub(super) collected: u64,
    pub(super) version: u64,
}

/// What a delta holds about one node.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change<'a> {
    pub(super) node: Node<'a>,
    pub(super) collected: u64,
    pub(super) from: u64,
    pub(super) values: Vec<Value<'a>>,
    /// Present only without values; with values the last one's version is the greatest.
    pub(super) version: Option<u64>,
}

impl Change<'_> {
    /// Greatest version that applying this can bring.
    pub(super) fn greatest(&self) -> u64 {
        self.values
            .last()
            .map_or(self.version.unwrap_or(0), |value| value.version)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Value<'a> {
    pub(super) key: &'a str,
    pub(super) text: &'a str,
    pub(super) version: u64,
    pub(super) status: u8,
}

/// Reads the frame of a message. Everything that is counted is bounded before it is kept.
pub(super) fn message(bytes: &[u8]) -> Result<Message<'_>, Reason> {
    if bytes.len() > CHITCHAT_BYTES_MAX {
        return Err(Reason::TooLong);
    }
    let mut rest = Reader(bytes);
    if rest.u16()? != MAGIC || rest.u8()? != VERSION {
        return Err(Reason::Malformed);
    }
    let message = match rest.u8()? {
        SYN => Message::Syn {
            digest: digest(&mut rest)?,
            cluster: rest.text()?,
        },
        SYN_ACK => Message::SynAck {
            digest: digest(&mut rest)?,
            delta: inflate(&mut rest)?,
        },
        ACK => Message::Ack {
            delta: inflate(&mut rest)?,
        },
        BAD_CLUSTER => Message::BadCluster,
        _ => return Err(Reason::Malformed),
    };
    if rest.0.is_empty() {
        Ok(message)
    } else {
        Err(Reason::Malformed)
    }
}

/// Reads the operations of an inflated delta into one change for each node. Of one that was cut, what is whole.
pub(super) fn delta(inflated: &Inflated) -> Result<Vec<Change<'_>>, Reason> {
    let mut rest = Reader(&inflated.bytes);
    let mut changes: Vec<Change<'_>> = Vec::new();
    let mut nodes = HashSet::new();
    while !rest.0.is_empty() {
        let operation = match Operation::read(&mut rest) {
            Ok(operation) => operation,
            Err(_) if inflated.is_cut => break,
            Err(reason) => return Err(reason),
        };
        match operation {
            Operation::Node(change) => {
                if changes.len() == NODES_MAX || !nodes.insert(change.node) {
                    return Err(Reason::TooMany);
                }
                changes.push(change);
            }
            Operation::Value(value) => {
                let change = changes.last_mut().ok_or(Reason::Malformed)?;
                check_value(change, &value)?;
                change.values.push(value);
            }
            Operation::Version(version) => {
                let change = changes.last_mut().ok_or(Reason::Malformed)?;
                // Below a value's version it would make chitchat's own assertion fail.
                if !change.values.is_empty() || change.version.is_some() {
                    return Err(Reason::Implausible);
                }
                change.version = Some(version);
            }
        }
    }
    Ok(changes)
}

enum Operation<'a> {
    Node(Change<'a>),
    Value(Value<'a>),
    Version(u64),
}

impl<'a> Operation<'a> {
    fn read(rest: &mut Reader<'a>) -> Result<Self, Reason> {
        match rest.u8()? {
            OP_NODE => Ok(Self::Node(Change {
                node: rest.node()?,
                collected: rest.u64()?,
                from: rest.u64()?,
                values: Vec::new(),
                version: None,
            })),
            OP_VALUE => Ok(Self::Value(Value {
                key: rest.text()?,
                text: rest.text()?,
                version: rest.u64()?,
                status: rest.u8()?,
            })),
            OP_VERSION => rest.u64().map(Self::Version),
            _ => Err(Reason::Malformed),
        }
    }
}

fn check_value(change: &Change<'_>, value: &Value<'_>) -> Result<(), Reason> {
    // chitchat slices keys at byte 1, which panics inside a multi-byte character.
    let is_key = (1..=KEY_BYTES_MAX).contains(&value.key.len())
        && value.key.bytes().all(|byte| byte.is_ascii_graphic());
    // Above about 65 kB a value is never passed on, and blocks the node's later changes for ever.
    if !is_key || value.text.len() > VALUE_BYTES_MAX || !value.text.is_ascii() {
        return Err(Reason::BadValue);
    }
    if change.values.len() == VALUES_MAX {
        return Err(Reason::TooMany);
    }
    if value.status > STATUS_MAX {
        return Err(Reason::Malformed);
    }
    if change.version.is_some() || value.version <= change.greatest() {
        return Err(Reason::Implausible);
    }
    Ok(())
}

fn digest<'a>(rest: &mut Reader<'a>) -> Result<Vec<Standing<'a>>, Reason> {
    let count = usize::from(rest.u16()?);
    if count > NODES_MAX {
        return Err(Reason::TooMany);
    }
    (0..count)
        .map(|_| {
            Ok(Standing {
                node: rest.node()?,
                heartbeat: rest.u64()?,
                collected: rest.u64()?,
                version: rest.u64()?,
            })
        })
        .collect()
}

/// Joins the blocks of a delta, as far as [`INFLATED_BYTES_MAX`]. More is no offence: what many liars told a peer, each within
/// its limits, or one in many of its lives, shrinks to next to nothing in what that peer sends. A single block that grows
/// further than any of chitchat's is one.
fn inflate(rest: &mut Reader<'_>) -> Result<Inflated, Reason> {
    let mut inflated = Inflated {
        bytes: Vec::new(),
        is_cut: false,
    };
    let mut block = Vec::new();
    loop {
        let kind = rest.u8()?;
        if kind == BLOCKS_END {
            return Ok(inflated);
        }
        let length = usize::from(rest.u16()?);
        let bytes = rest.take(length)?;
        if inflated.is_cut {
            continue;
        }
        let plain = match kind {
            BLOCK_PLAIN => bytes,
            BLOCK_ZSTD => {
                block.resize(BLOCK_BYTES_MAX, 0);
                let written = zstd::bulk::decompress_to_buffer(bytes, &mut block[..])
                    .map_err(|_| Reason::Malformed)?;
                if written > ZSTD_BLOCK_BYTES_MAX {
                    return Err(Reason::Inflated);
                }
                &block[..written]
            }
            _ => return Err(Reason::Malformed),
        };
        inflated.is_cut = inflated.bytes.len() + plain.len() > INFLATED_BYTES_MAX;
        if !inflated.is_cut {
            inflated.bytes.extend_from_slice(plain);
        }
    }
}

/// Appends the message again, without compression: it stays inside this process.
pub(super) fn write_syn(digest: &[Standing<'_>], cluster: &str) -> Vec<u8> {
    let mut out = Writer::new(SYN);
    out.digest(digest);
    out.text(cluster);
    out.0
}

/// See [`write_syn`].
pub(super) fn write_syn_ack(digest: &[Standing<'_>], delta: &[Change<'_>]) -> Vec<u8> {
    let mut out = Writer::new(SYN_ACK);
    out.digest(digest);
    out.delta(delta);
    out.0
}

/// See [`write_syn`].
pub(super) fn write_ack(delta: &[Change<'_>]) -> Vec<u8> {
    let mut out = Writer::new(ACK);
    out.delta(delta);
    out.0
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Reason> {
        let (head, tail) = self.0.split_at_checked(length).ok_or(Reason::Malformed)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Reason> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Reason::Malformed)?;
        self.0 = tail;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, Reason> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, Reason> {
        self.array().map(u16::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Reason> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<&'a str, Reason> {
        let length = usize::from(self.u16()?);
        std::str::from_utf8(self.take(length)?).map_err(|_| Reason::Malformed)
    }

    fn node(&mut self) -> Result<Node<'a>, Reason> {
        Ok(Node {
            id: self.text()?,
            generation: self.u64()?,
            address: self.address()?,
        })
    }

    fn address(&mut self) -> Result<SocketAddr, Reason> {
        let ip: IpAddr = match self.u8()? {
            4 => Ipv4Addr::from(self.array::<4>()?).into(),
            6 => Ipv6Addr::from(self.array::<16>()?).into(),
            _ => return Err(Reason::Malformed),
        };
        Ok(SocketAddr::new(ip, self.u16()?))
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Self {
        let mut out = Vec::with_capacity(512);
        out.extend(MAGIC.to_le_bytes());
        out.extend([VERSION, kind]);
        Self(out)
    }

    fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        let length = u16::try_from(text.len()).expect("read from a field with a u16 length");
        self.0.extend(length.to_le_bytes());
        self.0.extend(text.as_bytes());
    }

    fn node(&mut self, node: &Node<'_>) {
        self.text(node.id);
        self.u64(node.generation);
        match node.address.ip() {
            IpAddr::V4(ip) => {
                self.0.push(4);
                self.0.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                self.0.push(6);
                self.0.extend(ip.octets());
            }
        }
        self.0.extend(node.address.port().to_le_bytes());
    }

    fn digest(&mut self, digest: &[Standing<'_>]) {
        let count = u16::try_from(digest.len()).expect("at most NODES_MAX");
        self.0.extend(count.to_le_bytes());
        for standing in digest {
            self.node(&standing.node);
            self.u64(standing.heartbeat);
            self.u64(standing.collected);
            self.u64(standing.version);
        }
    }

    fn delta(&mut self, changes: &[Change<'_>]) {
        let mut operations = Self(Vec::new());
        for change in changes {
            operations.0.push(OP_NODE);
            operations.node(&change.node);
            operations.u64(change.collected);
            operations.u64(change.from);
            for value in &change.values {
                operations.0.push(OP_VALUE);
                operations.text(value.key);
                operations.text(value.text);
                operations.u64(value.version);
                operations.0.push(value.status);
            }
            if let Some(version) = change.version {
                operations.0.push(OP_VERSION);
                operations.u64(version);
            }
        }
        for block in operations.0.chunks(BLOCK_BYTES_MAX) {
            let length = u16::try_from(block.len()).expect("BLOCK_BYTES_MAX fits a u16");
            self.0.push(BLOCK_PLAIN);
            self.0.extend(length.to_le_bytes());
            self.0.extend(block);
        }
        self.0.push(BLOCKS_END);
    }
}

/// Most nodes in one digest or delta: more than fit the longest digest, so nobody honest knows as many. Former generations
/// of a replica stay known for half a minute, and a liar may have twenty in each second.
pub(super) const NODES_MAX: usize = 2048;
/// Most values of one node: what it may claim itself, and as many that others reported before it did. The judge counts
/// each sort apart, and only the former is an offence.
const VALUES_MAX: usize = 2 * KEYS_MAX;
const INFLATED_BYTES_MAX: usize = 1 << 20;
const BLOCK_BYTES_MAX: usize = u16::MAX as usize;
/// What chitchat compresses at once.
const ZSTD_BLOCK_BYTES_MAX: usize = 16_384;
const KEY_BYTES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 4096;
const STATUS_MAX: u8 = 2;

const MAGIC: u16 = 45_139;
const VERSION: u8 = 0;
const SYN: u8 = 0;
const SYN_ACK: u8 = 1;
const ACK: u8 = 2;
const BAD_CLUSTER: u8 = 3;
const BLOCKS_END: u8 = 0;
const BLOCK_ZSTD: u8 = 1;
const BLOCK_PLAIN: u8 = 2;
const OP_NODE: u8 = 0;
const OP_VALUE: u8 = 1;
const OP_VERSION: u8 = 2;
