//! The listener at which other workers fetch blocks. It is Mooncake's bootstrap server as well.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::config::TransferConfig;
use super::plan::Told;
use super::shelf::{HoldState, Shelf};
use super::wire::{Answer, Ask, End, Hello, Lines};

/// What the side channel does with who comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SideChannelState {
    /// It serves.
    #[default]
    Open,
    /// Connections end at once.
    Closed,
    /// Connections stay open, and nobody answers.
    Silent,
}

/// A side channel that listens. Dropping it closes it.
pub(in crate::fake_worker) struct SideChannel {
    addr: SocketAddr,
    state: watch::Sender<SideChannelState>,
    task: AbortOnDropHandle<()>,
}

impl SideChannel {
    pub(in crate::fake_worker) async fn listen(
        host: IpAddr,
        config: &TransferConfig,
        block_tokens: u32,
        shelf: Arc<Shelf>,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind((host, config.side_channel_port)).await?;
        let addr = listener.local_addr()?;
        let state = watch::Sender::new(SideChannelState::Open);
        let desk = Arc::new(Desk {
            addr,
            shelf,
            tensor_parallel: config.tensor_parallel,
            block_tokens,
        });
        let task = tokio::spawn(serve(listener, desk, state.subscribe()));
        Ok(Self {
            addr,
            state,
            task: AbortOnDropHandle::new(task),
        })
    }

    pub(in crate::fake_worker) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Ends it, and all transfers.
    pub(in crate::fake_worker) fn close(&self) {
        self.task.abort();
    }

    /// Changes what it does; transfers under way end unless it is open.
    pub(in crate::fake_worker) fn set(&self, state: SideChannelState) {
        self.state.send_replace(state);
    }
}

/// What answers need.
struct Desk {
    addr: SocketAddr,
    shelf: Arc<Shelf>,
    tensor_parallel: u32,
    block_tokens: u32,
}

async fn serve(
    listener: TcpListener,
    desk: Arc<Desk>,
    mut state: watch::Receiver<SideChannelState>,
) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            changed = state.changed() => match changed {
                Ok(()) => open.shutdown().await,
                Err(_) => return,
            },
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let now = *state.borrow();
                    match now {
                        SideChannelState::Open => drop(open.spawn(transfer(Arc::clone(&desk), stream))),
                        SideChannelState::Closed => drop(stream),
                        SideChannelState::Silent => drop(open.spawn(silence(stream))),
                    }
                }
                Err(e) => {
                    tracing::warn!("accept failed: {e}");
                    tokio::task::yield_now().await;
                }
            },
            Some(_) = open.join_next() => {}
        }
    }
}

/// Keeps a connection without a word until the reader leaves it.
async fn silence(stream: TcpStream) {
    let mut byte = [0];
    while let Ok(()) = stream.readable().await {
        match stream.try_read(&mut byte) {
            Ok(0) => return,
            Err(e) if e.kind() != std::io::ErrorKind::WouldBlock => return,
            _ => {}
        }
    }
}

/// One reader, from its question to the end of its transfer. Blocks of a reader that vanishes stay.
async fn transfer(desk: Arc<Desk>, stream: TcpStream) {
    let mut lines = Lines::new(stream);
    if let Err(e) = desk.serve(&mut lines).await {
        tracing::debug!("a reader left: {e}");
    }
}

impl Desk {
    async fn serve(&self, lines: &mut Lines) -> std::io::Result<()> {
        let line = lines.line().await?;
        if line.starts_with("GET /") {
            return self.bootstrap(&line, lines).await;
        }
        let ask = match serde_json::from_str(&line)? {
            Hello::Ask(ask) => ask,
            Hello::Parcel(key, parcel) => {
                self.shelf.deliver(key, parcel);
                return lines.send(&true).await;
            }
        };
        let rank = match self.shake_hands(&ask) {
            Ok(rank) => rank,
            Err(why) => return lines.send(&Answer::Refused(why)).await,
        };
        lines.send(&Answer::Welcome).await?;
        let answer = self.answer(&ask, rank).await;
        lines.send(&answer).await?;
        if let Answer::Blocks { .. } = answer {
            let how = match lines.receive::<End>().await? {
                End::Read => HoldState::Read,
                End::GivenUp => HoldState::Released,
            };
            self.shelf.free(&ask.key, how);
            lines.send(&true).await?;
        }
        Ok(())
    }

    /// Mooncake's bootstrap server: which engine is which rank.
    async fn bootstrap(&self, request: &str, lines: &mut Lines) -> std::io::Result<()> {
        while !lines.line().await?.is_empty() {}
        let (status, body) = if request.starts_with("GET /query ") {
            ("200 OK", self.engines().to_string())
        } else {
            ("404 Not Found", r#"{"detail":"Not Found"}"#.to_owned())
        };
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        lines
            .write(&[head.as_bytes(), body.as_bytes()].concat())
            .await
    }

    /// By rank: the engine's id, and the address of each of its processes, by tensor and pipeline rank.
    fn engines(&self) -> Value {
        let address = format!("tcp://{}", self.addr);
        let engine = |(rank, id): (u32, String)| {
            let addresses = json!({ "0": { "0": address } });
            let entry = json!({ "engine_id": id, "worker_addr": addresses });
            (rank.to_string(), entry)
        };
        let engines = (0..).zip(self.shelf.engine_ids()).map(engine);
        Value::Object(engines.collect())
    }

    /// The rank that is asked, if one is named and the two engines fit.
    fn shake_hands(&self, ask: &Ask) -> Result<Option<u32>, String> {
        let rank = ask.engine_id.as_ref().map(|id| {
            let rank = self.shelf.rank_of(id);
            rank.ok_or_else(|| format!("unknown engine {id}"))
        });
        let rank = rank.transpose()?;
        let (own, other) = (self.tensor_parallel, ask.tensor_parallel);
        let told = ask.told_tensor_parallel.unwrap_or(own);
        if told != own || (own % other != 0 && other % own != 0) {
            return Err(format!(
                "tensor parallel size {own}, not {told}, against {other}"
            ));
        }
        let own = self.shelf.engine_ids().len() as u32;
        let told = ask.told_data_parallel.unwrap_or(own);
        if told != own {
            return Err(format!("data parallel size {own}, not {told}"));
        }
        let (own, other) = (self.block_tokens, ask.block_tokens);
        if own != other {
            return Err(format!("blocks of {own} tokens here, of {other} there"));
        }
        Ok(rank)
    }

    async fn answer(&self, ask: &Ask, rank: Option<u32>) -> Answer {
        let refused = |why: String| Answer::Refused(why);
        let hold = match self.shelf.find(&ask.key) {
            Some(hold) => hold,
            None if ask.early => self.shelf.wait_for(&ask.key).await,
            None => return refused(format!("no blocks for {}", ask.key)),
        };
        let is_it = |rank: Option<u32>| rank.is_none_or(|rank| rank == hold.rank);
        if !is_it(rank) || !is_it(ask.told_rank) {
            return refused(format!("the blocks are on rank {}", hold.rank));
        }
        let reader = Told {
            address: ask.reader.clone(),
            data_parallel: ask.data_parallel,
            tensor_parallel: ask.tensor_parallel,
        };
        if let Some(told) = hold.reader.as_ref().filter(|told| **told != reader) {
            return refused(format!("they are for {told:?}, not for {reader:?}"));
        }
        if ask.blocks.as_ref().is_some_and(|ids| *ids != hold.blocks) {
            return refused("other block ids".into());
        }
        Answer::Blocks {
            count: u32::try_from(hold.blocks.len()).unwrap_or(u32::MAX),
            tokens: hold.tokens,
            content: hold.content,
        }
    }
}
