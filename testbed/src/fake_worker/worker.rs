//! A worker's state, shared by its connections, and the phases of its life.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use super::config::{Config, StopMode};
use super::fault::Rules;
use super::kept::Kept;
use super::ledger::{Ledger, Stats};
use super::pacer::Pacer;

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

/// State shared by all connections of one worker.
pub(super) struct Worker {
    pub(super) config: Config,
    pub(super) pacer: Arc<Pacer>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) finished_by_stop: AtomicU64,
    pub(super) finished_by_length: AtomicU64,
    pub(super) responses: Kept,
    /// Seconds since 1970.
    pub(super) started_unix: u64,
    rules: Mutex<Rules>,
    /// Microseconds since 1970, as in `/metrics`: another value means that the process was restarted.
    process_start_us: AtomicU64,
}

impl Worker {
    pub(super) fn new(config: Config) -> Arc<Self> {
        let process_start_us = config
            .process_start_us
            .unwrap_or_else(super::ledger::unix_us);
        Arc::new(Self {
            process_start_us: AtomicU64::new(process_start_us),
            pacer: Pacer::new(config.engine.clone(), config.speed),
            ledger: Ledger::new(config.log_entries_max.max(1)),
            phase: watch::Sender::new(Phase::Running),
            finished_by_stop: AtomicU64::new(0),
            finished_by_length: AtomicU64::new(0),
            responses: Kept::default(),
            rules: Mutex::default(),
            started_unix: super::ledger::unix_us() / 1_000_000,
            config,
        })
    }

    pub(super) fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().expect("no holder of this lock panics")
    }

    /// Microseconds since 1970 at which the modelled process started.
    pub(super) fn process_start_us(&self) -> u64 {
        self.process_start_us.load(Ordering::Relaxed)
    }

    /// The effects of a restart that remain once the worker answers again: an empty cache and a later start.
    pub(super) fn restart(&self) -> u64 {
        self.pacer.forget_cache();
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
        let counters = self.pacer.counters();
        Stats {
            hit_tokens: counters.hit_tokens,
            queried_tokens: counters.queried_tokens,
            ..self.ledger.stats()
        }
    }

    pub(super) fn terminate(&self, mode: StopMode) {
        self.phase.send_replace(match mode {
            StopMode::Hang => Phase::Hanging,
            StopMode::Drain(limit) => Phase::Draining(limit),
            StopMode::Exit => Phase::Exiting,
        });
    }
}
