//! What each replica's machine or container gives it: files, processors, memory; limits that were reached, lost log lines.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cli::doctor::facts::{ClusterFacts, ReplicaFacts, series};
use crate::cli::doctor::finding::Finding;
use crate::shown::words::{count, limit_in_words, named};

/// Connections that fit below which a replica is small for what its limit says.
pub(super) const CONNECTIONS_FEW: u64 = 4_096;
/// With fewer a handful of clients is turned away.
const CONNECTIONS_TOO_FEW: u64 = 128;
/// Share of the last hour's periods in which the quota of the cgroup was used up that is worth a word.
const HELD_UP: f64 = 0.05;
/// A replica refuses requests from 85 % on.
const MEMORY_FULL: f64 = 0.85;
const MEMORY_HIGH: f64 = 0.7;
/// Share of the requests for which there may be no room.
const REFUSED_SHARE: f64 = 0.01;
/// Results of `grapevine_admissions_total` that say so; those of a key's own limits are not among them.
const NO_ROOM: [&str; 4] = ["queue_full", "queue_bytes", "queue_timeout", "displaced"];
/// Share of the open files that may be in use.
const FILES_HIGH: f64 = 0.8;

const RAISE: &str = "raise the limit: LimitNOFILE= of the service, ulimits of the container, ulimit -n; then a restart";

pub(super) fn check(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    connections(&facts.replicas, found);
    for replica in &facts.replicas {
        files(replica, found);
        processors(replica, found);
        memory(replica, found);
        counted(replica, found);
        without_room(replica, found);
    }
}

fn files(replica: &ReplicaFacts, found: &mut Vec<Finding>) {
    let (id, about) = (&replica.id, &replica.about);
    let files = &about["machine"]["files"];
    let (open, most) = (files["open"].as_f64(), files["most"].as_f64());
    if let (Some(open), Some(most)) = (open, most)
        && open > most * FILES_HIGH
    {
        let what = format!("{id} has {open:.0} of {most:.0} files open");
        found.push(Finding::problem("files", what).of([id]).todo(RAISE));
    }
}

/// Limits of open files that hold fewer connections than are configured; replicas with the same are named together.
fn connections(replicas: &[ReplicaFacts], found: &mut Vec<Finding>) {
    let mut alike: BTreeMap<(u64, u64, u64), Vec<&str>> = BTreeMap::new();
    for ReplicaFacts { id, about, .. } in replicas {
        let number = |pointer| about.pointer(pointer).and_then(Value::as_u64);
        let numbers = (
            number("/machine/files/most"),
            number("/connections_fit"),
            number("/connections_max"),
        );
        if let (Some(most), Some(fit), Some(wanted)) = numbers
            && fit < wanted
        {
            alike.entry((most, fit, wanted)).or_default().push(id);
        }
    }
    for ((most, fit, wanted), ids) in alike {
        let what = format!(
            "{} may open {most} files, which hold {fit} connections of limits.connections = {wanted}",
            named(&ids)
        );
        let finding = match fit {
            ..CONNECTIONS_TOO_FEW => Finding::problem("files", what),
            CONNECTIONS_TOO_FEW..CONNECTIONS_FEW => Finding::advice("files", what),
            _ => Finding::info("files", what),
        };
        found.push(finding.of(ids).todo(RAISE));
    }
}

fn processors(replica: &ReplicaFacts, found: &mut Vec<Finding>) {
    let (id, cpu) = (&replica.id, &replica.about["machine"]["cpu"]);
    let (quota, held_up) = (cpu["quota"].as_f64(), cpu["held_up"].as_f64());
    let usable = cpu["usable"].as_f64().unwrap_or(1.0);
    let threads = replica.about["threads"].as_f64();
    if let (Some(quota), Some(held_up)) = (quota, held_up)
        && held_up > HELD_UP
    {
        let what = format!(
            "{id} may use {quota} processors, and was held up for it in {:.0} % of the periods of the last hour, or since its start",
            held_up * 100.0
        );
        let todo = "raise the quota (cpus, limits.cpu), or leave it out: what is held up is every stream that it serves";
        found.push(Finding::advice("cpu", what).of([id]).todo(todo));
    } else if let Some(quota) = quota
        && quota < 1.0
    {
        let what = format!("{id} may use {quota} of a processor: bursts wait for the next period");
        let todo = "give it one whole processor at least (cpus, limits.cpu)";
        found.push(Finding::advice("cpu", what).of([id]).todo(todo));
    }
    if let Some(threads) = threads.filter(|threads| *threads > usable) {
        let what = format!(
            "{id} serves clients by {threads:.0} threads, and may use {usable:.0} processors"
        );
        let todo = "leave listen.threads out, or set it to the processors that it may use";
        found.push(Finding::advice("cpu", what).of([id]).todo(todo));
    }
}

fn memory(replica: &ReplicaFacts, found: &mut Vec<Finding>) {
    let (id, memory) = (&replica.id, &replica.about["memory"]);
    let Some(limit) = memory["limit"].as_f64() else {
        return;
    };
    let share = memory["used"].as_f64().map_or(0.0, |used| used / limit);
    let used = || format!("{id} uses {:.0} % of its {}", share * 100.0, mib(limit));
    let todo = "give it more memory, or lower limits.connections and limits.body_bytes_total";
    if share > MEMORY_FULL {
        let what = format!("{}; from 85 % on it refuses requests", used());
        found.push(Finding::problem("memory", what).of([id]).todo(todo));
    } else if share > MEMORY_HIGH {
        found.push(Finding::advice("memory", used()).of([id]).todo(todo));
    }
    let bodies = replica.about["body_bytes_max"].as_f64().unwrap_or(0.0);
    if bodies > limit {
        let what = format!(
            "{id} may hold {} of bodies (limits.body_bytes_total), and has {} of memory in all",
            mib(bodies),
            mib(limit)
        );
        let todo = "lower limits.body_bytes_total to half of the memory, so that it, and not the memory, is what is short";
        found.push(Finding::advice("memory", what).of([id]).todo(todo));
    }
}

pub(super) fn mib(bytes: f64) -> String {
    format!("{:.0} MiB", bytes / f64::from(1 << 20))
}

/// What is counted since its start.
fn counted(replica: &ReplicaFacts, found: &mut Vec<Finding>) {
    let id = &replica.id;
    let of = |name: &'static str| {
        let all = replica.metrics.iter();
        all.filter_map(move |(series, value)| Some((series.strip_prefix(name)?, *value)))
    };
    let lost: f64 = of(series::LINES_DROPPED).map(|(_, value)| value).sum();
    if lost > 0.0 {
        let what = format!(
            "{id} dropped {lost:.0} lines of its log since it started: nobody read them in time"
        );
        let todo = "look at what reads its standard error (a full disk, a slow collector)";
        found.push(Finding::advice("log", what).of([id]).todo(todo));
    }
    let reached = of(series::LIMITS_REACHED).filter(|(_, value)| *value > 0.0);
    let reached: Vec<String> = reached
        .map(|(labels, value)| {
            format!(
                "{} ({value:.0} times)",
                labels.split('"').nth(1).unwrap_or(labels)
            )
        })
        .collect();
    if !reached.is_empty() {
        let what = format!("{id} reached limits since it started: {}", named(&reached));
        let todo = "what each of them limits is in docs/configuration.md and grapevine serve --print-config";
        found.push(Finding::info("limits", what).of([id]).todo(todo));
    }
}

/// Requests that were refused because queues had no room: not a limit that was too low by itself, but workers that are too
/// few for what is asked of them.
fn without_room(replica: &ReplicaFacts, found: &mut Vec<Finding>) {
    let id = &replica.id;
    let with = |result: &str| -> f64 {
        let label = format!("result=\"{result}\"");
        let all = replica.metrics.iter();
        let of =
            all.filter(|(name, _)| name.starts_with(series::ADMISSIONS) && name.contains(&label));
        of.map(|(_, value)| value).sum()
    };
    let refused = NO_ROOM.map(|result| (result, with(result)));
    let told: Vec<String> = refused
        .iter()
        .filter(|(_, times)| *times > 0.0)
        .map(|(result, times)| format!("{} ({times:.0})", limit_in_words(result)))
        .collect();
    let (all, let_in): (f64, f64) = (
        refused.iter().map(|(_, times)| times).sum(),
        with("admitted"),
    );
    if told.is_empty() {
        return;
    }
    // One that was let in and found no room later is among both.
    let is_much = all / (all + let_in) > REFUSED_SHARE;
    let what = format!(
        "{id} had no room for {} since it started, and let in {let_in:.0}: {}",
        count(all as usize, "request"),
        named(&told)
    );
    let todo = "add workers, or raise what bounds them (max_in_flight of a worker, limits.requests, admission): \
                docs/admission.md; status has the last minute";
    let finding = match is_much {
        true => Finding::advice("limits", what),
        false => Finding::info("limits", what),
    };
    found.push(finding.of([id]).todo(todo));
}
