//! Settings that must be equal on all replicas, and are not: each by its name; and the file against what runs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::cli::doctor::facts::{ClusterFacts, ConfigFacts, ReplicaFacts};
use crate::cli::doctor::finding::Finding;
use crate::shown::words::named;
use crate::shown::{field, rows};

/// Settings that are named; more are counted.
const NAMED: usize = 8;

pub(super) fn check(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    let live = rows(&facts.cluster, "replicas").iter();
    let live: Vec<&Value> = live.filter(|row| row["live"] == true).collect();
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // A replica that has just been met has not said anything yet.
    for row in live.iter().filter(|row| !field(row, "settings").is_empty()) {
        groups
            .entry(field(row, "settings"))
            .or_default()
            .push(field(row, "id"));
    }
    if groups.len() < 2 {
        return;
    }
    let told: Vec<&ReplicaFacts> = facts
        .replicas
        .iter()
        .filter(|replica| replica.about["settings"].is_object())
        .collect();
    let differing = differing(&told);
    let groups: Vec<String> = groups.values().map(|ids| named(ids)).collect();
    let what = match differing.is_empty() {
        true => format!(
            "settings that must be equal differ between {}",
            groups.join(" and ")
        ),
        false => format!(
            "settings that must be equal differ: {}",
            differing.join("; ")
        ),
    };
    let todo = match differing.is_empty() {
        true => {
            "which ones is seen where both can be asked: open their admin ports to this machine, or compare their files"
        }
        false => {
            "make them equal in the files of all replicas, then grapevine config reload, and a restart of the odd ones where it says that one is needed"
        }
    };
    let ids = live.iter().map(|row| field(row, "id"));
    found.push(Finding::problem("settings", what).of(ids).todo(todo));
}

/// `cluster.policy is "prefix" on r1, r2 and "random" on r3`, for each that is not the same on all.
fn differing(replicas: &[&ReplicaFacts]) -> Vec<String> {
    let of = |replica: &ReplicaFacts, key: &str| match replica.about["settings"][key].as_str() {
        Some(value) => value.to_owned(),
        None => "not there".to_owned(),
    };
    let keys = replicas
        .iter()
        .filter_map(|replica| replica.about["settings"].as_object());
    let keys: BTreeSet<&String> = keys.flat_map(|settings| settings.keys()).collect();
    let mut told = Vec::new();
    for key in keys {
        let mut values: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for replica in replicas {
            values
                .entry(of(replica, key))
                .or_default()
                .push(&replica.id);
        }
        if values.len() > 1 {
            let values = values
                .iter()
                .map(|(value, ids)| format!("{value} on {}", named(ids)));
            told.push(format!(
                "{key} is {}",
                values.collect::<Vec<_>>().join(" and ")
            ));
        }
    }
    shortened(told)
}

fn shortened(mut told: Vec<String>) -> Vec<String> {
    let more = told.len().saturating_sub(NAMED);
    told.truncate(NAMED);
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    told
}

/// The file against the replica of that name, if it was asked, or the first that was.
pub(super) fn check_file(config: &ConfigFacts, cluster: &ClusterFacts, found: &mut Vec<Finding>) {
    // One file may be that of many, whose names are flags.
    let is_it = |replica: &&ReplicaFacts| config.is_named && replica.id == config.replica;
    let by_name = cluster.replicas.iter().find(is_it);
    let Some(replica) = by_name.or(cluster.replicas.first()) else {
        return;
    };
    let (Some(file), Some(running)) = (
        config.settings.as_object(),
        replica.about["settings"].as_object(),
    ) else {
        return;
    };
    let keys: BTreeSet<&String> = running.keys().chain(file.keys()).collect();
    let differing = keys.into_iter().filter_map(|key| {
        let (of_file, value) = (file.get(key), running.get(key));
        // Of other settings releases know more or fewer.
        let is_told = key.starts_with("model[") || (of_file.is_some() && value.is_some());
        (is_told && of_file != value).then(|| match value {
            Some(value) => format!(
                "{key} is {} there, {} runs",
                text(of_file),
                text(Some(value))
            ),
            None => format!("{key} is {} there, and does not run", text(of_file)),
        })
    });
    let differing = shortened(differing.collect());
    if differing.is_empty() {
        return;
    }
    let what = format!(
        "{} does not have what runs at {}: {}",
        config.path,
        replica.id,
        differing.join("; ")
    );
    let todo = "grapevine config reload, or a restart for what it names; or mend the file: a restart would bring it into use";
    found.push(Finding::advice("file", what).of([&replica.id]).todo(todo));
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or("not set")
}
