//! Clocks: of replicas against each other, of workers against the asked replica, of this machine against theirs.
//!
//! Nothing that decides goes by the clock, up to a day; certificates do, from ten minutes on, and logs of different
//! machines cannot be laid beside each other from seconds on.

use crate::cli::doctor::facts::{ClusterFacts, ReplicaFacts};
use crate::cli::doctor::finding::Finding;
use crate::shown::field;
use crate::shown::words::{count, named, verb};

/// From here on it should be mended, in milliseconds.
const ADVICE_MS: i64 = 2_000;
/// From here on it is a problem.
const PROBLEM_MS: i64 = 60_000;
/// Workers tell whole seconds, at the time of a check.
const WORKER_S: i64 = 5;

const TODO: &str = "run a time service (chrony, systemd-timesyncd) on each machine";

pub(super) fn check(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    let clocks: Vec<(&ReplicaFacts, i64)> = facts
        .replicas
        .iter()
        .filter_map(|replica| Some((replica, replica.ahead_ms?)))
        .collect();
    let mut sorted: Vec<i64> = clocks.iter().map(|(_, ahead)| *ahead).collect();
    sorted.sort_unstable();
    let Some(median) = sorted.get(sorted.len() / 2).copied() else {
        return workers(facts, found);
    };
    match clocks.as_slice() {
        [(a, of_a), (b, of_b)] => {
            let apart = (of_a - of_b).abs() - a.unsure_ms - b.unsure_ms;
            if let Some(finding) = graded(
                apart,
                &format!("the clocks of {} and {} are", a.id, b.id),
                " apart",
            ) {
                found.push(finding.of([&a.id, &b.id]));
            }
        }
        _ => {
            for (replica, ahead) in &clocks {
                let off = (ahead - median).abs() - replica.unsure_ms;
                let side = if *ahead > median {
                    " ahead of"
                } else {
                    " behind"
                };
                let whose = format!("the clock of {} is", replica.id);
                let finding = graded(off, &whose, &format!("{side} those of the other replicas"));
                found.extend(finding.map(|finding| finding.of([&replica.id])));
            }
        }
    }
    let unsure = clocks
        .iter()
        .map(|(replica, _)| replica.unsure_ms)
        .max()
        .unwrap_or(0);
    if median.abs() - unsure > ADVICE_MS {
        let side = if median > 0 { "behind" } else { "ahead of" };
        let what = format!(
            "the clock of this machine is {} {side} the replicas'",
            time(median.abs())
        );
        found.push(
            Finding::info("clock", what)
                .todo("times that commands print here are those of the replicas"),
        );
    }
    workers(facts, found);
}

fn graded(apart: i64, whose: &str, rest: &str) -> Option<Finding> {
    let what = format!("{whose} {}{rest}", time(apart));
    match apart {
        PROBLEM_MS.. => Some(Finding::problem("clock", what).todo(format!(
            "{TODO}; from 10 minutes on certificates are refused, from a day on registry entries are"
        ))),
        ADVICE_MS.. => Some(Finding::advice("clock", what).todo(TODO)),
        _ => None,
    }
}

fn workers(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    let off = facts.workers.iter().filter_map(|worker| {
        let ahead = worker["clock_ahead_s"].as_i64()?;
        (ahead.abs() >= WORKER_S).then(|| (field(worker, "id"), ahead))
    });
    let off: Vec<(String, i64)> = off.collect();
    let most = off.iter().map(|(_, ahead)| ahead.abs()).max();
    let Some(most) = most else { return };
    let ids: Vec<&String> = off.iter().map(|(id, _)| id).collect();
    let what = format!(
        "by their answers {} {} up to {} from that of {}: {}",
        count(off.len(), "worker"),
        verb(off.len(), "has a clock that is", "have clocks that are"),
        time(most.saturating_mul(1_000)),
        field(&facts.cluster, "replica"),
        named(&ids),
    );
    found.push(Finding::advice("clock", what).of(ids).todo(TODO));
}

fn time(ms: i64) -> String {
    let ms = u64::try_from(ms).unwrap_or(0);
    match ms {
        0..10_000 => format!("{:.1} s", ms as f64 / 1e3),
        _ => crate::shown::seconds(ms / 1_000),
    }
}
