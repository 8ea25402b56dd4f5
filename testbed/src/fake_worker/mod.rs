//! A worker that behaves as vLLM 0.32 does at the HTTP surface, without a model.
//!
//! It copies the behaviour that a naive fake lacks and that a router handles wrongly: a stream's 200 head
//! before admission, overload as 200 + error event + `[DONE]`, keep-alive comments while the engine is
//! frozen, streams left hanging on SIGTERM, idle connections closed after 5 s. It can be told to misbehave
//! ([`Rule`], `/_control/*`) and remembers what it saw ([`Entry`], [`Stats`]).
//!
//! Pure: `crate::engine`, `prompt`, `request`, `body`, `fault`. At the rim: `pacer` (time),
//! `connection` and `reply` (bytes), `server`, `generate`, `control`, `metrics`, `ledger`; `split` and `transfer`, the
//! roles prefill and decode.

mod body;
mod config;
mod connection;
mod control;
mod fault;
mod generate;
mod information;
mod kept;
mod kv_events;
mod ledger;
mod messages;
mod metrics;
mod pacer;
mod plain;
mod prompt;
mod realtime;
mod reply;
mod request;
mod route;
mod server;
mod split;
mod stored;
mod transfer;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

pub use crate::engine::EngineConfig;
pub use config::{Config, StopMode};
pub use fault::{BadSse, Canned, Drip, Fault, How, KvFault, Point, RULES_MAX, Rule, Stop, When};
pub use kv_events::{KvEventsConfig, KvEventsFault};
pub use ledger::{Entry, Leg, Stats};
pub use transfer::{Connector, Hold, HoldState, Role, SideChannelState, TransferConfig};

/// A running fake worker. Dropping it cuts its connections, a moment later; [`FakeWorker::kill`]
/// waits until they are cut.
pub struct FakeWorker {
    addr: SocketAddr,
    worker: Arc<worker::Worker>,
    task: AbortOnDropHandle<()>,
}

impl FakeWorker {
    /// Binds and serves. Fails when the address is taken or the configuration makes no sense.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        config.check().map_err(anyhow::Error::msg)?;
        let listener =
            listen(config.listen).with_context(|| format!("cannot listen on {}", config.listen))?;
        let addr = listener.local_addr().context("listener has no address")?;
        let transfer = worker::Transfer::start(&config).await;
        let transfer = transfer.context("cannot open the side channel")?;
        let (ranks, block_tokens) = (config.data_parallel, config.engine.block_tokens);
        let host = config.listen.ip();
        let publishers =
            kv_events::start(config.kv_events.as_ref(), host, ranks, block_tokens).await;
        let publishers = publishers.context("cannot open the ports of KV events")?;
        let worker = worker::Worker::new(config, transfer, publishers);
        let task = tokio::spawn(server::run(Arc::clone(&worker), listener));
        Ok(Self {
            addr,
            worker,
            task: AbortOnDropHandle::new(task),
        })
    }

    /// The address on which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://ip:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Adds a rule behind those in force. Fails above [`RULES_MAX`].
    pub fn add_rule(&self, rule: Rule) -> anyhow::Result<()> {
        self.worker
            .rules()
            .add(vec![rule])
            .map_err(anyhow::Error::msg)
    }

    /// Removes all rules; requests being served keep their fault.
    pub fn clear_rules(&self) {
        self.worker.rules().clear();
    }

    /// Stops (`true`) or resumes the engine while HTTP, `/health` and keep-alive comments go on.
    pub fn freeze(&self, frozen: bool) {
        self.worker.freeze(frozen);
    }

    /// Sends its engines to sleep at a level, 0 to 2, as `/sleep` does.
    pub fn sleep(&self, level: u8) {
        self.worker.sleep(level);
    }

    /// Wakes its engines, as `/wake_up` does.
    pub fn wake(&self) {
        self.worker.wake(true);
    }

    /// Looks like a restart: empties the cache, and moves `process_start_time_seconds` by at least a second.
    /// Connections stay open, so that a test can tell the two causes apart.
    pub fn restart(&self) {
        self.worker.restart();
    }

    /// The names of all blocks in the cache of a rank, as KV events have them, in no order.
    pub fn cached_blocks(&self, rank: u32) -> Vec<u64> {
        let rank = self.worker.ranks.get(rank as usize);
        rank.map_or_else(Vec::new, |rank| rank.pacer.blocks())
    }

    /// Makes the KV events of all ranks misbehave, or behave again.
    pub fn set_kv_events(&self, fault: KvEventsFault) {
        for rank in &self.worker.ranks {
            if let Some(publisher) = rank.pacer.publisher() {
                publisher.set(fault);
            }
        }
    }

    /// The address of its side channel, if it takes part in split pairs.
    pub fn side_channel(&self) -> Option<SocketAddr> {
        let transfer = self.worker.transfer.as_ref();
        transfer.map(|transfer| transfer.side_channel.addr())
    }

    /// Opens or closes the side channel; nothing without one.
    pub fn set_side_channel(&self, state: SideChannelState) {
        if let Some(transfer) = &self.worker.transfer {
            transfer.side_channel.set(state);
        }
    }

    /// Lets all blocks that are kept for other workers expire now; how many holds that were.
    pub fn expire_blocks(&self) -> usize {
        let transfer = self.worker.transfer.as_ref();
        transfer.map_or(0, |transfer| transfer.shelf.expire_all())
    }

    /// The blocks that it kept for other workers, and what became of them: ended holds first. Bounded.
    pub fn holds(&self) -> Vec<Hold> {
        let transfer = self.worker.transfer.as_ref();
        transfer.map_or_else(Vec::new, |transfer| transfer.shelf.holds())
    }

    /// Id of the engine of a data-parallel rank, new after each start; none without a side channel.
    pub fn engine_id(&self, rank: u32) -> Option<String> {
        let transfer = self.worker.transfer.as_ref();
        transfer.map(|transfer| transfer.shelf.engine_id(rank))
    }

    /// The requests that it saw, oldest first; bounded by [`Config::log_entries_max`]. `GET`s of known paths
    /// (probes) are only counted, in [`Stats::paths`].
    pub fn log(&self) -> Vec<Entry> {
        self.worker.ledger.entries()
    }

    /// Totals since start or [`FakeWorker::reset`]; token counts always since start.
    pub fn stats(&self) -> Stats {
        self.worker.stats()
    }

    /// Forgets log and totals.
    pub fn reset(&self) {
        self.worker.ledger.clear_entries();
        self.worker.ledger.clear_stats();
    }

    /// Begins to stop as SIGTERM makes vLLM stop; [`FakeWorker::stopped`] waits for the end.
    pub fn terminate(&self, mode: StopMode) {
        self.worker.terminate(mode);
    }

    /// Returns when the worker has stopped and all its connections are closed.
    pub async fn stopped(&mut self) {
        if let Err(e) = (&mut self.task).await {
            tracing::error!("fake worker ended badly: {e}");
        }
    }

    /// Cuts all connections and frees the port, as `kill -9` would.
    pub async fn kill(mut self) {
        self.terminate(StopMode::Exit);
        self.stopped().await;
    }
}

/// A listener with a long accept queue: bursts of hundreds of streams are ordinary here, and a
/// dropped SYN would show up as a second of latency that no worker caused.
fn listen(addr: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(4_096)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests;
