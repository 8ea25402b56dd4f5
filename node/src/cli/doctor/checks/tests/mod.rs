//! Tables: facts as replicas and files give them, and what is found. Each fault is planted in a cluster that is well.

use serde_json::{Value, json};

use super::all;
use crate::cli::doctor::facts::{ClusterFacts, Facts, ReplicaFacts};
use crate::cli::doctor::finding::Severity::{Advice, Info, Problem};
use crate::cli::doctor::finding::{Finding, Severity};

mod certificates;
mod clocks;
mod config;
mod engines;
mod exposure;
mod machine;
mod models;
mod paths;
mod replicas;
mod settings;
mod workers;

fn row(id: &str) -> Value {
    json!({
        "id": id, "live": true, "ready": true, "leaving": false, "ring": "d", "registry": "g", "settings": "s",
        "version": "0.9.0", "for_s": 40, "certificate_days": 80, "gossip": "10.0.0.1:30002",
    })
}

fn worker(id: &str) -> Value {
    json!({
        "id": id, "state": "active", "verdict": "good", "verdict_for_s": 40, "models": ["m"], "drained": false,
        "unlisted_models": [], "clock_ahead_s": 0, "usage_with_details": 100, "usage_without_details": 30,
        "kv_caches": [{ "connected": true, "believed": true }],
    })
}

fn about(settings: Value) -> Value {
    json!({
        "now_ms": 1_700_000_000_000_u64, "settings": settings, "seeds": ["10.0.0.1:30002"], "kv_events": true,
        "threads": null, "connections_max": 65_536, "connections_fit": 65_536, "body_bytes_max": 1 << 20,
        "listen": { "data": "127.0.0.1:30000", "admin": "127.0.0.1:30001", "metrics": null, "keys": true,
            "admin_token": false, "tls": false },
        "machine": {
            "files": { "open": 40, "most": 1_000_000 },
            "cpu": { "usable": 4, "quota": null, "held_up": null },
            "udp": { "dropped": 0, "buffer_bytes": 212_992 },
        },
        "memory": { "limit": 1 << 30, "used": 1 << 28 },
        "paths": [{ "replica": "r2", "mtu": 1_452, "black_holes": 0, "packets_sent": 5_000, "packets_lost": 3 }],
    })
}

fn replica(id: &str) -> ReplicaFacts {
    ReplicaFacts {
        id: id.to_owned(),
        cluster: json!({ "replica": id, "missing": [], "silent_seeds": [] }),
        about: about(json!({ "cluster.policy": "\"prefix\"", "cluster.seed": "0" })),
        ahead_ms: Some(3),
        unsure_ms: 2,
        troubled: Vec::new(),
        metrics: vec![("grapevine_log_lines_dropped_total".to_owned(), 0.0)],
    }
}

/// Three replicas and two workers, and nothing to say about them.
fn well() -> ClusterFacts {
    let rows = ["r1", "r2", "r3"].map(row);
    ClusterFacts {
        cluster: json!({
            "replica": "r1", "digest": "d", "settings": "s", "replicas": rows,
            "unheard": [], "lost": [], "twins": [], "silent_seeds": [],
        }),
        workers: ["http://a:1", "http://b:1"].map(worker).into(),
        replicas: ["r1", "r2", "r3"].map(replica).into(),
        ..ClusterFacts::default()
    }
}

fn found(cluster: ClusterFacts) -> Vec<Finding> {
    all(&Facts {
        cluster: Some(cluster),
        config: None,
    })
}

/// One finding and no other, of this severity and check; `parts` are in what it says or what to do.
fn is_one(found: &[Finding], severity: Severity, check: &str, parts: &[&str]) {
    let [finding] = found else {
        panic!("{check}: not one finding: {found:#?}");
    };
    assert_eq!(
        (finding.severity, finding.check),
        (severity, check),
        "{finding:?}"
    );
    let text = format!("{} → {}", finding.what, finding.todo);
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    let is_silent = severity != Info && finding.todo.is_empty();
    assert!(!is_silent, "it does not say what to do: {text}");
}

/// Plants a fault in a cluster that is well.
fn check(plant: impl FnOnce(&mut ClusterFacts), severity: Severity, name: &str, parts: &[&str]) {
    let mut cluster = well();
    plant(&mut cluster);
    is_one(&found(cluster), severity, name, parts);
}

#[test]
fn of_a_cluster_that_is_well_nothing_is_said() {
    assert_eq!(found(well()), []);
    assert_eq!(all(&Facts::default()), []);
}

#[test]
fn the_worst_comes_first() {
    let mut cluster = well();
    cluster.cluster["replicas"][2]["leaving"] = true.into();
    cluster.cluster["replicas"][1]["version"] = "0.8.0".into();
    cluster.workers[0]["verdict"] = "stalled".into();
    let found = found(cluster);
    let severities: Vec<Severity> = found.iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [Problem, Advice, Info]);
}
