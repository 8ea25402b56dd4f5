//! HTTP/1.1, HTTP/2 with prior knowledge, TLS, or a PROXY header that nobody asked for? Decided by the first bytes,
//! within a deadline.
//!
//! hyper-util's own detection has none: "connect and say nothing" stays open for ever.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::http1::LAST_CALL;
use super::{peek, proxied};
use crate::lag::read_until;
use crate::shutdown::Phase;

/// RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// First byte of a TLS record with a handshake message (RFC 8446, section 5.1); no HTTP begins so.
const TLS_HANDSHAKE: u8 = 22;

/// What a connection begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// HTTP without TLS.
    Plain(Protocol),
    /// A TLS handshake.
    Tls,
    /// A PROXY header.
    Proxied,
}

/// What the client speaks, inside TLS or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HTTP/1.0 or 1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// Looks at the first bytes without taking them.
/// Errors: `TimedOut` when nothing decisive came until `within` had passed; `UnexpectedEof` when the client left.
pub(super) async fn opening(stream: &TcpStream, within: Duration) -> io::Result<Opening> {
    let decided = read_until(Instant::now() + within, decisive(stream)).await;
    decided.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

async fn decisive(stream: &TcpStream) -> io::Result<Opening> {
    let mut seen = [0; PREFACE.len()];
    let mut length = 0;
    loop {
        length = peek::more(stream, &mut seen, length).await?;
        if seen[0] == TLS_HANDSHAKE {
            return Ok(Opening::Tls);
        }
        if proxied::is_header(&seen[..length]) {
            return Ok(Opening::Proxied);
        }
        if seen[..length] != PREFACE[..length] {
            return Ok(Opening::Plain(Protocol::Http1));
        }
        if length == PREFACE.len() {
            return Ok(Opening::Plain(Protocol::Http2));
        }
    }
}

/// What a client begins with; none if it has sent nothing when the replica ends. It has a moment then, as between two
/// requests: what it sent may be on its way.
pub(super) async fn until_last_call<T>(
    beginning: impl Future<Output = T>,
    phase: &Phase,
) -> Option<T> {
    let last_call = async {
        phase.draining().await;
        sleep(LAST_CALL).await;
    };
    tokio::select! {
        biased;
        begun = beginning => Some(begun),
        () = last_call => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::task::yield_now;
    use tokio::time::advance;

    use crate::shutdown::Shutdown;

    async fn sniffed(sent: &[&[u8]], close: bool) -> io::Result<Opening> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let mut client = TcpStream::connect(address).await.expect("connect");
        let (server, _) = listener.accept().await.expect("accept");
        client.set_nodelay(true).expect("nodelay");
        let writes = async {
            for part in sent {
                client.write_all(part).await.expect("write");
                yield_now().await;
            }
            if close {
                client.shutdown().await.expect("shutdown");
            }
        };
        let (result, ()) = tokio::join!(opening(&server, Duration::from_millis(300)), writes);
        result
    }

    #[tokio::test]
    async fn tells_the_protocols_apart() {
        let get = sniffed(&[b"GET / HTTP/1.1\r\n"], false).await;
        assert_eq!(get.expect("decided"), Opening::Plain(Protocol::Http1));
        let propfind = sniffed(&[b"PR", b"OPFIND / HTTP/1.1\r\n"], false).await;
        assert_eq!(propfind.expect("decided"), Opening::Plain(Protocol::Http1));
        let h2 = sniffed(&[&PREFACE[..5], &PREFACE[5..], b"more"], false).await;
        assert_eq!(h2.expect("decided"), Opening::Plain(Protocol::Http2));
        let bytes: Vec<_> = PREFACE.chunks(1).collect();
        let h2 = sniffed(&bytes, false).await;
        assert_eq!(h2.expect("decided"), Opening::Plain(Protocol::Http2));
        let v1 = sniffed(&[b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"], false).await;
        assert_eq!(v1.expect("decided"), Opening::Proxied);
        let v2 = sniffed(&[b"\r\n\r\n\0\r\nQUIT\n\x21"], false).await;
        assert_eq!(v2.expect("decided"), Opening::Proxied);
        let hello = sniffed(&[&[22], &[3, 1]], false).await;
        assert_eq!(hello.expect("decided"), Opening::Tls);
    }

    #[tokio::test]
    async fn silence_and_half_a_preface_time_out() {
        let silent = sniffed(&[], false).await.expect_err("silence");
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        let half = sniffed(&[&PREFACE[..9]], false).await.expect_err("half");
        assert_eq!(half.kind(), io::ErrorKind::TimedOut);
        let left = sniffed(&[], true).await.expect_err("left");
        assert_eq!(left.kind(), io::ErrorKind::UnexpectedEof);
        let left = sniffed(&[&PREFACE[..1]], true).await.expect_err("left");
        assert_eq!(left.kind(), io::ErrorKind::UnexpectedEof, "in the middle");
    }

    #[tokio::test(start_paused = true)]
    async fn who_overslept_the_limit_looks_at_the_socket_first() {
        const WITHIN: Duration = Duration::from_secs(10);
        for sends in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let address = listener.local_addr().expect("address");
            let mut client = TcpStream::connect(address).await.expect("connect");
            let (server, _) = listener.accept().await.expect("accept");
            let opening = tokio::spawn(async move { opening(&server, WITHIN).await });
            yield_now().await;
            advance(WITHIN * 6).await;
            yield_now().await;
            if sends {
                client.write_all(b"GET ").await.expect("write");
            }
            let opening = opening.await.expect("no panic");
            match opening {
                Ok(opening) => assert!(sends, "{opening:?}"),
                Err(error) => assert!(!sends, "it was stopped, too: {error}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_sent_nothing_before_the_end_has_a_moment_then() {
        for (sends_after, is_heard) in [(LAST_CALL / 2, true), (LAST_CALL * 2, false)] {
            let shutdown = Shutdown::new();
            let phase = shutdown.phase();
            // Its owner's end is the end of all.
            drop(shutdown);
            let heard = until_last_call(sleep(sends_after), &phase).await;
            assert_eq!(heard.is_some(), is_heard, "{sends_after:?}");
        }
        let serving = Shutdown::new();
        let heard = until_last_call(sleep(LAST_CALL * 2), &serving.phase()).await;
        assert!(heard.is_some(), "nobody ends");
    }
}
