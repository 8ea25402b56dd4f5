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
use grapevine_bench::client::Client;
use grapevine_bench::load::{self, Arrivals, Ended, Plan, Prompts, Stop};

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
    ended: Instant,
    begun: bool,
    worker: Option<String>,
    replica: Option<String>,
    kind: String,
}

/// A process that was killed: told at `from`, and gone at `until`.
struct Kill {
    victim: Victim,
    name: String,
    from: Instant,
    until: Instant,
}

impl Kill {
    /// Could the death have caused this failure?
    fn excuses(&self, failure: &Failed) -> bool {
        let meanwhile = failure.ended >= self.from && failure.sent <= self.until + GRACE;
        meanwhile
            && match self.victim {
                // Without a head the replica is unknown; the time alone decides.
                Victim::Replica => failure.replica.as_ref().is_none_or(|on| *on == self.name),
                Victim::Worker => failure.begun && failure.worker.as_ref() == Some(&self.name),
            }
    }
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
    let stop = Stop::default();
    let run = load::run_until(client, plan, &stop, |ended, _| {
        failed.extend(Failed::of(ended));
    });
    let kill = async {
        sleep(BEFORE).await;
        let from = Instant::now();
        let name = match victim {
            Victim::Replica => cluster.kill_replica().await?,
            Victim::Worker => cluster.kill_worker().await?,
        };
        let until = Instant::now();
        anyhow::Ok(Kill {
            victim,
            name,
            from,
            until,
        })
    };
    let (report, kill) = tokio::join!(run, kill);
    let kill = kill?;
    let inexcusable = failed.iter().filter(|failure| !kill.excuses(failure));
    Ok(Damage {
        inexcusable: inexcusable.map(Failed::describe).collect(),
        victim: kill.name,
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
    fn of(request: &Ended) -> Option<Self> {
        let outcome = &request.outcome;
        Some(Self {
            kind: outcome.failure.as_ref()?.to_string(),
            sent: request.sent(),
            ended: request.at(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_excuses_what_was_in_flight_on_the_victim_and_nothing_else() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        // Sent and failed at these times.
        let failed = |sent, ended| Failed {
            sent: at(sent),
            ended: at(ended),
            begun: true,
            worker: Some("w1".into()),
            replica: Some("r1".into()),
            kind: "cut".into(),
        };
        let kill = |victim, name: &str| Kill {
            victim,
            name: name.to_owned(),
            from: at(3_000),
            until: at(3_010),
        };
        for (victim, name, other) in [(Victim::Replica, "r1", "r2"), (Victim::Worker, "w1", "w2")] {
            let killed = kill(victim, name);
            for (sent, ended, excused) in [
                (2_000, 3_005, true),
                (3_400, 3_500, true),
                (1_000, 2_999, false),
                (3_600, 4_000, false),
            ] {
                let failure = failed(sent, ended);
                assert_eq!(killed.excuses(&failure), excused, "{name}: {sent} {ended}");
            }
            assert!(!kill(victim, other).excuses(&failed(2_000, 3_005)));
        }
        let nowhere = || Failed {
            begun: false,
            worker: None,
            replica: None,
            ..failed(2_000, 3_005)
        };
        assert!(kill(Victim::Replica, "r1").excuses(&nowhere()));
        assert!(!kill(Victim::Worker, "w1").excuses(&nowhere()));
    }
}
