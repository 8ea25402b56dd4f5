//! Names that clients may ask for: which of them can be served, and which cannot. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{clean, rows};

/// By then a worker that answers has said which models it serves, in seconds.
const ASKED_AFTER_S: u64 = 10;

/// Whether a row of `GET /workers` is one that may get requests, as [`super::trouble`] says.
pub type IsUsable = fn(&Value) -> bool;

/// It lists no models, or none by a name that can be used.
pub fn has_no_model(worker: &Value) -> bool {
    worker["models"].as_array().is_some_and(Vec::is_empty)
}

/// It came just now, and is asked which models it serves.
pub fn may_name_models(worker: &Value) -> bool {
    let is_asked = worker["verdict_for_s"].as_u64() >= Some(ASKED_AFTER_S);
    worker["state"] == "active" && has_no_model(worker) && !is_asked
}

/// Models and aliases, of workers and of `[[model]]` sections, for which no usable worker is there; none where no worker
/// is usable at all, which says it for all of them; none of the sections while a worker may still name its models.
pub fn unserved(cluster: &Value, workers: &[Value], is_usable: IsUsable) -> Vec<String> {
    let served = served(workers, is_usable);
    if !workers.iter().any(is_usable) {
        return Vec::new();
    }
    let of_workers = workers.iter().flat_map(|worker| rows(worker, "models"));
    let of_workers = of_workers.filter_map(Value::as_str);
    let unserved = of_workers.filter(|model| !served.contains(model));
    let mut names: BTreeSet<&str> = unserved.collect();
    let may_come = workers.iter().any(may_name_models);
    for (name, targets) in configured(cluster) {
        match can_serve(name, &targets, &served) {
            // An alias goes before a model of its name.
            true => names.remove(name),
            false => !may_come && names.insert(name),
        };
    }
    names
        .into_iter()
        .map(|name| clean(name).into_owned())
        .collect()
}

/// Whether a name that is not served has workers that would serve it: all of them are drained, and one at least is in no
/// trouble, as `is_well` says.
pub fn is_drained(name: &str, cluster: &Value, workers: &[Value], is_well: IsUsable) -> bool {
    are_drained(name, cluster, workers, |role| role != "prefill", is_well)
}

/// The same of the workers that would compute its prompts, of a name of [`without_prefill`].
pub fn is_prefill_drained(
    name: &str,
    cluster: &Value,
    workers: &[Value],
    is_well: IsUsable,
) -> bool {
    are_drained(name, cluster, workers, |role| role != "decode", is_well)
}

fn are_drained(
    name: &str,
    cluster: &Value,
    workers: &[Value],
    is_meant_role: fn(&Value) -> bool,
    is_well: IsUsable,
) -> bool {
    let is_it = |(of, targets): &(&str, Vec<&str>)| clean(of) == name && !targets.is_empty();
    let alias = configured(cluster).find(is_it);
    let is_meant = |model: &str| match &alias {
        Some((_, targets)) => targets.contains(&model),
        None => clean(model) == name,
    };
    let serves = |worker: &&Value| {
        let mut models = rows(worker, "models").iter().filter_map(Value::as_str);
        is_meant_role(&worker["role"]) && models.any(is_meant)
    };
    let all = || workers.iter().filter(serves);
    all().all(|worker| worker["drained"] == true) && all().any(is_well)
}

/// Models and aliases whose prompts nobody computes, so that most of their requests get 503: decode workers are all that can
/// be used of them. None where these compute any prompt then (`transfer.decode_alone` is `always`), where the replica does
/// not say, as an older release, and while a worker may still name its models.
pub fn without_prefill(cluster: &Value, workers: &[Value], is_usable: IsUsable) -> Vec<String> {
    let when_alone = cluster["decode_alone"].as_str();
    let may_come = |worker: &Value| worker["role"] != "decode" && may_name_models(worker);
    if when_alone.is_none_or(|when| when == "always") || workers.iter().any(may_come) {
        return Vec::new();
    }
    let computing = workers
        .iter()
        .filter(|worker| is_usable(worker) && worker["role"] != "decode");
    let computed: BTreeSet<&str> = models_of(computing).collect();
    let answered = served(workers, is_usable);
    let mut names: BTreeSet<&str> = answered.difference(&computed).copied().collect();
    let alone = names.clone();
    for (name, targets) in configured(cluster).filter(|(_, targets)| !targets.is_empty()) {
        let mut answered = targets.iter().filter(|target| answered.contains(*target));
        let is_one = answered.clone().next().is_some() && answered.all(|of| alone.contains(of));
        // An alias goes before a model of its name.
        match is_one {
            true => names.insert(name),
            false => names.remove(name),
        };
    }
    names
        .into_iter()
        .map(|name| clean(name).into_owned())
        .collect()
}

/// Models and aliases of which every usable worker asked to be left alone, with the seconds until the first may be asked.
pub fn paused(cluster: &Value, workers: &[Value], is_usable: IsUsable) -> Vec<(String, u64)> {
    let mut left: BTreeMap<&str, u64> = BTreeMap::new();
    for worker in answering(workers, is_usable) {
        let pause = worker["paused_s"].as_u64().unwrap_or(0);
        for model in rows(worker, "models").iter().filter_map(Value::as_str) {
            let shortest = left.entry(model).or_insert(pause);
            *shortest = pause.min(*shortest);
        }
    }
    let of_target = |target: &&str| left.get(target).copied();
    let aliases = configured(cluster).filter(|(_, targets)| !targets.is_empty());
    let aliases = aliases.map(|(name, targets)| (name, targets.iter().filter_map(of_target).min()));
    // An alias goes before a model of its name; one that is not served is told as such.
    for (name, pause) in aliases.collect::<Vec<_>>() {
        left.insert(name, pause.unwrap_or(0));
    }
    let waiting = left.into_iter().filter(|(_, pause)| *pause > 0);
    waiting
        .map(|(name, pause)| (clean(name).into_owned(), pause))
        .collect()
}

/// Of each alias that is served the targets that are not, as `alias to target`: its requests pass them over, which they do
/// where a model has no worker at all. One that is in trouble, or drained, is passed over by none.
pub fn passed_over(cluster: &Value, workers: &[Value]) -> Vec<String> {
    let served = served(workers, |worker| worker["state"] != "warming");
    let aliases = configured(cluster).filter(|(name, targets)| can_serve(name, targets, &served));
    let pairs =
        aliases.flat_map(|(name, targets)| targets.into_iter().map(move |target| (name, target)));
    let missing = pairs.filter(|(_, target)| !served.contains(target));
    missing
        .map(|(name, target)| format!("{} to {}", clean(name), clean(target)))
        .collect()
}

/// What may be asked for: the models of `GET /ring`, and the aliases of `GET /cluster` of which one of them is a target. An
/// alias goes before a model of its name. As clients write them: to be cleaned where they are shown.
pub fn askable(rings: &Value, cluster: &Value) -> Vec<String> {
    let pools = rows(rings, "pools").iter();
    let served: BTreeSet<&str> = pools.filter_map(|pool| pool["model"].as_str()).collect();
    let mut all: BTreeSet<&str> = BTreeSet::clone(&served);
    for (name, targets) in configured(cluster) {
        match can_serve(name, &targets, &served) {
            true => all.insert(name),
            false => all.remove(name),
        };
    }
    all.into_iter().map(str::to_owned).collect()
}

fn served(workers: &[Value], is_usable: IsUsable) -> BTreeSet<&str> {
    models_of(answering(workers, is_usable)).collect()
}

fn models_of<'a>(workers: impl Iterator<Item = &'a Value>) -> impl Iterator<Item = &'a str> {
    let models = workers.flat_map(|worker| rows(worker, "models"));
    models.filter_map(Value::as_str)
}

/// Usable workers that answer clients: those of prefill do not.
fn answering(workers: &[Value], is_usable: IsUsable) -> impl Iterator<Item = &Value> {
    workers
        .iter()
        .filter(move |worker| is_usable(worker) && worker["role"] != "prefill")
}

/// Name and targets of each `[[model]]` section.
fn configured(cluster: &Value) -> impl Iterator<Item = (&str, Vec<&str>)> {
    rows(cluster, "models").iter().filter_map(|model| {
        let targets = rows(model, "targets").iter().filter_map(Value::as_str);
        Some((model["name"].as_str()?, targets.collect()))
    })
}

fn can_serve(name: &str, targets: &[&str], served: &BTreeSet<&str>) -> bool {
    match targets {
        [] => served.contains(name),
        targets => targets.iter().any(|target| served.contains(target)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_alias_can_be_asked_for_while_one_of_its_targets_can() {
        let rings = json!({ "pools": [{ "model": "b" }, { "model": "a" }, { "model": "a" }] });
        let cluster = json!({ "models": [{ "name": "chat", "targets": ["a", "gone"] }, { "name": "old", "targets": ["gone"] },
            { "name": "c", "targets": [] }] });
        assert_eq!(askable(&rings, &cluster), ["a", "b", "chat"]);
        // A release that does not tell.
        assert_eq!(askable(&rings, &Value::Null), ["a", "b"]);
    }

    #[test]
    fn a_model_is_drained_while_an_administrator_drains_each_of_its_workers() {
        let of = |model: &str, drained: bool, verdict: &str, role: &str| json!({ "models": [model], "drained": drained, "verdict": verdict, "role": role });
        let cluster = json!({ "models": [{ "name": "chat", "targets": ["a", "gone"] }] });
        let is_well: IsUsable = |worker| worker["verdict"] == "good";
        let mut workers = vec![
            of("a", true, "good", "any"),
            of("a", true, "stalled", "any"),
            of("a", false, "good", "prefill"),
            of("b", true, "stalled", "any"),
        ];
        let told = |workers: &[Value]| {
            ["a", "chat", "b", "gone"].map(|name| is_drained(name, &cluster, workers, is_well))
        };
        assert_eq!(told(&workers), [true, true, false, false]);
        workers.push(of("a", false, "stalled", "any"));
        assert_eq!(told(&workers), [false; 4], "one is to be mended");
    }

    #[test]
    fn decode_workers_alone_serve_no_model_unless_they_are_meant_to() {
        let of = |models: Value, role: &str, state: &str| json!({ "models": models, "role": role, "state": state });
        let mut cluster = json!({ "decode_alone": "indivisible", "models": [
            { "name": "chat", "targets": ["a", "gone"] }, { "name": "both", "targets": ["a", "b"] }, { "name": "b", "targets": [] }] });
        let mut workers = vec![
            of(json!(["a", "b"]), "decode", "active"),
            of(json!(["a"]), "prefill", "draining"),
            of(json!(["b"]), "prefill", "active"),
        ];
        let is_active: IsUsable = |worker| worker["state"] == "active";
        let told =
            |cluster: &Value, workers: &[Value]| without_prefill(cluster, workers, is_active);
        assert_eq!(told(&cluster, &workers), ["a", "chat"]);
        let drained = |workers: &[Value]| {
            ["a", "chat"].map(|name| is_prefill_drained(name, &cluster, workers, |_| true))
        };
        assert_eq!(drained(&workers), [false; 2]);
        workers[1]["drained"] = true.into();
        assert_eq!(drained(&workers), [true; 2]);
        // Removed: nobody would compute its prompts, and nobody is to be activated.
        let gone = [workers[0].clone(), workers[2].clone()];
        assert_eq!(told(&cluster, &gone), ["a", "chat"]);
        assert_eq!(drained(&gone), [false; 2]);
        // An alias hides a model of its name.
        cluster["models"] = json!([{ "name": "a", "targets": ["b"] }]);
        assert!(told(&cluster, &workers).is_empty());
        cluster["models"] = json!([]);
        assert_eq!(told(&cluster, &workers), ["a"]);
        for role in ["any", "prefill"] {
            let more = [&workers[..], &[of(json!(["a"]), role, "active")]].concat();
            assert!(told(&cluster, &more).is_empty(), "{role}");
        }
        // It came just now, and is asked which models it serves.
        let more = [&workers[..], &[of(json!([]), "prefill", "active")]].concat();
        assert!(told(&cluster, &more).is_empty());
        // No worker of the model answers at all: that is told otherwise.
        workers[0]["state"] = "draining".into();
        assert!(told(&cluster, &workers).is_empty());
        workers[0]["state"] = "active".into();
        for when in [json!("always"), Value::Null] {
            cluster["decode_alone"] = when;
            assert!(told(&cluster, &workers).is_empty());
        }
    }

    #[test]
    fn a_model_waits_while_all_its_usable_workers_asked_to_be_left_alone() {
        let of = |models: Value, paused_s: Option<u64>, role: &str| json!({ "state": "active", "models": models, "paused_s": paused_s, "role": role });
        let cluster = json!({ "models": [{ "name": "both", "targets": ["a", "b"] }, { "name": "one", "targets": ["a", "gone"] },
            { "name": "x", "targets": ["b"] }, { "name": "old", "targets": ["gone"] }, { "name": "a", "targets": [] }] });
        let mut workers = vec![
            of(json!(["a"]), Some(30), "any"),
            of(json!(["a", "x"]), Some(12), "decode"),
            of(json!(["b"]), None, "any"),
            of(json!(["a"]), None, "prefill"),
        ];
        let told = |workers: &[Value]| {
            paused(&cluster, workers, |worker| worker["state"] == "active")
                .into_iter()
                .map(|(name, left)| format!("{name} {left}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&workers), ["a 12", "one 12"]);
        workers[1]["state"] = "draining".into();
        assert_eq!(told(&workers), ["a 30", "one 30"]);
        workers.push(of(json!(["a"]), None, "any"));
        assert!(told(&workers).is_empty());
    }

    #[test]
    fn a_target_without_a_worker_is_named_where_the_others_hide_it() {
        let worker =
            json!({ "state": "active", "verdict": "good", "verdict_for_s": 20, "models": ["a"] });
        let cluster = json!({ "models": [{ "name": "chat", "targets": ["a", "typo"] }, { "name": "old", "targets": ["gone"] }] });
        let mut drained = worker.clone();
        (drained["state"], drained["models"]) = ("draining".into(), json!(["typo"]));
        let only = std::slice::from_ref(&worker);
        assert_eq!(passed_over(&cluster, only), ["chat to typo"]);
        assert_eq!(unserved(&cluster, only, |_| true), ["old"]);
        assert!(passed_over(&cluster, &[worker, drained]).is_empty());
    }
}
