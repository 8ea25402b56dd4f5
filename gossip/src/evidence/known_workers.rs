//! Which workers, in which lives, evidence may be about.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Lack, Record};
use crate::view::View;
use crate::worker::WorkerId;

/// The workers of the latest view.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownWorkers(BTreeMap<WorkerId, Life>);

/// The life that a worker is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    /// 0: not known.
    epoch: u64,
    /// Until then records come from who did not know the epoch either.
    unnamed_until: Option<Instant>,
}

/// What is to become of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It is about the life that its worker is in.
    Now,
    /// Its worker, or its epoch, is not in the view: the entry may be on its way. Only the registry says so, never the
    /// record, or one replica could have all others refuse what is true.
    Later,
    /// It is about a former life: the worker holds nothing of what it held.
    Never,
}

impl KnownWorkers {
    pub(crate) fn new(view: &View) -> Self {
        Self::after(&Self::default(), view, None)
    }

    /// Those of a view that follows `former` now. A first epoch is no restart: what was said before it stays true.
    pub(crate) fn following(former: &Self, view: &View, now: Instant) -> Self {
        Self::after(former, view, Some(now + UNNAMED_FOR))
    }

    fn after(former: &Self, view: &View, unnamed_until: Option<Instant>) -> Self {
        let life = |id: &WorkerId, epoch| match former.0.get(id) {
            Some(known) if known.epoch == epoch => *known,
            Some(known) if known.epoch == 0 => Life {
                epoch,
                unnamed_until,
            },
            _ => Life {
                epoch,
                unnamed_until: None,
            },
        };
        let workers = view.workers().iter();
        let lives =
            workers.map(|worker| (worker.id.clone(), life(&worker.id, worker.spec.epoch())));
        Self(lives.collect())
    }

    /// Whether, and when, a record may be used.
    pub(crate) fn fit(&self, record: &Record, now: Instant) -> Fit {
        let (worker, epoch) = record.about();
        let Some(life) = self.0.get(worker) else {
            return Fit::Later;
        };
        // What a worker did not compute when its epoch was not known is not there in any life.
        let lacks = matches!(record, Record::Retraction(said) if said.lack == Lack::NotComputed);
        let is_recent = life.unnamed_until.is_some_and(|until| now < until);
        let is_unnamed = epoch == 0 && (lacks || is_recent);
        if epoch == life.epoch || is_unnamed {
            Fit::Now
        } else if epoch > life.epoch {
            Fit::Later
        } else {
            Fit::Never
        }
    }

    /// Whether a record may be used now.
    pub(crate) fn allows(&self, record: &Record, now: Instant) -> bool {
        self.fit(record, now) == Fit::Now
    }

    /// The epoch of the life that a worker is in, 0 where none is known; none of a worker that is not in the view.
    pub(crate) fn epoch(&self, worker: &WorkerId) -> Option<u64> {
        self.0.get(worker).map(|life| life.epoch)
    }

    /// False for a claim about a worker that is not in the view, and about a former life. A later epoch than ours passes:
    /// its registry entry is on its way.
    pub(crate) fn is_current(&self, worker: &WorkerId, epoch: u64) -> bool {
        let life = self.0.get(worker);
        life.is_some_and(|life| life.epoch <= epoch)
    }
}

/// For so long after a worker's first epoch became known, records that name none are taken: a sender learns of it by the
/// registry, and what it sent before may have to be repaired.
const UNNAMED_FOR: Duration = Duration::from_secs(10);

#[cfg(test)]
pub(super) fn known_workers(workers: &[(&str, u64)]) -> KnownWorkers {
    KnownWorkers::new(&view_of(workers))
}

/// A view with workers in these epochs.
#[cfg(test)]
fn view_of(workers: &[(&str, u64)]) -> View {
    use crate::registry::Registry;
    use crate::worker::{RawWorker, WorkerSpec};

    let mut registry = Registry::new("r".parse().expect("valid"));
    for (id, epoch) in workers {
        let mut raw = RawWorker::at(format!("http://{id}:8000"));
        raw.epoch = *epoch;
        let spec = WorkerSpec::new(raw).expect("valid");
        let id = id.parse().expect("valid");
        registry.configure(id, spec).expect("room");
    }
    View::new(&registry, Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Evidence, Retraction};
    use crate::made::start;

    fn holds(worker: &str, epoch: u64) -> Record {
        Record::Evidence(Evidence {
            worker: worker.parse().expect("valid"),
            epoch,
            links: vec![1],
        })
    }

    #[test]
    fn only_present_workers_in_their_present_life() {
        let (known_workers, now) = (known_workers(&[("w", 5)]), start());
        let about = |worker: &str, epoch| known_workers.fit(&holds(worker, epoch), now);
        assert_eq!(about("w", 5), Fit::Now);
        assert_eq!(about("w", 6), Fit::Later);
        assert_eq!(about("w", u64::MAX), Fit::Later);
        assert_eq!(about("w", 4), Fit::Never);
        assert_eq!(about("w", 0), Fit::Never);
        assert_eq!(about("v", 5), Fit::Later);
        let lacks = |worker: &str, epoch, lack| {
            let record = Record::Retraction(Retraction {
                worker: worker.parse().expect("valid"),
                epoch,
                links: vec![1],
                lack,
            });
            known_workers.allows(&record, now)
        };
        assert!(lacks("w", 0, Lack::NotComputed));
        assert!(!lacks("w", 4, Lack::NotComputed));
        assert!(!lacks("w", 0, Lack::Forgotten));
        assert!(!lacks("v", 0, Lack::NotComputed));
    }

    #[test]
    fn what_names_no_epoch_is_taken_for_a_while_after_the_first_one() {
        let start = start();
        let steps = [0, 0, 7, 7].map(|epoch| view_of(&[("w", epoch)]));
        let mut known = KnownWorkers::default();
        for view in &steps {
            known = KnownWorkers::following(&known, view, start);
        }
        let last = start + UNNAMED_FOR - Duration::from_millis(1);
        let again = KnownWorkers::following(&known, &steps[3], last);
        assert_eq!(again, known, "nothing new");
        for (epoch, now, fit) in [
            (0, last, Fit::Now),
            (0, start + UNNAMED_FOR, Fit::Never),
            (6, last, Fit::Never),
            (7, last, Fit::Now),
        ] {
            assert_eq!(known.fit(&holds("w", epoch), now), fit, "{epoch}");
        }
        // From then on another one is a restart.
        let known = KnownWorkers::following(&known, &view_of(&[("w", 8)]), start);
        assert_eq!(known.fit(&holds("w", 0), start), Fit::Never);
    }
}
