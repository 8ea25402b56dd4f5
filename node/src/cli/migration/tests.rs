//! The rows against our own flags, and `MIGRATING.md` against the rows.

use super::*;
use crate::api::text::{SESSION_HEADERS, USER_HEADERS};
use crate::config::{Config, ConfigError, Layers, rows};
use crate::http::headers::TARGET_WORKER;

const PAGE: &str = include_str!("../../../MIGRATING.md");

fn with_policy(policy: &str) -> Result<Config, ConfigError> {
    let flag = rows().find_map(|(_, row)| row.flag.filter(|flag| flag.name == "policy"));
    Config::from_layers(Layers {
        flags: vec![(flag.expect("there is --policy"), vec![policy.to_owned()])],
        ..Layers::default()
    })
}

/// A row of the page.
fn line(row: &Row) -> String {
    let names: Vec<String> = row.names.iter().map(|name| format!("`--{name}`")).collect();
    let (here, difference) = match row.here {
        Here::Served(difference) => ("served".to_owned(), difference),
        Here::Renamed(ours, difference) => (format!("served as `--{ours}`"), difference),
        Here::Means(ours, value, difference) => {
            (format!("served as `--{ours} {value}`"), difference)
        }
        Here::Accepted(why) => ("taken, changes nothing".to_owned(), why),
        Here::Only(values, instead) => {
            let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
            (
                format!("taken with {}; else refused", values.join(", ")),
                instead,
            )
        }
        Here::Refused(instead) => ("refused".to_owned(), instead),
    };
    format!("| {} | {here} | {difference} |", names.join(", "))
}

#[test]
fn the_page_has_every_flag_with_what_it_is_here() {
    for peer in &PEERS {
        let heading = format!("## Flags of {}", peer.name);
        let section = PAGE.split(heading.as_str()).nth(1).expect(peer.name);
        let section = section.split("\n## ").next().expect("its beginning");
        let shown: Vec<&str> = section.lines().filter(|l| l.starts_with("| `--")).collect();
        let expected: Vec<String> = peer.rows.iter().map(line).collect();
        assert_eq!(
            shown,
            expected,
            "write the rows into the page:\n{}",
            expected.join("\n")
        );
    }
}

#[test]
fn the_page_says_of_policies_and_headers_what_is_so() {
    let row = |first: &str| {
        let start = format!("| `{first}` |");
        let found = PAGE.lines().find(|line| line.starts_with(&start));
        found
            .unwrap_or_else(|| panic!("no row of {first}"))
            .to_owned()
    };
    for policy in [
        "random",
        "round_robin",
        "cache_aware",
        "power_of_two",
        "consistent_hash",
        "kv_aware",
        "sticky_least_loaded",
        "rendezvous_hash",
        "consistent_hashing",
        "prefix_hash",
        "manual",
        "least_load",
        "bucket",
        "passthrough",
    ] {
        let line = row(policy);
        match with_policy(policy) {
            Ok(_) => assert!(line.contains("| served |"), "{line}"),
            Err(error) => {
                let error = error.to_string();
                let instead = error.split_once("\" ").expect("what to write").1;
                assert!(line.contains(&format!("| refused | {instead}")), "{line}");
            }
        }
    }
    for header in &SESSION_HEADERS {
        assert!(row(header.as_str()).contains("| session |"), "{header}");
    }
    for header in &USER_HEADERS {
        assert!(row(header.as_str()).contains("| user |"), "{header}");
    }
    assert!(row(TARGET_WORKER.as_str()).contains("| 400 |"));
    let priorities = crate::config::AdmissionConfig::default().priority_headers;
    assert!(priorities.iter().any(|header| header == "x-smg-priority"));
    assert!(row("x-smg-priority").contains("| priority |"));
}

#[test]
fn rows_agree_with_our_flags() {
    let is_ours =
        |name: &str| rows().any(|(_, row)| row.flag.is_some_and(|flag| flag.name == name));
    for peer in &PEERS {
        let mut names = std::collections::BTreeSet::new();
        for row in peer.rows {
            let (first, others) = row.names.split_first().expect("a name");
            assert_eq!(is_ours(first), row.here.is_served(), "--{first}");
            assert!(others.iter().all(|name| !is_ours(name)), "{:?}", row.names);
            assert!(
                row.names.iter().all(|name| names.insert(*name)),
                "{:?}",
                row.names
            );
            if let Here::Renamed(ours, _) | Here::Means(ours, ..) = row.here {
                assert!(is_ours(ours), "--{ours}");
            }
        }
    }
    let [vllm_router, smg] = PEERS;
    // Its launcher's 71, and those that only its Rust binary has; SMG's 212, of which one is a switch and its opposite.
    assert_eq!(vllm_router.rows.len(), 71 + 11);
    assert_eq!(smg.rows.len(), 212 + 1);
}

#[test]
fn what_changes_nothing_is_taken_and_what_would_is_not() {
    for (name, values, taken) in [
        ("kv-event-block-size", &["16"][..], true),
        ("kv-event-block-size", &["016"], true),
        ("kv-event-block-size", &["32"], false),
        ("kv-event-block-size", &[], false),
        ("router-temperature", &["0.0"], true),
        ("router-temperature", &["0.5"], false),
        // Its default is another one in each of the two.
        ("eviction-interval-secs", &["120"], true),
        ("eviction-interval-secs", &["60"], true),
        ("eviction-interval-secs", &["5"], false),
        ("otel-excluded-paths", &["/health", "/liveness"], true),
        ("otel-excluded-paths", &["/health", "/v1/models"], false),
        ("history-backend", &["none"], true),
        ("history-backend", &["redis"], false),
        ("enable-igw", &[], true),
        ("sticky-sessions", &[], true),
        ("cache-match-threshold", &["0.5"], true),
        ("discovery-provider", &["file"], false),
    ] {
        let refusal = refusal(name, values);
        assert_eq!(refusal.is_none(), taken, "{name} {values:?}: {refusal:?}");
    }
    let refusal = refusal("log-dir", &["/tmp"]).expect("refused");
    assert!(
        refusal.starts_with("--log-dir of vllm-router and SMG is not supported: "),
        "{refusal}"
    );
}
