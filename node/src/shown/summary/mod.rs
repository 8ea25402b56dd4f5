//! What is wrong with a cluster, in one sentence, from what the admin API shows. Pure.

#[cfg(test)]
mod tests;
mod whole;

use serde_json::Value;

use self::whole::of_the_whole;
use super::models::{paused, unserved as models_without_worker, without_prefill};
use super::trouble::{
    ON_TRIAL, PAUSED, REFUSING_KEY, awaits_trial, is_asleep, is_state, is_usable, own_trouble,
    replica_trouble, worker_trouble,
};
use super::words::{self, count, named};
use super::{clean, field, rows, seconds};

/// So small a part of a minute's requests may fail before somebody is to look.
const FAILED_SHARE_MAX: f64 = 0.01;

/// How a cluster is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The sentence.
    pub text: String,
    /// Something does not work as it should.
    pub is_wrong: bool,
}

/// One sentence about replicas and workers: what is wrong with which of them, and for how long.
pub fn summary(cluster: &Value, workers: &[Value]) -> Summary {
    let replicas = rows(cluster, "replicas");
    let ring = field(cluster, "digest");
    let settings = field(cluster, "settings");
    let lost = rows(cluster, "lost");
    let gone = lost
        .iter()
        .map(|lost| (field(lost, "id"), "gone", lost["for_s"].as_u64()));
    let trouble = replicas.iter().filter_map(|replica| {
        let what = replica_trouble(replica, &ring, &settings)?;
        // For how long rings or settings differ is not known.
        let lasts = is_state(what).then(|| replica["for_s"].as_u64());
        Some((field(replica, "id"), what, lasts.flatten()))
    });
    let of_replicas = told(trouble.chain(gone).collect());
    let trouble = workers.iter().filter_map(|worker| {
        let what = worker_trouble(worker)?;
        // How long others have doubted it is not known here, nor since when it refuses keys.
        let lasts = worker["verdict_for_s"].as_u64();
        let lasts = lasts.filter(|_| own_trouble(worker).is_some() && what != REFUSING_KEY);
        Some((field(worker, "id"), what, lasts))
    });
    let of_workers: Vec<_> = trouble.collect();
    // Nobody has anything to do about them, and they may be the only ones of their models.
    let noted: Vec<_> = workers.iter().filter_map(note_on_worker).collect();
    let usable = workers.iter().filter(|worker| is_usable(worker)).count();
    let first = of_the_whole(cluster);
    let mut text = first.concat();
    // Without those that join just now, or in whose place another one is.
    let there = replicas.iter().filter(|row| row["absent"].is_null());
    let there = there.count();
    text.push_str(&count(there + lost.len(), "replica"));
    match of_replicas.as_str() {
        "" if there > 1 => text.push_str(" that agree"),
        "" => {}
        trouble => text.push_str(&format!(", {trouble}")),
    }
    let is_wrong = !of_replicas.is_empty() || !of_workers.is_empty() || usable == 0;
    let use_of_workers = match workers.len() {
        0 => "no worker".to_owned(),
        all if usable == all => format!("{} usable", count(all, "worker")),
        all => format!("{usable} of {} usable", count(all, "worker")),
    };
    text.push_str(&format!("; {use_of_workers}"));
    let of_workers = told(of_workers.into_iter().chain(noted).collect());
    if !of_workers.is_empty() {
        text.push_str(&format!(": {of_workers}"));
    }
    let models = models_without_worker(cluster, workers, is_usable);
    if !models.is_empty() {
        text.push_str(&format!(
            "; no usable worker for {}: {}",
            count(models.len(), "model"),
            named(&models)
        ));
    }
    let halves = without_prefill(cluster, workers, is_usable);
    if !halves.is_empty() {
        text.push_str(&format!(
            "; no usable prefill worker for {} (long prompts may get 503): {}",
            count(halves.len(), "model"),
            named(&halves)
        ));
    }
    let waiting = paused(cluster, workers, is_usable).into_iter();
    let waiting: Vec<String> = waiting.map(|(name, _)| name).collect();
    if !waiting.is_empty() {
        text.push_str(&format!(
            "; no worker to ask now for {}: {}",
            count(waiting.len(), "model"),
            named(&waiting)
        ));
    }
    let unserved = unserved(&cluster["minute"]);
    text.push_str(unserved.as_ref().map_or("", |(text, _)| text));
    text.push_str(&waiting_settings(cluster));
    Summary {
        text,
        is_wrong: is_wrong
            || !models.is_empty()
            || !halves.is_empty()
            || !waiting.is_empty()
            || unserved.is_some_and(|(_, is_wrong)| is_wrong)
            || !first.is_empty(),
    }
}

/// What is to be known of a worker that is in no trouble: why it gets no new prompts; for how long it is so, or, of one that
/// said how long, the time that is left.
fn note_on_worker(worker: &Value) -> Option<(String, &'static str, Option<u64>)> {
    let (what, lasts) = if worker["state"] == "draining" {
        ("drained", None)
    } else if is_asleep(worker) {
        ("asleep", None)
    } else if worker["state"] == "warming" && worker_trouble(worker).is_none() {
        ("being warmed up", None)
    } else if awaits_trial(worker) {
        (ON_TRIAL, worker["verdict_for_s"].as_u64())
    } else if is_usable(worker) && worker["paused_s"].is_u64() {
        (PAUSED, worker["paused_s"].as_u64())
    } else {
        return None;
    };
    Some((field(worker, "id"), what, lasts))
}

/// Settings that the asked replica read again, and that only a restart brings into use: to be known, while nothing is wrong.
fn waiting_settings(cluster: &Value) -> String {
    let names = rows(cluster, "needs_restart")
        .iter()
        .filter_map(Value::as_str);
    let names: Vec<_> = names.map(|name| clean(name).into_owned()).collect();
    if names.is_empty() {
        return String::new();
    }
    let replica = field(cluster, "replica");
    format!(
        "; {replica} will use its new {} after a restart",
        named(&names)
    )
}

/// Clients that were not served within the last minute, at this replica: what they got, and whether that is more than
/// a few of many.
fn unserved(minute: &Value) -> Option<(String, bool)> {
    let count = |name: &str| minute[name].as_u64().unwrap_or(0);
    let (refused, failed) = (count("refused"), count("failed"));
    let parts = [(refused, "refused"), (failed, "failed")];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if parts.is_empty() {
        return None;
    }
    let ended = count("requests").max(refused + failed);
    let text = format!(
        "; of {} in the last minute {}",
        words::count(ended as usize, "request"),
        parts.join(", ")
    );
    let is_wrong = (refused + failed) as f64 > ended as f64 * FAILED_SHARE_MAX;
    Some((text, is_wrong))
}

/// `2 dead for up to 40 s: r3, r4; 1 not ready: r2`.
fn told(trouble: Vec<(String, &'static str, Option<u64>)>) -> String {
    let mut kinds: Vec<&'static str> = trouble.iter().map(|(_, what, _)| *what).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let kind = |what: &&'static str| {
        let of_kind = || trouble.iter().filter(|(_, kind, _)| kind == what);
        let names: Vec<_> = of_kind().map(|(id, ..)| id.as_str()).collect();
        let times = || of_kind().filter_map(|(.., for_s)| *for_s);
        // What asked to be left alone has so much time left; all else has lasted so long.
        let another = if *what == PAUSED { "another " } else { "" };
        let lasts = match (times().min(), times().max()) {
            (Some(least), Some(most)) if seconds(least) == seconds(most) => {
                format!(" for {another}{}", seconds(most))
            }
            (_, Some(most)) => format!(" for up to {another}{}", seconds(most)),
            _ => String::new(),
        };
        format!("{} {what}{lasts}: {}", names.len(), named(&names))
    };
    kinds.iter().map(kind).collect::<Vec<_>>().join(", ")
}
