//! Sums over many exchanges.

mod summary;
mod took;

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

pub use summary::{ErrorCount, Summary, Times};
pub use took::Took;

use crate::client::{ERROR_EVENT, Outcome};

/// Names kept in [`Summary::workers`]; requests of further ones are counted under `other`.
const WORKERS_MAX: usize = 1_000;
/// Kinds of failures beyond which error events with further codes are counted as [`OTHER_EVENT`], since endpoints choose
/// these codes. All other kinds are few.
const KINDS_MAX: usize = 64;
/// Error events whose code is not told.
const OTHER_EVENT: &str = "error_event_other";
/// Kinds of errors told apart by their code; further ones are counted by their kind alone.
const ERRORS_MAX: usize = 64;
/// Greatest time that a histogram holds; longer ones count as this.
const TIME_MAX_US: u64 = 3_600_000_000;

/// Running sums.
#[derive(Debug)]
pub struct Tally {
    requests: u64,
    failures: BTreeMap<String, u64>,
    /// By kind and code: how many, and what the first of them said.
    errors: BTreeMap<(String, String), (u64, String)>,
    failed_before_begin: u64,
    latency: Histogram<u64>,
    first_token: Histogram<u64>,
    gaps: Histogram<u64>,
    per_token: Histogram<u64>,
    prompt_tokens: u64,
    /// Of replies that said how many tokens were cached.
    prompt_tokens_told: u64,
    cached_tokens: u64,
    answer_tokens: u64,
    answer_events: u64,
    answers_by_events: u64,
    events_for_tokens: u64,
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
            errors: BTreeMap::new(),
            failed_before_begin: 0,
            latency: times(),
            first_token: times(),
            gaps: times(),
            per_token: times(),
            prompt_tokens: 0,
            prompt_tokens_told: 0,
            cached_tokens: 0,
            answer_tokens: 0,
            answer_events: 0,
            answers_by_events: 0,
            events_for_tokens: 0,
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
            if let Some(cached) = usage.cached {
                self.prompt_tokens_told += usage.prompt;
                self.cached_tokens += cached;
            }
        }
        if outcome.failure.is_some() {
            self.add_failure(outcome);
            return;
        }
        let tokens = outcome.usage.map_or(0, |usage| usage.completion);
        self.answer_tokens += tokens;
        let events = outcome.gaps.len() as u64 + u64::from(outcome.first_token.is_some());
        self.answer_events += events;
        if outcome.usage.is_none() && events > 0 {
            self.answers_by_events += 1;
            self.events_for_tokens += events;
        }
        for gap in &outcome.gaps {
            record(&mut self.gaps, *gap);
        }
        record(&mut self.latency, outcome.latency + waited);
        if let Some(first) = outcome.first_token {
            record(&mut self.first_token, first + waited);
            let further = tokens.saturating_sub(1);
            let writing = outcome.latency.saturating_sub(first);
            if let Some(each) = writing.checked_div(u32::try_from(further).unwrap_or(u32::MAX)) {
                record(&mut self.per_token, each);
            }
        }
    }

    fn add_failure(&mut self, outcome: &Outcome) {
        let kind = outcome.failure.as_ref().map(ToString::to_string);
        let kind = kind.unwrap_or_default();
        let said = outcome.complaint.clone().unwrap_or_default();
        self.failed_before_begin += u64::from(!outcome.had_begun());
        let kind = self.add_kind(&kind, 1);
        self.add_error(kind.to_owned(), &said.code, 1, &said.message);
    }

    /// The name under which failures of a kind are counted.
    fn add_kind<'a>(&mut self, kind: &'a str, count: u64) -> &'a str {
        let is_known = self.failures.contains_key(kind) || self.failures.len() < KINDS_MAX;
        let kind = match kind.starts_with(ERROR_EVENT) && !is_known {
            true => OTHER_EVENT,
            false => kind,
        };
        *self.failures.entry(kind.to_owned()).or_default() += count;
        kind
    }

    fn add_error(&mut self, kind: String, code: &str, count: u64, message: &str) {
        let mut key = (kind, code.to_owned());
        if self.errors.len() >= ERRORS_MAX && !self.errors.contains_key(&key) {
            key.1.clear();
        }
        let error = self.errors.entry(key);
        error.or_insert_with(|| (0, message.to_owned())).0 += count;
    }

    /// Adds what another one has counted.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.latency, &other.latency),
            (&mut self.first_token, &other.first_token),
            (&mut self.gaps, &other.gaps),
            (&mut self.per_token, &other.per_token),
        ] {
            mine.add(theirs).expect("all have the same bounds");
        }
        for (kind, count) in &other.failures {
            self.add_kind(kind, *count);
        }
        for ((kind, code), (count, message)) in &other.errors {
            // As it was counted above.
            let is_known = self.failures.contains_key(kind);
            let kind = if is_known { kind.as_str() } else { OTHER_EVENT };
            self.add_error(kind.to_owned(), code, *count, message);
        }
        for (worker, count) in &other.workers {
            *self.workers.entry(worker.clone()).or_default() += count;
        }
        for (mine, theirs) in [
            (&mut self.requests, other.requests),
            (&mut self.failed_before_begin, other.failed_before_begin),
            (&mut self.prompt_tokens, other.prompt_tokens),
            (&mut self.prompt_tokens_told, other.prompt_tokens_told),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.answer_tokens, other.answer_tokens),
            (&mut self.answer_events, other.answer_events),
            (&mut self.answers_by_events, other.answers_by_events),
            (&mut self.events_for_tokens, other.events_for_tokens),
        ] {
            *mine += theirs;
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

    /// Share of prompt tokens that prefix caches supplied, of the replies that say so; 0 to 1, and 0 where none does.
    pub fn hit_rate(&self) -> f64 {
        share(self.cached_tokens, self.prompt_tokens_told)
    }

    /// Median time to the first token so far.
    pub fn first_token_p50(&self) -> Duration {
        Duration::from_micros(self.first_token.value_at_quantile(0.5))
    }

    /// The sums of a run that took so long.
    pub fn summary(&self, took: impl Into<Took>) -> Summary {
        let took = took.into();
        let seconds = |time: Duration| time.as_secs_f64().max(1e-9);
        let in_time = self.requests.saturating_sub(took.late);
        Summary {
            requests: self.requests,
            succeeded: self.requests - self.failed(),
            failures: self.failures.clone(),
            errors: self.errors(),
            failed_before_begin: self.failed_before_begin,
            elapsed_s: seconds(took.elapsed),
            active_s: seconds(took.active),
            requests_per_s: in_time as f64 / seconds(took.active),
            latency: Times::of(&self.latency),
            ttft: Times::of(&self.first_token),
            gap: Times::of(&self.gaps),
            tpot: Times::of(&self.per_token),
            prompt_tokens: self.prompt_tokens,
            prompt_tokens_told: self.prompt_tokens_told,
            cached_tokens: self.cached_tokens,
            answer_tokens: self.answer_tokens,
            answer_events: self.answer_events,
            answers_by_events: self.answers_by_events,
            events_for_tokens: self.events_for_tokens,
            hit_rate: self.hit_rate(),
            workers: self.workers.clone(),
        }
    }
}

impl Tally {
    fn errors(&self) -> Vec<ErrorCount> {
        let errors = self.errors.iter();
        let errors = errors.map(|((kind, code), (count, message))| ErrorCount {
            kind: kind.clone(),
            code: code.clone(),
            count: *count,
            message: message.clone(),
        });
        let mut errors: Vec<_> = errors.collect();
        errors.sort_by_key(|error| std::cmp::Reverse(error.count));
        errors
    }
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    histogram.saturating_record(us.clamp(1, TIME_MAX_US));
}

/// `part / whole`, 0 when there is nothing.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests;
