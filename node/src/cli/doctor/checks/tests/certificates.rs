//! Certificates that end.

use serde_json::json;

use super::{check, found, well};
use crate::cli::doctor::facts::ClusterFacts;
use crate::cli::doctor::finding::Severity::{Advice, Problem};

#[test]
fn certificates_that_end_are_named() {
    let days = |days: i64| {
        move |facts: &mut ClusterFacts| {
            facts.cluster["replicas"][2]["certificate_days"] = days.into()
        }
    };
    check(
        days(20),
        Advice,
        "certificate",
        &[
            "the certificate of r3 ends in 20 days",
            "grapevine ca issue r3 --force",
        ],
    );
    check(days(7), Problem, "certificate", &["ends in 7 days"]);
    for (days_left, said) in [
        (1, "the certificate of r3 ends in a day"),
        (0, "the certificate of r3 ends within a day"),
        (-1, "the certificate of r3 ended less than a day ago"),
        (-2, "the certificate of r3 ended a day ago"),
        (-3, "the certificate of r3 ended 2 days ago"),
    ] {
        check(days(days_left), Problem, "certificate", &[said]);
    }
    let listener = |facts: &mut ClusterFacts| {
        let series = "grapevine_tls_certificate_expires_seconds{files=\"listener\"}".to_owned();
        facts.replicas[1]
            .metrics
            .push((series, 1_700_000_000.0 + 3.5 * 86_400.0));
    };
    check(
        listener,
        Problem,
        "certificate",
        &["of listener at r2 ends in 3 days"],
    );
    let begins = |facts: &mut ClusterFacts| {
        listener(facts);
        let series = "grapevine_tls_certificate_begins_seconds{files=\"listener\"}".to_owned();
        let now_s = facts.replicas[1].about["now_ms"].as_f64().expect("a time") / 1e3;
        facts.replicas[1].metrics.push((series, now_s + 7_200.0));
    };
    check(
        begins,
        Problem,
        "certificate",
        &[
            "the certificate of listener at r2 begins on 2023-11-15 0:13:20.0 UTC, and the clock of r2 says",
            "set the clock",
        ],
    );
    let never = |facts: &mut ClusterFacts| {
        listener(facts);
        let series = "grapevine_tls_certificate_begins_seconds{files=\"listener\"}".to_owned();
        facts.replicas[1].metrics.push((series, 1e30));
    };
    let text = "the certificate of listener at r2 begins on 9999-12-31 23:59:59.0 UTC";
    check(never, Problem, "certificate", &[text]);
}

#[test]
fn changed_files_that_cannot_be_used_are_named() {
    let metric = |series: &'static str| {
        move |facts: &mut ClusterFacts| facts.replicas[1].metrics.push((series.to_owned(), 1.0))
    };
    check(
        metric("grapevine_tls_files_refused{files=\"gossip\"}"),
        Problem,
        "reload",
        &["r2 cannot use the changed certificates between replicas"],
    );
    check(
        metric("grapevine_keys_file_refused"),
        Problem,
        "reload",
        &[
            "r2 cannot use the changed file of clients' keys: the former keys stay",
            "grapevine keys check FILE",
        ],
    );
    let mut of_keys = well();
    metric("grapevine_keys_file_refused")(&mut of_keys);
    let refused =
        json!({ "for_s": 3, "why": "k.toml:7:1: [[key]]: `hash` is missing\nk.toml:9:1: more" });
    of_keys.replicas[1].cluster["refused_keys"] = refused;
    let text = format!("{:?}", found(of_keys));
    let place = "keys stay: k.toml:7:1: [[key]]: `hash` is missing";
    assert!(text.contains(place), "{text}");
    assert!(!text.contains("certificate"), "{text}");
    check(
        |facts: &mut ClusterFacts| {
            let refused =
                json!({ "for_s": 3, "why": "g.toml:3:1: no such key\ng.toml:9:1: nor this" });
            facts.replicas[1].cluster["refused_config"] = refused;
        },
        Problem,
        "reload",
        &[
            "r2 cannot use its changed configuration",
            "g.toml:3:1: no such key",
            "grapevine config reload",
        ],
    );
    check(
        |facts: &mut ClusterFacts| {
            facts.replicas[1].cluster["needs_restart"] = json!(["cluster.bound", "listen.threads"]);
        },
        Advice,
        "reload",
        &["r2 will use its new cluster.bound, listen.threads after a restart"],
    );
}
