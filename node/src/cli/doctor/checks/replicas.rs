//! Replicas: dead, gone, not ready, alone, twice; rings, registries and releases that differ; which could be asked.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cli::doctor::facts::{ClusterFacts, ReplicaFacts};
use crate::cli::doctor::finding::Finding;
use crate::shown::words::{count, named};
use crate::shown::{clean, field, rows, seconds};

pub(super) fn check(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    let replicas = rows(&facts.cluster, "replicas");
    let live: Vec<&Value> = replicas.iter().filter(|row| row["live"] == true).collect();
    lives(facts, replicas, found);
    twins(facts, found);
    alone(facts, &live, found);
    // With other settings rings are others; the settings are named.
    if by("settings", &live).len() < 2 {
        differing("ring", "rings", &live, found);
    }
    differing("registry", "registry", &live, found);
    releases(&live, found);
    for (id, why) in &facts.not_asked {
        let what = format!("{id} was not asked: {why}");
        let todo = "what it alone knows (its clock, files, memory, settings) is missing here: open its admin port \
                    to this machine, or run grapevine doctor on its own";
        found.push(Finding::info("asked", what).of([id]).todo(todo));
    }
    for ReplicaFacts {
        id, about, cluster, ..
    } in &facts.replicas
    {
        let lost = rows(cluster, "lost_tasks").iter().filter_map(Value::as_str);
        for task in lost.map(clean) {
            let what = format!("a bug ended the task {task} of {id}: what it did is missed since");
            let todo =
                "start the replica again, and report the lines around `panicked at` of its log";
            found.push(Finding::problem("task", what).of([id]).todo(todo));
        }
        let bodies = cluster["quarantined"].as_u64().unwrap_or(0);
        if bodies > 0 {
            let bodies = count(bodies as usize, "request");
            let what = format!("{id} refuses {bodies} with which workers ended");
            let todo = "grapevine quarantine lists them by their hash, as the log line does that has the request's id; start the workers \
                        that ended, find out what in it ends an engine, and lift what is innocent (grapevine quarantine lift HASH)";
            found.push(Finding::advice("quarantine", what).of([id]).todo(todo));
        }
        if about.is_null() {
            let what =
                format!("{id} does not tell of itself: its release is earlier than this command's");
            found.push(Finding::info("asked", what).of([id]));
        }
    }
}

fn lives(facts: &ClusterFacts, replicas: &[Value], found: &mut Vec<Finding>) {
    let lasts = |row: &Value| {
        let for_s = row["for_s"].as_u64();
        for_s.map_or(String::new(), |for_s| format!(" for {}", seconds(for_s)))
    };
    for row in rows(&facts.cluster, "lost") {
        let id = field(row, "id");
        let what = format!("{id} died {} ago without a word", since(row));
        let todo =
            "start it again; its machine's log says why it died (out of memory, killed, lost)";
        found.push(Finding::problem("replica", what).of([id]).todo(todo));
    }
    let is_refused = rows(&facts.cluster, "silent_seeds")
        .iter()
        .any(|seed| seed["why"].is_string());
    let hears_nobody =
        replicas.len() > 2 && replicas.iter().filter(|row| row["live"] == true).count() <= 1;
    for row in replicas {
        let id = field(row, "id");
        if row["live"] != true {
            if !row["absent"].is_null() {
                continue;
            }
            let what = format!("{id} is dead{}", lasts(row));
            let todo = match is_refused {
                true => "so it seems to the asked replica, which the others do not let in (seeds): ask one of them"
                    .to_owned(),
                false if hears_nobody => {
                    "the asked replica hears no other one, so it may be the one that is cut off: ask another one, and look at \
                     its network"
                        .to_owned()
                }
                false => format!(
                    "look whether its process runs and its machine is reached ({}); start it again",
                    field(row, "gossip")
                ),
            };
            found.push(Finding::problem("replica", what).of([id]).todo(todo));
        } else if row["leaving"] == true {
            let what = format!("{id} is leaving{}: it was told to end", lasts(row));
            found.push(Finding::info("replica", what).of([id]));
        } else if row["ready"] != true {
            let missing = missing(facts, &id);
            let told = match missing.is_empty() {
                true => String::new(),
                false => format!(": {}", missing.join(", ")),
            };
            let what = format!("{id} is not ready{}{told}", lasts(row));
            let reasons = "the reasons are explained in docs/running.md, below Readiness";
            let todo = match missing.contains(&"no_worker") {
                true => format!("{}; {reasons}", without_worker(&facts.workers)),
                false => reasons.to_owned(),
            };
            found.push(Finding::problem("replica", what).of([id]).todo(todo));
        }
    }
}

fn since(row: &Value) -> String {
    row["for_s"]
        .as_u64()
        .map_or_else(|| "a while".to_owned(), seconds)
}

/// Why a replica is not ready, as it says itself.
fn missing<'a>(facts: &'a ClusterFacts, id: &str) -> Vec<&'a str> {
    let own = facts.replicas.iter().find(|replica| replica.id == id);
    let missing = own.map_or(&[][..], |own| rows(&own.cluster, "missing"));
    missing.iter().filter_map(Value::as_str).collect()
}

/// What to do where no worker takes new requests.
fn without_worker(workers: &[Value]) -> &'static str {
    let mut answering = workers.iter().filter(|row| row["role"] != "prefill");
    if answering.clone().any(|row| row["drained"] == true) {
        "grapevine workers activate URL of a worker that is drained by hand"
    } else if answering.next().is_some() {
        "no worker takes new requests: all drain, because their sources say so (a pod that is not ready, a lease that \
         expired), or are being warmed up; grapevine workers list shows which"
    } else {
        "grapevine workers add URL, or [[worker]] in the file, or a source that finds them"
    }
}

fn twins(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    for twin in rows(&facts.cluster, "twins") {
        let id = field(twin, "id");
        let (kept, cut_off) = (field(twin, "kept"), field(twin, "cut_off"));
        let what = format!("two processes run as {id}: {kept} counts, {cut_off} is cut off");
        let todo =
            "end one of the two; if one is not yours, its key was copied: grapevine ca revoke";
        found.push(Finding::problem("twins", what).of([id]).todo(todo));
    }
}

fn alone(facts: &ClusterFacts, live: &[&Value], found: &mut Vec<Finding>) {
    for replica in &facts.replicas {
        let silent = rows(&replica.cluster, "silent_seeds");
        if silent.is_empty() {
            continue;
        }
        let seeds: Vec<String> = silent.iter().map(seed).collect();
        let what = format!(
            "{} is alone: none of its seeds lets it in: {}",
            replica.id,
            named(&seeds)
        );
        let todo = match silent.iter().all(|seed| seed["why"].is_string()) {
            true => {
                "somebody answers there: certificates must be of one authority and cluster.id and none of them revoked \
                     (grapevine ca show), and the clocks of both machines right"
            }
            false => {
                "is a replica running there? UDP must pass both ways, to port 30002 unless gossip.port says \
                      otherwise, with packets of 1,228 bytes; certificates must be of one authority and cluster.id"
            }
        };
        found.push(Finding::problem("seeds", what).of([&replica.id]).todo(todo));
    }
    let others = rows(&facts.cluster, "replicas").len() + rows(&facts.cluster, "lost").len();
    let has_seeds = facts
        .replicas
        .iter()
        .any(|replica| !rows(&replica.about, "seeds").is_empty());
    if let ([only], false, 1) = (live, has_seeds, others) {
        let id = field(only, "id");
        let what =
            format!("{id} is the only replica, and has no seed: when it ends, nothing answers");
        let todo = match only["gossip"].is_string() {
            true => {
                "start a second one with its gossip address as --seed (grapevine serve --help has an example)"
            }
            false => {
                "it has no certificates to gossip with: grapevine ca init, then ca issue for each replica; start them with \
                 gossip.ca, gossip.cert and gossip.key"
            }
        };
        found.push(Finding::advice("alone", what).of([id]).todo(todo));
    }
}

fn seed(row: &Value) -> String {
    match row["why"].as_str() {
        Some(why) => format!("{} ({why})", field(row, "seed")),
        None => format!("{} (no answer for {})", field(row, "seed"), since(row)),
    }
}

/// Ids by the value of a field, of replicas that say any.
fn by<'a>(name: &str, live: &[&'a Value]) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in live {
        let value = row[name].as_str().filter(|value| !value.is_empty());
        if let (Some(value), Some(id)) = (value, row["id"].as_str()) {
            groups.entry(value).or_default().push(id);
        }
    }
    groups
}

/// `r1, r2: A; r3: B`.
fn grouped(groups: &BTreeMap<&str, Vec<&str>>) -> String {
    let of = |(value, ids): (&&str, &Vec<&str>)| format!("{}: {value}", named(ids));
    groups.iter().map(of).collect::<Vec<_>>().join("; ")
}

/// What the registry decides; `gather` has looked twice, so this lasts.
fn differing(name: &str, check: &'static str, live: &[&Value], found: &mut Vec<Finding>) {
    let groups = by(name, live);
    if groups.len() < 2 {
        return;
    }
    let (noun, todo) = match check {
        "rings" => (
            "rings differ",
            "they send one prefix to different workers: make the settings equal if they differ, too; else look at \
             grapevine_gossip_syncs_total{reason=\"failed\"} and at the release of each",
        ),
        _ => (
            "registries differ",
            "they do not know the same workers: look at grapevine_gossip_syncs_total{reason=\"failed\"}, and whether UDP \
             passes between all of them",
        ),
    };
    let ids = groups.values().flatten().copied();
    let finding = Finding::problem(check, format!("{noun}: {}", grouped(&groups)));
    found.push(finding.of(ids).todo(todo));
}

fn releases(live: &[&Value], found: &mut Vec<Finding>) {
    let groups = by("version", live);
    if groups.len() < 2 {
        return;
    }
    let count = groups.len();
    let what = format!("{count} releases run together: {}", grouped(&groups));
    let todo = match count {
        2 => "finish the roll: features of the later one wait until all run it",
        _ => "only neighbouring releases are meant to run together: bring all to one",
    };
    let ids = groups.values().flatten().copied();
    found.push(Finding::advice("releases", what).of(ids).todo(todo));
}
