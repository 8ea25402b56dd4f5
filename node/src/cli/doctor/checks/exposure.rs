//! Ports that are open beyond their machine: who may reach what. Never a problem by itself: networks differ.

use serde_json::Value;

use crate::cli::doctor::facts::{ClusterFacts, ReplicaFacts};
use crate::cli::doctor::finding::Finding;
use crate::shown::words::{named, verb};

pub(super) fn check(facts: &ClusterFacts, found: &mut Vec<Finding>) {
    let open = |is_so: fn(&Value) -> bool| {
        let replicas = facts
            .replicas
            .iter()
            .filter(|replica| is_so(&replica.about["listen"]));
        let ids: Vec<&String> = replicas.map(|ReplicaFacts { id, .. }| id).collect();
        (!ids.is_empty()).then_some(ids)
    };
    let without_token =
        |listen: &Value| is_beyond(listen, "admin") && listen["admin_token"] == false;
    if let Some(ids) = open(without_token) {
        let what = format!(
            "the admin port of {} is open beyond its machine, and wants no token",
            named(&ids)
        );
        let todo = "set admin.token (16 characters or more), or admin.host = \"127.0.0.1\", and restart it";
        found.push(Finding::problem("admin_port", what).of(ids).todo(todo));
    }
    let with_token = |listen: &Value| is_beyond(listen, "admin") && listen["admin_token"] == true;
    if let Some(ids) = open(with_token) {
        let what = format!(
            "the admin port of {} is open beyond its machine: the token travels in plain HTTP",
            named(&ids)
        );
        let todo =
            "keep it within a network that you trust, or go by a tunnel or a proxy that ends TLS";
        found.push(Finding::info("admin_port", what).of(ids).todo(todo));
    }
    let without_keys = |listen: &Value| is_beyond(listen, "data") && listen["keys"] == false;
    if let Some(ids) = open(without_keys) {
        let what = format!(
            "the data port of {} {} open beyond its machine without keys: whoever reaches it uses the workers",
            named(&ids),
            verb(ids.len(), "is", "are")
        );
        let todo = "keys.file lists clients' keys (grapevine keys new); nothing to do behind a gateway that checks them";
        found.push(Finding::info("data_port", what).of(ids).todo(todo));
    }
    let metrics = |listen: &Value| is_beyond(listen, "metrics");
    if let Some(ids) = open(metrics) {
        let what = format!(
            "the metrics port of {} is open beyond its machine: it names workers and models",
            named(&ids)
        );
        found.push(Finding::info("metrics_port", what).of(ids));
    }
}

/// Whether a port listens on more than loopback.
fn is_beyond(listen: &Value, port: &str) -> bool {
    let address = listen[port].as_str();
    let address = address.and_then(|address| address.parse::<std::net::SocketAddr>().ok());
    address.is_some_and(|address| !address.ip().is_loopback())
}
