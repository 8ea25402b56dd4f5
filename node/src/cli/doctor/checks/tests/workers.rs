//! Workers: in trouble, and what they do not tell.

use super::{check, found, well};
use crate::cli::doctor::facts::ClusterFacts;
use crate::cli::doctor::finding::Severity::{Advice, Info, Problem};
use serde_json::{Value, json};

#[test]
fn workers_in_trouble_are_named_with_what_to_do() {
    let of = |key: &'static str, value: Value| {
        move |facts: &mut ClusterFacts| facts.workers[1][key] = value
    };
    let frozen = of("verdict", "stalled".into());
    check(
        frozen,
        Problem,
        "worker",
        &["1 worker is giving no tokens: http://b:1", "engine's log"],
    );
    let on_trial = |facts: &mut ClusterFacts| {
        let worker = &mut facts.workers[1];
        (worker["verdict"], worker["breaker"]) = ("ejected".into(), "half_open".into());
    };
    let words = [
        "1 worker is on trial after failed requests: http://b:1",
        "next request",
    ];
    check(on_trial, Info, "worker", &words);
    let refused = |facts: &mut ClusterFacts| {
        for worker in &mut facts.workers {
            (worker["verdict"], worker["failed_check"]) = ("unreachable".into(), "refused".into());
            worker["why"] = "a long chain of causes".into();
        }
    };
    check(
        refused,
        Problem,
        "worker",
        &[
            "2 workers are refusing connections: http://a:1, http://b:1 →",
            "workers remove",
        ],
    );
    let because = |whys: &'static [&'static str]| {
        move |facts: &mut ClusterFacts| {
            for (worker, why) in facts.workers.iter_mut().zip(whys) {
                (worker["verdict"], worker["failed_check"]) =
                    ("unreachable".into(), "failed".into());
                worker["why"] = (*why).into();
            }
        }
    };
    check(
        because(&["invalid peer certificate: UnknownIssuer"]),
        Problem,
        "worker",
        &[
            "http://a:1 (invalid peer certificate: UnknownIssuer) →",
            "workers.ca",
        ],
    );
    check(
        because(&["Connection reset by peer", "no route"]),
        Problem,
        "worker",
        &["(Connection reset by peer; 1 further reason) →", "firewall"],
    );
    check(
        because(&["it is a replica of this cluster, or asks one (508)"]),
        Problem,
        "worker",
        &["http://a:1 (it is a replica of", "workers remove"],
    );
    let keyless = |facts: &mut ClusterFacts| {
        for worker in &mut facts.workers {
            (worker["models"], worker["verdict_for_s"]) = (json!([]), 60.into());
            worker["why"] = "it refuses the key: it answered 401".into();
        }
    };
    let words = [
        "http://b:1 (it refuses the key: it answered 401",
        "api_key_file",
    ];
    check(keyless, Problem, "worker", &words);
    let declared = |facts: &mut ClusterFacts| {
        facts.workers[1]["why"] = "it refuses the key: it answered 401".into();
    };
    let words = ["1 worker refuses the key", "http://b:1", "api_key_file"];
    check(declared, Problem, "worker", &words);
    let refusing = |facts: &mut ClusterFacts| {
        declared(facts);
        facts.workers[1]["key_refused"] = 401.into();
    };
    let words = ["refusing this replica's key", "http://b:1", "api_key_file"];
    check(refusing, Problem, "worker", &words);
    let stuck = |facts: &mut ClusterFacts| {
        facts.workers[1]["verdict"] = "stalled".into();
        declared(facts);
    };
    check(stuck, Problem, "worker", &["giving no tokens"]);
    let mut facts = well();
    stuck(&mut facts);
    let text = format!("{:?}", found(facts));
    assert!(!text.contains("api_key"), "it is about tokens: {text}");
    let left_out = |facts: &mut ClusterFacts| {
        facts.workers[1]["why"] =
            "6 of its models cannot be used: 70 models are more than 64".into();
    };
    let words = [
        "that http://b:1 lists",
        "6 of its models",
        "docs/workers.md",
    ];
    check(left_out, Advice, "models", &words);
    let mut facts = well();
    on_trial(&mut facts);
    facts.workers[1]["state"] = "draining".into();
    let text = format!("{:?}", found(facts));
    assert!(!text.contains("on trial"), "nothing is sent there: {text}");
    check(
        of("unlisted_models", json!(["m"])),
        Problem,
        "models",
        &["http://b:1 is registered for m", "/v1/models"],
    );
    let without = |facts: &mut ClusterFacts| facts.workers[1]["usage_with_details"] = 0.into();
    check(
        without,
        Advice,
        "usage",
        &[
            "1 worker says not how much",
            "--enable-prompt-tokens-details",
        ],
    );
    let mut few = well();
    (
        few.workers[1]["usage_with_details"],
        few.workers[1]["usage_without_details"],
    ) = (0.into(), 3.into());
    assert_eq!(found(few), [], "three cold prompts say nothing");
    check(
        of("kv_caches", json!([])),
        Advice,
        "kv_events",
        &[
            "1 worker publishes no KV events: http://b:1; the others do",
            "--kv-events-config",
        ],
    );
    let nobody = |facts: &mut ClusterFacts| {
        facts
            .workers
            .iter_mut()
            .for_each(|worker| worker["kv_caches"] = json!([]))
    };
    check(
        nobody,
        Info,
        "kv_events",
        &["2 workers publish no KV events"],
    );
    let off = |facts: &mut ClusterFacts| {
        nobody(facts);
        facts
            .replicas
            .iter_mut()
            .for_each(|replica| replica.about["kv_events"] = false.into());
    };
    let mut cluster = well();
    off(&mut cluster);
    assert_eq!(found(cluster), [], "they are turned off");
    let cut = of(
        "kv_caches",
        json!([{ "connected": false, "believed": false }]),
    );
    check(cut, Advice, "kv_events", &["does not stand: http://b:1"]);
    let contradicted = of(
        "kv_caches",
        json!([{ "connected": true, "believed": false }]),
    );
    check(contradicted, Info, "kv_events", &["not believed"]);
    check(
        of("models", json!(["n"])),
        Info,
        "models",
        &["one worker alone serves 2 models: m, n"],
    );
    check(
        of("drained", true.into()),
        Info,
        "worker",
        &["1 worker is drained by hand", "activate"],
    );
    check(
        |facts| facts.workers.clear(),
        Problem,
        "worker",
        &["there is no worker"],
    );
    let source = |facts: &mut ClusterFacts| {
        facts.sources = vec![json!({ "source": "dns", "up": false, "failure": "no such name" })];
    };
    check(
        source,
        Problem,
        "source",
        &["dns is not seen: no such name"],
    );
    let emptied = |facts: &mut ClusterFacts| {
        facts.sources = vec![json!({ "source": "dns", "up": true, "registered": 1, "seen": 0 })];
    };
    check(
        emptied,
        Problem,
        "source",
        &["dns names none any more", "the 1 worker that it had"],
    );
    // Of these two, another replica sees one.
    let emptied_here = |contested: u64| {
        move |facts: &mut ClusterFacts| {
            let row = json!({ "source": "dns", "up": true, "registered": 2, "seen": 0, "missing": 2 - contested, "contested": contested });
            facts.sources = vec![row];
        }
    };
    let mut cluster = well();
    emptied_here(1)(&mut cluster);
    let [missing, contested] = &found(cluster)[..] else {
        panic!("not two findings");
    };
    let told = "dns names none any more; the 1 worker that it had";
    assert!(missing.what.contains(told), "{missing:?}");
    assert_eq!((missing.severity, contested.severity), (Problem, Advice));
    // They do not end with discovery.empty_hold.
    check(
        emptied_here(2),
        Advice,
        "source",
        &["see dns differently", "some see 2 workers"],
    );
    let contested = |facts: &mut ClusterFacts| {
        facts.sources = vec![json!({ "source": "dns", "up": true, "contested": 2, "refused": 0 })];
    };
    check(
        contested,
        Advice,
        "source",
        &["see dns differently", "2 workers"],
    );
}

#[test]
fn workers_that_another_replica_alone_finds_in_trouble_are_named_with_who() {
    let bad = |facts: &ClusterFacts| {
        let mut row = facts.workers[1].clone();
        (row["verdict"], row["failed_check"]) = ("unreachable".into(), "no_connection".into());
        row["why"] = "no route to host".into();
        row
    };
    let only_r2 = |facts: &mut ClusterFacts| {
        let row = bad(facts);
        facts.replicas[1].troubled.push(row);
    };
    let words = [
        "seen from r2 1 worker is unreachable, and not from r1: http://b:1 (no route to host)",
        "the machine of r2",
    ];
    check(only_r2, Problem, "worker", &words);
    // What the asked one sees as well is told once.
    let both = |facts: &mut ClusterFacts| {
        let row = bad(facts);
        for replica in &mut facts.replicas {
            replica.troubled.push(row.clone());
        }
        facts.workers[1] = row;
    };
    let words = ["1 worker is unreachable: http://b:1 (no route to host)"];
    check(both, Problem, "worker", &words);
}
