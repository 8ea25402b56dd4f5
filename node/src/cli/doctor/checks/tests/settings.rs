//! What differs between replicas, and between a file and what runs.

use super::config::good;
use super::{check, is_one, well};
use crate::cli::doctor::checks::all;
use crate::cli::doctor::facts::{ClusterFacts, Facts};
use crate::cli::doctor::finding::Severity::{Advice, Problem};
use serde_json::json;

#[test]
fn what_differs_between_replicas_is_named() {
    let of = |key: &'static str, value: &'static str| {
        move |facts: &mut ClusterFacts| facts.cluster["replicas"][2][key] = value.into()
    };
    check(
        of("ring", "e"),
        Problem,
        "rings",
        &["rings differ: r1, r2: d; r3: e"],
    );
    check(
        of("registry", "h"),
        Problem,
        "registry",
        &["r1, r2: g; r3: h"],
    );
    check(
        of("version", "0.8.0"),
        Advice,
        "releases",
        &["2 releases", "r3: 0.8.0; r1, r2: 0.9.0", "finish the roll"],
    );
    let three = |facts: &mut ClusterFacts| {
        facts.cluster["replicas"][1]["version"] = "0.7.0".into();
        facts.cluster["replicas"][2]["version"] = "0.8.0".into();
    };
    check(three, Advice, "releases", &["3 releases", "neighbouring"]);
    let settings = |facts: &mut ClusterFacts| {
        let row = &mut facts.cluster["replicas"][2];
        // Rings differ with them, and that is not said twice.
        (row["settings"], row["ring"]) = ("t".into(), "e".into());
        facts.replicas[2].about["settings"] = json!({ "cluster.policy": "\"random\"", "health.slow_start": "\"1s\"", "cluster.seed": "0" });
    };
    let parts = [
        "cluster.policy is \"prefix\" on r1, r2 and \"random\" on r3",
        "health.slow_start is \"1s\" on r3 and not there on r1, r2",
        "make them equal",
    ];
    check(settings, Problem, "settings", &parts);
    let unnamed = |facts: &mut ClusterFacts| facts.cluster["replicas"][2]["settings"] = "t".into();
    check(
        unnamed,
        Problem,
        "settings",
        &["differ between r1, r2 and r3", "compare their files"],
    );
}

#[test]
fn a_file_that_differs_from_what_runs_is_told_by_name() {
    let mut config = good();
    config.settings["cluster.seed"] = "7".into();
    let facts = Facts {
        config: Some(config),
        cluster: Some(well()),
    };
    let parts = ["cluster.seed is 7 there, 0 runs", "at r1", "config reload"];
    is_one(&all(&facts), Advice, "file", &parts);
    let models = |of_file: bool| {
        let (mut config, mut cluster) = (good(), well());
        let settings = match of_file {
            true => &mut config.settings,
            false => &mut cluster.replicas[0].about["settings"],
        };
        settings["model[m].policy"] = "\"random\"".into();
        all(&Facts {
            config: Some(config),
            cluster: Some(cluster),
        })
    };
    let parts = ["model[m].policy is \"random\" there, and does not run"];
    is_one(&models(true), Advice, "file", &parts);
    let parts = ["model[m].policy is not set there, \"random\" runs"];
    is_one(&models(false), Advice, "file", &parts);
    let same = Facts {
        config: Some(good()),
        cluster: Some(well()),
    };
    assert_eq!(all(&same), []);
}
