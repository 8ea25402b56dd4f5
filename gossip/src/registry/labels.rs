//! Labels of workers: an entry beside what the sources declare, which any replica may write.
//!
//! Each write is what is known with the new labels laid over it, so replicas that learn different things do not
//! take them from each other, but for writes at one moment: then the later stamp wins, and whoever misses a label
//! writes it again. An entry's description carries them where others name models (see [`Labels`]).

use super::{Entry, Registry, RegistryError, effective};
use crate::worker::{Labels, Source, WorkerId};

impl Registry {
    /// Adds labels to a worker, and replaces those of the same names. Returns the entry to push, or `None` if all of them
    /// are known.
    /// Errors: [`RegistryError::UnknownWorker`]; [`RegistryError::Labels`] if the worker would have too many;
    /// [`RegistryError::Full`].
    pub fn label(
        &mut self,
        id: &WorkerId,
        labels: &Labels,
        now_ms: u64,
    ) -> Result<Option<Entry>, RegistryError> {
        let worker = effective(&self.of_worker(id));
        let worker = worker.ok_or_else(|| RegistryError::UnknownWorker(id.clone()))?;
        let known = self.present(id, &Source::Labels);
        let known = known.map_or_else(Labels::default, |spec| Labels::read(spec.models()));
        if known.contain(labels) {
            return Ok(None);
        }
        let all = known
            .overlaid_with(labels)
            .map_err(|error| RegistryError::Labels(id.clone(), error))?;
        self.room_for(id, &Source::Labels)?;
        let spec = worker.labelled(&all).into();
        Ok(Some(self.write(
            id.clone(),
            Source::Labels,
            Some(spec),
            now_ms,
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::super::RETENTION;
    use super::*;
    use crate::made::{self, spec_with, sync, w};
    use crate::worker::{WorkerError, WorkerSpec};

    const NOW: u64 = 1_700_000_000_000;

    fn spec() -> WorkerSpec {
        spec_with(|_| ())
    }

    fn registry(name: &str) -> Registry {
        let mut registry = made::registry(name);
        registry.configure(w(), spec()).expect("room");
        registry
    }

    fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
        Labels::new(pairs).expect("valid")
    }

    fn shown(registry: &Registry) -> Labels {
        Labels::clone(&registry.workers()[0].labels)
    }

    #[test]
    fn labels_are_laid_over_what_is_known() {
        let mut a = registry("a");
        assert!(shown(&a).is_empty());
        let first = labels([("a", "1"), ("b", "2")]);
        assert!(a.label(&w(), &first, NOW).expect("known").is_some());
        let before = a.digest();
        for known in [first, labels([("b", "2")]), Labels::default()] {
            assert!(a.label(&w(), &known, NOW + 1).expect("known").is_none());
        }
        assert_eq!(a.digest(), before, "what is known writes nothing");
        let second = labels([("b", "3"), ("c", "4")]);
        assert!(a.label(&w(), &second, NOW).expect("known").is_some());
        assert_eq!(shown(&a), labels([("a", "1"), ("b", "3"), ("c", "4")]));
        // They are no part of the description.
        assert_eq!(*a.workers()[0].spec, spec());
        let many = Labels::new((0..48).map(|n| (format!("n{n}"), "v"))).expect("valid");
        let refused = a.label(&w(), &many, NOW).map(|_| ());
        let too_many = WorkerError::Labels(51);
        assert_eq!(refused, Err(RegistryError::Labels(w(), too_many)));
    }

    #[test]
    fn the_last_writer_of_labels_wins() {
        let (mut a, mut b) = (registry("a"), registry("b"));
        a.label(&w(), &labels([("a", "1")]), NOW).expect("known");
        b.label(&w(), &labels([("b", "2")]), NOW + 1)
            .expect("known");
        sync(&mut a, &mut b, NOW);
        assert_eq!(a.digest(), b.digest());
        assert_eq!(shown(&a), labels([("b", "2")]));
        // Who misses its label writes it again; then all are there.
        let again = a.label(&w(), &labels([("a", "1")]), NOW);
        assert!(again.expect("known").is_some());
        sync(&mut a, &mut b, NOW);
        assert_eq!(shown(&b), labels([("a", "1"), ("b", "2")]));
        assert_eq!(a.digest(), b.digest());
    }

    #[test]
    fn labels_make_no_worker_and_end_with_it() {
        let mut a = registry("a");
        let some = labels([("a", "1")]);
        let entry = a.label(&w(), &some, NOW).expect("known").expect("new");
        let mut other = made::registry("b");
        other.merge(vec![entry], NOW).expect("no drift");
        assert_eq!(other.workers(), []);
        let unknown = other.label(&w(), &some, NOW).map(|_| ());
        assert_eq!(unknown, Err(RegistryError::UnknownWorker(w())));
        assert_eq!(other.advance(RETENTION), 1);

        let removed = a.remove(&w(), Source::Config, NOW).expect("allowed");
        let sources: Vec<_> = removed.iter().map(|entry| &entry.source).collect();
        assert_eq!(sources, [&Source::Config, &Source::Labels]);
        assert_eq!(a.workers(), []);
        a.put(w(), Source::Admin, spec(), NOW).expect("room");
        assert!(shown(&a).is_empty(), "one that is added again starts anew");
    }
}
