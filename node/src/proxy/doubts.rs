//! A server's error: is it the worker's fault, or the request's?
//!
//! Some requests fail in every engine alike, and a client that sends one after the other would have the breakers of all
//! workers open, for everybody. So what such an answer says of its worker is known only when others had the same request:
//!
//! | what became of the request | counts against |
//! |---|---|
//! | another worker answered it | each worker that failed |
//! | two workers failed or more, and none answered | no worker: the request is at fault |
//! | one failed, and another works on it for longer than that would have taken it to fail, too | that worker; none yet while a request was at fault within [`SUSPECTED_FOR`] |
//! | one failed, and no other was asked | that worker; none while a request was at fault within [`SUSPECTED_FOR`] |
//!
//! The third row is for answers that come whole: theirs may take minutes, in which a broken worker would stay in use. The
//! last row is for what comes when the budget of retries is used up: by then one that was at fault has been found.

use std::sync::Arc;
use std::time::Duration;

use grapevine_placement::AttemptOutcome;
use http::StatusCode;
use tokio::time::Instant;

use crate::cluster::Pool;
use crate::upstream::InFlight;
use crate::upstream::failure::Failure;
use crate::upstream::metrics::AttemptMetrics;

/// So long after a request was at fault a worker's error that no other worker had a chance to contradict counts against
/// nobody. It is the time over which breakers look at outcomes, by default.
const SUSPECTED_FOR: Duration = Duration::from_secs(10);

/// Who hears of an attempt.
pub(super) trait Reporter {
    /// It failed on a worker of this pool, which was silent since then: what counted there.
    fn failed(&mut self, pool: &Arc<Pool>, in_flight: InFlight, failure: &Failure, since: Instant);

    /// Called now and then while there is no answer, and at the time that it answers.
    fn looks(&mut self, _now: Instant) -> Option<Instant> {
        None
    }
}

/// The workers that answered one request with a server's error. Settled when the request has an answer, or is dropped.
#[derive(Debug)]
pub(super) struct Doubts<'a> {
    metrics: &'a AttemptMetrics,
    /// Those of which nothing is decided.
    failed: Vec<InFlight>,
    failures: u32,
    pool: Option<Arc<Pool>>,
    /// When the attempt of now began, and how long such a one may work until it contradicts the one that failed.
    begun: Option<Instant>,
    contradicts_after: Duration,
    /// The longest time that one took to fail.
    longest: Duration,
}

impl<'a> Doubts<'a> {
    /// None failed yet.
    pub(super) fn new(metrics: &'a AttemptMetrics) -> Self {
        Self {
            metrics,
            failed: Vec::new(),
            failures: 0,
            pool: None,
            begun: None,
            contradicts_after: Duration::ZERO,
            longest: Duration::ZERO,
        }
    }

    /// A worker is asked, which has computed the prompt after so long, as far as is known.
    pub(super) fn tries(&mut self, begun: Instant, likely_computed: Duration) {
        self.begun = Some(begun);
        self.contradicts_after = likely_computed.max(self.longest * 2);
    }

    fn end_all(&mut self, outcome: AttemptOutcome) {
        for mut in_flight in self.failed.drain(..) {
            in_flight.end(outcome);
        }
    }

    /// A worker answered with this status. One that refuses the request, too, contradicts nobody.
    pub(super) fn answered(&mut self, status: StatusCode) {
        let is_good = status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS;
        let outcome = match is_good {
            true => AttemptOutcome::Failure,
            false => AttemptOutcome::Neutral,
        };
        self.end_all(outcome);
    }
}

impl Reporter for Doubts<'_> {
    fn failed(
        &mut self,
        pool: &Arc<Pool>,
        mut in_flight: InFlight,
        failure: &Failure,
        since: Instant,
    ) {
        if !is_doubtful(failure) || !in_flight.is_judged() {
            in_flight.failed(failure, since);
            return;
        }
        in_flight.is_heard();
        in_flight.has_ended();
        self.failed.push(in_flight);
        self.pool = Some(Arc::clone(pool));
        self.failures += 1;
        let took = self.begun.map(|begun| begun.elapsed());
        self.longest = self.longest.max(took.unwrap_or_default());
    }

    fn looks(&mut self, now: Instant) -> Option<Instant> {
        if self.failures != 1 || self.failed.is_empty() {
            return None;
        }
        let pool = self.pool.as_ref();
        if pool.is_some_and(|pool| pool.suspects_requests(now)) {
            return None;
        }
        let at = self.begun?.checked_add(self.contradicts_after)?;
        if at <= now {
            self.end_all(AttemptOutcome::Failure);
            return None;
        }
        Some(at)
    }
}

impl Drop for Doubts<'_> {
    fn drop(&mut self) {
        let Some(pool) = self.pool.take().filter(|_| !self.failed.is_empty()) else {
            return;
        };
        let now = Instant::now();
        if self.failures > 1 {
            self.metrics.faults.inc();
            pool.request_at_fault(now + SUSPECTED_FOR);
        }
        let outcome = match pool.suspects_requests(now) {
            true => AttemptOutcome::Neutral,
            false => AttemptOutcome::Failure,
        };
        self.end_all(outcome);
    }
}

/// A server's error, of an engine that lives and takes requests.
fn is_doubtful(failure: &Failure) -> bool {
    let is_error = failure.status().is_some_and(|s| s.is_server_error());
    is_error && !failure.is_back_pressure() && !failure.is_leaving() && !failure.is_engine_dead()
}
