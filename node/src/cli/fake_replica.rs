//! A replica's admin port for tests: it answers what they say.

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A port, and where it is: answers may have to name it before they are given.
pub(super) async fn port() -> (TcpListener, std::net::SocketAddr) {
    // As `main` does; another test of this process may have.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// Answers one request after the other by its first line (`GET /events HTTP/1.1`), until it is aborted.
pub(super) fn serve(
    listener: TcpListener,
    mut answer: impl FnMut(&str) -> (u16, Value) + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            if let Some(line) = request(&mut stream).await {
                let (status, body) = answer(&line);
                let body = body.to_string();
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
                );
                // Who asked may have left.
                let _ = stream.write_all((head + &body).as_bytes()).await;
            }
        }
    })
}

/// Reads a whole request, since a port that is closed with unread bytes takes its answer back; its first line.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    // As the commands' client writes it.
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a length"))];
    stream.read_exact(&mut body).await.ok()?;
    head.lines().next().map(str::to_owned)
}
