//! The last minute in a few figures, for those who ask how it goes. Pure.

use std::time::Duration;

use super::buckets::Buckets;
use super::{History, OUTCOMES, Sample, Spread};

/// What counts as the last minute.
const MINUTE: Duration = Duration::from_secs(60);
/// From here on [`OUTCOMES`] are failures of workers or of this replica that came after an answer had begun.
const FAILURES: usize = 4;

/// What happened at this replica within the last minute, or since it started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Minute {
    /// The time that it stands for, in seconds; above 0.
    pub over_s: f32,
    /// Requests that ended.
    pub ended: u64,
    /// Of these, by a fault of a worker or of this replica.
    pub failed: u64,
    /// Requests that were answered with "not now", by this replica or by a worker.
    pub refused: u64,
    /// Times to first tokens, in seconds; none where none came.
    pub first_token: Option<Spread>,
    /// Requests at workers now, from all replicas.
    pub in_flight: f32,
    /// Requests that wait at this replica now.
    pub waiting: f32,
    /// Share of prompt tokens that came from workers' caches; none where no worker tells of its own.
    pub hit_rate: Option<f64>,
}

impl History {
    /// The last minute; none before the first sample.
    pub fn minute(&self) -> Option<Minute> {
        let last = self.samples().next_back()?;
        let is_young = |sample: &&Sample| sample.at + MINUTE > last.at;
        let samples = self.samples().rev().take_while(is_young);
        let ended = |from: usize| -> u64 {
            let of_sample = |sample: &Sample| {
                sample.outcomes[from..]
                    .iter()
                    .map(|n| u64::from(*n))
                    .sum::<u64>()
            };
            samples.clone().map(of_sample).sum()
        };
        let errors: u64 = samples.clone().map(|of| u64::from(of.failed)).sum();
        let (prompt, cached) = self.workers.prompts(last.at, MINUTE);
        Some(Minute {
            over_s: samples.clone().map(|sample| sample.over_s).sum(),
            ended: ended(0),
            failed: ended(FAILURES) + errors,
            refused: samples.clone().map(|of| u64::from(of.refused)).sum(),
            first_token: self.first_tokens(),
            in_flight: last.levels.in_flight,
            waiting: last.levels.waiting,
            hit_rate: (prompt > 0).then(|| cached as f64 / prompt as f64),
        })
    }
}

impl History {
    /// Keeps what the minute before `at` needs: seven counts, as samples are taken.
    pub(super) fn note_first_tokens(&mut self, at: Duration, counted: Buckets) {
        let last = self.first_tokens.back();
        if last.is_some_and(|(_, before)| !counted.has_grown_from(before)) {
            // A model left, and its series with it: what was counted together is nothing to count from.
            self.first_tokens.clear();
        }
        self.first_tokens.push_back((at, counted));
        let is_spare = |next: &(Duration, Buckets)| next.0 + MINUTE <= at;
        while self.first_tokens.get(1).is_some_and(is_spare) {
            self.first_tokens.pop_front();
        }
    }

    fn first_tokens(&self) -> Option<Spread> {
        let (_, before) = self.first_tokens.front()?;
        let (_, now) = self.first_tokens.back()?;
        Some(now.spread_since(before)).filter(|spread| !spread.p50.is_nan())
    }
}

const _: () = assert!(FAILURES < OUTCOMES.len());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::history::tracks::WorkerSample;
    use crate::page::history::{EVERY, Taken};

    #[test]
    fn a_minute_is_six_samples_and_no_more() {
        assert_eq!(OUTCOMES[FAILURES], "worker_error");
        let mut history = History::default();
        assert_eq!(history.minute(), None);
        for n in 0..=30_u32 {
            let mut taken = Taken::default();
            taken.counted.outcomes[0] = u64::from(n) * 20;
            taken.counted.outcomes[5] = u64::from(n);
            (taken.counted.refused, taken.counted.failed) = (u64::from(n) * 2, u64::from(n) * 3);
            taken.levels.waiting = n as f32;
            let sample = WorkerSample {
                prompt_tokens: u64::from(n) * 100,
                cached_tokens: u64::from(n) * 75,
                tells: true,
                ..WorkerSample::default()
            };
            taken.workers = vec![("w".to_owned(), sample)];
            if n <= 20 {
                taken.counted.first_token.add(1.0, u64::from(n));
            } else {
                taken.counted.first_token.add(1.0, 20);
            }
            history.take(EVERY * n, taken);
        }
        let minute = history.minute().expect("samples");
        assert_eq!(
            (minute.over_s, minute.ended, minute.failed),
            (60.0, 126, 24)
        );
        assert_eq!(minute.refused, 12);
        assert_eq!((minute.waiting, minute.hit_rate), (30.0, Some(0.75)));
        assert_eq!(minute.first_token, None, "the last one came earlier");
    }

    #[test]
    fn a_worker_that_left_has_no_part_in_the_minute() {
        let mut history = History::default();
        for n in 0..=12_u32 {
            let mut taken = Taken::default();
            let sample = WorkerSample {
                prompt_tokens: u64::from(n) * 100,
                cached_tokens: u64::from(n) * 75,
                tells: true,
                ..WorkerSample::default()
            };
            if n <= 2 {
                taken.workers = vec![("w".to_owned(), sample)];
            }
            history.take(EVERY * n, taken);
            let hit_rate = history.minute().and_then(|minute| minute.hit_rate);
            assert_eq!(hit_rate, (1..=2).contains(&n).then_some(0.75), "{n}");
        }
    }

    /// Its series goes with it, and the sums over all models fall.
    #[test]
    fn first_tokens_go_on_after_a_model_left() {
        let mut history = History::default();
        let mut found = Vec::new();
        for n in 0..=4_u32 {
            let mut taken = Taken::default();
            // Many fast ones of the model that leaves, then a few slow ones of the other.
            let (fast, slow) = match n {
                0..=2 => (100 + u64::from(n) * 100, 0),
                _ => (0, u64::from(n)),
            };
            taken.counted.first_token.add(0.1, fast);
            taken.counted.first_token.add(5.0, fast + slow);
            history.take(EVERY * n, taken);
            let spread = history.minute().and_then(|minute| minute.first_token);
            found.push(spread.map(|spread| spread.p50 > 0.1));
        }
        let expected = [None, Some(false), Some(false), None, Some(true)];
        assert_eq!(found, expected);
    }

    #[test]
    fn first_tokens_are_those_of_the_whole_minute() {
        let mut history = History::default();
        for n in 0..=9_u32 {
            let mut taken = Taken::default();
            // One slow request in the latest sample, many fast ones before it, and others that are too old.
            let (fast, slow) = (u64::from(n.min(8)) * 10, u64::from(n == 9));
            taken.counted.first_token.add(0.1, fast);
            taken.counted.first_token.add(5.0, fast + slow);
            history.take(EVERY * n, taken);
            assert!(history.first_tokens.len() <= 7);
        }
        let spread = history.minute().and_then(|minute| minute.first_token);
        let spread = spread.expect("51 requests");
        assert!(spread.p50 <= 0.1 && spread.p99 > 0.1, "{spread:?}");
    }
}
