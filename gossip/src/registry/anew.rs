//! A map that cannot go on as it is: its replica was away for longer than removals are remembered, or its clock was so far
//! ahead that no other replica takes what was stamped then.

use super::{Entry, Registry};
use crate::hlc::{Drift, Stamp};
use crate::worker::{Source, WorkerId};

impl Registry {
    /// Drops everything but this replica's own configuration as read at start, after [`Reunion::StartOver`]: what
    /// another's file had may be removed by now. The clock stays, so that later writes still win over earlier ones.
    pub fn start_over(&mut self) {
        let configured = &self.configured;
        self.entries
            .retain(|_, entry| entry.stamp == Stamp::ZERO && configured.contains(&entry.id));
        self.summary.take();
    }

    /// Whether own stamps are so far ahead that no replica takes them whose clock says about `now_ms`. Not at the limit of
    /// what is taken: a liar could bring stamps there, and this clock be set back by a second.
    pub fn leads_too_far(&self, now_ms: u64) -> bool {
        matches!(Drift::of(self.clock.latest(), now_ms), Drift::Quarantine(_))
    }

    /// After that, once the own wall clock is right: drops what is stamped so far ahead, which no replica with a right clock
    /// has, and has later stamps go on behind what is left.
    ///
    /// `now_ms` is the time by two clocks, the later one: where ours is behind, nothing is too far ahead.
    pub fn begin_anew(&mut self, now_ms: u64) {
        self.entries
            .retain(|_, entry| !Drift::is_too_far(entry.stamp, now_ms));
        let stamps = self.entries.values().map(|entry| entry.stamp);
        self.clock.begin_anew(stamps.max().unwrap_or_default());
        self.summary.take();
    }

    /// The workers of which this replica wrote something into `former`, an earlier state of this map, that is gone without
    /// anything later in its place, and that nobody writes again by itself: an administrator's changes, and configuration
    /// that was read again.
    pub fn lost_since(&self, former: &Self) -> Vec<WorkerId> {
        let is_own = |entry: &Entry| {
            let is_by_hand = matches!(entry.source, Source::Admin | Source::Config | Source::Drain);
            is_by_hand && entry.writer.as_ref() == Some(&self.replica)
        };
        let is_gone = |entry: &Entry| {
            let now = self.entry(&entry.id, &entry.source);
            now.is_none_or(|now| now.order(entry).is_lt())
        };
        let lost = former
            .entries()
            .filter(|entry| is_own(entry) && is_gone(entry));
        let mut lost: Vec<_> = lost.map(|entry| entry.id.clone()).collect();
        lost.dedup();
        lost
    }
}
