//! Models without a worker.

use super::{check, found, well};
use crate::cli::doctor::facts::ClusterFacts;
use crate::cli::doctor::finding::Severity::{Advice, Problem};
use serde_json::json;

#[test]
fn models_without_a_worker_are_named() {
    let alias = |targets: &'static [&'static str]| {
        move |facts: &mut ClusterFacts| {
            facts.cluster["models"] = json!([{ "name": "chat", "targets": targets }]);
        }
    };
    let parts = ["no usable worker for 1 model: chat", "404", "[[model]]"];
    check(alias(&["gone"]), Problem, "models", &parts);
    let parts = ["pass over: chat to gone", "spelling"];
    check(alias(&["m", "gone"]), Advice, "models", &parts);
    let plain = |facts: &mut ClusterFacts| {
        facts.cluster["models"] = json!([{ "name": "n", "targets": [] }])
    };
    check(
        plain,
        Problem,
        "models",
        &["no usable worker for 1 model: n"],
    );
}

#[test]
fn a_model_whose_workers_are_drained_is_served_once_one_is_active() {
    let mut facts = well();
    for id in ["http://c:1", "http://d:1"] {
        let mut worker = facts.workers[0].clone();
        (worker["id"], worker["models"]) = (id.into(), json!(["n"]));
        (worker["drained"], worker["state"]) = (true.into(), "draining".into());
        facts.workers.push(worker);
    }
    let text = format!("{:?}", found(facts));
    for part in [
        "no usable worker for 1 model, since those that serve such a model are drained",
        "503: n",
        "grapevine workers activate URL of one of them serves it again",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("start a worker that serves it"), "{text}");
}

#[test]
fn models_whose_workers_all_asked_to_be_left_alone_are_named() {
    let mut of_one = well();
    of_one.workers[0]["paused_s"] = 90.into();
    let text = format!("{:?}", found(of_one));
    assert!(!text.contains("left alone"), "the other serves it: {text}");
    let all = |facts: &mut ClusterFacts| {
        (facts.workers[0]["paused_s"], facts.workers[1]["paused_s"]) = (90.into(), 30.into());
    };
    let parts = [
        "every usable worker of 1 model asked to be left alone",
        "503: m (30 s left)",
        "retry.worker_pause_max",
    ];
    check(all, Problem, "models", &parts);
}

#[test]
fn models_whose_prompts_nobody_computes_are_named() {
    let halves = |state: &'static str, drained: bool| {
        move |facts: &mut ClusterFacts| {
            facts.cluster["decode_alone"] = "indivisible".into();
            facts.workers[0]["role"] = "decode".into();
            facts.workers[1]["role"] = "prefill".into();
            facts.workers[1]["state"] = state.into();
            facts.workers[1]["drained"] = drained.into();
        }
    };
    let mut both = well();
    halves("active", false)(&mut both);
    let text = format!("{:?}", found(both));
    assert!(!text.contains("prefill"), "{text}");
    let drained = [
        "no usable prefill worker for 1 model, since those that there are were drained",
        "503, or go to one in trouble: m",
        "grapevine workers activate URL",
    ];
    // That it was drained is a finding of its own.
    let mut facts = well();
    halves("draining", true)(&mut facts);
    let text = format!("{:?}", found(facts));
    assert!(drained.iter().all(|part| text.contains(part)), "{text}");
    let gone = ["no usable prefill worker for 1 model, and", "decode_alone"];
    // And so is that one worker alone is left.
    let mut facts = well();
    halves("active", false)(&mut facts);
    facts.workers.truncate(1);
    let text = format!("{:?}", found(facts));
    assert!(gone.iter().all(|part| text.contains(part)), "{text}");
}
