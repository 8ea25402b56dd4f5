//! What is wrong with a replica or a worker of the admin API's answers, if anything is, and how bad that is. Pure.

use serde_json::Value;

use super::field;
use super::models::{has_no_model, may_name_models};

/// Whether a replica's trouble is a state of it, of which it is known since when; a ring or settings that differ are not.
pub fn is_state(trouble: &str) -> bool {
    matches!(trouble, "dead" | "not ready")
}

/// What is wrong with a replica of this cluster, if anything is.
pub fn trouble_of_replica(cluster: &Value, replica: &Value) -> Option<&'static str> {
    let (ring, settings) = (field(cluster, "digest"), field(cluster, "settings"));
    replica_trouble(replica, &ring, &settings)
}

/// How bad a replica's row is, the worst first.
pub fn replica_rank(cluster: &Value, replica: &Value) -> u8 {
    match trouble_of_replica(cluster, replica) {
        Some("dead") => 0,
        Some(_) => 1,
        None => 2,
    }
}

/// How bad a worker's row is, the worst first.
pub fn worker_rank(worker: &Value) -> u8 {
    match (worker_trouble(worker), is_usable(worker)) {
        (Some(_), _) => 0,
        (None, false) => 1,
        (None, true) if is_on_trial(worker) => 1,
        (None, true) => 2,
    }
}

pub(super) fn replica_trouble(replica: &Value, ring: &str, settings: &str) -> Option<&'static str> {
    if replica["live"] != true {
        // Unless it joins just now, or another one is in its place.
        replica["absent"].is_null().then_some("dead")
    } else if replica["leaving"] == true {
        // It was told to.
        None
    } else if replica["ready"] != true {
        Some("not ready")
    } else if field(replica, "settings") != settings {
        Some("with other settings")
    } else if field(replica, "ring") != ring {
        Some("with another ring")
    } else {
        None
    }
}

/// What is wrong with a worker, if anything is: as this replica found out, or as others say. Draining, sleeping and warming
/// are nobody's trouble: one that is drained ends when it has answered, as it was told to.
pub fn worker_trouble(worker: &Value) -> Option<&'static str> {
    let is_out = || is_drained(worker) || is_asleep(worker);
    let doubt = worker["doubted"].as_str().filter(|_| !is_out());
    own_trouble(worker).or_else(|| doubt.and_then(trouble_of_doubt))
}

fn is_drained(worker: &Value) -> bool {
    worker["state"] == "draining"
}

/// Its engine sleeps, as somebody wanted it to.
pub fn is_asleep(worker: &Value) -> bool {
    worker["asleep"].is_string()
}

/// What this replica found out of it by itself.
pub fn own_trouble(worker: &Value) -> Option<&'static str> {
    if is_drained(worker) || is_asleep(worker) {
        return None;
    }
    let check = worker["failed_check"].as_str();
    let verdict = worker["verdict"].as_str()?;
    let trouble = match is_on_trial(worker) {
        true => None,
        false => trouble_of_verdict(verdict, check),
    };
    // A 403 may be the list of models alone, which a gateway keeps to itself.
    let refuses = (worker["key_refused"] == 401).then_some(REFUSING_KEY);
    trouble
        .or(refuses)
        .or_else(|| is_nameless(worker).then_some(NAMELESS))
}

/// It works and serves nothing: it lists no models, or none by a name that can be used. A worker that came just now is
/// asked for them.
fn is_nameless(worker: &Value) -> bool {
    worker["state"] == "active" && has_no_model(worker) && !may_name_models(worker)
}

/// What a worker is that serves nothing by a name that can be used.
pub const NAMELESS: &str = "without a model that can be used";
/// What a worker is whose checks are good and that answers no request of this replica.
pub const REFUSING_KEY: &str = "refusing this replica's key";
/// What a worker is whose next request shows how it is.
pub const ON_TRIAL: &str = "on trial after failed requests";
/// What a worker is that gets nothing from this replica before a time that it named (`Retry-After`).
pub const PAUSED: &str = "asked to be left alone";

/// It was left alone after failed requests, and that time is over: the next request that would go there does. Without
/// traffic it stays so, and is of use all the same.
pub fn is_on_trial(worker: &Value) -> bool {
    worker["verdict"] == "ejected" && worker["breaker"] == "half_open"
}

/// The same of one that gets requests, and of which nothing worse is known: whoever drains or warms is sent none that would
/// show how it is.
pub fn awaits_trial(worker: &Value) -> bool {
    worker["state"] == "active" && is_on_trial(worker) && worker_trouble(worker).is_none()
}

/// What others say, and nothing here speaks against: it is the last resort then.
fn trouble_of_doubt(claim: &str) -> Option<&'static str> {
    match claim {
        "unreachable" => Some("unreachable, others say"),
        "unhealthy" => Some("failing checks, others say"),
        "stalled" => Some("giving no tokens, others say"),
        _ => None,
    }
}

/// Its latest check was good, and it is used again after a few of them.
pub const RETURNING: &str = "answering checks again";

/// A verdict on a worker in words, if it is a bad one; `check`: how the latest check failed, if it did.
pub fn trouble_of_verdict(verdict: &str, check: Option<&str>) -> Option<&'static str> {
    match verdict {
        "unreachable" | "unhealthy" => Some(match check {
            Some("refused") => "refusing connections",
            Some("no_address") => "without an address",
            Some("no_answer") => "not answering checks",
            Some("no_connection") => "unreachable",
            Some("bad_answer") => "failing checks",
            // Connections fail, whatever its checks say.
            _ if verdict == "unreachable" => "unreachable",
            _ => RETURNING,
        }),
        "stalled" => Some("giving no tokens"),
        "ejected" => Some("left alone after failed requests"),
        _ => None,
    }
}

/// Whether it may get requests.
pub fn is_usable(worker: &Value) -> bool {
    let may_be = worker["state"] == "active" && !is_asleep(worker);
    may_be && worker_trouble(worker).is_none() && !has_no_model(worker)
}
