//! Replicas: in trouble, gone, alone.

use super::{check, found, row, well};
use crate::cli::doctor::facts::ClusterFacts;
use crate::cli::doctor::finding::Severity::{Advice, Info, Problem};
use serde_json::{Value, json};

#[test]
fn replicas_in_trouble_are_named() {
    let of = |at: usize, key: &'static str, value: Value| {
        move |facts: &mut ClusterFacts| facts.cluster["replicas"][at][key] = value
    };
    check(
        of(2, "live", false.into()),
        Problem,
        "replica",
        &["r3 is dead for 40 s", "start it again"],
    );
    for absent in ["joining", "replaced"] {
        let mut facts = well();
        of(2, "live", false.into())(&mut facts);
        of(2, "absent", absent.into())(&mut facts);
        let all = found(facts);
        assert!(!all.iter().any(|finding| finding.what.contains("is dead")));
    }
    check(
        of(2, "leaving", true.into()),
        Info,
        "replica",
        &["r3 is leaving for 40 s"],
    );
    let not_ready = |facts: &mut ClusterFacts| {
        facts.cluster["replicas"][1]["ready"] = false.into();
        facts.replicas[1].cluster["missing"] = json!(["no_worker_reachable"]);
    };
    check(
        not_ready,
        Problem,
        "replica",
        &["r2 is not ready for 40 s: no_worker_reachable", "Readiness"],
    );
    for (state, drained, todo) in [
        ("draining", true, "grapevine workers activate URL"),
        ("draining", false, "all drain, because their sources say so"),
    ] {
        let none_in_use = |facts: &mut ClusterFacts| {
            facts.cluster["replicas"][1]["ready"] = false.into();
            facts.replicas[1].cluster["missing"] = json!(["no_worker"]);
            for worker in &mut facts.workers {
                (worker["state"], worker["drained"]) = (state.into(), drained.into());
            }
        };
        let parts = ["r2 is not ready for 40 s: no_worker", todo, "Readiness"];
        let mut facts = well();
        none_in_use(&mut facts);
        let text = found(facts)
            .iter()
            .map(|finding| format!("{finding:?}\n"))
            .collect::<String>();
        let line = text.lines().find(|line| line.contains(parts[0]));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        assert!(!line.contains("workers add"), "{line}");
    }
    let lost =
        |facts: &mut ClusterFacts| facts.cluster["lost"] = json!([{ "id": "r4", "for_s": 300 }]);
    check(lost, Problem, "replica", &["r4 died 5 min ago"]);
    let lost_task = |facts: &mut ClusterFacts| {
        facts.replicas[1].cluster["lost_tasks"] = json!(["probe"]);
    };
    check(
        lost_task,
        Problem,
        "task",
        &["the task probe of r2", "start the replica again"],
    );
    let marked = |facts: &mut ClusterFacts| facts.replicas[1].cluster["quarantined"] = 1.into();
    check(
        marked,
        Advice,
        "quarantine",
        &["r2 refuses 1 request with which workers ended", "lift HASH"],
    );
    let twins = |facts: &mut ClusterFacts| {
        facts.cluster["twins"] =
            json!([{ "id": "r2", "kept": "10.0.0.2:2", "cut_off": "10.0.0.9:2" }]);
    };
    check(
        twins,
        Problem,
        "twins",
        &["two processes run as r2", "10.0.0.9:2 is cut off", "revoke"],
    );
    let silent = |facts: &mut ClusterFacts| {
        facts.replicas[0].cluster["silent_seeds"] = json!([{ "seed": "r9:30002", "for_s": 50, "why": null }, { "seed": "r8:1", "for_s": 2, "why": "revoked" }]);
    };
    check(
        silent,
        Problem,
        "seeds",
        &[
            "r1 is alone",
            "r9:30002 (no answer for 50 s)",
            "r8:1 (revoked)",
            "UDP",
            "1,228",
        ],
    );
    // The others are as well as before: it is this one that is kept out.
    let mut refused = well();
    for other in 1..3 {
        refused.cluster["replicas"][other]["live"] = false.into();
    }
    let seeds = json!([{ "seed": "r2:30002", "for_s": 50, "why": "it refuses our certificate (it was revoked)" }]);
    refused.cluster["silent_seeds"] = seeds.clone();
    refused.replicas.truncate(1);
    refused.replicas[0].cluster["silent_seeds"] = seeds;
    let found = found(refused);
    let of_seeds = found.iter().find(|finding| finding.check == "seeds");
    let of_seeds = of_seeds.expect("it is alone");
    assert!(of_seeds.what.contains("it was revoked"), "{of_seeds:?}");
    assert!(
        !of_seeds.todo.contains("UDP"),
        "somebody answers: {of_seeds:?}"
    );
    let dead: Vec<_> = found
        .iter()
        .filter(|finding| finding.what.contains("is dead"))
        .collect();
    assert_eq!(dead.len(), 2, "{found:?}");
    for dead in dead {
        assert!(dead.todo.contains("ask one of them"), "{dead:?}");
    }
    // The same of one that nobody refuses.
    let mut cut_off = well();
    for other in 1..3 {
        cut_off.cluster["replicas"][other]["live"] = false.into();
    }
    let all = super::found(cut_off);
    let dead = all
        .iter()
        .filter(|finding| finding.what.contains("is dead"));
    let hints = dead.map(|dead| dead.todo.contains("it may be the one that is cut off"));
    assert_eq!(hints.collect::<Vec<_>>(), [true, true]);
    let single = |facts: &mut ClusterFacts| {
        facts.cluster["replicas"] = json!([row("r1")]);
        facts.replicas.truncate(1);
        facts.replicas[0].about["seeds"] = json!([]);
    };
    check(
        single,
        Advice,
        "alone",
        &["r1 is the only replica", "--seed"],
    );
    let without_gossip = |facts: &mut ClusterFacts| {
        single(facts);
        facts.cluster["replicas"][0]["gossip"] = Value::Null;
    };
    check(without_gossip, Advice, "alone", &["grapevine ca init"]);
    let not_asked = |facts: &mut ClusterFacts| {
        facts.replicas.pop();
        facts
            .not_asked
            .push(("r3".to_owned(), "refused".to_owned()));
    };
    check(not_asked, Info, "asked", &["r3 was not asked: refused"]);
    let earlier = |facts: &mut ClusterFacts| facts.replicas[1].about = Value::Null;
    check(earlier, Info, "asked", &["r2 does not tell"]);
}
