//! The socket that gossip has: what the kernel dropped of it, because it was not read in time.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
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
    /// The sockets at this address, from the tables of the kernel in this folder; none if there is none. Other replicas may
    /// have the same port at other addresses of one machine: theirs do not count. One that is bound to all addresses does.
    pub fn look(folder: &Path, at: SocketAddr) -> Option<Self> {
        let tables = ["udp", "udp6"].map(|name| fs::read_to_string(folder.join(name)));
        let dropped = tables.iter().flatten().filter_map(|text| drops(text, at));
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

/// What was dropped of the sockets at an address; none if the table has none.
fn drops(table: &str, at: SocketAddr) -> Option<u64> {
    let of_line = |line: &str| {
        let mut fields = line.split_whitespace();
        let (host, port) = fields.nth(1)?.rsplit_once(':')?;
        let (host, port) = (address(host)?, u16::from_str_radix(port, 16).ok()?);
        let is_there = host.is_unspecified() || host == at.ip().to_canonical();
        let is_it = port == at.port() && is_there;
        is_it.then(|| fields.last()?.parse::<u64>().ok()).flatten()
    };
    // The first line has the headings.
    let found = table.lines().skip(1).filter_map(of_line);
    found.reduce(|all, one| all + one)
}

/// An address as these tables have it: words of 32 bits, each written as a number of this machine.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drops_of_an_address_are_found() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
             2069: 0100007F:7532 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1813 2 0000000000000000 17\n\
             2070: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1814 2 0000000000000000 3\n\
             2071: 0200007F:7532 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1815 2 0000000000000000 5\n";
        assert_eq!(drops(table, at("127.0.0.1:30002")), Some(17));
        let other = "of another replica on this machine";
        assert_eq!(drops(table, at("127.0.0.2:30002")), Some(5), "{other}");
        assert_eq!(drops(table, at("127.0.0.1:53")), Some(3));
        assert_eq!(drops(table, at("127.0.0.3:30002")), None);
        assert_eq!(drops(table, at("127.0.0.1:54")), None);
        let table6 = "  sl  local_address                         remote_address\n\
             1: 00000000000000000000000000000000:7532 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1813 2 0000000000000000 4\n";
        let all = "it is bound to all addresses";
        for own in ["[::]:30002", "[::1]:30002", "127.0.0.1:30002"] {
            assert_eq!(drops(table6, at(own)), Some(4), "{all}");
        }
        let of_one = table6.replacen(&"0".repeat(32), "00000000000000000000000001000000", 1);
        assert_eq!(drops(&of_one, at("[::1]:30002")), Some(4));
        assert_eq!(drops(&of_one, at("[::2]:30002")), None);
        let mapped = table6.replacen(&"0".repeat(32), "0000000000000000FFFF00000100007F", 1);
        assert_eq!(drops(&mapped, at("127.0.0.1:30002")), Some(4));
        let folder = tempfile::tempdir().expect("a folder");
        let own = at("127.0.0.1:30002");
        assert_eq!(Udp::look(folder.path(), own), None);
        fs::write(folder.path().join("udp"), table).expect("written");
        fs::write(folder.path().join("udp6"), table6).expect("written");
        let found = Udp::look(folder.path(), own).expect("there");
        assert_eq!(found.dropped, 21);
        assert!(found.buffer_bytes > Some(0));
    }
}
