//! Chats as clients send them, and what clients see of the answers.

use std::net::SocketAddr;

use grapevine_testbed::fake_worker::{Config, EngineConfig, FakeWorker};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use crate::http1::{self, Connection, Cut, Head};

/// Default model of all fake workers.
pub const MODEL: &str = "fake-model";

/// Where chats are sent.
pub const CHATS: &str = "/v1/chat/completions";

/// The request that asks for the headers about a placement.
pub const EXPLAIN: (&str, &str) = ("x-grapevine-explain", "1");

/// A fake worker that produces a token in each `step`, whatever its load.
pub fn paced(step: Duration) -> Config {
    Config {
        models: vec![MODEL.to_owned()],
        engine: EngineConfig {
            prefill_tokens_per_s: 1e6,
            running_max: 1_024,
            step_base: step,
            step_per_sequence: Duration::ZERO,
            ..EngineConfig::default()
        },
        ..Config::default()
    }
}

/// Starts fake workers of one configuration in this process.
pub async fn workers(count: usize, config: &Config) -> Vec<FakeWorker> {
    let mut workers = Vec::with_capacity(count);
    for _ in 0..count {
        workers.push(worker(config.clone()).await);
    }
    workers
}

/// Starts one fake worker in this process.
pub async fn worker(config: Config) -> FakeWorker {
    let started = FakeWorker::start(config).await;
    started.expect("a fake worker can be started")
}

/// A stream that has begun and goes on, of a client with this key. Panics unless it was let in.
pub async fn held(data: SocketAddr, key: &str) -> Connection {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str())];
    let body = streamed("held", 100_000).to_string();
    let bytes = http1::request("POST", "/v1/chat/completions", &headers, body.as_bytes());
    let mut connection = Connection::open(data).await;
    connection.send(&bytes).await.expect("taken");
    assert_eq!(connection.head().await.expect("answered").status, 200);
    connection
}

/// A plain chat of one user message.
pub fn chat(prompt: &str, tokens: u32) -> Value {
    json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": prompt }],
        "max_tokens": tokens,
    })
}

/// The same as a stream.
pub fn streamed(prompt: &str, tokens: u32) -> Value {
    let mut body = chat(prompt, tokens);
    body["stream"] = true.into();
    body
}

/// Distinct chats as a service gets them: system prompts, each with many first user messages. In a quiet cluster
/// the chats of one system prompt share a home, so there are many more system prompts than workers.
pub fn distinct(count: usize) -> Vec<Value> {
    const SYSTEMS: usize = 251;
    let chat = |number: usize| {
        let system = format!("You are assistant {}. ", number % SYSTEMS).repeat(40);
        let user = format!("Question {number}: what is {number} squared?");
        json!({
            "model": MODEL,
            "messages": [
                { "role": "system", "content": system },
                { "role": "user", "content": user },
            ],
        })
    };
    (0..count).map(chat).collect()
}

/// How a streamed request ended, as its client sees it.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// `[DONE]` and the end of the body.
    Done,
    /// An error event, no `[DONE]`, and the end of the body.
    ErrorEvent(Value),
    /// The body ended well-formed, without `[DONE]` or an error event.
    Silent,
    /// Another status than 200; the stream never began.
    Status(u16, String),
    /// The connection broke.
    Cut,
}

/// A streamed request and its result.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The worker that answered, if a head arrived.
    pub worker: Option<String>,
    /// Data of the events in order, error and `[DONE]` included.
    pub events: Vec<String>,
    /// How it ended.
    pub ending: Ending,
    /// When it ended.
    pub ended: Instant,
}

impl Outcome {
    /// A byte of the answer reached the client.
    pub fn had_begun(&self) -> bool {
        let news = |event: &&String| !event.starts_with("{\"error\"");
        self.events.iter().any(|event| news(&event))
    }

    /// The text that the events carry.
    pub fn text(&self) -> String {
        self.events.iter().map(|event| text_of(event)).collect()
    }
}

/// The text of one chat event; empty for any other event.
fn text_of(event: &str) -> String {
    let event: Value = serde_json::from_str(event).unwrap_or_default();
    let content = &event["choices"][0]["delta"]["content"];
    content.as_str().unwrap_or_default().to_owned()
}

/// A streamed request whose head has arrived.
pub struct Stream {
    connection: Connection,
    head: Head,
    lines: Vec<u8>,
    events: Vec<String>,
}

impl Stream {
    /// Sends a streamed chat and waits for the head of its answer.
    pub async fn open(address: SocketAddr, body: &Value) -> Result<Self, Cut> {
        let mut connection = Connection::try_open(address).await.map_err(|_| Cut)?;
        let body = body.to_string();
        let path = "/v1/chat/completions";
        let bytes = http1::request("POST", path, &[EXPLAIN], body.as_bytes());
        connection.send(&bytes).await?;
        let head = connection.head().await?;
        Ok(Self {
            connection,
            head,
            lines: Vec::new(),
            events: Vec::new(),
        })
    }

    /// Status and headers.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Reads until at least `count` events have arrived, or the body has ended.
    pub async fn read_events(&mut self, count: usize) -> Result<(), Cut> {
        while self.events.len() < count {
            match self.connection.data().await? {
                Some(data) => self.take(&data),
                None => break,
            }
        }
        Ok(())
    }

    fn take(&mut self, data: &[u8]) {
        self.lines.extend_from_slice(data);
        while let Some(end) = self.lines.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.lines.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(data) = line.trim_end().strip_prefix("data: ") {
                self.events.push(data.to_owned());
            }
        }
    }

    /// Reads to the end.
    pub async fn finish(mut self) -> Outcome {
        let worker = self.head.header("x-grapevine-worker").map(str::to_owned);
        let ending = if self.head.status == 200 {
            match self.read_events(usize::MAX).await {
                Err(Cut) => Ending::Cut,
                Ok(()) => last_word(&self.events),
            }
        } else {
            let body = self.connection.rest().await.unwrap_or_default();
            Ending::Status(
                self.head.status,
                String::from_utf8_lossy(&body).into_owned(),
            )
        };
        Outcome {
            worker,
            events: self.events,
            ending,
            ended: Instant::now(),
        }
    }

    /// Leaves without reading the rest; by a reset or a FIN.
    pub fn leave(self, by_reset: bool) {
        if by_reset {
            self.connection.reset();
        }
    }
}

fn last_word(events: &[String]) -> Ending {
    let error = |event: &String| {
        let event: Value = serde_json::from_str(event).ok()?;
        event.get("error").cloned()
    };
    let errors: Vec<Value> = events.iter().filter_map(error).collect();
    let done = events.last().is_some_and(|last| last == "[DONE]");
    match (errors.as_slice(), done) {
        ([], true) => Ending::Done,
        ([], false) => Ending::Silent,
        ([one], false) if events.last().and_then(error).is_some() => {
            Ending::ErrorEvent(one.clone())
        }
        _ => panic!("an error event must be the only one and the last event: {events:?}"),
    }
}

/// Sends a streamed chat and reads it to its end.
pub async fn stream(address: SocketAddr, body: &Value) -> Outcome {
    match Stream::open(address, body).await {
        Ok(stream) => stream.finish().await,
        Err(Cut) => Outcome {
            worker: None,
            events: Vec::new(),
            ending: Ending::Cut,
            ended: Instant::now(),
        },
    }
}
