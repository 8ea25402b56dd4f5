//! What workers' common load was a moment ago.
//!
//! Pure. A peer that asks what this replica would have decided ([`crate::dry_run`]) asks about a moment that has passed
//! when the question is read; load that changed in between would look as if the replicas disagreed.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::common::Common;
use crate::worker::WorkerId;

/// Changes that are older are forgotten. Questions take milliseconds, on a busy machine some tens.
const REMEMBERED: Duration = Duration::from_millis(250);
/// Greatest number of changes; the oldest of more are forgotten. About 100 bytes each.
const CHANGES_MAX: usize = 4_096;

/// The changes of late, oldest first.
#[derive(Debug, Default)]
pub(super) struct Changes {
    remembered: VecDeque<Change>,
    /// When the latest of those that are forgotten was.
    forgotten: Option<Instant>,
}

#[derive(Debug)]
struct Change {
    at: Instant,
    worker: WorkerId,
    before: Common,
}

impl Changes {
    /// A worker's common load changes now from what it was.
    pub(super) fn add(&mut self, worker: &WorkerId, before: Common, now: Instant) {
        let is_old = |change: &Change| now.saturating_duration_since(change.at) > REMEMBERED;
        let changes = &mut self.remembered;
        while changes.len() >= CHANGES_MAX || changes.front().is_some_and(is_old) {
            self.forgotten = changes.pop_front().map(|change| change.at);
        }
        // In order, whatever the caller says: `since` counts on it.
        let at = changes.back().map_or(now, |last| last.at.max(now));
        let worker = worker.clone();
        changes.push_back(Change { at, worker, before });
    }

    /// How it was at a moment; `None` if changes after it are forgotten.
    pub(super) fn since(&self, moment: Instant) -> Option<Past> {
        if self.forgotten.is_some_and(|last| last > moment) {
            return None;
        }
        let later = self.remembered.iter().rev();
        let later = later.take_while(|change| change.at > moment);
        // The oldest of them comes last, and is what counted at the moment.
        let before = later.map(|change| (change.worker.clone(), change.before));
        Some(Past(before.collect()))
    }
}

/// Common load at a moment, where it is another one by now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past(BTreeMap<WorkerId, Common>);

impl Past {
    /// What it was; `None` if it has not changed since.
    pub fn of(&self, worker: &WorkerId) -> Option<Common> {
        self.0.get(worker).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Load;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn requests(requests: u32) -> Common {
        Common {
            known: Load {
                requests,
                ..Load::default()
            },
            ..Common::default()
        }
    }

    #[test]
    fn what_counted_at_a_moment_is_what_the_next_change_found() {
        let zero = tokio::time::Instant::now().into_std();
        let [a, b]: [WorkerId; 2] = ["a", "b"].map(|id| id.parse().expect("valid"));
        let mut changes = Changes::default();
        for (ms, worker, before) in [(10, &a, 1), (20, &b, 5), (20, &a, 2), (30, &a, 3)] {
            changes.add(worker, requests(before), zero + ms * MS);
        }
        for (ms, of_a, of_b) in [
            (0, Some(1), Some(5)),
            (9, Some(1), Some(5)),
            (10, Some(2), Some(5)),
            (20, Some(3), None),
            (29, Some(3), None),
            (30, None, None),
            (99, None, None),
        ] {
            let past = changes.since(zero + ms * MS).expect("all are remembered");
            assert_eq!(past.of(&a), of_a.map(requests), "{ms} ms");
            assert_eq!(past.of(&b), of_b.map(requests), "{ms} ms");
        }
    }

    #[test]
    fn memory_has_a_limit() {
        let zero = tokio::time::Instant::now().into_std();
        let worker: WorkerId = "a".parse().expect("valid");
        let mut changes = Changes::default();
        for before in 0..CHANGES_MAX as u32 + 10 {
            changes.add(&worker, requests(before), zero);
        }
        assert_eq!(changes.remembered.len(), CHANGES_MAX);
        assert_eq!(changes.since(zero - MS), None);
        changes.add(&worker, requests(7), zero + REMEMBERED + MS);
        assert_eq!(changes.remembered.len(), 1);
        assert_eq!(changes.since(zero - MS), None);
        let past = changes.since(zero).expect("it is remembered");
        assert_eq!(past.of(&worker), Some(requests(7)));
    }
}
