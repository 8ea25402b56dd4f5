//! A worker's state, shared by its connections, and the phases of its life.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use super::config::{Config, StopMode};
use super::fault::Rules;
use super::kept::Kept;
use super::kv_events::Publisher;
use super::ledger::{Ledger, Stats};
use super::pacer::Pacer;
use super::transfer::{Connector, Ping, Role, Shelf, SideChannel, TransferConfig};

/// vLLM's word for an engine that does not sleep.
pub(super) const AWAKE: &str = "awake";

/// Phase of the worker's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    Draining(Duration),
    /// No open request goes on.
    Hanging,
    /// As `Hanging`, with the port closed and idle connections gone.
    Closed,
    Exiting,
}

impl Phase {
    /// True if open requests get no further byte.
    pub(super) fn hangs(self) -> bool {
        matches!(self, Self::Hanging | Self::Closed)
    }
}

/// One engine of the worker.
pub(super) struct Rank {
    pub(super) pacer: Arc<Pacer>,
    pub(super) finished_by_stop: AtomicU64,
    pub(super) finished_by_length: AtomicU64,
    received: Mutex<Received>,
}

/// Totals of the transfers to one engine.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Received {
    pub(super) count: u64,
    pub(super) failed: u64,
    pub(super) bytes: u64,
    /// Seconds of the engine's clock.
    pub(super) seconds: f64,
}

impl Rank {
    fn new(config: &Config, publisher: Option<Arc<Publisher>>) -> Self {
        Self {
            pacer: Pacer::publishing(config.engine.clone(), config.speed, publisher),
            finished_by_stop: AtomicU64::new(0),
            finished_by_length: AtomicU64::new(0),
            received: Mutex::default(),
        }
    }

    pub(super) fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock()
    }
}

/// The worker's part in split pairs.
pub(super) struct Transfer {
    pub(super) config: TransferConfig,
    pub(super) shelf: Arc<Shelf>,
    pub(super) side_channel: SideChannel,
}

impl Transfer {
    /// Opens the side channel. Fails when its port is taken.
    pub(super) async fn start(worker: &Config) -> std::io::Result<Option<Self>> {
        let Some(config) = worker.transfer.clone() else {
            return Ok(None);
        };
        let shelf = Shelf::new(worker.data_parallel, worker.engine.blocks);
        let listen = SideChannel::listen(
            worker.listen.ip(),
            &config,
            worker.engine.block_tokens,
            Arc::clone(&shelf),
        );
        Ok(Some(Self {
            side_channel: listen.await?,
            config,
            shelf,
        }))
    }
}

/// State shared by all connections of one worker.
pub(super) struct Worker {
    pub(super) config: Config,
    /// One engine for each data-parallel rank; at least one.
    pub(super) ranks: Vec<Rank>,
    pub(super) transfer: Option<Transfer>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) responses: Kept,
    /// Seconds since 1970.
    pub(super) started_unix: u64,
    rules: Mutex<Rules>,
    /// Which of vLLM's gauges of sleep is 1.
    sleep_gauge: Mutex<Option<&'static str>>,
    is_sleeping: AtomicBool,
    /// Microseconds since 1970, as in `/metrics`: another value means that the process was restarted.
    process_start_us: AtomicU64,
}

impl Worker {
    /// `publishers`: one for each rank, or none.
    pub(super) fn new(
        config: Config,
        transfer: Option<Transfer>,
        publishers: Vec<Arc<Publisher>>,
    ) -> Arc<Self> {
        let process_start_us = config
            .process_start_us
            .unwrap_or_else(super::ledger::unix_us);
        Arc::new(Self {
            process_start_us: AtomicU64::new(process_start_us),
            ranks: (0..config.data_parallel)
                .map(|rank| Rank::new(&config, publishers.get(rank as usize).cloned()))
                .collect(),
            transfer,
            ledger: Ledger::new(config.log_entries_max.max(1)),
            phase: watch::Sender::new(Phase::Running),
            responses: Kept::default(),
            rules: Mutex::default(),
            sleep_gauge: Mutex::new(Some(AWAKE)),
            is_sleeping: AtomicBool::new(false),
            started_unix: super::ledger::unix_us() / 1_000_000,
            config,
        })
    }

    pub(super) fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock()
    }

    /// Microseconds since 1970 at which the modelled process started.
    pub(super) fn process_start_us(&self) -> u64 {
        self.process_start_us.load(Ordering::Relaxed)
    }

    /// The effects of a restart that remain once the worker answers again: an empty cache and a later start.
    pub(super) fn restart(&self) -> u64 {
        for rank in &self.ranks {
            rank.pacer.forget_cache();
        }
        if let Some(transfer) = &self.transfer {
            transfer.shelf.restart();
        }
        self.responses.forget();
        // At least a second later, because readers may keep whole seconds only.
        let now = super::ledger::unix_us();
        let later = |start: u64| Some(now.max(start + 1_000_000));
        let before =
            self.process_start_us
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        later(before.unwrap_or_else(|same| same)).unwrap_or(now)
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    pub(super) fn stats(&self) -> Stats {
        let counters = self.ranks.iter().map(|rank| rank.pacer.counters());
        let (hit_tokens, queried_tokens) = counters.fold((0, 0), |(hit, queried), of_rank| {
            (hit + of_rank.hit_tokens, queried + of_rank.queried_tokens)
        });
        Stats {
            hit_tokens,
            queried_tokens,
            ..self.ledger.stats()
        }
    }

    /// Stops or resumes all engines.
    pub(super) fn freeze(&self, frozen: bool) {
        for rank in &self.ranks {
            rank.pacer.freeze(frozen);
        }
    }

    /// Which of vLLM's gauges of sleep is 1; none while nothing but its scheduler stands.
    pub(super) fn sleep_gauge(&self) -> Option<&'static str> {
        *self.sleep_gauge.lock()
    }

    /// Whether it says at `/is_sleeping` that it sleeps.
    pub(super) fn is_sleeping(&self) -> bool {
        self.is_sleeping.load(Ordering::Relaxed)
    }

    /// Sends all engines to sleep at a level: at 1 and 2 their caches are empty, at 0 they stand. They keep requests.
    pub(super) fn sleep(&self, level: u8) {
        let gauge = match level {
            0 => None,
            1 => Some("weights_offloaded"),
            _ => Some("discard_all"),
        };
        if level > 0 {
            self.forget_caches();
        }
        self.note_sleep(gauge, true);
    }

    /// Wakes all engines, or loads just their weights: they say in their gauges then that they are awake, and stand still.
    pub(super) fn wake(&self, wholly: bool) {
        self.note_sleep(Some(AWAKE), self.is_sleeping() && !wholly);
    }

    fn note_sleep(&self, gauge: Option<&'static str>, is_sleeping: bool) {
        *self.sleep_gauge.lock() = gauge;
        self.is_sleeping.store(is_sleeping, Ordering::Relaxed);
        self.freeze(is_sleeping);
    }

    fn forget_caches(&self) {
        for rank in &self.ranks {
            rank.pacer.forget_cache();
        }
    }

    /// The rank with the fewest requests, which vLLM chooses: a waiting one weighs as much as four that run.
    pub(super) fn idlest_rank(&self) -> u32 {
        let load = |rank: &Rank| {
            let gauges = rank.pacer.gauges();
            4 * (gauges.waiting + gauges.deferred) + gauges.running
        };
        let ranks = self.ranks.iter().map(load).zip(0..);
        ranks.min().map_or(0, |(_, rank)| rank)
    }

    /// SGLang's prefill takes the rank that the number of the room says.
    pub(super) fn follows_rooms(&self) -> bool {
        let config = self.transfer.as_ref().map(|transfer| &transfer.config);
        config.is_some_and(|config| {
            config.connector == Connector::Sglang && config.role == Role::Prefill
        })
    }

    /// How it registers at a proxy, if it does; `http` is its own address.
    pub(super) fn ping(&self, http: SocketAddr) -> Option<Ping> {
        let transfer = self.transfer.as_ref()?;
        let side_channel = transfer.side_channel.addr();
        let ranks = self.config.data_parallel;
        Ping::new(&transfer.config, http, side_channel, ranks)
    }

    pub(super) fn terminate(&self, mode: StopMode) {
        self.phase.send_replace(match mode {
            StopMode::Hang => Phase::Hanging,
            StopMode::Drain(limit) => Phase::Draining(limit),
            StopMode::Exit => Phase::Exiting,
        });
    }
}
