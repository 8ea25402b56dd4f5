//! The bounded channel to the one listener.
//!
//! Never waits. What does not fit is dropped, and the listener gets [`EvidenceEvent::Lost`] for its sender
//! once there is room; the latest heat and the end of a replica are kept until they fit.

use std::collections::BTreeMap;

use tokio::sync::mpsc;

use super::{EvidenceEvent, HeatReport};
use crate::replica::ReplicaId;

/// The sending half, and what it owes.
pub(crate) struct ListenerQueue {
    sender: mpsc::Sender<EvidenceEvent>,
    /// For the first listener: what was received before it came waits in it.
    unclaimed: Option<mpsc::Receiver<EvidenceEvent>>,
    owed: BTreeMap<ReplicaId, Owed>,
}

/// What the listener must still learn about one replica.
#[derive(Default)]
struct Owed {
    is_gone: bool,
    is_lost: bool,
    heat: Option<HeatReport>,
}

impl Default for ListenerQueue {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        Self {
            sender,
            unclaimed: Some(receiver),
            owed: BTreeMap::new(),
        }
    }
}

impl ListenerQueue {
    /// The receiving half. A later call ends the former listener's channel.
    pub(crate) fn listen(&mut self) -> mpsc::Receiver<EvidenceEvent> {
        self.unclaimed.take().unwrap_or_else(|| {
            let (sender, receiver) = mpsc::channel(EVENTS_MAX);
            self.sender = sender;
            receiver
        })
    }

    /// Whether anything of this peer is remembered; what lies in the channel already is the listener's.
    #[cfg(test)]
    pub(crate) fn remembers(&self, peer: &ReplicaId) -> bool {
        self.owed.contains_key(peer)
    }

    /// For a task that may wait for room.
    pub(crate) fn sender(&self) -> mpsc::Sender<EvidenceEvent> {
        self.sender.clone()
    }

    /// Passes on what was received; returns how many records were dropped because the listener lags.
    pub(crate) fn pass(&mut self, events: impl IntoIterator<Item = EvidenceEvent>) -> usize {
        self.settle();
        let mut dropped = 0;
        for event in events {
            // Nothing may overtake what is owed about the same replica.
            let is_owed = self.owed.contains_key(event.from());
            let refused = if is_owed {
                Some(event)
            } else {
                self.sender
                    .try_send(event)
                    .err()
                    .map(|error| error.into_inner())
            };
            if let Some(event) = refused {
                dropped += usize::from(self.owe(event));
            }
        }
        dropped
    }

    /// True if it is a record, which is dropped.
    fn owe(&mut self, event: EvidenceEvent) -> bool {
        let owed = self.owed.entry(event.from().clone()).or_default();
        match event {
            EvidenceEvent::Evidence { .. } | EvidenceEvent::Retraction { .. } => {
                owed.is_lost = true;
                return true;
            }
            EvidenceEvent::Lost { .. } => owed.is_lost = true,
            EvidenceEvent::Heat { report, .. } => owed.heat = Some(report),
            EvidenceEvent::Gone { .. } => {
                owed.is_gone = true;
                owed.heat = None;
            }
        }
        false
    }

    fn settle(&mut self) {
        while let Some(entry) = self.owed.first_entry() {
            let (from, owed) = (entry.key().clone(), entry.get());
            let count = usize::from(owed.is_gone)
                + usize::from(owed.is_lost)
                + usize::from(owed.heat.is_some());
            // All or nothing, so that the order within one replica is kept.
            let Ok(room) = self.sender.try_reserve_many(count) else {
                return;
            };
            let owed = entry.remove();
            let gone = owed
                .is_gone
                .then(|| EvidenceEvent::Gone { from: from.clone() });
            let lost = owed
                .is_lost
                .then(|| EvidenceEvent::Lost { from: from.clone() });
            let heat = owed.heat.map(|report| EvidenceEvent::Heat { from, report });
            room.zip(gone.into_iter().chain(lost).chain(heat))
                .for_each(|(permit, event)| permit.send(event));
        }
    }
}

/// Records that wait for the listener: at 2 kB for the longest, 8 MiB.
pub(crate) const EVENTS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Evidence;
    use crate::made::replica;

    fn evidence(from: &str, epoch: u64) -> EvidenceEvent {
        EvidenceEvent::Evidence {
            from: replica(from),
            evidence: Evidence {
                worker: "w".parse().expect("valid"),
                epoch,
                links: vec![1],
            },
        }
    }

    fn heat(from: &str, version: u64) -> EvidenceEvent {
        let report = HeatReport {
            version,
            ..HeatReport::default()
        };
        EvidenceEvent::Heat {
            from: replica(from),
            report,
        }
    }

    #[test]
    fn what_was_heard_before_the_listener_came_waits() {
        let mut queue = ListenerQueue::default();
        assert_eq!(queue.pass([evidence("a", 1)]), 0);
        let mut first = queue.listen();
        assert_eq!(first.try_recv(), Ok(evidence("a", 1)));
        let mut second = queue.listen();
        queue.pass([evidence("a", 2)]);
        assert_eq!(
            first.try_recv(),
            Err(mpsc::error::TryRecvError::Disconnected)
        );
        assert_eq!(second.try_recv(), Ok(evidence("a", 2)));
    }

    #[test]
    fn a_lagging_listener_learns_what_it_missed() {
        let mut queue = ListenerQueue::default();
        let mut listener = queue.listen();
        assert_eq!(
            queue.pass((0..EVENTS_MAX as u64).map(|n| evidence("a", n))),
            0
        );
        let a = replica("a");
        let late = [
            heat("a", 1),
            EvidenceEvent::Gone { from: a.clone() },
            heat("a", 2),
            heat("a", 3),
            evidence("a", 7),
        ];
        assert_eq!(queue.pass(late), 1, "one record; the rest is owed");
        for _ in 0..EVENTS_MAX {
            listener.try_recv().expect("full");
        }
        assert_eq!(queue.pass([evidence("a", 8)]), 0);
        let rest: Vec<EvidenceEvent> = std::iter::from_fn(|| listener.try_recv().ok()).collect();
        assert_eq!(
            rest,
            [
                EvidenceEvent::Gone { from: a.clone() },
                EvidenceEvent::Lost { from: a },
                heat("a", 3),
                evidence("a", 8)
            ]
        );
    }
}
