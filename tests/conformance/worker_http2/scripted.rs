//! Workers that follow a script in HTTP/2, valid or not.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::h2_floods::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    frame,
};
use crate::house::House;

use super::front::{asking, begins_http2};
pub(super) const REFUSED_STREAM: u32 = 7;
pub(super) const INTERNAL_ERROR: u32 = 2;
pub(super) const NO_ERROR: u32 = 0;

/// The answer of a scripted worker to a request.
#[derive(Clone, Copy)]
pub(super) enum Say {
    /// Answers with this JSON.
    Answer(&'static str),
    /// Sends these frames, made for the stream's number; the connection stays.
    Frames(fn(u32) -> Vec<u8>),
    /// Sends these frames and ends the connection.
    Last(fn(u32) -> Vec<u8>),
}

/// A worker that follows its script: one entry for each request, and the last one for all later ones.
pub(super) struct Scripted {
    pub(super) url: String,
    /// Number of the connection and of the stream of each request.
    pub(super) asked: Arc<Mutex<Vec<(usize, u32)>>>,
    pub(super) _serving: JoinSet<()>,
}

impl Scripted {
    pub(super) async fn start(script: &'static [Say]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (shared, mut serving) = (Arc::clone(&asked), JoinSet::new());
        serving.spawn(async move {
            let (mut open, mut connections) = (JoinSet::new(), 0);
            while let Ok((mut stream, _)) = listener.accept().await {
                if !begins_http2(&stream).await {
                    // A health check, or a request for its models.
                    open.spawn(async move {
                        let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                        let mut read = vec![0; 16 << 10];
                        while let Ok(1..) = stream.read(&mut read).await {
                            if stream.write_all(ok).await.is_err() {
                                break;
                            }
                        }
                    });
                    continue;
                }
                let asked = Arc::clone(&shared);
                open.spawn(async move {
                    // The replica may leave at any time.
                    let _ = speak(stream, script, connections, &asked).await;
                });
                connections += 1;
            }
        });
        Self {
            url,
            asked,
            _serving: serving,
        }
    }

    pub(super) fn asked(&self) -> Vec<(usize, u32)> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

/// Bytes of a body for which a worker gives as much room anew, on the stream and on the connection.
const ACKNOWLEDGED: usize = 256;

fn more_room(stream: u32) -> Vec<u8> {
    let bytes = u32::try_from(ACKNOWLEDGED).expect("few");
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

pub(super) async fn speak(
    mut stream: TcpStream,
    script: &[Say],
    connection: usize,
    asked: &Mutex<Vec<(usize, u32)>>,
) -> std::io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, number @ ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await?;
        if kind == SETTINGS && flags == 0 {
            for setting in payload.chunks(6) {
                let value = u32::from_be_bytes(setting[2..].try_into().expect("four bytes"));
                // SETTINGS_INITIAL_WINDOW_SIZE, and SETTINGS_MAX_HEADER_LIST_SIZE.
                let is_bounded = ![4, 6].contains(&setting[1]) || value <= 64 << 10;
                assert!(is_bounded, "{setting:?}");
            }
            stream.write_all(&frame(SETTINGS, 1, 0, &[])).await?;
        }
        if kind == DATA && payload.len() >= ACKNOWLEDGED {
            let frames = [u32::from_be_bytes(number), 0].map(more_room);
            let times = payload.len() / ACKNOWLEDGED;
            stream.write_all(&frames.concat().repeat(times)).await?;
        }
        let is_whole = [HEADERS, DATA].contains(&kind) && flags & END_STREAM != 0;
        if !is_whole {
            continue;
        }
        let number = u32::from_be_bytes(number);
        let order = {
            let mut asked = asked.lock().expect("not poisoned");
            asked.push((connection, number));
            asked.len() - 1
        };
        match script[order.min(script.len() - 1)] {
            Say::Answer(json) => {
                let head = frame(
                    HEADERS,
                    END_HEADERS,
                    number,
                    &head_block("application/json"),
                );
                let body = frame(DATA, END_STREAM, number, json.as_bytes());
                stream.write_all(&[head, body].concat()).await?;
            }
            Say::Frames(frames) => stream.write_all(&frames(number)).await?,
            Say::Last(frames) => {
                stream.write_all(&frames(number)).await?;
                return stream.shutdown().await;
            }
        }
    }
}

/// `:status: 200` and `content-type` (RFC 7541: static names, literal values).
pub(super) fn head_block(kind: &str) -> Vec<u8> {
    let mut block = vec![0x88, 0x0f, 0x10];
    block.push(u8::try_from(kind.len()).expect("short"));
    block.extend(kind.as_bytes());
    block
}

pub(super) fn with_length(length: &str) -> Vec<u8> {
    let mut block = head_block("application/json");
    block.extend([0x0f, 0x0d, u8::try_from(length.len()).expect("short")]);
    block.extend(length.as_bytes());
    block
}

pub(super) fn goaway(last: u32) -> Vec<u8> {
    let payload = [last.to_be_bytes(), NO_ERROR.to_be_bytes()].concat();
    frame(GOAWAY, 0, 0, &payload)
}

pub(super) fn reset(stream: u32, reason: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &reason.to_be_bytes())
}

/// The head of a stream of events and its first one.
pub(super) fn first_event(stream: u32) -> Vec<u8> {
    let event = br#"data: {"choices":[{"delta":{"content":"one"}}]}"#;
    let event = [&event[..], b"\n\n"].concat();
    let head = head_block("text/event-stream");
    [
        frame(HEADERS, END_HEADERS, stream, &head),
        frame(DATA, 0, stream, &event),
    ]
    .concat()
}

/// Workers of these scripts, each the only one of a model of its own, and a replica that asks each of them once a
/// request.
pub(super) async fn scripted(scripts: &[&'static [Say]]) -> (House, Vec<Scripted>) {
    let mut plan = asking("on")
        .set("health.interval", "\"1h\"")
        .set("breaker.enabled", "false")
        // The script counts connections: on one lane the next client finds the one that rests.
        .set("listen.threads", "1");
    let mut workers = Vec::new();
    for (number, script) in scripts.iter().enumerate() {
        let worker = Scripted::start(script).await;
        plan = plan.worker(&worker.url, &[&format!("model {number}")]);
        workers.push(worker);
    }
    (House::with(plan, Vec::new()).await, workers)
}

pub(super) fn of_model(number: usize, mut body: serde_json::Value) -> serde_json::Value {
    body["model"] = format!("model {number}").into();
    body
}
