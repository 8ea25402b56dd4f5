//! KV events, published as vLLM 0.32 publishes them: a PUB socket for what happens to blocks, a ROUTER socket for what
//! was published before.
//!
//! The engine model knows blocks by their hashes alone, so the token ids in events are made up: zeros. Everything else is
//! as in vLLM: a message a step, numbers from 0 in each process, a bounded buffer for replays, nothing about blocks that
//! were stored before.

mod encode;
mod zmtp;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::engine::Change;

/// Messages that a slow subscriber may be behind; then it loses some, as with ZeroMQ.
const QUEUE_MAX: usize = 10_000;

/// How a worker publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEventsConfig {
    /// The topic of all messages. Default empty.
    pub topic: String,
    /// Whether what was published can be asked for. Default true.
    pub replay: bool,
    /// Messages that can be asked for. Default 10,000.
    pub buffer: usize,
    /// Events in arrays, as up to vLLM 0.22, rather than in maps. Default false.
    pub arrays: bool,
    /// Taken with every hash, as engines draw a seed before vLLM 0.30. Default 0.
    pub hash_seed: u64,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self {
            topic: String::new(),
            replay: true,
            buffer: 10_000,
            arrays: false,
            hash_seed: 0,
        }
    }
}

/// How published events misbehave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvEventsFault {
    /// They do not.
    None,
    /// Messages do not reach subscribers; they can be asked for.
    Lost,
    /// Messages reach nobody and cannot be asked for.
    LostForGood,
    /// Subscribers get something else in place of each payload; what can be asked for is as it should be.
    Garbage,
    /// Subscribers get a header that promises more than anybody should take.
    Oversize,
    /// All connections are cut, and none is accepted.
    Closed,
}

/// One engine's publisher.
pub(super) struct Publisher {
    config: KvEventsConfig,
    block_tokens: u32,
    rank: u32,
    state: Mutex<State>,
    sent: broadcast::Sender<zmtp::Frames>,
    /// Another number: connections are cut.
    life: watch::Sender<u64>,
    events: SocketAddr,
    replay: Option<SocketAddr>,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

struct State {
    next: u64,
    buffer: VecDeque<(u64, Vec<u8>)>,
    fault: KvEventsFault,
}

/// Opens a publisher for each rank, on free ports of `host`; none for a worker that does not publish. Fails when no port
/// is free.
pub(super) async fn start(
    config: Option<&KvEventsConfig>,
    host: IpAddr,
    ranks: u32,
    block_tokens: u32,
) -> io::Result<Vec<Arc<Publisher>>> {
    let Some(config) = config else {
        return Ok(Vec::new());
    };
    let mut publishers = Vec::new();
    for rank in 0..ranks {
        publishers.push(Publisher::start(config.clone(), host, block_tokens, rank).await?);
    }
    Ok(publishers)
}

/// The same changes, of blocks with other hashes.
fn seeded(changes: &[Change], seed: u64) -> Cow<'_, [Change]> {
    if seed == 0 {
        return changes.into();
    }
    let seeded = changes.iter().map(|change| match *change {
        Change::Removed(block) => Change::Removed(block ^ seed),
        Change::Stored {
            parent,
            block,
            owner,
        } => Change::Stored {
            parent: parent.map(|parent| parent ^ seed),
            block: block ^ seed,
            owner,
        },
    });
    seeded.collect()
}

/// The answer to `GET /kv_event_sources`.
pub(super) fn sources<'a>(publishers: impl Iterator<Item = &'a Arc<Publisher>>) -> Value {
    let sources = publishers.map(|publisher| {
        let source = json!({
            "enable_kv_cache_events": true, "publisher": "zmq",
            "endpoint": format!("tcp://*:{}", publisher.events.port()),
            "replay_endpoint": publisher.replay.map(|replay| format!("tcp://*:{}", replay.port())),
            "buffer_steps": publisher.config.buffer, "hwm": 100_000, "max_queue_size": 100_000,
            "topic": publisher.config.topic,
        });
        (publisher.rank.to_string(), source)
    });
    Value::Object(sources.collect())
}

impl Publisher {
    async fn start(
        config: KvEventsConfig,
        host: IpAddr,
        block_tokens: u32,
        rank: u32,
    ) -> io::Result<Arc<Self>> {
        let any = (host, 0);
        let events = TcpListener::bind(any).await?;
        let replay = match config.replay {
            true => Some(TcpListener::bind(any).await?),
            false => None,
        };
        let publisher = Arc::new(Self {
            block_tokens,
            rank,
            state: Mutex::new(State {
                next: 0,
                buffer: VecDeque::new(),
                fault: KvEventsFault::None,
            }),
            sent: broadcast::Sender::new(QUEUE_MAX),
            life: watch::Sender::new(0),
            events: events.local_addr()?,
            replay: replay.as_ref().map(TcpListener::local_addr).transpose()?,
            tasks: Mutex::default(),
            config,
        });
        let mut tasks = vec![tokio::spawn(accept(
            events,
            Arc::downgrade(&publisher),
            false,
        ))];
        tasks.extend(
            replay.map(|replay| tokio::spawn(accept(replay, Arc::downgrade(&publisher), true))),
        );
        let tasks = tasks.into_iter().map(AbortOnDropHandle::new);
        publisher.tasks.lock().extend(tasks);
        Ok(publisher)
    }

    /// Publishes what happened in a step; nothing for nothing.
    ///
    /// `sessions`: session ids of sequences that have one.
    pub(super) fn publish(&self, changes: &[Change], sessions: &HashMap<u64, Arc<str>>) {
        if changes.is_empty() {
            return;
        }
        let session_of = |owner: u64| sessions.get(&owner).map(|session| &**session);
        let arrays = self.config.arrays;
        let changes = &*seeded(changes, self.config.hash_seed);
        let payload = encode::batch(changes, self.block_tokens, self.rank, arrays, session_of);
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let fault = state.fault;
        if fault != KvEventsFault::LostForGood {
            if state.buffer.len() == self.config.buffer.max(1) {
                state.buffer.pop_front();
            }
            state.buffer.push_back((number, payload.clone()));
        }
        let payload = match fault {
            KvEventsFault::Lost | KvEventsFault::LostForGood | KvEventsFault::Closed => return,
            KvEventsFault::Garbage => b"\x93 no batch at all".to_vec(),
            KvEventsFault::None | KvEventsFault::Oversize => payload,
        };
        let topic = self.config.topic.clone().into_bytes();
        let mut frames = zmtp::Frames::of(&[&topic, &number.to_be_bytes(), &payload]);
        if fault == KvEventsFault::Oversize {
            frames = zmtp::Frames::oversize();
        }
        // Without a subscriber it is lost, as with ZeroMQ.
        let _ = self.sent.send(frames);
    }

    /// Another process: connections are cut, and numbers begin anew.
    pub(super) fn restart(&self) {
        let mut state = self.state.lock();
        state.next = 0;
        state.buffer.clear();
        drop(state);
        self.life.send_modify(|life| *life += 1);
    }

    pub(super) fn set(&self, fault: KvEventsFault) {
        self.state.lock().fault = fault;
        if fault == KvEventsFault::Closed {
            self.life.send_modify(|life| *life += 1);
        }
    }

    async fn serve(&self, mut stream: TcpStream, is_replay: bool) -> io::Result<()> {
        // Before the handshake ends, so that nothing is missed behind it.
        let mut sent = self.sent.subscribe();
        let kind = if is_replay { "ROUTER" } else { "PUB" };
        zmtp::shake_hands(&mut stream, kind).await?;
        if is_replay {
            loop {
                let asked = zmtp::read_message(&mut stream).await?;
                self.replay(&mut stream, asked.last().map_or(&[], |number| number))
                    .await?;
            }
        }
        // Its subscription; there is one topic.
        zmtp::read_message(&mut stream).await?;
        let (mut read, mut write) = stream.split();
        let mut ignored = [0; 64];
        loop {
            tokio::select! {
                frames = sent.recv() => match frames {
                    Ok(frames) => frames.write(&mut write).await?,
                    // It is too slow; ZeroMQ drops, too.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return Ok(()),
                },
                read = tokio::io::AsyncReadExt::read(&mut read, &mut ignored) => if read? == 0 {
                    return Ok(());
                },
            }
        }
    }

    async fn replay(&self, stream: &mut TcpStream, from: &[u8]) -> io::Result<()> {
        let from = <[u8; 8]>::try_from(from).map_err(io::Error::other)?;
        let from = u64::from_be_bytes(from);
        let buffered: Vec<_> = {
            let state = self.state.lock();
            let wanted = state.buffer.iter().filter(|(number, _)| *number >= from);
            wanted.cloned().collect()
        };
        let topic = self.config.topic.as_bytes();
        for (number, payload) in buffered {
            let frames = zmtp::Frames::of(&[b"", topic, &number.to_be_bytes(), &payload]);
            frames.write(stream).await?;
        }
        let end = zmtp::Frames::of(&[b"", b"", &u64::MAX.to_be_bytes(), b""]);
        end.write(stream).await
    }
}

async fn accept(listener: TcpListener, publisher: std::sync::Weak<Publisher>, is_replay: bool) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (Ok((stream, _)), Some(publisher)) = (accepted, publisher.upgrade()) else {
            return;
        };
        if publisher.state.lock().fault == KvEventsFault::Closed {
            continue;
        }
        connections.spawn(async move {
            let mut life = publisher.life.subscribe();
            let is_cut = life.changed();
            tokio::select! {
                ended = publisher.serve(stream, is_replay) => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection of KV events ended");
                },
                _ = is_cut => {}
            }
        });
    }
}
