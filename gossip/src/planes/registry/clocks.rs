//! Wall clocks of peers that are ahead of ours: shown for a while, and told once a minute. Pure.
//!
//! By what a peer's clock says, and not by the stamps of its entries: a clock that was ahead for a moment is carried on by
//! the stamps of all replicas for as long as it was ahead.

use std::time::{Duration, Instant};

use crate::hlc::DRIFT_ALARM;
use crate::metrics::Metrics;
use crate::replica::ReplicaId;

/// When clocks were found to differ.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// Last, while that is shown.
    met: Option<Instant>,
    /// When the log was told.
    told: Option<Instant>,
}

impl Clocks {
    /// The clock of a peer is that far ahead.
    pub(super) fn compare(
        &mut self,
        peer: &ReplicaId,
        lead: Duration,
        metrics: &Metrics,
        now: Instant,
    ) {
        if lead <= DRIFT_ALARM {
            return;
        }
        self.show(lead, metrics, now);
        let is_fresh = |told: Instant| now.saturating_duration_since(told) < TOLD_EVERY;
        if !self.told.is_some_and(is_fresh) {
            self.told = Some(now);
            tracing::warn!(replica = %peer, ?lead, "the clock of this peer is ahead of ours; check both");
        }
    }

    pub(super) fn show(&mut self, lead: Duration, metrics: &Metrics, now: Instant) {
        metrics.clock_drift.set(lead.as_secs() as i64);
        self.met = Some(now);
    }

    /// Time passes.
    pub(super) fn age(&mut self, metrics: &Metrics, now: Instant) {
        let is_over = |met: &mut Instant| now.saturating_duration_since(*met) >= SHOWN_FOR;
        if self.met.take_if(is_over).is_some() {
            metrics.clock_drift.set(0);
        }
    }
}

/// How long a clock that is ahead is shown: peers are compared now and then, and an alarm must end once clocks are right.
const SHOWN_FOR: Duration = Duration::from_secs(3600);
/// Each exchange would tell it again.
const TOLD_EVERY: Duration = Duration::from_secs(60);
