//! Ports that are open.

use super::check;
use crate::cli::doctor::facts::ClusterFacts;
use crate::cli::doctor::finding::Severity::{Info, Problem};
use serde_json::Value;

#[test]
fn open_ports_are_told() {
    let listen = |key: &'static str, value: Value| {
        move |facts: &mut ClusterFacts| facts.replicas[0].about["listen"][key] = value
    };
    check(
        listen("admin", "0.0.0.0:30001".into()),
        Problem,
        "admin_port",
        &["r1 is open", "no token", "admin.token"],
    );
    let with_token = |facts: &mut ClusterFacts| {
        listen("admin", "10.0.0.1:30001".into())(facts);
        listen("admin_token", true.into())(facts);
    };
    check(with_token, Info, "admin_port", &["plain HTTP"]);
    let without_keys = |facts: &mut ClusterFacts| {
        listen("data", "[::]:30000".into())(facts);
        listen("keys", false.into())(facts);
    };
    check(without_keys, Info, "data_port", &["without keys"]);
    check(
        listen("metrics", "0.0.0.0:29000".into()),
        Info,
        "metrics_port",
        &["r1"],
    );
}
