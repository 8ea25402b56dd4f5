//! Replays a trace as real requests, in scaled time, through one or more URLs.
//!
//! Open-loop rows are sent when they are due; closed-loop rows (`gap_ms`) wait for their session's previous
//! answer. Latency counts from when a row was due: a request that is sent late, or that waits because `in_flight_max`
//! are at work, is as slow as its user would have felt it.

mod asking;
mod counters;
mod counting;
mod prompt;
mod sending;
mod trace;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

pub use asking::Asking;
pub use counters::CacheCounters;
pub use prompt::{Asks, Messages, Shape};
pub use trace::{Row, Trace};
pub use turns::Turns;

use self::asking::Asker;
use self::counting::{Begin, Counting};
use self::sending::Sending;
use grapevine_bench::client::{Client, Target};
use grapevine_bench::tally::{Summary, Tally};

/// Least time between two calls of the progress callback, the last one apart.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// A replay.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What is replayed.
    pub trace: Arc<Trace>,
    /// Trace seconds per real second, above 0.
    pub speed: f64,
    /// Factor on the rate at which rows and sessions start, above 0; gaps within sessions stay.
    pub rate: f64,
    /// Share of the rows, from the first on, that are sent but in no figure, 0 to below 1.
    pub warm_up: f64,
    /// How rows become requests.
    pub shape: Shape,
    /// Requests at once.
    pub in_flight_max: usize,
    /// Limit of one request.
    pub timeout: Duration,
    /// Workers whose own counters are read before the first counted row and after the last.
    pub worker_urls: Vec<Target>,
    /// Replicas that are asked whether they agree; `None`: none is asked.
    pub asking: Option<Asking>,
}

/// The result of a replay.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Sums over all requests after the warm-up.
    #[serde(flatten)]
    pub summary: Summary,
    /// Counts of the workers' own counters since the warm-up; `None` without worker URLs.
    pub worker_cache: Option<CacheCounters>,
    /// Requests about which two replicas were asked.
    pub asked: u64,
    /// Of those, requests on which they agreed.
    pub agreed: u64,
}

/// A look at a running replay.
#[derive(Debug)]
pub struct Progress<'a> {
    /// Requests that are counted.
    pub total: usize,
    /// Sums so far.
    pub tally: &'a Tally,
}

impl Plan {
    /// Rows that only warm the caches.
    fn uncounted(&self) -> usize {
        (self.trace.rows.len() as f64 * self.warm_up) as usize
    }
}

/// Replays the whole trace.
/// Errors: when workers' counters cannot be read, or sending panicked: a trace with times beyond what a clock holds.
pub async fn run(
    client: Arc<Client>,
    plan: Plan,
    mut progress: impl FnMut(Progress<'_>),
) -> anyhow::Result<Report> {
    // Read now, so that counters that cannot be read are told before the load and not after it.
    let cache = CacheCounters::of_all(&plan.worker_urls).await?;
    let total = plan.trace.rows.len() - plan.uncounted();
    let asker = Arc::new(Asker::new(plan.asking.as_ref()));
    let start = Instant::now();
    let at_first = Begin { at: start, cache };
    let counting = Arc::new(Counting::new(
        plan.worker_urls.clone(),
        (plan.uncounted() == 0).then_some(at_first),
    ));
    let (send, mut outcomes) = mpsc::channel(1_024);
    let sending = Sending::new(
        client,
        plan.clone(),
        Arc::clone(&asker),
        Arc::clone(&counting),
        send,
    );
    let sent = AbortOnDropHandle::new(tokio::spawn(Arc::new(sending).all(start)));
    let mut tally = Tally::default();
    let mut told = start;
    while let Some((outcome, waited)) = outcomes.recv().await {
        tally.add(&outcome, waited);
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            progress(Progress {
                total,
                tally: &tally,
            });
        }
    }
    sent.await.context("sending panicked")??;
    progress(Progress {
        total,
        tally: &tally,
    });
    let begin = counting.begun().unwrap_or(at_first);
    let elapsed = begin.at.elapsed();
    let (asked, agreed) = asker.counted();
    let after = CacheCounters::of_all(&plan.worker_urls).await?;
    Ok(Report {
        summary: tally.summary(elapsed),
        asked,
        agreed,
        worker_cache: (!plan.worker_urls.is_empty()).then(|| after.since(&begin.cache)),
    })
}

#[cfg(test)]
mod tests;
