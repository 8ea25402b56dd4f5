//! Sums over windows of time, while requests end in any order. Pure: instants are arguments.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::client::Failure;
use crate::load::Ended;
use crate::tally::share;

/// Windows of one run; a longer run has longer windows.
const WINDOWS_MAX: u64 = 7_200;
/// Worker names of one window; requests of further ones are counted under `other`.
const WORKERS_MAX: usize = 100;

/// The instant from which all times of a run count, and the wall-clock time at that instant.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    at: Instant,
    wall: SystemTime,
}

impl Origin {
    pub fn now() -> Self {
        Self {
            at: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    /// Milliseconds from the beginning to `instant`; 0 before it.
    pub fn ms(self, instant: Instant) -> u64 {
        let since = instant.saturating_duration_since(self.at);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Milliseconds from the beginning until now.
    pub fn elapsed_ms(self) -> u64 {
        self.ms(Instant::now())
    }

    /// The instant `after` the beginning of the run.
    pub fn after(self, after: Duration) -> Instant {
        self.at + after
    }

    /// RFC 3339, UTC.
    pub fn wall(self) -> String {
        humantime::format_rfc3339_seconds(self.wall).to_string()
    }
}

/// What clients saw in one window of time. A request counts as sent in the window in which it was due, its
/// first token in the window in which that arrived, the rest in the window in which it ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    pub at_ms: u64,
    /// Length of the window: 1 s in all but very long runs.
    pub length_ms: u64,
    pub sent: u64,
    pub succeeded: u64,
    /// All other requests that ended.
    pub failed: u64,
    /// Of the failed, those that were refused: status 429 and 503.
    pub refused: u64,
    /// From due to the end, of requests that succeeded; absent if none did.
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    /// From due to the first token of a stream, of requests that succeeded.
    pub first_token_p50_ms: Option<f64>,
    pub first_token_p99_ms: Option<f64>,
    /// As the replies reported them.
    pub prompt_tokens: u64,
    /// Of the prompt tokens, those of replies that said how many were cached; 0 if none did.
    #[serde(default)]
    pub prompt_tokens_told: u64,
    /// Of these, those that a prefix cache supplied.
    pub cached_tokens: u64,
    /// Ended requests by the worker that answered; requests without a head are not counted.
    pub by_worker: BTreeMap<String, u64>,
}

impl Window {
    pub fn until_ms(&self) -> u64 {
        self.at_ms + self.length_ms
    }

    /// The share of cached prompt tokens, 0 to 1; `None` where no reply told of caches.
    pub fn known_hit_rate(&self) -> Option<f64> {
        let told = self.prompt_tokens_told;
        (told > 0).then(|| share(self.cached_tokens, told))
    }
}

/// Windows of a run, the latest still open.
#[derive(Debug)]
pub struct Windows {
    length_ms: u64,
    /// A window whose end is this much older than the latest event gets no further ones.
    settled_after_ms: u64,
    closed: Vec<Window>,
    /// Never empty.
    open: VecDeque<Open>,
}

#[derive(Debug, Default)]
struct Open {
    window: Window,
    latencies_us: Vec<u32>,
    first_tokens_us: Vec<u32>,
}

impl Windows {
    /// Windows from `first_ms` on, for traffic of at most `longest` with requests of at most `timeout`.
    pub fn new(first_ms: u64, longest: Duration, timeout: Duration) -> Self {
        let seconds = (longest + timeout).as_secs().div_ceil(WINDOWS_MAX).max(1);
        let length_ms = seconds * 1_000;
        Self {
            length_ms,
            settled_after_ms: timeout.as_millis() as u64 + length_ms,
            closed: Vec::new(),
            open: VecDeque::from([Open::at(first_ms, length_ms)]),
        }
    }

    pub fn add(&mut self, ended: &Ended, origin: Origin) {
        let outcome = &ended.outcome;
        self.around(origin.ms(ended.due)).window.sent += 1;
        if let (None, Some(first)) = (&outcome.failure, outcome.first_token) {
            let came = origin.ms(ended.sent() + first);
            let us = micros(ended.waited + first);
            self.around(came).first_tokens_us.push(us);
        }
        let at = origin.ms(ended.at());
        let open = self.around(at);
        let window = &mut open.window;
        if let Some(failure) = &outcome.failure {
            window.failed += 1;
            window.refused += u64::from(matches!(failure, Failure::Status(429 | 503)));
        } else {
            window.succeeded += 1;
            open.latencies_us
                .push(micros(ended.waited + outcome.latency));
        }
        if let Some(usage) = outcome.usage {
            window.prompt_tokens += usage.prompt;
            if let Some(cached) = usage.cached {
                window.prompt_tokens_told += usage.prompt;
                window.cached_tokens += cached;
            }
        }
        if let Some(worker) = &outcome.worker {
            let known =
                window.by_worker.contains_key(worker) || window.by_worker.len() < WORKERS_MAX;
            let name = if known { worker } else { "other" };
            *window.by_worker.entry(name.to_owned()).or_default() += 1;
        }
        self.settle(at);
    }

    /// All windows until `now_ms`, the last one as long as it became.
    pub fn finish(&mut self, now_ms: u64) -> Vec<Window> {
        self.around(now_ms);
        self.closed.extend(self.open.drain(..).map(Open::close));
        let mut windows = std::mem::take(&mut self.closed);
        if let Some(last) = windows.last_mut() {
            last.length_ms = now_ms.saturating_sub(last.at_ms).clamp(1, self.length_ms);
            self.open.push_back(Open::at(now_ms, self.length_ms));
        }
        windows
    }

    /// The window in which `at_ms` lies; the oldest open one for any earlier time.
    fn around(&mut self, at_ms: u64) -> &mut Open {
        loop {
            let newest = self.open.back().expect("never empty").window.until_ms();
            let total = self.closed.len() + self.open.len();
            if at_ms < newest || total as u64 >= WINDOWS_MAX {
                break;
            }
            self.open.push_back(Open::at(newest, self.length_ms));
        }
        let first = self.open.front().expect("never empty").window.at_ms;
        let index = at_ms.saturating_sub(first) / self.length_ms;
        let last = self.open.len() - 1;
        let index = usize::try_from(index).unwrap_or(last).min(last);
        &mut self.open[index]
    }

    /// Closes the windows that no event can reach after `at_ms`, so that single times are not kept longer
    /// than needed.
    fn settle(&mut self, at_ms: u64) {
        while self.open.len() > 1
            && self.open[0].window.until_ms() + self.settled_after_ms < at_ms
            && let Some(oldest) = self.open.pop_front()
        {
            self.closed.push(oldest.close());
        }
    }
}

impl Open {
    fn at(at_ms: u64, length_ms: u64) -> Self {
        Self {
            window: Window {
                at_ms,
                length_ms,
                ..Window::default()
            },
            ..Self::default()
        }
    }

    fn close(mut self) -> Window {
        let quantile = |times: &mut Vec<u32>, share: f64| {
            times.sort_unstable();
            // Nearest rank.
            let rank = (share * times.len() as f64).ceil() as usize;
            let us = times.get(rank.saturating_sub(1))?;
            Some(f64::from(*us) / 1_000.0)
        };
        let window = &mut self.window;
        window.p50_ms = quantile(&mut self.latencies_us, 0.50);
        window.p99_ms = quantile(&mut self.latencies_us, 0.99);
        window.first_token_p50_ms = quantile(&mut self.first_tokens_us, 0.50);
        window.first_token_p99_ms = quantile(&mut self.first_tokens_us, 0.99);
        self.window
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::client::{Outcome, Usage};

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn ended(origin: Origin, due: u64, waited: u64, latency: u64) -> Ended {
        Ended {
            outcome: Outcome {
                latency: ms(latency),
                first_token: Some(ms(latency / 2)),
                usage: Some(Usage {
                    prompt: 10,
                    completion: 1,
                    cached: Some(5),
                }),
                worker: Some("w1".into()),
                ..Outcome::default()
            },
            due: origin.after(ms(due)),
            waited: ms(waited),
        }
    }

    #[tokio::test]
    async fn each_thing_is_counted_when_clients_saw_it() {
        let origin = Origin::now();
        let mut windows = Windows::new(0, Duration::from_secs(60), TIMEOUT);
        windows.add(&ended(origin, 500, 100, 3_000), origin);
        windows.add(
            &Ended {
                outcome: Outcome {
                    failure: Some(Failure::Status(429)),
                    latency: ms(10),
                    ..Outcome::default()
                },
                ..ended(origin, 2_200, 0, 0)
            },
            origin,
        );
        let windows = windows.finish(4_250);
        let count = |of: fn(&Window) -> u64| windows.iter().map(of).collect::<Vec<_>>();
        assert_eq!(count(|w| w.at_ms), [0, 1_000, 2_000, 3_000, 4_000]);
        assert_eq!(
            windows[4].length_ms, 250,
            "the last one as long as it became"
        );
        assert_eq!(count(|w| w.sent), [1, 0, 1, 0, 0]);
        assert_eq!(count(|w| w.succeeded), [0, 0, 0, 1, 0]);
        assert_eq!(count(|w| w.failed), [0, 0, 1, 0, 0]);
        assert_eq!(count(|w| w.refused), [0, 0, 1, 0, 0]);
        assert_eq!(windows[2].first_token_p50_ms, Some(1_600.0), "from due");
        assert_eq!(
            (windows[3].p99_ms, windows[0].p99_ms),
            (Some(3_100.0), None)
        );
        assert_eq!(
            (windows[3].cached_tokens, windows[3].by_worker["w1"]),
            (5, 1)
        );
    }

    #[tokio::test]
    async fn replies_that_do_not_tell_of_caches_do_not_count_as_misses() {
        let origin = Origin::now();
        let mut windows = Windows::new(0, Duration::from_secs(60), TIMEOUT);
        let told = [
            (0, Some(0)),
            (1_000, None),
            (2_000, None),
            (2_000, Some(10)),
            (2_000, Some(0)),
        ];
        for (due, cached) in told {
            let mut one = ended(origin, due, 0, 100);
            one.outcome.usage = Some(Usage {
                prompt: 10,
                completion: 1,
                cached,
            });
            windows.add(&one, origin);
        }
        let windows = windows.finish(2_500);
        let rates: Vec<_> = windows.iter().map(Window::known_hit_rate).collect();
        assert_eq!(rates, [Some(0.0), None, Some(0.5)], "no hit is a figure");
        assert_eq!(windows[2].prompt_tokens, 30);
    }

    #[tokio::test]
    async fn long_runs_have_long_windows_and_keep_no_single_times() {
        let origin = Origin::now();
        let mut windows = Windows::new(0, Duration::from_secs(8 * 3_600), TIMEOUT);
        for second in 0..8 * 3_600 {
            windows.add(&ended(origin, second * 1_000, 0, 20), origin);
        }
        assert!(windows.open.len() <= 6, "{}", windows.open.len());
        let windows = windows.finish(8 * 3_600_000);
        assert!(windows.len() <= WINDOWS_MAX as usize && windows[0].length_ms == 5_000);
        assert_eq!(windows.iter().map(|w| w.succeeded).sum::<u64>(), 8 * 3_600);
    }

    #[test]
    fn quantiles_are_nearest_rank() {
        let mut open = Open::at(0, 1_000);
        open.latencies_us = (1..=100).rev().map(|n| n * 1_000).collect();
        let window = open.close();
        assert_eq!((window.p50_ms, window.p99_ms), (Some(50.0), Some(99.0)));
        assert_eq!(window.first_token_p99_ms, None);
    }

    proptest! {
        /// In any order of ends, nothing is lost, and windows lie end to end.
        #[test]
        fn nothing_is_lost(requests in proptest::collection::vec((0..40_000u64, 0..500u64, 0..10_000u64), 1..60)) {
            let origin = Origin::now();
            let mut windows = Windows::new(0, Duration::from_secs(60), TIMEOUT);
            for (due, waited, latency) in &requests {
                windows.add(&ended(origin, *due, *waited, *latency), origin);
            }
            let windows = windows.finish(60_000);
            let sum = |of: fn(&Window) -> u64| windows.iter().map(of).sum::<u64>();
            let all = requests.len() as u64;
            prop_assert_eq!((sum(|w| w.sent), sum(|w| w.succeeded), sum(|w| w.cached_tokens)), (all, all, 5 * all));
            prop_assert!(windows.windows(2).all(|pair| pair[0].until_ms() == pair[1].at_ms));
            prop_assert!(windows.iter().all(|w| (w.succeeded > 0) == w.p50_ms.is_some()));
        }
    }
}
