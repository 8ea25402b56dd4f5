//! Early records: about workers that are not in the view yet.
//!
//! A worker's entry and what was placed there go different ways, and the sender of a record knew the worker. So a record
//! that comes first waits a while for the entry. Bounded; what finds no room, or waits in vain, is as stale.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{EvidenceEvent, KnownWorkers, Record};
use crate::replica::ReplicaId;
use crate::worker::WorkerId;

#[derive(Debug, Default)]
pub(super) struct Early {
    /// In the order in which they came.
    waiting: BTreeMap<WorkerId, Vec<Waiting>>,
    /// Of all of them.
    links: usize,
}

#[derive(Debug)]
struct Waiting {
    from: ReplicaId,
    record: Record,
    until: Instant,
}

impl Early {
    /// Records about this worker wait: what comes later goes behind them.
    pub(super) fn holds(&self, worker: &WorkerId) -> bool {
        self.waiting.contains_key(worker)
    }

    /// Has a record wait; false if there is no room.
    pub(super) fn keep(&mut self, from: &ReplicaId, record: Record, now: Instant) -> bool {
        let links = self.links + record.links().len();
        if links > LINKS_MAX {
            return false;
        }
        self.links = links;
        let of_worker = self.waiting.entry(record.about().0.clone()).or_default();
        of_worker.push(Waiting {
            from: from.clone(),
            record,
            until: now + PATIENCE,
        });
        true
    }

    /// What may be used by now, and how many records are given up.
    pub(super) fn take(
        &mut self,
        known: &KnownWorkers,
        now: Instant,
    ) -> (Vec<EvidenceEvent>, usize) {
        let (mut events, mut stale) = (Vec::new(), 0);
        for (worker, waiting) in std::mem::take(&mut self.waiting) {
            let is_known = known.has(&worker);
            for one in waiting {
                if is_known && known.allows(&one.record) {
                    events.push(one.record.received_from(one.from));
                } else if is_known || one.until <= now {
                    stale += 1;
                } else {
                    let of_worker = self.waiting.entry(worker.clone()).or_default();
                    of_worker.push(one);
                }
            }
        }
        self.count_links();
        (events, stale)
    }

    /// Forgets what this replica sent.
    pub(super) fn forget(&mut self, from: &ReplicaId) {
        self.waiting.retain(|_, waiting| {
            waiting.retain(|one| one.from != *from);
            !waiting.is_empty()
        });
        self.count_links();
    }

    /// Whether anything of this peer waits.
    #[cfg(test)]
    pub(super) fn remembers(&self, peer: &ReplicaId) -> bool {
        self.waiting.values().flatten().any(|one| one.from == *peer)
    }

    fn count_links(&mut self) {
        let waiting = self.waiting.values().flatten();
        self.links = waiting.map(|one| one.record.links().len()).sum();
    }
}

/// How long a record waits. An entry takes a round of gossip or two; behind a lost connection it takes as long as that.
const PATIENCE: Duration = Duration::from_secs(10);
/// Links of all that wait, 8 bytes each.
const LINKS_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::super::known_workers::known_workers;
    use super::*;
    use crate::evidence::Evidence;

    fn record(worker: &str, epoch: u64, links: usize) -> Record {
        Record::Evidence(Evidence {
            worker: worker.parse().expect("valid"),
            epoch,
            links: vec![7; links],
        })
    }

    fn epochs(events: &[EvidenceEvent]) -> Vec<u64> {
        let epoch = |event: &EvidenceEvent| match event {
            EvidenceEvent::Evidence { evidence, .. } => evidence.epoch,
            event => panic!("{event:?}"),
        };
        events.iter().map(epoch).collect()
    }

    #[test]
    fn they_wait_for_their_worker_and_no_longer_than_that() {
        let now = tokio::time::Instant::now().into_std();
        let from: ReplicaId = "a".parse().expect("valid");
        let mut early = Early::default();
        for (worker, epoch) in [("w", 2), ("w", 1), ("w", 3), ("never", 1)] {
            assert!(early.keep(&from, record(worker, epoch, 1), now));
        }
        assert_eq!(early.take(&known_workers(&[]), now), (Vec::new(), 0));
        let (events, stale) = early.take(&known_workers(&[("w", 2)]), now);
        assert_eq!((epochs(&events), stale), (vec![2, 3], 1), "a former life");
        let (events, stale) = early.take(&known_workers(&[]), now + PATIENCE);
        assert_eq!((events.len(), stale, early.links), (0, 1, 0));
    }

    #[test]
    fn they_are_bounded_and_leave_with_their_sender() {
        let now = tokio::time::Instant::now().into_std();
        let [a, b] = ["a", "b"].map(|name| name.parse::<ReplicaId>().expect("valid"));
        let mut early = Early::default();
        let fit = LINKS_MAX / 256;
        for number in 0..fit {
            let from = if number % 2 == 0 { &a } else { &b };
            assert!(early.keep(from, record("w", 1, 256), now));
        }
        assert!(!early.keep(&a, record("w", 1, 1), now));
        early.forget(&a);
        assert!(!early.remembers(&a) && early.remembers(&b));
        assert!(
            early.keep(&b, record("w", 1, 1), now),
            "there is room again"
        );
        early.forget(&b);
        assert!(!early.holds(&"w".parse().expect("valid")) && early.links == 0);
    }
}
