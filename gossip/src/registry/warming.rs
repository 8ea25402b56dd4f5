//! Warm-up of a joining worker: the replica that warms it, until when, and how that ends.
//!
//! A warm-up is a record of one source like any other, with an end. Nobody has to declare that it is over:
//! a warmer that died must not keep a worker out. A replica that declares it all the same changes that very record and
//! nothing later: the stamp stays, so a removal, a drain or another description that was declared
//! meanwhile wins wherever they meet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Entry, Registry, Worker, millis};
use crate::hlc::Stamp;
use crate::replica::ReplicaId;
use crate::worker::{State, WorkerId, WorkerSpec};

/// Longest warm-up, from the record that began it. One that is declared to take longer ends then.
pub const WARMING_MAX: Duration = Duration::from_secs(10 * 60);

/// A warm-up that somebody began and nobody ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warming {
    /// The replica that declared it: it does the warming.
    pub by: ReplicaId,
    /// When it was declared; distinguishes this warm-up from a later one of the same worker.
    pub stamp: Stamp,
    /// When it ends at the latest, Unix milliseconds; at most [`WARMING_MAX`] after `stamp`.
    pub until_ms: u64,
}

impl Warming {
    /// The warm-up that an entry speaks of, over or not.
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        let State::Warming { until_ms } = entry.spec.as_ref()?.state() else {
            return None;
        };
        let latest = entry.stamp.ms().saturating_add(millis(WARMING_MAX));
        (until_ms != State::WARMED_MS).then_some(())?;
        Some(Self {
            by: entry.writer.clone()?,
            stamp: entry.stamp,
            until_ms: until_ms.min(latest),
        })
    }
}

impl Worker {
    /// True if it joins with a cold cache and its warm-up is not over at this Unix time.
    pub fn is_warming(&self, now_ms: u64) -> bool {
        let warming = self.warming.as_ref();
        warming.is_some_and(|warming| now_ms < warming.until_ms)
    }

    /// Takes the warm-up as over: what is left is an active worker.
    fn settle(&mut self) {
        self.warming = None;
        if matches!(self.spec.state(), State::Warming { .. }) {
            self.spec = Arc::new(self.spec.in_state(State::Active));
        }
    }
}

impl Registry {
    /// The time by which warm-ups end: our wall clock, but not before any stamp that we received, so
    /// that a clock that is behind does not prolong them. Unix milliseconds.
    pub fn hybrid_ms(&self, now_ms: u64) -> u64 {
        self.clock.latest().ms().max(now_ms)
    }

    /// Ends the warm-up with this stamp. Returns the entry to push, or `None` if that warm-up is not
    /// what describes the worker any more.
    pub fn finish_warming(&mut self, id: &WorkerId, stamp: Stamp) -> Option<Entry> {
        let of_one = self.of_worker(id);
        super::effective(&of_one)?;
        let said = of_one.into_iter().find(|entry| super::claims(entry))?;
        Warming::of(said).filter(|warming| warming.stamp == stamp)?;
        let mut entry = said.clone();
        let ended = State::Warming {
            until_ms: State::WARMED_MS,
        };
        entry.spec = Some(Arc::new(entry.spec.as_ref()?.in_state(ended)));
        self.keep_greater(entry.clone()).then_some(entry)
    }
}

/// A description as it is written at `stamp`: its warm-up within the limit.
pub(super) fn limited(spec: WorkerSpec, stamp: Stamp) -> WorkerSpec {
    match spec.state() {
        State::Warming { until_ms } => {
            let latest = stamp.ms().saturating_add(millis(WARMING_MAX));
            spec.in_state(State::Warming {
                until_ms: until_ms.min(latest),
            })
        }
        State::Active | State::Draining => spec,
    }
}

/// Whether two descriptions differ in nothing but a warm-up. A source that repeats itself neither
/// ends nor renews the one that its first record began.
pub(super) fn differ_in_warmth_only(known: &WorkerSpec, said: &WorkerSpec) -> bool {
    let is_in_use = |spec: &WorkerSpec| spec.state() != State::Draining;
    is_in_use(known)
        && is_in_use(said)
        && known.in_state(State::Active) == said.in_state(State::Active)
}

/// When the warm-ups that this replica knows of end by its monotonic clock: judged once, when first
/// seen, so that a wall clock that is set meanwhile changes nothing.
#[derive(Debug, Default)]
pub(crate) struct Warmups(BTreeMap<WorkerId, Course>);

#[derive(Clone, Copy, Debug)]
struct Course {
    stamp: Stamp,
    end: Instant,
    is_over: bool,
}

impl Warmups {
    /// Makes active workers of those whose warm-up is over, and forgets what is not in `workers`.
    pub(crate) fn settle(&mut self, workers: &mut [Worker], hybrid_ms: u64, now: Instant) {
        let mut known = std::mem::take(&mut self.0);
        for worker in workers {
            let Some(Warming {
                stamp, until_ms, ..
            }) = worker.warming
            else {
                worker.settle();
                continue;
            };
            let left = Duration::from_millis(until_ms.saturating_sub(hybrid_ms)).min(WARMING_MAX);
            let known = known.remove(&worker.id);
            let end = match known.filter(|course| course.stamp == stamp) {
                Some(course) => course.end,
                None => now + left,
            };
            let is_over = end <= now;
            if is_over {
                worker.settle();
            }
            let course = Course {
                stamp,
                end,
                is_over,
            };
            self.0.insert(worker.id.clone(), course);
        }
    }

    /// The next end of a warm-up that was not over yet when they were settled.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        let open = self.0.values().filter(|course| !course.is_over);
        open.map(|course| course.end).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{registry, spec_with, start, w};
    use crate::worker::Source;

    const NOW: u64 = 1_700_000_000_000;
    const MINUTE: u64 = 60_000;

    fn spec(state: State) -> WorkerSpec {
        spec_with(|raw| raw.state = state)
    }

    fn warming(until_ms: u64) -> WorkerSpec {
        spec(State::Warming { until_ms })
    }

    /// A registry in which `a` has just begun to warm the worker for a minute, and the stamp of that.
    fn begun() -> (Registry, Stamp) {
        let mut a = registry("a");
        let put = a.put(w(), Source::Admin, warming(NOW + MINUTE), NOW);
        let entry = put.expect("room").expect("new");
        (a, entry.stamp)
    }

    fn copy(of: &Registry, name: &str) -> Registry {
        let mut copy = registry(name);
        copy.merge(of.entries().cloned().collect(), NOW)
            .expect("no drift");
        copy
    }

    fn state(registry: &Registry) -> Option<State> {
        let now = start();
        let mut workers = registry.workers();
        Warmups::default().settle(&mut workers, registry.hybrid_ms(NOW), now);
        workers.first().map(|worker| worker.spec.state())
    }

    #[test]
    fn a_warm_up_ends_by_itself() {
        let (a, stamp) = begun();
        let worker = &a.workers()[0];
        let warming = worker.warming.as_ref().expect("warming");
        assert_eq!((warming.by.as_str(), warming.stamp), ("a", stamp));
        assert!(worker.is_warming(NOW + MINUTE - 1));
        assert!(!worker.is_warming(NOW + MINUTE));

        let start = tokio::time::Instant::now().into_std();
        let mut warmups = Warmups::default();
        let mut at = |ms: u64, wall: u64| {
            let mut workers = a.workers();
            let now = start + Duration::from_millis(ms);
            warmups.settle(&mut workers, a.hybrid_ms(wall), now);
            let next = warmups.next_end().map(|end| end.duration_since(now));
            (workers[0].warming.is_some(), workers[0].spec.state(), next)
        };
        let state = State::Warming {
            until_ms: NOW + MINUTE,
        };
        let left = Duration::from_millis(MINUTE);
        // Our clock is an hour behind, and later a day ahead: the stamp that we received counts.
        assert_eq!(at(0, NOW - 60 * MINUTE), (true, state, Some(left)));
        let millisecond = Some(Duration::from_millis(1));
        assert_eq!(
            at(MINUTE - 1, NOW + 1440 * MINUTE),
            (true, state, millisecond)
        );
        assert_eq!(at(MINUTE, NOW), (false, State::Active, None));
        assert_eq!(
            at(MINUTE + 1, NOW),
            (false, State::Active, None),
            "and stays so"
        );
    }

    #[test]
    fn it_takes_ten_minutes_at_most() {
        let most = NOW + millis(WARMING_MAX);
        for until_ms in [most, most + 1, u64::MAX - 1, State::WARMED_MS] {
            let mut a = registry("a");
            a.put(w(), Source::Admin, warming(until_ms), NOW)
                .expect("room");
            let of = a.workers()[0].warming.clone().expect("warming");
            assert_eq!(of.until_ms, most);
        }
        // Declared by a replica that knows no limit.
        let (mut a, stamp) = begun();
        let entry = Entry {
            id: w(),
            source: Source::Admin,
            stamp: Stamp::from_bits(stamp.bits() + 1),
            writer: Some("b".parse().expect("valid")),
            spec: Some(Arc::new(warming(NOW + 1440 * MINUTE))),
            unused_ms: 0,
        };
        a.merge(vec![entry], NOW).expect("no drift");
        assert_eq!(
            a.workers()[0].warming.as_ref().map(|of| of.until_ms),
            Some(most)
        );
        // A file is read for ever: it warms nothing.
        let mut file = registry("a");
        file.configure(w(), warming(NOW + MINUTE)).expect("room");
        assert_eq!(state(&file), Some(State::Active));
    }

    #[test]
    fn finishing_ends_that_warm_up_everywhere() {
        let (mut a, stamp) = begun();
        let mut b = copy(&a, "b");
        assert_eq!(
            b.finish_warming(&w(), Stamp::ZERO).map(|_| ()),
            None,
            "another one"
        );
        let entry = a.finish_warming(&w(), stamp).expect("still the same");
        assert_eq!(state(&a), Some(State::Active));
        assert!(a.workers()[0].warming.is_none());
        assert_ne!(a.digest(), b.digest());
        b.merge(vec![entry], NOW).expect("no drift");
        assert_eq!(state(&b), Some(State::Active));
        assert_eq!(a.digest(), b.digest());
        assert!(a.finish_warming(&w(), stamp).is_none(), "it is over");
        // The beginning, late, does not begin it again.
        let (late, _) = begun();
        b.merge(late.entries().cloned().collect(), NOW)
            .expect("no drift");
        assert_eq!(state(&b), Some(State::Active));
    }

    /// Whatever a replica that knew of the warm-up declared beats its end, in either order.
    #[test]
    fn the_end_of_a_warm_up_overrides_nothing() {
        type Change = fn(&mut Registry) -> Vec<Entry>;
        let drain: Change = |b| {
            let put = b.put(w(), Source::Admin, spec(State::Draining), NOW);
            put.expect("room").into_iter().collect()
        };
        let remove: Change = |b| b.remove(&w(), Source::Admin, NOW).expect("known");
        let again: Change = |b| {
            let put = b.put(w(), Source::Admin, warming(NOW + 2 * MINUTE), NOW);
            put.expect("room").into_iter().collect()
        };
        let expected = [
            (drain, Some(State::Draining)),
            (remove, None),
            (
                again,
                Some(State::Warming {
                    until_ms: NOW + 2 * MINUTE,
                }),
            ),
        ];
        for (change, expected) in expected {
            // The greater name loses nothing either: the stamp decides, not the writer.
            for name in ["0", "z"] {
                let (mut a, stamp) = begun();
                let mut b = copy(&a, name);
                let (ended, changed) = (a.finish_warming(&w(), stamp), change(&mut b));
                let ended = vec![ended.expect("still the same")];
                a.merge(changed, NOW).expect("no drift");
                b.merge(ended, NOW).expect("no drift");
                assert_eq!((state(&a), state(&b)), (expected, expected));
                assert_eq!(a.digest(), b.digest());
                assert!(a.finish_warming(&w(), stamp).is_none(), "too late now");
            }
        }
    }

    #[test]
    fn a_source_that_repeats_itself_neither_renews_nor_ends_it() {
        let dns = Source::provider("dns").expect("valid");
        let mut a = registry("a");
        let mut put = |spec| a.put(w(), dns.clone(), spec, NOW).expect("room").is_some();
        assert!(put(warming(NOW + MINUTE)));
        assert!(!put(warming(NOW + 2 * MINUTE)));
        assert!(!put(spec(State::Active)));
        assert!(put(spec(State::Draining)));
        assert!(put(spec(State::Active)));
        assert!(!put(warming(NOW + MINUTE)), "it has joined already");
        assert_eq!(state(&a), Some(State::Active));
    }
}
