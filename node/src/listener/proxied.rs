//! The PROXY protocol, versions 1 and 2: a balancer that passes bytes says first whose connection it is.
//!
//! Asked of the balancers in `listen.proxy_protocol_from` and of nobody else: who may write the header chooses its
//! address. From them it must come, for the protocol's own reason: a receiver that guesses can be deceived by a
//! client whose balancer sends none. From all others it is refused (see [`sniff`](super::sniff)).
//! What a balancer says of itself (LOCAL, UNKNOWN: its health checks), of sockets that have no address, and of
//! datagrams leaves the connection's own address. Further fields (TLVs) are passed over.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use proxy_header::{Error, ParseConfig, Protocol, ProxyHeader};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::peek;
use crate::lag::read_until;

/// Longest header that is taken, in bytes. The addresses are 36 of them, the rest are fields that nobody here reads.
const HEADER_BYTES_MAX: usize = 4 * 1024;

/// Why a connection is closed that should have begun with a header.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeaderError {
    /// Something else came.
    #[error("the connection does not begin with a PROXY header")]
    Malformed,
    /// It is longer than is taken.
    #[error("its PROXY header is longer than {HEADER_BYTES_MAX} bytes")]
    TooLong,
    /// It did not come in time.
    #[error("its PROXY header did not arrive in time")]
    Late,
    /// The socket failed.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

impl HeaderError {
    /// Label of the metric; none for a balancer that left, as those do that only look whether the port is open.
    pub(super) fn as_str(&self) -> Option<&'static str> {
        match self {
            Self::Malformed => Some("malformed"),
            Self::TooLong => Some("too_long"),
            Self::Late => Some("late"),
            Self::Socket(_) => None,
        }
    }
}

/// Must connections from this address begin with a header?
pub(super) fn is_balancer(address: SocketAddr, balancers: &[IpNet]) -> bool {
    let address = address.ip().to_canonical();
    balancers.iter().any(|network| network.contains(&address))
}

/// Do these first bytes look like a header?
pub(super) fn is_header(bytes: &[u8]) -> bool {
    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    bytes.starts_with(b"PROXY ") || bytes.starts_with(SIGNATURE)
}

/// Takes the header from the stream, and not a byte more. None: the connection is the balancer's own.
/// Errors: see [`HeaderError`]; the connection is to be closed without an answer.
pub(super) async fn client_of(
    stream: &mut TcpStream,
    within: Duration,
) -> Result<Option<SocketAddr>, HeaderError> {
    let taken = read_until(Instant::now() + within, take_header(stream)).await;
    taken.unwrap_or(Err(HeaderError::Late))
}

async fn take_header(stream: &mut TcpStream) -> Result<Option<SocketAddr>, HeaderError> {
    let mut seen = vec![0; HEADER_BYTES_MAX];
    let mut length = 0;
    loop {
        length = peek::more(stream, &mut seen, length).await?;
        match ProxyHeader::parse(
            &seen[..length],
            ParseConfig {
                include_tlvs: false,
                ..ParseConfig::default()
            },
        ) {
            Ok((header, length)) => {
                let client = header.proxied_address();
                let client = client.filter(|client| client.protocol == Protocol::Stream);
                let client = client.map(|client| client.source);
                stream.read_exact(&mut seen[..length]).await?;
                return Ok(client);
            }
            Err(Error::BufferTooShort) if length == seen.len() => return Err(HeaderError::TooLong),
            Err(Error::BufferTooShort) => {}
            Err(_) => return Err(HeaderError::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::task::yield_now;
    use tokio::time::advance;

    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

    /// What is made of these bytes, and what is left for whoever reads on.
    async fn read(sent: &[&[u8]]) -> (Result<Option<String>, HeaderError>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let mut client = TcpStream::connect(address).await.expect("connect");
        client.set_nodelay(true).expect("nodelay");
        let (mut server, _) = listener.accept().await.expect("accept");
        let writes = async {
            for part in sent {
                client.write_all(part).await.expect("write");
                yield_now().await;
            }
        };
        let reading = client_of(&mut server, Duration::from_millis(300));
        let (result, ()) = tokio::join!(reading, writes);
        client.shutdown().await.expect("shutdown");
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.expect("read");
        (
            result.map(|client| client.map(|client| client.to_string())),
            rest,
        )
    }

    fn second(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let length = u16::try_from(block.len()).expect("short").to_be_bytes();
        [SIGNATURE, &[0x20 | command, family], &length, block].concat()
    }

    const ADDRESSES: [u8; 12] = [192, 0, 2, 7, 10, 0, 0, 1, 0x9c, 0x40, 0x75, 0x30];

    #[tokio::test]
    async fn a_header_says_who_the_client_is_and_nothing_behind_it_is_taken() {
        let tlvs = [&ADDRESSES[..], &[0x04, 0, 3, 1, 2, 3], &[0xEA, 0, 1, 9]].concat();
        let of_v6 = [
            &[0x20, 1, 0x0d, 0xb8],
            &[0; 11][..],
            &[7],
            &[0; 16],
            &[0, 80, 0, 81],
        ]
        .concat();
        let unix = [b'/'; 216];
        let table: [(Vec<u8>, Option<&str>); 9] = [
            (
                b"PROXY TCP4 192.0.2.7 10.0.0.1 40000 30000\r\n".into(),
                Some("192.0.2.7:40000"),
            ),
            (
                b"PROXY TCP6 2001:db8::7 ::1 80 81\r\n".into(),
                Some("[2001:db8::7]:80"),
            ),
            (b"PROXY UNKNOWN\r\n".into(), None),
            (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".into(), None),
            (second(1, 0x11, &ADDRESSES), Some("192.0.2.7:40000")),
            (second(1, 0x11, &tlvs), Some("192.0.2.7:40000")),
            (second(1, 0x21, &of_v6), Some("[2001:db8::7]:80")),
            (second(0, 0x00, &[]), None),
            (second(1, 0x31, &unix), None),
        ];
        for (header, expected) in &table {
            let behind = b"GET / HTTP/1.1\r\n\r\n";
            for cut in [header.len(), header.len() - 1, 13.min(header.len()), 5] {
                let (first, second) = header.split_at(cut);
                let (client, rest) = read(&[first, second, behind]).await;
                assert_eq!(client.expect("good").as_deref(), *expected, "{header:?}");
                assert_eq!(rest, behind);
            }
        }
        let local = second(0, 0x11, &ADDRESSES);
        assert_eq!(
            read(&[&local]).await.0.expect("good"),
            None,
            "a check of its own"
        );
        let datagram = second(1, 0x12, &ADDRESSES);
        assert_eq!(read(&[&datagram]).await.0.expect("good"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_overslept_the_limit_looks_at_the_socket_first() {
        const WITHIN: Duration = Duration::from_secs(10);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let mut balancer = TcpStream::connect(address).await.expect("connect");
        let (mut server, _) = listener.accept().await.expect("accept");
        let reading = tokio::spawn(async move { client_of(&mut server, WITHIN).await });
        yield_now().await;
        advance(WITHIN * 6).await;
        yield_now().await;
        let header = b"PROXY TCP4 192.0.2.7 10.0.0.1 40000 30000\r\n";
        balancer.write_all(header).await.expect("write");
        let client = reading.await.expect("no panic").expect("in time");
        let client = client.map(|client| client.to_string());
        assert_eq!(client.as_deref(), Some("192.0.2.7:40000"));
    }

    #[tokio::test]
    async fn what_is_no_header_is_told_apart() {
        let long = second(1, 0x11, &[&ADDRESSES[..], &vec![0; 8 * 1024]].concat());
        let endless = [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat();
        let table: [(&[u8], &str); 10] = [
            (b"GET / HTTP/1.1\r\n\r\n", "malformed"),
            (
                b"PROXY TCP4 192.0.2.7 10.0.0.1 40000 70000\r\n",
                "malformed",
            ),
            (b"PROXY TCP4 192.0.2.007 10.0.0.1 1 2\r\n", "malformed"),
            (b"PROXY TCP5 192.0.2.7 10.0.0.1 1 2\r\n", "malformed"),
            (&endless, "malformed"),
            (&second(2, 0x11, &ADDRESSES), "malformed"),
            (&second(1, 0x11, &ADDRESSES[..8]), "late"),
            (&long, "too_long"),
            (b"PROXY TCP4 192.0", "late"),
            (&SIGNATURE[..9], "late"),
        ];
        for (bytes, expected) in table {
            let error = read(&[bytes]).await.0.expect_err("refused");
            assert_eq!(error.as_str(), Some(expected), "{bytes:?}");
        }
    }
}
