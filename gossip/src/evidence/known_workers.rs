//! Which workers, in which epochs, evidence may be about.

use std::collections::BTreeMap;

use super::{Lack, Record};
use crate::view::View;
use crate::worker::WorkerId;

/// The workers of the latest view.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownWorkers(BTreeMap<WorkerId, u64>);

impl KnownWorkers {
    pub(crate) fn new(view: &View) -> Self {
        let epochs = view.workers().iter();
        Self(
            epochs
                .map(|worker| (worker.id.clone(), worker.spec.epoch()))
                .collect(),
        )
    }

    /// False for a worker that is not in the view, and for one that restarted since: it holds
    /// nothing of what it held. A later epoch than ours passes: its registry entry is on its way. So does what a
    /// worker did not compute when its epoch was not known yet.
    pub(crate) fn allows(&self, record: &Record) -> bool {
        let (worker, epoch) = record.about();
        let lacks = matches!(record, Record::Retraction(said) if said.lack == Lack::NotComputed);
        self.is_current(worker, epoch) || (lacks && epoch == 0 && self.has(worker))
    }

    /// It is in the view, in whatever life.
    pub(super) fn has(&self, worker: &WorkerId) -> bool {
        self.0.contains_key(worker)
    }

    /// The same about any other claim about a worker in an epoch.
    pub(crate) fn is_current(&self, worker: &WorkerId, epoch: u64) -> bool {
        self.0.get(worker).is_some_and(|current| *current <= epoch)
    }
}

#[cfg(test)]
pub(super) fn known_workers(workers: &[(&str, u64)]) -> KnownWorkers {
    let entry = |(id, epoch): &(&str, u64)| (id.parse().expect("valid"), *epoch);
    KnownWorkers(workers.iter().map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Evidence, Retraction};

    #[test]
    fn only_present_workers_in_their_present_life() {
        let known_workers = known_workers(&[("w", 5)]);
        let about = |worker: &str, epoch| {
            known_workers.allows(&Record::Evidence(Evidence {
                worker: worker.parse().expect("valid"),
                epoch,
                links: vec![1],
            }))
        };
        assert!(about("w", 5));
        assert!(about("w", 6));
        assert!(!about("w", 4));
        assert!(!about("v", 5));
        let lacks = |worker: &str, epoch, lack| {
            known_workers.allows(&Record::Retraction(Retraction {
                worker: worker.parse().expect("valid"),
                epoch,
                links: vec![1],
                lack,
            }))
        };
        assert!(lacks("w", 0, Lack::NotComputed));
        assert!(!lacks("w", 4, Lack::NotComputed));
        assert!(!lacks("w", 0, Lack::Forgotten));
        assert!(!lacks("v", 0, Lack::NotComputed));
    }
}
