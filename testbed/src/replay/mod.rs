//! Replays a trace as real requests, in scaled time, through one or more URLs.
//!
//! Open-loop rows are sent when they are due; closed-loop rows (`gap_ms`) wait for their session's previous
//! answer. Requests beyond `in_flight_max` at once wait, and that time counts into their latency, so a slow
//! system cannot hide its delay.

mod asking;
mod counters;
mod prompt;
mod trace;
mod turns;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

pub use asking::Asking;
pub use counters::CacheCounters;
pub use prompt::{Asks, Messages, Shape};
pub use trace::{Row, Trace};
pub use turns::Turns;

use self::asking::Asker;
use grapevine_bench::client::{Client, Outcome, Target};
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
    /// Share of the rows, from the first on, that are sent but not counted, 0 to 1.
    pub warm_up: f64,
    /// How rows become requests.
    pub shape: Shape,
    /// Requests at once.
    pub in_flight_max: usize,
    /// Limit of one request.
    pub timeout: Duration,
    /// Workers whose own counters are read before and after.
    pub worker_urls: Vec<Target>,
    /// Replicas that are asked whether they agree; `None`: none is asked.
    pub asking: Option<Asking>,
}

/// The result of a replay.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Sums over all requests.
    #[serde(flatten)]
    pub summary: Summary,
    /// Counts of the workers' own counters during the replay; `None` without worker URLs.
    pub worker_cache: Option<CacheCounters>,
    /// Requests about which two replicas were asked.
    pub asked: u64,
    /// Of those, requests on which they agreed.
    pub agreed: u64,
}

/// A look at a running replay.
#[derive(Debug)]
pub struct Progress<'a> {
    /// Requests of the trace.
    pub total: usize,
    /// Sums so far.
    pub tally: &'a Tally,
}

/// Rows that follow one another: one open-loop row, or the closed-loop rows of a session.
struct Chain {
    start: Duration,
    rows: Vec<usize>,
}

/// Replays the whole trace. Fails only when workers' counters cannot be read.
pub async fn run(
    client: Arc<Client>,
    plan: Plan,
    mut progress: impl FnMut(Progress<'_>),
) -> anyhow::Result<Report> {
    let before = CacheCounters::of_all(&plan.worker_urls).await?;
    let plan = Arc::new(plan);
    let asker = Arc::new(Asker::new(plan.asking.as_ref()));
    let asks = Arc::new(Asks::new(Arc::clone(&plan.trace), plan.shape.clone()));
    let uncounted = uncounted(&plan);
    let total = plan.trace.rows.len() - uncounted;
    let start = Instant::now();
    let (send, mut outcomes) = mpsc::channel(1_024);
    let mut sender = JoinSet::new();
    sender.spawn(send_all(
        client,
        Arc::clone(&plan),
        asks,
        Arc::clone(&asker),
        start,
        send,
    ));
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
    progress(Progress {
        total,
        tally: &tally,
    });
    let elapsed = start.elapsed();
    let (asked, agreed) = asker.counted();
    let after = CacheCounters::of_all(&plan.worker_urls).await?;
    Ok(Report {
        summary: tally.summary(elapsed),
        asked,
        agreed,
        worker_cache: (!plan.worker_urls.is_empty()).then(|| after.since(&before)),
    })
}

async fn send_all(
    client: Arc<Client>,
    plan: Arc<Plan>,
    asks: Arc<Asks>,
    asker: Arc<Asker>,
    start: Instant,
    outcomes: mpsc::Sender<(Outcome, Duration)>,
) {
    let uncounted = uncounted(&plan);
    let permits = Arc::new(Semaphore::new(plan.in_flight_max.max(1)));
    let mut tasks = JoinSet::new();
    for chain in chains(&plan.trace) {
        sleep_until(start + chain.start.div_f64(plan.speed * plan.rate)).await;
        while tasks.try_join_next().is_some() {}
        let (client, plan) = (Arc::clone(&client), Arc::clone(&plan));
        let (permits, outcomes) = (Arc::clone(&permits), outcomes.clone());
        let (asker, asks) = (Arc::clone(&asker), Arc::clone(&asks));
        tasks.spawn(async move {
            for index in chain.rows {
                let row = &plan.trace.rows[index];
                sleep(Duration::from_millis(row.gap_ms.unwrap_or(0)).div_f64(plan.speed)).await;
                let due = Instant::now();
                let permit = permits
                    .acquire()
                    .await
                    .expect("the semaphore is never closed");
                let waited = due.elapsed();
                // The text is made only now: a prompt may be half a megabyte.
                let ask = asks.ask(index);
                asker.ask(&ask).await;
                let outcome = client.exchange(&ask, plan.timeout).await;
                drop(permit);
                if index >= uncounted && outcomes.send((outcome, waited)).await.is_err() {
                    return;
                }
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// Rows that only warm the caches.
fn uncounted(plan: &Plan) -> usize {
    (plan.trace.rows.len() as f64 * plan.warm_up) as usize
}

/// Chains in order of their start.
fn chains(trace: &Trace) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut sessions: HashMap<u64, usize> = HashMap::new();
    for (index, row) in trace.rows.iter().enumerate() {
        let session = row.session.filter(|_| row.gap_ms.is_some());
        if let Some(at) = session.and_then(|session| sessions.get(&session)) {
            chains[*at].rows.push(index);
            continue;
        }
        if let Some(session) = session {
            sessions.insert(session, chains.len());
        }
        chains.push(Chain {
            start: Duration::from_millis(row.t_ms),
            rows: vec![index],
        });
    }
    chains.sort_by_key(|chain| chain.start);
    chains
}

#[cfg(test)]
mod tests;
