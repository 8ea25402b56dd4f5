//! What all checks of a worker are made of: probes, questions about itself, questions for a token.

use std::sync::Arc;

use grapevine_gossip::worker::Labels;
use grapevine_transfer::Connector;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::duty::Duty;
use super::engine_metrics::SleepState;
use super::metrics::UpstreamMetrics;
use super::worker::Worker;
use crate::config::{HealthConfig, TimeoutConfig};
use crate::lag::Lag;
use crate::live::Live;

/// How to ask.
#[derive(Debug)]
pub struct ProbeParts {
    /// Interval and path.
    pub config: Live<HealthConfig>,
    /// Where facts go that the registry does not know.
    pub learned: mpsc::Sender<Learned>,
    /// Where to count.
    pub metrics: UpstreamMetrics,
    /// Which workers are this replica's to probe.
    pub duty: Duty,
    /// Whether this replica is late itself.
    pub lag: Arc<Lag>,
    /// How blocks travel between workers that do not say.
    pub connector: Connector,
    /// How long requests wait on a silent worker (`first_token`).
    pub timeouts: Live<TimeoutConfig>,
}

impl ProbeParts {
    /// Whether a probe that failed just now says nothing: it ran out of time while this replica's own timers were
    /// late.
    pub(super) fn is_excused(&self, began: Instant) -> bool {
        began.elapsed() >= self.config.look().timeout && self.lag.was_late_since(began)
    }
}

/// What a worker reports about itself that the registry does not know yet.
#[derive(Debug)]
pub struct Learned {
    /// The worker that was asked.
    pub worker: Arc<Worker>,
    /// What it reported.
    pub fact: Fact,
}

/// Something that a worker reports about itself.
#[derive(Debug)]
pub enum Fact {
    /// The models that it serves.
    Models(Vec<String>),
    /// What it reports about its models is not what it reported before.
    Cards,
    /// What decides with whom it can pair, and is not known or has changed.
    Labels(Labels),
    /// Its engine sleeps, or does not any more: other than the registry knows.
    Sleep(SleepState),
    /// Seconds since 1970 at which it started: later than the registry knows, so its cache is empty.
    Started(u64),
}
