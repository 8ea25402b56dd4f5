//! The socket that gossip has: what the kernel dropped of it, because it was not read in time.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use serde::Serialize;
use socket2::SockRef;

/// A UDP socket, as the kernel sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Udp {
    /// Packets that were dropped since it was opened, mostly because its buffer was full.
    pub dropped: u64,
    /// Bytes of the buffer that the kernel gives a new socket.
    pub buffer_bytes: Option<usize>,
}

impl Udp {
    /// The sockets at this port, from the tables of the kernel in this folder; none if there is none.
    pub fn look(folder: &Path, port: u16) -> Option<Self> {
        let tables = ["udp", "udp6"].map(|name| fs::read_to_string(folder.join(name)));
        let dropped = tables.iter().flatten().filter_map(|text| drops(text, port));
        let dropped = dropped.reduce(|all, one| all + one)?;
        Some(Self {
            dropped,
            buffer_bytes: buffer_bytes(),
        })
    }
}

/// Bytes of the receive buffer that the kernel gives a new UDP socket.
pub(crate) fn buffer_bytes() -> Option<usize> {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).ok()?;
    SockRef::from(&socket).recv_buffer_size().ok()
}

/// What was dropped of the sockets at a port; none if the table has none.
fn drops(table: &str, port: u16) -> Option<u64> {
    let of_line = |line: &str| {
        let mut fields = line.split_whitespace();
        let (_, local) = fields.nth(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(local, 16).ok()? == port;
        is_it.then(|| fields.last()?.parse::<u64>().ok()).flatten()
    };
    // The first line has the headings.
    let found = table.lines().skip(1).filter_map(of_line);
    found.reduce(|all, one| all + one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drops_of_a_port_are_found() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
             2069: 0100007F:7532 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1813 2 0000000000000000 17\n\
             2070: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1814 2 0000000000000000 3\n\
             2071: 0200007F:7532 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1815 2 0000000000000000 5\n";
        assert_eq!(drops(table, 30002), Some(22));
        assert_eq!(drops(table, 53), Some(3));
        assert_eq!(drops(table, 54), None);
        let table6 = "  sl  local_address                         remote_address\n\
             1: 00000000000000000000000000000000:7532 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1813 2 0000000000000000 4\n";
        assert_eq!(drops(table6, 30002), Some(4));
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(Udp::look(folder.path(), 30002), None);
        fs::write(folder.path().join("udp"), table).expect("written");
        fs::write(folder.path().join("udp6"), table6).expect("written");
        let found = Udp::look(folder.path(), 30002).expect("there");
        assert_eq!(found.dropped, 26);
        assert!(found.buffer_bytes > Some(0));
    }
}
