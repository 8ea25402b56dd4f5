//! Certificates and keys of a running cluster: those between replicas, those of data ports, and clients' keys; files that a
//! replica could not read again.

use grapevine_gossip::identity::date;
use serde_json::Value;

use crate::cli::doctor::facts::{ClusterFacts, ReplicaFacts, series};
use crate::cli::doctor::finding::Finding;
use crate::shown::words::{files_in_words, moment};
use crate::shown::{clean, field, rows};

/// Days left at which it should be renewed; reminders in the log begin then, too.
const ADVICE_DAYS: i64 = 30;
const PROBLEM_DAYS: i64 = 7;
/// What to do about a file of keys.
const OF_KEYS: &str = "mend the file, it is read again by itself: grapevine keys check FILE names every mistake with its line. \
                       Until then keys that were taken out of it, or revoked, are good still";
const DAY_S: f64 = 86_400.0;

pub(super) fn check(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    for row in rows(&facts.cluster, "replicas") {
        let id = field(row, "id");
        let Some(days) = row["certificate_days"].as_i64() else {
            continue;
        };
        let todo = format!(
            "grapevine ca issue {id} --force, and its two files onto its machine; no restart is needed. Where single files of a \
             Secret are mounted (the Helm chart), restart the pod. With cert-manager, look at its CertificateRequest"
        );
        let finding = graded(days, &format!("the certificate of {id}"));
        found.extend(finding.map(|finding| finding.of([&id]).todo(todo)));
    }
    for replica in &facts.replicas {
        refused(replica, found);
        let now_s = replica.about["now_ms"].as_f64().unwrap_or(0.0) / 1e3;
        for (name, ends_s) in &replica.metrics {
            let Some(labels) = name.strip_prefix(series::TLS_EXPIRES) else {
                continue;
            };
            if now_s <= 0.0 || *ends_s <= 0.0 {
                continue;
            }
            if let Some(finding) = begins_later(replica, labels, now_s) {
                found.push(finding);
                continue;
            }
            let days = ((ends_s - now_s) / DAY_S).floor() as i64;
            let whose = format!("the certificate of {} at {}", in_words(labels), replica.id);
            let todo = "replace its files; they are read again by themselves";
            found.extend(graded(days, &whose).map(|finding| finding.of([&replica.id]).todo(todo)));
        }
    }
}

/// A certificate that nobody accepts yet: mostly a clock that is behind.
fn begins_later(replica: &ReplicaFacts, labels: &str, now_s: f64) -> Option<Finding> {
    let name = format!("{}{labels}", series::TLS_BEGINS);
    let (_, begins_s) = replica.metrics.iter().find(|(of, _)| *of == name)?;
    if *begins_s <= now_s {
        return None;
    }
    let [begins, now] = [*begins_s, now_s].map(|at| date(moment(at as u64)));
    let id = &replica.id;
    let whose = in_words(labels);
    let what = format!(
        "the certificate of {whose} at {id} begins on {begins}, and the clock of {id} says {now}"
    );
    let todo = "set the clock of its machine; if that is right, replace its files: they are read again by themselves";
    Some(Finding::problem("certificate", what).of([id]).todo(todo))
}

/// Changed files that it could not take into use: such as one that it may not read, or a list that has its own certificate
/// as revoked.
fn refused(replica: &ReplicaFacts, found: &mut Vec<Finding>) {
    let id = &replica.id;
    if let Some(why) = replica.cluster["refused_config"]["why"].as_str() {
        let first = clean(why.lines().next().unwrap_or_default());
        let what =
            format!("{id} cannot use its changed configuration: the former one stays: {first}");
        let todo =
            "mend the file (grapevine serve --config FILE --check), then grapevine config reload";
        found.push(Finding::problem("reload", what).of([id]).todo(todo));
    }
    let waiting: Vec<_> = rows(&replica.cluster, "needs_restart")
        .iter()
        .filter_map(Value::as_str)
        .map(clean)
        .collect();
    if !waiting.is_empty() {
        let what = format!(
            "{id} will use its new {} after a restart",
            waiting.join(", ")
        );
        let todo = "restart it, one replica after the other; or put the former value back, and grapevine config reload";
        found.push(Finding::advice("reload", what).of([id]).todo(todo));
    }
    let is_so = replica.metrics.iter().filter(|(_, value)| *value > 0.0);
    for (name, _) in is_so {
        let mut todo = "its log says why (grapevine serve --config FILE --check, too): mend the file, it is read again by itself; a revoked certificate needs another one";
        let what = if name == series::KEYS_REFUSED {
            todo = OF_KEYS;
            let why = replica.cluster["refused_keys"]["why"].as_str();
            let first = why.and_then(|why| why.lines().next()).map(clean);
            let first = first.map_or_else(String::new, |first| format!(": {first}"));
            format!("the changed file of clients' keys: the former keys stay{first}")
        } else if let Some(labels) = name.strip_prefix(series::TLS_REFUSED) {
            let files = files_in_words(in_words(labels));
            format!("the changed {files}: the former ones stay")
        } else {
            continue;
        };
        let what = format!("{id} cannot use {what}");
        found.push(Finding::problem("reload", what).of([id]).todo(todo));
    }
}

/// `{files="listener"}`: `listener`.
fn in_words(labels: &str) -> &str {
    labels.split('"').nth(1).unwrap_or("a port")
}

/// A finding, if it ends soon; `whose` is the subject. `days`: whole ones that are left, and from the end on -1 and less.
pub(super) fn graded(days: i64, whose: &str) -> Option<Finding> {
    let make = if days <= PROBLEM_DAYS {
        Finding::problem
    } else if days <= ADVICE_DAYS {
        Finding::advice
    } else {
        return None;
    };
    let what = match days {
        -1 => format!("{whose} ended less than a day ago"),
        -2 => format!("{whose} ended a day ago"),
        ..0 => format!("{whose} ended {} days ago", -1 - days),
        0 => format!("{whose} ends within a day"),
        1 => format!("{whose} ends in a day"),
        _ => format!("{whose} ends in {days} days"),
    };
    Some(make("certificate", what))
}
