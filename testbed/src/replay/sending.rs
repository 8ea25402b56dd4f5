//! Sends the rows of a trace when they are due.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::asking::Asker;
use super::counting::Counting;
use super::{Asks, Plan, Trace};
use grapevine_bench::client::{Client, Outcome};

/// Rows that follow one another: one open-loop row, or the closed-loop rows of a session.
struct Chain {
    start: Duration,
    rows: Vec<usize>,
}

/// What all rows need.
pub(super) struct Sending {
    client: Arc<Client>,
    plan: Plan,
    asks: Asks,
    asker: Arc<Asker>,
    counting: Arc<Counting>,
    permits: Semaphore,
    /// Rows that only warm the caches.
    uncounted: usize,
    /// Gets each counted request with the time from when it was due until it was sent.
    outcomes: mpsc::Sender<(Outcome, Duration)>,
}

impl Sending {
    pub(super) fn new(
        client: Arc<Client>,
        plan: Plan,
        asker: Arc<Asker>,
        counting: Arc<Counting>,
        outcomes: mpsc::Sender<(Outcome, Duration)>,
    ) -> Self {
        Self {
            asks: Asks::new(Arc::clone(&plan.trace), plan.shape.clone()),
            permits: Semaphore::new(plan.in_flight_max.max(1)),
            uncounted: plan.uncounted(),
            client,
            plan,
            asker,
            counting,
            outcomes,
        }
    }

    /// Sends all rows, the first one `t_ms` after `start`, and waits for their answers.
    /// Errors: when workers' counters cannot be read, or a row panicked. What is in flight then is dropped.
    pub(super) async fn all(self: Arc<Self>, start: Instant) -> anyhow::Result<()> {
        let scale = self.plan.speed * self.plan.rate;
        let mut chains_sent = JoinSet::new();
        for chain in chains(&self.plan.trace) {
            let due = start + chain.start.div_f64(scale);
            sleep_until(due).await;
            while let Some(ended) = chains_sent.try_join_next() {
                went_well(ended)?;
            }
            chains_sent.spawn(Arc::clone(&self).chain(chain, due));
        }
        while let Some(ended) = chains_sent.join_next().await {
            went_well(ended)?;
        }
        Ok(())
    }

    async fn chain(self: Arc<Self>, chain: Chain, start: Instant) -> anyhow::Result<()> {
        let mut due = start;
        for index in chain.rows {
            let gap = Duration::from_millis(self.plan.trace.rows[index].gap_ms.unwrap_or(0));
            due += gap.div_f64(self.plan.speed);
            sleep_until(due).await;
            let is_counted = index >= self.uncounted;
            if is_counted {
                let before = Instant::now();
                self.counting.begin(due).await?;
                // No user waits for the workers' counters.
                due += before.elapsed();
            }
            let permit = self.permits.acquire().await;
            let permit = permit.expect("the semaphore is never closed");
            // The text is made only now: a prompt may be half a megabyte.
            let ask = self.asks.ask(index);
            // No user waits for what replicas are asked beforehand.
            let waited = due.elapsed();
            if is_counted {
                self.asker.ask(&ask).await;
            }
            let outcome = self.client.exchange(&ask, self.plan.timeout).await;
            // The next row of the session is due from here on.
            due = Instant::now();
            drop(permit);
            if is_counted && self.outcomes.send((outcome, waited)).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

fn went_well(ended: Result<anyhow::Result<()>, JoinError>) -> anyhow::Result<()> {
    ended.context("a row panicked")?
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
