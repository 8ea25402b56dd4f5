//! Models without a worker.

use super::check;
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
