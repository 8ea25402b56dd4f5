//! The history of each worker or replica, for a bounded number of them. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::SAMPLES_MAX;

/// A worker in one sample.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WorkerSample {
    /// Requests there, from all replicas.
    pub in_flight: f32,
    /// Prompt tokens that were looked up in its cache since this replica started.
    pub prompt_tokens: u64,
    /// Of these, what was found there, as it says.
    pub cached_tokens: u64,
    /// Attempts that it answered, since this replica started.
    pub answered: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// It may get requests.
    pub is_usable: bool,
    /// It says what it finds in its cache: where not, nothing found means nothing.
    pub tells: bool,
}

/// A replica in one sample.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ReplicaSample {
    /// It is seen as alive.
    pub is_live: bool,
    /// It reports that it takes traffic.
    pub is_ready: bool,
    /// It reports the ring and settings of this one.
    pub agrees: bool,
    /// Milliseconds since it was heard; NaN where it was not, and of this replica.
    pub heard_ms: f32,
}

/// Samples by id; each has its room from the first on. One that is not in a sample for an hour is forgotten.
#[derive(Debug, Clone)]
pub struct Tracks<T> {
    limit: usize,
    by_id: BTreeMap<String, VecDeque<(Duration, T)>>,
}

impl<T> Tracks<T> {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            by_id: BTreeMap::new(),
        }
    }

    /// Adds one sample of each, and returns how many had no room.
    pub(super) fn push(&mut self, at: Duration, taken: Vec<(String, T)>) -> usize {
        let oldest = at.saturating_sub(super::hour());
        self.by_id.retain(|_, track| {
            while track.len() >= SAMPLES_MAX || track.front().is_some_and(|(at, _)| *at < oldest) {
                track.pop_front();
            }
            !track.is_empty()
        });
        let mut new = Vec::new();
        for (id, sample) in taken {
            match self.by_id.get_mut(&id) {
                Some(track) => track.push_back((at, sample)),
                None => new.push((id, sample)),
            }
        }
        let mut new = new.into_iter();
        while let Some((id, sample)) = new.next() {
            if self.by_id.len() >= self.limit && !self.forget_who_left_first(at) {
                return 1 + new.len();
            }
            // By doublings it would have room for half as many more as it may take.
            let mut track = VecDeque::with_capacity(SAMPLES_MAX);
            track.push_back((at, sample));
            self.by_id.insert(id, track);
        }
        0
    }

    /// Makes room; false where all are in the sample of `now`.
    fn forget_who_left_first(&mut self, now: Duration) -> bool {
        let last_seen = |track: &VecDeque<(Duration, T)>| track.back().map(|(at, _)| *at);
        let tracks = self.by_id.iter().map(|(id, track)| (last_seen(track), id));
        let first = tracks.min().filter(|(at, _)| *at < Some(now));
        let first = first.map(|(_, id)| id.clone());
        first.is_some_and(|id| self.by_id.remove(&id).is_some())
    }

    /// Oldest first; none of one without a history.
    pub fn of(&self, id: &str) -> Option<impl DoubleEndedIterator<Item = &(Duration, T)> + Clone> {
        self.by_id.get(id).map(VecDeque::iter)
    }
}

impl Tracks<WorkerSample> {
    /// Share of prompt tokens that came from the worker's cache within this time; none where there was none, or it does not
    /// tell.
    pub fn hit_rate(&self, id: &str, within: Duration) -> Option<f64> {
        let (prompt, cached) = self.prompts_of(id, within)?;
        (prompt > 0).then(|| cached as f64 / prompt as f64)
    }

    /// Prompt tokens that were looked up within the time before the sample `at` in caches of its workers that tell, and
    /// those of them that were found. What is remembered of workers that left is of another time.
    pub fn prompts(&self, at: Duration, within: Duration) -> (u64, u64) {
        let is_there = |track: &VecDeque<(Duration, WorkerSample)>| {
            track.back().is_some_and(|(last, _)| *last == at)
        };
        let there = self.by_id.iter().filter(|(_, track)| is_there(track));
        let each = there.filter_map(|(id, _)| self.prompts_of(id, within));
        each.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    fn prompts_of(&self, id: &str, within: Duration) -> Option<(u64, u64)> {
        let mut samples = self.of(id)?.rev();
        let (at, last) = samples.next()?;
        let since = at.saturating_sub(within);
        let mut first = last;
        for (_, earlier) in samples.take_while(|(at, _)| *at >= since) {
            if !first.may_follow(earlier) {
                break;
            }
            first = earlier;
        }
        let prompt = last.prompt_tokens - first.prompt_tokens;
        let cached = last.cached_tokens - first.cached_tokens;
        last.tells.then_some((prompt, cached))
    }
}

impl WorkerSample {
    /// Whether its counters can have grown from those of an earlier sample: they begin anew with a worker that left and
    /// came back.
    pub fn may_follow(&self, earlier: &Self) -> bool {
        let prompt = self.prompt_tokens.checked_sub(earlier.prompt_tokens);
        let cached = self.cached_tokens.checked_sub(earlier.cached_tokens);
        prompt.zip(cached).is_some_and(|(all, part)| part <= all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::history::EVERY;

    #[test]
    fn the_first_of_them_have_a_history_and_those_that_left_make_room() {
        let mut tracks = Tracks::new(2);
        let ids = |names: &[&str]| names.iter().map(|&id| (id.to_owned(), ())).collect();
        assert_eq!(tracks.push(EVERY, ids(&["a", "b", "c"])), 1);
        assert!(tracks.of("c").is_none());
        for n in 2..=(SAMPLES_MAX as u32 + 1) {
            tracks.push(EVERY * n, ids(&["a"]));
        }
        assert_eq!(tracks.of("a").map(Iterator::count), Some(SAMPLES_MAX));
        assert_eq!(tracks.by_id["a"].capacity(), SAMPLES_MAX);
        assert_eq!(tracks.push(EVERY * 362, ids(&["a", "c"])), 0);
        assert!(tracks.of("b").is_none() && tracks.of("c").is_some());
    }

    #[test]
    fn who_left_makes_room_at_once_and_who_is_there_does_not() {
        let mut tracks = Tracks::new(2);
        let ids = |names: &[&str]| names.iter().map(|&id| (id.to_owned(), ())).collect();
        assert_eq!(tracks.push(EVERY, ids(&["a", "z"])), 0);
        assert_eq!(tracks.push(EVERY * 2, ids(&["z"])), 0);
        assert_eq!(tracks.push(EVERY * 3, ids(&["new", "newer", "z"])), 1);
        assert!(tracks.of("a").is_none() && tracks.of("newer").is_none());
        assert_eq!(
            ["new", "z"].map(|id| tracks.of(id).map(Iterator::count)),
            [Some(1), Some(3)]
        );
    }

    /// A worker of which so many tokens of prompts were counted, and so many from its cache.
    fn counted(counts: &[(u64, u64)]) -> Tracks<WorkerSample> {
        let mut tracks = Tracks::new(1);
        for (n, (prompt_tokens, cached_tokens)) in counts.iter().copied().enumerate() {
            let sample = WorkerSample {
                prompt_tokens,
                cached_tokens,
                tells: true,
                ..WorkerSample::default()
            };
            tracks.push(EVERY * n as u32, vec![("w".to_owned(), sample)]);
        }
        tracks
    }

    #[test]
    fn the_hit_rate_of_a_worker_that_came_back_is_that_since_then() {
        for counts in [
            [(500, 0), (0, 0), (600, 540)],
            [(500, 400), (200, 0), (800, 540)],
            // It was counted that much again between two samples.
            [(500, 0), (510, 500), (1_110, 1_040)],
        ] {
            let tracks = counted(&counts);
            assert_eq!(tracks.hit_rate("w", EVERY * 9), Some(0.9), "{counts:?}");
            assert_eq!(tracks.prompts(EVERY * 2, EVERY * 9), (600, 540));
        }
        let away = counted(&[(500, 0), (0, 0)]);
        assert_eq!(away.hit_rate("w", EVERY * 9), None);
    }

    /// Half of a fleet does not tell what its caches had: its prompts are no misses.
    #[test]
    fn a_worker_that_does_not_tell_has_no_hit_rate_and_no_part_in_that_of_all() {
        let mut tracks = Tracks::new(2);
        for n in 0..3 {
            let sample = |tells: bool| WorkerSample {
                prompt_tokens: u64::from(n) * 100,
                cached_tokens: if tells { u64::from(n) * 90 } else { 0 },
                tells,
                ..WorkerSample::default()
            };
            let taken = [("told", sample(true)), ("silent", sample(false))];
            let taken = taken.map(|(id, sample)| (id.to_owned(), sample));
            tracks.push(EVERY * n, taken.into());
        }
        let rates = ["told", "silent"].map(|id| tracks.hit_rate(id, EVERY * 9));
        assert_eq!(rates, [Some(0.9), None]);
        assert_eq!(tracks.prompts(EVERY * 2, EVERY * 9), (200, 180));
    }

    #[test]
    fn the_hit_rate_is_that_of_the_time_asked_for() {
        let tracks = counted(&[(0, 0), (100, 0), (200, 50), (300, 140)]);
        assert_eq!(tracks.hit_rate("w", EVERY), Some(0.9));
        assert_eq!(tracks.hit_rate("w", EVERY * 9), Some(140.0 / 300.0));
        assert_eq!(tracks.hit_rate("v", EVERY), None);
    }
}
