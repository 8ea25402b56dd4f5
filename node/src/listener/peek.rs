//! A look at what a client has sent, again when more has come.

use std::io;

use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::http::client_io::is_closed;

/// Waits for more than `known` bytes, and looks at what has come without taking it. Says how many bytes of `seen` that
/// fills: more than `known`.
///
/// What lies there unread keeps a socket ready, so a mere second look would find the same at once, again and again: this
/// one waits for the next event of the socket.
/// Errors: `UnexpectedEof` when no more will come; what the socket says.
pub(super) async fn more(stream: &TcpStream, seen: &mut [u8], known: usize) -> io::Result<usize> {
    let look = || {
        let (length, _) = recv(stream, &mut *seen, RecvFlags::PEEK)?;
        if length > known {
            Ok(length)
        } else if length == 0 || is_closed(stream) {
            // An end keeps it ready for ever.
            Err(io::ErrorKind::UnexpectedEof.into())
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    };
    stream.async_io(Interest::READABLE, look).await
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn each_byte_is_an_event_and_so_is_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut client, server) = (client.expect("connect"), accepted.expect("accept").0);
        let mut seen = [0; 8];
        for known in 0..4 {
            client.write_all(b"x").await.expect("write");
            let length = more(&server, &mut seen, known).await.expect("it came");
            assert_eq!(length, known + 1);
        }
        let mut looks = Box::pin(more(&server, &mut seen, 4));
        let waits = timeout(Duration::from_millis(20), &mut looks).await;
        assert!(waits.is_err(), "nothing came: {waits:?}");
        client.shutdown().await.expect("shutdown");
        let end = looks.await.expect_err("no more will come");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(seen[..4], *b"xxxx", "nothing is taken");
    }

    /// A look that finds no more leaves the thread to others.
    #[tokio::test]
    async fn what_lies_there_is_not_looked_at_again_and_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut client, server) = (client.expect("connect"), accepted.expect("accept").0);
        client.write_all(b"P").await.expect("write");
        let mut seen = [0; 8];
        assert_eq!(more(&server, &mut seen, 0).await.expect("it came"), 1);
        let (mut looks, mut polls) = (Box::pin(more(&server, &mut seen, 1)), 0);
        let counted = poll_fn(|cx| {
            polls += 1;
            looks.as_mut().poll(cx)
        });
        let waits = timeout(Duration::from_millis(50), counted).await;
        assert!(waits.is_err(), "nothing came: {waits:?}");
        assert!(polls <= 3, "{polls} looks");
    }
}
