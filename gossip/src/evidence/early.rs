//! Early records: about workers, or epochs of them, that are not in the view yet.
//!
//! A worker's entry and what was placed there go different ways, and the sender of a record knew the worker. So a record
//! that comes first waits a while for the entry. Bounded, also for each sender; what finds no room, or waits in vain, is as
//! stale.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::known_workers::Fit;
use super::{EvidenceEvent, KnownWorkers, Record};
use crate::replica::ReplicaId;
use crate::worker::WorkerId;

#[derive(Debug, Default)]
pub(super) struct Early(BTreeMap<ReplicaId, OfSender>);

#[derive(Debug, Default)]
struct OfSender {
    /// In the order in which they came.
    waiting: BTreeMap<WorkerId, Vec<Waiting>>,
    /// Of all of them.
    links: usize,
}

#[derive(Debug)]
struct Waiting {
    record: Record,
    until: Instant,
}

impl Early {
    /// Records of this sender about this worker wait: what comes later goes behind them.
    pub(super) fn holds(&self, from: &ReplicaId, worker: &WorkerId) -> bool {
        let of_sender = self.0.get(from);
        of_sender.is_some_and(|of_sender| of_sender.waiting.contains_key(worker))
    }

    /// Has a record wait; false if there is no room.
    pub(super) fn keep(&mut self, from: &ReplicaId, record: Record, now: Instant) -> bool {
        let links = record.links().len();
        let of_sender = self.0.get(from).map_or(0, |of_sender| of_sender.links);
        if of_sender + links > OF_SENDER_MAX || self.links() + links > LINKS_MAX {
            return false;
        }
        let until = now + PATIENCE;
        self.wait(from, Waiting { record, until });
        true
    }

    /// What may be used by now, and how many records are given up.
    pub(super) fn take(
        &mut self,
        known: &KnownWorkers,
        now: Instant,
    ) -> (Vec<EvidenceEvent>, usize) {
        let (mut events, mut stale) = (Vec::new(), 0);
        for (from, of_sender) in std::mem::take(&mut self.0) {
            for one in of_sender.waiting.into_values().flatten() {
                match known.fit(&one.record, now) {
                    Fit::Now => events.push(one.record.received_from(from.clone())),
                    Fit::Later if now < one.until => self.wait(&from, one),
                    Fit::Later | Fit::Never => stale += 1,
                }
            }
        }
        (events, stale)
    }

    fn wait(&mut self, from: &ReplicaId, one: Waiting) {
        let of_sender = self.0.entry(from.clone()).or_default();
        of_sender.links += one.record.links().len();
        let worker = one.record.about().0.clone();
        of_sender.waiting.entry(worker).or_default().push(one);
    }

    /// Forgets what this replica sent.
    pub(super) fn forget(&mut self, from: &ReplicaId) {
        self.0.remove(from);
    }

    /// Whether anything of this peer waits.
    #[cfg(test)]
    pub(super) fn remembers(&self, peer: &ReplicaId) -> bool {
        self.0.contains_key(peer)
    }

    /// Of all that wait.
    fn links(&self) -> usize {
        self.0.values().map(|of_sender| of_sender.links).sum()
    }
}

/// How long a record waits. An entry takes a round of gossip or two; behind a lost connection it takes as long as that.
const PATIENCE: Duration = Duration::from_secs(10);
/// Links of all that wait, 8 bytes each.
const LINKS_MAX: usize = 64 * 1024;
/// Links of one sender's: whoever makes workers up leaves room for the others.
const OF_SENDER_MAX: usize = LINKS_MAX / 8;

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
        assert_eq!((epochs(&events), stale), (vec![2], 1), "a former life");
        assert!(
            early.holds(&from, &"w".parse().expect("valid")),
            "a later one"
        );
        let (events, stale) = early.take(&known_workers(&[("w", 3)]), now);
        assert_eq!((epochs(&events), stale), (vec![3], 0));
        let (events, stale) = early.take(&known_workers(&[]), now + PATIENCE);
        assert_eq!((events.len(), stale, early.links()), (0, 1, 0));
    }

    #[test]
    fn a_later_epoch_that_the_registry_never_has_waits_in_vain() {
        let now = tokio::time::Instant::now().into_std();
        let (from, known) = ("a".parse().expect("valid"), known_workers(&[("w", 1)]));
        let mut early = Early::default();
        assert!(early.keep(&from, record("w", u64::MAX, 1), now));
        assert!(early.keep(&from, record("w", 1, 1), now));
        let (events, stale) = early.take(&known, now);
        assert_eq!((epochs(&events), stale), (vec![1], 0));
        assert_eq!(early.take(&known, now + PATIENCE), (Vec::new(), 1));
    }

    #[test]
    fn they_are_bounded_and_leave_with_their_sender() {
        let now = tokio::time::Instant::now().into_std();
        let replica = |number: usize| format!("r{number}").parse::<ReplicaId>().expect("valid");
        let senders = LINKS_MAX / OF_SENDER_MAX;
        let mut early = Early::default();
        for number in 0..senders {
            let from = replica(number);
            for _ in 0..OF_SENDER_MAX / 256 {
                assert!(early.keep(&from, record("w", 1, 256), now));
            }
            assert!(!early.keep(&from, record("v", 1, 1), now), "its part");
        }
        assert!(
            !early.keep(&replica(senders), record("w", 1, 1), now),
            "all"
        );
        early.forget(&replica(0));
        assert!(!early.remembers(&replica(0)) && early.remembers(&replica(1)));
        assert!(!early.keep(&replica(1), record("w", 1, 1), now));
        assert!(early.keep(&replica(senders), record("w", 1, 1), now));
        (1..=senders).for_each(|number| early.forget(&replica(number)));
        assert_eq!(early.links(), 0);
    }

    #[test]
    fn what_one_sender_has_waiting_holds_up_nobody_else() {
        let now = tokio::time::Instant::now().into_std();
        let [liar, other] = ["a", "b"].map(|name| name.parse::<ReplicaId>().expect("valid"));
        let worker = "w".parse().expect("valid");
        let mut early = Early::default();
        assert!(early.keep(&liar, record("w", 9, 1), now));
        assert!(early.holds(&liar, &worker) && !early.holds(&other, &worker));
    }
}
