//! The drain of an administrator: a note beside what the sources declare, which any replica may write.
//!
//! It makes no worker present and describes none, so a worker that an administrator drained still leaves with its
//! sources, and the note ends with it. A description by the administrator has a state of its own: a later one
//! counts instead of the note.

use std::sync::Arc;

use super::{Entry, Registry, RegistryError, Warming, claims, effective};
use crate::worker::{Source, State, WorkerId};

impl Registry {
    /// An administrator wants the worker to get nothing new, whatever its sources declare. Returns the entry to push,
    /// always a new one: it must win over an activation that was not received yet.
    /// Errors: [`RegistryError::UnknownWorker`]; [`RegistryError::Full`].
    pub fn drain(&mut self, id: &WorkerId, now_ms: u64) -> Result<Entry, RegistryError> {
        let worker = effective(&self.of_worker(id));
        let worker = worker.ok_or_else(|| RegistryError::UnknownWorker(id.clone()))?;
        self.room_for(id, &Source::Drain)?;
        let spec = Arc::new(worker.in_state(State::Draining));
        Ok(self.write(id.clone(), Source::Drain, Some(spec), now_ms))
    }

    /// An administrator wants the worker to be used as its sources declare: takes a drain back, and ends a warm-up.
    /// Returns the entries to push, of which the end of a drain is always new. A worker that its source drains stays so.
    /// Errors: [`RegistryError::UnknownWorker`]; [`RegistryError::Full`].
    pub fn activate(&mut self, id: &WorkerId, now_ms: u64) -> Result<Vec<Entry>, RegistryError> {
        if !self.is_worker(id) {
            return Err(RegistryError::UnknownWorker(id.clone()));
        }
        self.room_for(id, &Source::Drain)?;
        let mut written = vec![self.write(id.clone(), Source::Drain, None, now_ms)];
        let admin = self.present(id, &Source::Admin);
        if let Some(admin) = admin.filter(|spec| spec.state() == State::Draining) {
            let active = Arc::new(admin.in_state(State::Active));
            written.push(self.write(id.clone(), Source::Admin, Some(active), now_ms));
        }
        let of_one = self.of_worker(id);
        let said = of_one.into_iter().find(|entry| claims(entry));
        if let Some(warming) = said.and_then(Warming::of) {
            written.extend(self.finish_warming(id, warming.stamp));
        }
        Ok(written)
    }
}

/// Whether an administrator drains a worker, by its entries: by a note that counts, or in a description.
pub(super) fn is_drained(of_one: &[&Entry]) -> bool {
    let of = |source| {
        let found = of_one.iter().find(|entry| entry.source == source);
        found.filter(|entry| !entry.is_removed())
    };
    let admin = of(Source::Admin);
    let declared = admin.and_then(|entry| entry.spec.as_ref());
    declared.is_some_and(|spec| spec.state() == State::Draining)
        || of(Source::Drain).is_some_and(|note| Some(note.stamp) > admin.map(|entry| entry.stamp))
}

#[cfg(test)]
mod tests {
    use super::super::RETENTION;
    use super::*;
    use crate::made::{registry, spec_with, sync, w};
    use crate::worker::{Labels, WorkerSpec};

    const NOW: u64 = 1_700_000_000_000;

    fn spec(state: State) -> WorkerSpec {
        spec_with(|raw| raw.state = state)
    }

    fn files() -> Source {
        Source::provider("files").expect("valid")
    }

    /// A worker that a file declares.
    fn found(name: &str) -> Registry {
        let mut registry = registry(name);
        let put = registry.put(w(), files(), spec(State::Active), NOW);
        put.expect("room");
        registry
    }

    fn state(registry: &Registry) -> Option<State> {
        Some(registry.workers().first()?.spec.state())
    }

    fn is_drained(registry: &Registry) -> bool {
        let workers = registry.workers();
        workers.first().is_some_and(|worker| worker.is_drained)
    }

    #[test]
    fn a_drained_worker_leaves_with_its_sources() {
        let (mut a, mut b) = (found("a"), found("b"));
        a.drain(&w(), NOW).expect("known");
        sync(&mut a, &mut b, NOW);
        assert_eq!(state(&b), Some(State::Draining));
        assert_eq!(b.sources_of(&w()), [files()], "a drain declares nothing");
        // Whatever state the source declares meanwhile.
        for declared in [State::Draining, State::Active] {
            b.put(w(), files(), spec(declared), NOW).expect("room");
            assert_eq!(state(&b), Some(State::Draining));
        }
        let removed = b.remove(&w(), files(), NOW).expect("declared");
        let sources: Vec<_> = removed.iter().map(|entry| &entry.source).collect();
        assert_eq!(sources, [&files(), &Source::Drain]);
        sync(&mut a, &mut b, NOW);
        assert_eq!(a.workers(), []);
        a.put(w(), files(), spec(State::Active), NOW).expect("room");
        assert_eq!(state(&a), Some(State::Active), "it starts anew");
    }

    /// One takes it out while another drains it and labels it: neither is for the next worker of that id.
    #[test]
    fn what_was_noted_while_it_left_is_not_for_the_next_one() {
        let again = |a: &mut Registry| {
            let put = vec![(w(), spec(State::Active))];
            a.put_all(&files(), put, NOW).expect("room")
        };
        let held = |a: &mut Registry| {
            a.hold(w(), files(), spec(State::Active), NOW)
                .expect("room")
        };
        for declare in [again as fn(&mut Registry) -> Vec<Entry>, held] {
            let (mut a, mut b) = (found("a"), found("b"));
            a.drain(&w(), NOW).expect("known");
            let labels = Labels::new([("a", "1")]).expect("valid");
            a.label(&w(), &labels, NOW).expect("known");
            b.remove(&w(), files(), NOW + 1).expect("declared");
            sync(&mut a, &mut b, NOW);
            assert_eq!(b.workers(), []);
            let sources: Vec<_> = declare(&mut b)
                .into_iter()
                .map(|entry| entry.source)
                .collect();
            assert_eq!(sources, [Source::Labels, Source::Drain, files()]);
            assert_eq!(state(&b), Some(State::Active));
            assert!(b.workers()[0].labels.is_empty());
            sync(&mut a, &mut b, NOW);
            assert_eq!(a.digest(), b.digest());
            assert_eq!(state(&a), Some(State::Active));
        }
    }

    #[test]
    fn a_drain_that_is_taken_back_leaves_the_word_to_the_sources() {
        let mut a = found("a");
        a.drain(&w(), NOW).expect("known");
        assert!(is_drained(&a));
        a.activate(&w(), NOW).expect("known");
        assert!(!is_drained(&a));
        assert_eq!(state(&a), Some(State::Active));
        a.put(w(), files(), spec(State::Draining), NOW)
            .expect("room");
        a.activate(&w(), NOW).expect("known");
        assert_eq!(state(&a), Some(State::Draining), "its source drains it");
        // One that was written before, elsewhere, and is received later.
        let mut b = found("b");
        let drain = b.drain(&w(), NOW - 1).expect("known");
        a.put(w(), files(), spec(State::Active), NOW).expect("room");
        a.activate(&w(), NOW).expect("known");
        a.merge(vec![drain], NOW).expect("no drift");
        assert_eq!(state(&a), Some(State::Active));
        let unknown = a.activate(&"other".parse().expect("valid"), NOW);
        assert!(matches!(unknown, Err(RegistryError::UnknownWorker(_))));
    }

    #[test]
    fn what_an_administrator_declares_later_counts_instead_of_a_drain() {
        let mut a = found("a");
        a.drain(&w(), NOW).expect("known");
        a.put(w(), Source::Admin, spec(State::Active), NOW)
            .expect("room");
        assert_eq!((state(&a), is_drained(&a)), (Some(State::Active), false));
        a.drain(&w(), NOW).expect("known");
        assert_eq!((state(&a), is_drained(&a)), (Some(State::Draining), true));
        // One that an administrator declared as draining, too.
        a.put(w(), Source::Admin, spec(State::Draining), NOW)
            .expect("room");
        assert_eq!((state(&a), is_drained(&a)), (Some(State::Draining), true));
        assert_eq!(a.activate(&w(), NOW).expect("known").len(), 2);
        assert_eq!((state(&a), is_drained(&a)), (Some(State::Active), false));
    }

    #[test]
    fn a_warm_up_ends_with_a_drain_and_with_an_activation() {
        let warming = spec(State::Warming {
            until_ms: NOW + 60_000,
        });
        let mut a = registry("a");
        a.put(w(), files(), warming, NOW).expect("room");
        a.drain(&w(), NOW).expect("known");
        assert_eq!(
            (state(&a), a.workers()[0].warming.clone()),
            (Some(State::Draining), None)
        );
        // The note, and the warm-up that would go on without it.
        assert_eq!(a.activate(&w(), NOW).expect("known").len(), 2);
        assert_eq!(a.workers()[0].warming, None);
        assert_eq!(a.sources_of(&w()), [files()]);
    }

    #[test]
    fn a_drain_makes_no_worker_present() {
        let mut a = found("a");
        let note = a.drain(&w(), NOW).expect("known");
        let mut other = registry("b");
        other.merge(vec![note], NOW).expect("no drift");
        assert_eq!(other.workers(), []);
        assert!(matches!(
            other.drain(&w(), NOW),
            Err(RegistryError::UnknownWorker(_))
        ));
        assert_eq!(other.advance(RETENTION), 1, "nothing depends on it");
    }
}
