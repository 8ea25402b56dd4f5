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
