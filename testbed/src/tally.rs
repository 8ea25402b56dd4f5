//! Sums over many exchanges, and how they are shown: as JSON and as a table for people.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::client::Outcome;

/// Names kept in [`Summary::workers`]; requests of further ones are counted under `other`.
const WORKERS_MAX: usize = 1_000;
/// Greatest time that a histogram holds; longer ones count as this.
const TIME_MAX_US: u64 = 3_600_000_000;

/// Running sums.
#[derive(Debug)]
pub struct Tally {
    requests: u64,
    failures: BTreeMap<String, u64>,
    failed_before_begin: u64,
    latency: Histogram<u64>,
    first_event: Histogram<u64>,
    gaps: Histogram<u64>,
    prompt_tokens: u64,
    cached_tokens: u64,
    answer_tokens: u64,
    workers: BTreeMap<String, u64>,
}

impl Default for Tally {
    fn default() -> Self {
        let times = || {
            Histogram::new_with_bounds(1, TIME_MAX_US, 3).expect("1 us to 1 h in 3 digits is valid")
        };
        Self {
            requests: 0,
            failures: BTreeMap::new(),
            failed_before_begin: 0,
            latency: times(),
            first_event: times(),
            gaps: times(),
            prompt_tokens: 0,
            cached_tokens: 0,
            answer_tokens: 0,
            workers: BTreeMap::new(),
        }
    }
}

impl Tally {
    /// Counts one exchange. `waited` is time that the request spent before it was sent and that a
    /// user would have felt; it is added to latency and time to first token.
    pub fn add(&mut self, outcome: &Outcome, waited: Duration) {
        self.requests += 1;
        if let Some(worker) = &outcome.worker {
            let known = self.workers.contains_key(worker) || self.workers.len() < WORKERS_MAX;
            let name = if known { worker } else { "other" };
            *self.workers.entry(name.to_owned()).or_default() += 1;
        }
        if let Some(usage) = outcome.usage {
            self.prompt_tokens += usage.prompt;
            self.cached_tokens += usage.cached;
            self.answer_tokens += usage.completion;
        }
        for gap in &outcome.gaps {
            record(&mut self.gaps, *gap);
        }
        if let Some(failure) = &outcome.failure {
            *self.failures.entry(failure.to_string()).or_default() += 1;
            self.failed_before_begin += u64::from(!outcome.had_begun());
            return;
        }
        record(&mut self.latency, outcome.latency + waited);
        if let Some(first) = outcome.first_event {
            record(&mut self.first_event, first + waited);
        }
    }

    /// Exchanges counted.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Exchanges that failed.
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Share of prompt tokens that prefix caches supplied, as replies reported it; 0 to 1.
    pub fn hit_rate(&self) -> f64 {
        share(self.cached_tokens, self.prompt_tokens)
    }

    /// Median time to the first event so far.
    pub fn first_event_p50(&self) -> Duration {
        Duration::from_micros(self.first_event.value_at_quantile(0.5))
    }

    /// The sums over `elapsed`.
    pub fn summary(&self, elapsed: Duration) -> Summary {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        Summary {
            requests: self.requests,
            succeeded: self.requests - self.failed(),
            failures: self.failures.clone(),
            failed_before_begin: self.failed_before_begin,
            elapsed_s: seconds,
            requests_per_s: self.requests as f64 / seconds,
            latency: Times::of(&self.latency),
            ttft: Times::of(&self.first_event),
            gap: Times::of(&self.gaps),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            answer_tokens: self.answer_tokens,
            hit_rate: self.hit_rate(),
            workers: self.workers.clone(),
        }
    }
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    histogram.saturating_record(us.clamp(1, TIME_MAX_US));
}

/// `part / whole`, 0 when there is nothing.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Milliseconds at quantiles; all 0 when `count` is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Values recorded.
    pub count: u64,
    /// Mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Greatest.
    pub max_ms: f64,
}

impl Times {
    fn of(histogram: &Histogram<u64>) -> Self {
        let ms = |us: u64| us as f64 / 1_000.0;
        Self {
            count: histogram.len(),
            mean_ms: histogram.mean() / 1_000.0,
            p50_ms: ms(histogram.value_at_quantile(0.50)),
            p90_ms: ms(histogram.value_at_quantile(0.90)),
            p99_ms: ms(histogram.value_at_quantile(0.99)),
            max_ms: ms(histogram.max()),
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Requests sent.
    pub requests: u64,
    /// Of those, answered whole and in order.
    pub succeeded: u64,
    /// The others by kind ([`crate::client::Failure`]).
    pub failures: BTreeMap<String, u64>,
    /// Failed requests of which nothing had reached the client.
    pub failed_before_begin: u64,
    /// Wall time in seconds.
    pub elapsed_s: f64,
    /// Requests over wall time.
    pub requests_per_s: f64,
    /// From sending (or from the time it should have been sent) to the end; successes only.
    pub latency: Times,
    /// To the first event of a stream; successes only.
    pub ttft: Times,
    /// Between two events of a stream.
    pub gap: Times,
    /// As reported in `usage`.
    pub prompt_tokens: u64,
    /// As reported in `usage`.
    pub cached_tokens: u64,
    /// As reported in `usage`.
    pub answer_tokens: u64,
    /// `cached_tokens` over `prompt_tokens`.
    pub hit_rate: f64,
    /// Requests by `x-grapevine-worker`, if the router named it.
    pub workers: BTreeMap<String, u64>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "requests   {} in {:.1} s ({:.1}/s), {} succeeded",
            self.requests, self.elapsed_s, self.requests_per_s, self.succeeded
        )?;
        for (kind, count) in &self.failures {
            writeln!(f, "  failed   {count} {kind}")?;
        }
        if self.latency.count + self.gap.count > 0 {
            writeln!(
                f,
                "{:<10} {:>9} {:>9} {:>9} {:>9} {:>9}",
                "ms", "mean", "p50", "p90", "p99", "max"
            )?;
        }
        for (name, times) in [
            ("latency", self.latency),
            ("ttft", self.ttft),
            ("gap", self.gap),
        ] {
            if times.count > 0 {
                writeln!(
                    f,
                    "{name:<10} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2}",
                    times.mean_ms, times.p50_ms, times.p90_ms, times.p99_ms, times.max_ms
                )?;
            }
        }
        writeln!(
            f,
            "tokens     {} prompt, {} cached ({:.2} %), {} answer",
            self.prompt_tokens,
            self.cached_tokens,
            self.hit_rate * 100.0,
            self.answer_tokens
        )?;
        for (worker, count) in &self.workers {
            writeln!(f, "  worker   {count:>8} {worker}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Failure, Usage};

    #[test]
    fn sums() {
        let mut tally = Tally::default();
        let good = Outcome {
            latency: Duration::from_millis(100),
            first_event: Some(Duration::from_millis(10)),
            gaps: vec![Duration::from_millis(5); 3],
            usage: Some(Usage {
                prompt: 100,
                completion: 4,
                cached: 50,
            }),
            worker: Some("w1".into()),
            ..Outcome::default()
        };
        tally.add(&good, Duration::from_millis(7));
        tally.add(
            &Outcome {
                failure: Some(Failure::Cut),
                ..good.clone()
            },
            Duration::ZERO,
        );
        tally.add(
            &Outcome {
                failure: Some(Failure::Status(503)),
                ..Outcome::default()
            },
            Duration::ZERO,
        );
        let summary = tally.summary(Duration::from_secs(2));
        assert_eq!(
            (
                summary.requests,
                summary.succeeded,
                summary.failed_before_begin
            ),
            (3, 1, 1)
        );
        assert_eq!(
            summary.failures.keys().collect::<Vec<_>>(),
            ["cut", "status_503"]
        );
        assert!(
            (summary.ttft.p50_ms - 17.0).abs() < 0.1,
            "{:?}",
            summary.ttft
        );
        assert_eq!(
            (summary.gap.count, summary.hit_rate, summary.workers["w1"]),
            (6, 0.5, 2)
        );
        assert!(summary.to_string().contains("503"));
    }

    #[test]
    fn nothing_is_not_a_division_by_zero() {
        let summary = Tally::default().summary(Duration::ZERO);
        assert_eq!((summary.hit_rate, summary.latency), (0.0, Times::default()));
    }
}
