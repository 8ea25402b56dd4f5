//! Kills a process under load and checks what clients saw.
//!
//! Only requests that cannot be saved may fail. For a killed replica these are all requests that it was
//! serving; for a killed worker, the requests whose answers had partly reached the client. All others must
//! succeed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::cluster::Cluster;
use crate::processes::MODEL;
use grapevine_bench::client::{Client, Outcome};
use grapevine_bench::load::{self, Arrivals, Plan, Prompts};

/// Clients, one stream each.
const CLIENTS: usize = 48;
/// Load before the kill, and after it.
const BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(4);
/// A request sent this soon after the kill may have met the dying connection.
const GRACE: Duration = Duration::from_millis(500);

/// Which process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Victim {
    Replica,
    Worker,
}

/// What clients saw.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Damage {
    /// Name of the killed process.
    pub(super) victim: String,
    pub(super) requests: u64,
    pub(super) succeeded: u64,
    pub(super) failures: BTreeMap<String, u64>,
    /// Failures that the death of this process does not excuse.
    pub(super) inexcusable: Vec<String>,
    /// Longest successful request, including time lost on the killed process.
    pub(super) latency_max_ms: f64,
}

/// A failure, with the facts that decide whether it is excused.
struct Failed {
    sent: Instant,
    begun: bool,
    worker: Option<String>,
    replica: Option<String>,
    kind: String,
}

/// Kills a process under load, and goes on with the load.
pub(super) async fn strike(
    cluster: &mut Cluster,
    victim: Victim,
    seed: u64,
) -> anyhow::Result<Damage> {
    let client = Arc::new(Client::one(cluster.front()?));
    let plan = Plan {
        arrivals: Arrivals::Closed { clients: CLIENTS },
        requests: u64::MAX,
        duration: BEFORE + AFTER,
        timeout: Duration::from_secs(30),
        source: Prompts {
            seed,
            groups: 40,
            shared_bytes: 4_000,
            max_tokens: 200,
            model: Some(MODEL.to_owned()),
            ..Prompts::default()
        }
        .into(),
        first_session: 0,
        explain: true,
        seed,
    };
    let mut failed = Vec::new();
    let run = load::run(client, plan, |outcome, _| {
        failed.extend(Failed::of(outcome))
    });
    let kill = async {
        sleep(BEFORE).await;
        let name = match victim {
            Victim::Replica => cluster.kill_replica().await?,
            Victim::Worker => cluster.kill_worker().await?,
        };
        anyhow::Ok((name, Instant::now()))
    };
    let (report, killed) = tokio::join!(run, kill);
    let (name, at) = killed?;
    let excused = |failure: &Failed| {
        failure.sent <= at + GRACE
            && match victim {
                // Without a head the replica is unknown; the time alone decides.
                Victim::Replica => failure
                    .replica
                    .as_ref()
                    .is_none_or(|replica| *replica == name),
                Victim::Worker => failure.begun && failure.worker.as_ref() == Some(&name),
            }
    };
    let inexcusable = failed.iter().filter(|failure| !excused(failure));
    Ok(Damage {
        inexcusable: inexcusable.map(Failed::describe).collect(),
        victim: name,
        requests: report.summary.requests,
        succeeded: report.summary.succeeded,
        failures: report.summary.failures,
        latency_max_ms: report.summary.latency.max_ms,
    })
}

impl Damage {
    pub(super) fn held(&self) -> bool {
        self.inexcusable.is_empty() && self.succeeded > 0
    }
}

impl Failed {
    fn of(outcome: &Outcome) -> Option<Self> {
        Some(Self {
            kind: outcome.failure.as_ref()?.to_string(),
            sent: Instant::now() - outcome.latency,
            begun: outcome.had_begun(),
            worker: outcome.worker.clone(),
            replica: outcome.replica.clone(),
        })
    }

    fn describe(&self) -> String {
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "?".into());
        let begun = if self.begun { "begun" } else { "not begun" };
        format!(
            "{} ({begun}, replica {}, worker {})",
            self.kind,
            name(&self.replica),
            name(&self.worker)
        )
    }
}
