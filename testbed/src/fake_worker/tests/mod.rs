//! The worker as a raw client sees it: every byte over a plain socket.

mod connectors;
mod faults;
mod life;
mod pings;
mod ranks;
mod split;
mod split_life;
mod split_refusals;
mod surface;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;

/// Far above any wait of these tests; reached only when something hangs.
const LIMIT: Duration = Duration::from_secs(20);

/// A worker whose engine takes next to no time.
async fn fast() -> FakeWorker {
    start(Config {
        speed: 1_000.0,
        ..Config::default()
    })
    .await
}

async fn start(config: Config) -> FakeWorker {
    FakeWorker::start(config)
        .await
        .expect("port 0 is always free")
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Fin,
    Reset,
}

struct Client(TcpStream);

impl Client {
    async fn connect(worker: &FakeWorker) -> Self {
        Self(TcpStream::connect(worker.addr()).await.expect("listening"))
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("open");
    }

    /// Sends a request with `connection: close` unless `headers` say otherwise.
    async fn post(&mut self, path: &str, headers: &str, body: &Value) {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        self.send(head.as_bytes()).await;
        self.send(body.as_bytes()).await;
    }

    /// Reads everything up to the end of the connection.
    async fn rest(&mut self) -> (Vec<u8>, End) {
        let mut bytes = Vec::new();
        let end = timeout(LIMIT, self.0.read_to_end(&mut bytes))
            .await
            .expect("the worker ends the connection");
        let end = end.map_or(End::Reset, |_| End::Fin);
        (bytes, end)
    }

    /// Reads until `needle` has arrived; returns all bytes so far.
    async fn until(&mut self, needle: &str) -> String {
        let mut bytes = Vec::new();
        let read = async {
            while memchr::memmem::find(&bytes, needle.as_bytes()).is_none() {
                let n = self.0.read_buf(&mut bytes).await.expect("open");
                assert_ne!(
                    n,
                    0,
                    "ended before {needle:?}: {}",
                    String::from_utf8_lossy(&bytes)
                );
            }
        };
        timeout(LIMIT, read)
            .await
            .unwrap_or_else(|_| panic!("no {needle:?}"));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// True when nothing, not even an end, arrives for a while.
    async fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        timeout(Duration::from_millis(200), self.0.read(&mut byte))
            .await
            .is_err()
    }
}

/// Sends one request on its own connection; returns head and body as text.
async fn ask(worker: &FakeWorker, path: &str, headers: &str, body: &Value) -> (String, String) {
    let mut client = Client::connect(worker).await;
    client
        .post(path, &format!("connection: close\r\n{headers}"), body)
        .await;
    split(client.rest().await.0)
}

async fn get(worker: &FakeWorker, path: &str) -> (String, String) {
    let mut client = Client::connect(worker).await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    client.send(request.as_bytes()).await;
    split(client.rest().await.0)
}

fn split(bytes: Vec<u8>) -> (String, String) {
    let text = String::from_utf8(bytes).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

fn chat(stream: bool, max_tokens: u32) -> Value {
    json!({"messages": [{"role": "user", "content": "What is a list?"}], "max_tokens": max_tokens, "stream": stream})
}

/// Waits until the condition holds.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LIMIT, wait)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}
