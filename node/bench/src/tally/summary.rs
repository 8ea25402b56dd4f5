//! What a tally comes to, as JSON and as a table for people.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::client::clean;

/// A wait after the last answer that is worth a line.
const WAIT_SHOWN_S: f64 = 0.1;

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
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
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
    /// The same by kind and code, with what the first of them said; the most frequent first.
    #[serde(default)]
    pub errors: Vec<ErrorCount>,
    /// Failed requests of which nothing had reached the client.
    pub failed_before_begin: u64,
    /// Seconds until the last request had ended.
    pub elapsed_s: f64,
    /// Seconds until the last request was answered whole, or sent, whichever was later; where none was answered, as
    /// `elapsed_s`. All rates are over this time.
    #[serde(default)]
    pub active_s: f64,
    /// Requests that ended within `active_s`, over it.
    pub requests_per_s: f64,
    /// From sending (or from the time it should have been sent) to the end; successes only.
    pub latency: Times,
    /// To the first event of a stream that carries a part of the answer; successes only.
    pub ttft: Times,
    /// Between two such events of a stream; successes only.
    pub gap: Times,
    /// Time for each answer token after the first, of streams that report how many there were; successes only.
    #[serde(default)]
    pub tpot: Times,
    /// As reported in `usage`.
    pub prompt_tokens: u64,
    /// Of these, the tokens of replies that said how many were cached; 0 if the endpoint never says it.
    #[serde(default)]
    pub prompt_tokens_told: u64,
    /// As reported in `usage`.
    pub cached_tokens: u64,
    /// As reported in `usage`; successes only, as all rates of tokens are of whole answers.
    pub answer_tokens: u64,
    /// Events of streams that carried a part of an answer, for endpoints that report no usage; successes only.
    #[serde(default)]
    pub answer_events: u64,
    /// Answers without `usage`, each of whose events counts as a token; successes only.
    #[serde(default)]
    pub answers_by_events: u64,
    /// Events of these answers.
    #[serde(default)]
    pub events_for_tokens: u64,
    /// `cached_tokens` over `prompt_tokens_told`; 0 where that is 0.
    pub hit_rate: f64,
    /// Requests by `x-grapevine-worker`, if the router named it.
    pub workers: BTreeMap<String, u64>,
}

/// Failures of one kind and code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    /// As [`crate::client::Failure`] is written: `status_503`, `cut`.
    pub kind: String,
    /// The endpoint's own code, or empty.
    pub code: String,
    /// How many.
    pub count: u64,
    /// What the first of them said, or empty.
    pub message: String,
}

impl fmt::Display for ErrorCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, clean(&self.kind))?;
        if !self.code.is_empty() {
            write!(f, " {}", clean(&self.code))?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", clean(&self.message))?;
        }
        Ok(())
    }
}

impl Summary {
    /// Answer tokens a second; of answers without usage the events that carried them.
    pub fn answer_tokens_per_s(&self) -> f64 {
        let tokens = self.answer_tokens + self.events_for_tokens;
        tokens as f64 / self.active_s.max(1e-9)
    }

    /// Requests that were answered whole, a second.
    pub fn answered_per_s(&self) -> f64 {
        self.succeeded as f64 / self.active_s.max(1e-9)
    }

    /// The share of cached prompt tokens; `None` where the endpoint does not say.
    pub fn known_hit_rate(&self) -> Option<f64> {
        (self.prompt_tokens_told > 0).then_some(self.hit_rate)
    }

    /// The measured times by their names, those that were measured at all.
    pub fn times(&self) -> impl Iterator<Item = (&'static str, Times)> {
        let all = [
            ("latency", self.latency),
            ("ttft", self.ttft),
            ("gap", self.gap),
            ("tpot", self.tpot),
        ];
        all.into_iter().filter(|(_, times)| times.count > 0)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "requests   {} in {:.1} s ({:.1}/s), {} succeeded",
            self.requests, self.active_s, self.requests_per_s, self.succeeded
        )?;
        let waited = self.elapsed_s - self.active_s;
        if waited >= WAIT_SHOWN_S {
            writeln!(
                f,
                "waited     {waited:.1} s more, in which none was answered whole"
            )?;
        }
        for error in &self.errors {
            writeln!(f, "  failed   {error}")?;
        }
        if self.times().next().is_some() {
            writeln!(
                f,
                "{:<10} {:>9} {:>9} {:>9} {:>9} {:>9}",
                "ms", "mean", "p50", "p90", "p99", "max"
            )?;
        }
        for (name, times) in self.times() {
            writeln!(
                f,
                "{name:<10} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2}",
                times.mean_ms, times.p50_ms, times.p90_ms, times.p99_ms, times.max_ms
            )?;
        }
        let cached = self.known_hit_rate().map_or_else(
            || "cached not told".to_owned(),
            |rate| format!("{} cached ({:.2} %)", self.cached_tokens, rate * 100.0),
        );
        writeln!(
            f,
            "tokens     {} prompt, {cached}, {} answer ({:.1}/s)",
            self.prompt_tokens,
            self.answer_tokens,
            self.answer_tokens_per_s()
        )?;
        if self.answers_by_events > 0 {
            writeln!(
                f,
                "           {} answers do not tell their tokens: {} events count instead",
                self.answers_by_events, self.events_for_tokens
            )?;
        }
        for (worker, count) in &self.workers {
            writeln!(f, "  worker   {count:>8} {worker}")?;
        }
        Ok(())
    }
}
