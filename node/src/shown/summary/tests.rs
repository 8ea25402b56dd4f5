use serde_json::json;

use super::*;
use crate::shown::trouble::worker_rank;

fn replica(id: &str, live: bool, ready: bool, ring: &str) -> Value {
    json!({ "id": id, "live": live, "ready": ready, "leaving": false, "ring": ring, "settings": "s", "for_s": 40 })
}

fn worker(id: &str, state: &str, verdict: &str, for_s: u64) -> Value {
    json!({ "id": id, "state": state, "verdict": verdict, "verdict_for_s": for_s })
}

fn check(replicas: &[Value], workers: &[Value], text: &str, is_wrong: bool) {
    let cluster = json!({ "digest": "d", "settings": "s", "replicas": replicas });
    let expected = Summary {
        text: text.to_owned(),
        is_wrong,
    };
    assert_eq!(summary(&cluster, workers), expected);
}

#[test]
fn one_sentence_says_what_is_wrong() {
    let well = [
        replica("r1", true, true, "d"),
        replica("r2", true, true, "d"),
    ];
    let two = [
        worker("w1", "active", "good", 9),
        worker("w2", "active", "good", 9),
    ];
    check(
        &well,
        &two,
        "2 replicas that agree; 2 workers usable",
        false,
    );
    check(&well[..1], &two[..1], "1 replica; 1 worker usable", false);
    check(&well, &[], "2 replicas that agree; no worker", true);
    let draining = [two[0].clone(), worker("w3", "draining", "good", 1)];
    let text = "2 replicas that agree; 1 of 2 workers usable: 1 drained: w3";
    check(&well, &draining, text, false);
    for absent in ["joining", "replaced"] {
        let mut third = replica("r3", false, true, "d");
        third["absent"] = absent.into();
        let all = [well[0].clone(), well[1].clone(), third];
        let text = "2 replicas that agree; 2 workers usable";
        check(&all, &two, text, false);
    }
    let replicas = [
        well[0].clone(),
        replica("r2", true, true, "other"),
        replica("r3", false, true, "d"),
    ];
    let workers = [
        two[0].clone(),
        worker("w5", "active", "unreachable", 300),
        worker("w6", "active", "stalled", 12),
        worker("w7", "active", "unreachable", 7_300),
    ];
    check(
        &replicas,
        &workers,
        "3 replicas, 1 dead for 40 s: r3, 1 with another ring: r2; 1 of 4 workers usable: 1 giving no tokens \
         for 12 s: w6, 2 unreachable for up to 2 h: w5, w7",
        true,
    );
    let many: Vec<_> = (0..9)
        .map(|n| {
            let mut bad = worker(&format!("w{n}"), "active", "unhealthy", 130);
            bad["failed_check"] = "bad_answer".into();
            bad
        })
        .collect();
    let text = "2 replicas that agree; 0 of 9 workers usable: 9 failing checks for 2 min: w0, w1, w2, w3 and 5 more";
    check(&well, &many, text, true);
}

#[test]
fn two_processes_under_one_id_are_named() {
    let replicas = [replica("r1", true, true, "d")];
    let cluster =
        json!({ "digest": "d", "settings": "s", "replicas": replicas, "twins": [{ "id": "r1" }] });
    let found = summary(&cluster, &[worker("w1", "active", "good", 9)]);
    assert_eq!(
        found.text,
        "two processes run as r1; 1 replica; 1 worker usable"
    );
    assert!(found.is_wrong);
}

#[test]
fn sources_that_show_nothing_are_named() {
    let replicas = [replica("r1", true, true, "d")];
    let lost = [
        json!({ "source": "dns", "how": "broken" }),
        json!({ "source": "files", "how": "empty" }),
    ];
    let cluster =
        json!({ "digest": "d", "settings": "s", "replicas": replicas, "lost_sources": lost });
    let found = summary(&cluster, &[worker("w1", "active", "good", 9)]);
    assert_eq!(
        found.text,
        "source dns cannot be seen; source files shows no worker any more; 1 replica; 1 worker usable"
    );
    assert!(found.is_wrong);
}

#[test]
fn certificates_that_have_ended_or_end_today_are_named() {
    let of = |id: &str, days: Value| {
        let mut row = replica(id, true, true, "d");
        row["certificate_days"] = days;
        row
    };
    let worker = [worker("w1", "active", "good", 9)];
    let later = [of("r1", 1.into()), of("r2", Value::Null)];
    let text = "2 replicas that agree; 1 worker usable";
    check(&later, &worker, text, false);
    let now = [
        of("r1", 0.into()),
        of("r2", (-1).into()),
        of("r3", (-9).into()),
    ];
    let text = "the certificate of r1 ends within a day; the certificate of r2, r3 has ended; 3 replicas that agree; \
                1 worker usable";
    check(&now, &worker, text, true);
}

#[test]
fn a_certificate_of_the_data_port_that_is_not_good_now_is_named() {
    let worker = [worker("w1", "active", "good", 9)];
    let headline = |certificate: Value| {
        let cluster = json!({
            "digest": "d", "settings": "s", "replica": "r1", "replicas": [replica("r1", true, true, "d")],
            "data_certificate": certificate,
        });
        let found = summary(&cluster, &worker);
        (found.is_wrong, found.text)
    };
    let of =
        |days: i64, begins_in_s: u64| headline(json!({ "days": days, "begins_in_s": begins_in_s }));
    let well = "1 replica; 1 worker usable".to_owned();
    assert_eq!(of(1, 0), (false, well.clone()));
    assert_eq!(headline(Value::Null), (false, well.clone()));
    let whose = "the certificate of the data port of r1";
    assert_eq!(
        of(0, 0),
        (false, well.clone()),
        "it may be one that lasts for a day"
    );
    assert_eq!(of(-1, 0), (true, format!("{whose} has ended; {well}")));
    let begins = format!("{whose} begins in 2 h, by its replica's clock; {well}");
    assert_eq!(of(90, 7_300), (true, begins));
}

#[test]
fn a_configuration_that_was_refused_is_told_with_the_reason() {
    let why = "g.toml:3:1: expected a key\n  |\n3 | = [";
    let cluster = json!({
        "digest": "d", "settings": "s", "replica": "r1", "replicas": [replica("r1", true, true, "d")],
        "refused_config": { "for_s": 240, "why": why },
    });
    let found = summary(&cluster, &[worker("w1", "active", "good", 9)]);
    assert_eq!(
        found.text,
        "r1 refused its configuration 4 min ago, and the former one stays: g.toml:3:1: expected a key; 1 replica; \
         1 worker usable"
    );
    assert!(found.is_wrong);
}

#[test]
fn keys_that_were_refused_are_told_with_their_place() {
    let cluster = json!({
        "digest": "d", "settings": "s", "replica": "r1", "replicas": [replica("r1", true, true, "d")],
        "refused_files": ["keys", "gossip"],
        "refused_keys": { "for_s": 5, "why": "keys.toml:7:1: [[key]]: `hash` is missing\nkeys.toml:9:1: more" },
    });
    let found = summary(&cluster, &[worker("w1", "active", "good", 9)]);
    assert_eq!(
        found.text,
        "r1 refused its changed keys of clients 5 s ago, and the former ones stay: keys.toml:7:1: [[key]]: `hash` is \
         missing; r1 cannot use the changed certificates between replicas, and the former ones stay: its log says why; \
         1 replica; 1 worker usable"
    );
    assert!(found.is_wrong);
}

#[test]
fn settings_that_wait_for_a_restart_are_told_and_are_no_fault() {
    let cluster = json!({
        "digest": "d", "settings": "s", "replica": "r1", "replicas": [replica("r1", true, true, "d")],
        "needs_restart": ["gossip.port", "listen.threads"],
    });
    let found = summary(&cluster, &[worker("w1", "active", "good", 9)]);
    assert_eq!(
        found.text,
        "1 replica; 1 worker usable; r1 will use its new gossip.port, listen.threads after a restart"
    );
    assert!(!found.is_wrong);
}

#[test]
fn tasks_that_a_bug_ended_are_named() {
    let of = |tasks: &[&str]| {
        let cluster = json!({
            "digest": "d", "settings": "s", "replica": "r1", "replicas": [replica("r1", true, true, "d")],
            "lost_tasks": tasks,
        });
        let found = summary(&cluster, &[worker("w1", "active", "good", 9)]);
        (found.is_wrong, found.text)
    };
    let well = "1 replica; 1 worker usable";
    assert_eq!(of(&[]), (false, well.to_owned()));
    let one = format!("a bug ended task probe of r1: start it again; {well}");
    assert_eq!(of(&["probe"]), (true, one));
    let two = format!("a bug ended tasks dns, probe of r1: start it again; {well}");
    assert_eq!(of(&["dns", "probe"]), (true, two));
}

#[test]
fn files_that_cannot_be_used_and_bodies_that_end_workers_are_told() {
    let of = |files: &[&str], quarantined: u64| {
        let cluster = json!({
            "digest": "d", "settings": "s", "replica": "r1", "replicas": [replica("r1", true, true, "d")],
            "refused_files": files, "quarantined": quarantined,
        });
        let found = summary(&cluster, &[worker("w1", "active", "good", 9)]);
        (found.is_wrong, found.text)
    };
    let well = "1 replica; 1 worker usable";
    assert_eq!(of(&[], 0), (false, well.to_owned()));
    let files = format!(
        "r1 cannot use the changed keys of clients, certificates between replicas, and the former ones stay: its log \
         says why; {well}"
    );
    assert_eq!(of(&["keys", "gossip"], 0), (true, files));
    let bodies = format!(
        "workers ended with 2 requests, which are refused for a while (grapevine quarantine); {well}"
    );
    assert_eq!(of(&[], 2), (true, bodies));
}

#[test]
fn a_worker_that_refuses_the_key_is_no_usable_one() {
    let of = |status: u16| {
        let mut refusing = worker("w2", "active", "good", 900);
        refusing["key_refused"] = status.into();
        let cluster =
            json!({ "digest": "d", "settings": "s", "replicas": [replica("r1", true, true, "d")] });
        summary(&cluster, &[worker("w1", "active", "good", 9), refusing]).text
    };
    assert_eq!(
        of(401),
        "1 replica; 1 of 2 workers usable: 1 refusing this replica's key: w2"
    );
    assert_eq!(
        of(403),
        "1 replica; 2 workers usable",
        "its list alone may be closed"
    );
}

#[test]
fn who_is_gone_or_silent_is_not_forgotten() {
    let replicas = [replica("r1", true, true, "d")];
    let cluster = json!({
        "digest": "d", "settings": "s", "replicas": replicas,
        "lost": [{ "id": "r2", "for_s": 300 }],
        "silent_seeds": [{ "seed": "r2.example:30002", "for_s": 299 }],
    });
    let found = summary(&cluster, &[worker("w1", "active", "good", 9)]);
    assert_eq!(
        found.text,
        "this replica is alone, no seed answers for 4 min: r2.example:30002; 2 replicas, 1 gone for 5 min: r2; 1 worker \
         usable"
    );
    assert!(found.is_wrong);
}

#[test]
fn who_does_not_hear_whom_is_named() {
    let replicas = [
        replica("r1", true, true, "d"),
        replica("r2", true, true, "d"),
    ];
    let headline = |pairs: &[(&str, &str)]| {
        let pairs = pairs
            .iter()
            .map(|(of, other)| json!({ "replica": of, "other": other }));
        let cluster = json!({
            "digest": "d", "settings": "s", "replicas": replicas, "unheard": pairs.collect::<Vec<_>>(),
        });
        let found = summary(&cluster, &[worker("w1", "active", "good", 9)]);
        (found.is_wrong, found.text)
    };
    let rest = "2 replicas that agree; 1 worker usable";
    assert_eq!(headline(&[]), (false, rest.to_owned()));
    let one_way = format!("r2 does not hear r1; {rest}");
    assert_eq!(headline(&[("r2", "r1")]), (true, one_way));
    let both = format!("r1 and r2 do not hear each other; {rest}");
    assert_eq!(headline(&[("r1", "r2"), ("r2", "r1")]), (true, both));
    let many = [
        ("a", "b"),
        ("a", "c"),
        ("a", "d"),
        ("a", "e"),
        ("a", "f"),
        ("a", "g"),
    ];
    assert!(
        headline(&many)
            .1
            .contains("a does not hear e and 2 more links; ")
    );
}

#[test]
fn a_seed_that_refuses_is_not_called_silent() {
    let why = "it refuses our certificate; both need certificates of the same authority";
    let cluster = json!({
        "digest": "d", "settings": "s", "replicas": [replica("r1", true, true, "d")],
        "silent_seeds": [{ "seed": "10.0.0.2:30002", "for_s": 40, "why": why }],
    });
    let found = summary(&cluster, &[worker("w1", "active", "good", 9)]).text;
    let expected = format!(
        "this replica is alone, no seed could be joined for 40 s: 10.0.0.2:30002 ({why}); "
    );
    assert!(found.starts_with(&expected), "{found}");
}

#[test]
fn clients_that_are_not_served_are_no_good_news() {
    let headline = |requests: u64, refused: u64, failed: u64| {
        let cluster = json!({
            "digest": "d", "settings": "s", "replicas": [replica("r1", true, true, "d")],
            "minute": { "requests": requests, "refused": refused, "failed": failed },
        });
        let found = summary(&cluster, &[worker("w1", "active", "good", 9)]);
        (found.is_wrong, found.text)
    };
    let well = "1 replica; 1 worker usable".to_owned();
    assert_eq!(headline(100, 0, 0), (false, well.clone()));
    let refused = format!("{well}; of 100 requests in the last minute 12 refused, 1 failed");
    assert_eq!(headline(100, 12, 1), (true, refused));
    let few = format!("{well}; of 1000 requests in the last minute 3 failed");
    assert_eq!(headline(1_000, 0, 3), (false, few));
    // Refused before an endpoint was known: more than were counted as requests.
    let before = format!("{well}; of 7 requests in the last minute 7 refused");
    assert_eq!(headline(0, 7, 0), (true, before));
}

#[test]
fn how_a_check_failed_is_told_apart_and_a_worker_without_models_is_of_no_use() {
    let cluster =
        json!({ "digest": "d", "settings": "s", "replicas": [replica("r1", true, true, "d")] });
    let checked = |check: Option<&str>| {
        let mut bad = worker("w1", "active", "unhealthy", 12);
        bad["failed_check"] = check.into();
        summary(&cluster, &[bad]).text
    };
    for (check, words) in [
        (Some("refused"), "refusing connections"),
        (Some("no_address"), "without an address"),
        (Some("no_answer"), "not answering checks"),
        (Some("bad_answer"), "failing checks"),
        (Some("no_connection"), "unreachable"),
        (None, "answering checks again"),
    ] {
        let expected = format!("1 replica; 0 of 1 worker usable: 1 {words} for 12 s: w1");
        assert_eq!(checked(check), expected);
    }
    let nameless = |for_s| {
        let mut worker = worker("w1", "active", "good", for_s);
        worker["models"] = json!([]);
        summary(&cluster, &[worker, self::worker("w2", "active", "good", 9)])
    };
    let young = nameless(3);
    assert_eq!(
        (young.text.as_str(), young.is_wrong),
        ("1 replica; 1 of 2 workers usable", false)
    );
    let text = "1 replica; 1 of 2 workers usable: 1 without a model that can be used for 30 s: w1";
    assert_eq!(
        (nameless(30).text.as_str(), nameless(30).is_wrong),
        (text, true)
    );
}

#[test]
fn models_that_no_usable_worker_serves_are_named() {
    let of = |id: &str, verdict: &str, model: &str| {
        let mut worker = worker(id, "active", verdict, 9);
        worker["models"] = json!([model]);
        worker
    };
    let configured = json!({
        "digest": "d", "settings": "s", "replicas": [replica("r1", true, true, "d")],
        "models": [{ "name": "chat", "targets": ["a", "b"] }, { "name": "old", "targets": ["gone"] },
                   { "name": "c", "targets": [] }],
    });
    let found = summary(
        &configured,
        &[of("w1", "good", "a"), of("w2", "stalled", "b")],
    );
    assert_eq!(
        found.text,
        "1 replica; 1 of 2 workers usable: 1 giving no tokens for 9 s: w2; no usable worker for 3 models: b, c, old"
    );
    let mut drained = of("w2", "good", "b");
    drained["state"] = "draining".into();
    let cluster =
        json!({ "digest": "d", "settings": "s", "replicas": [replica("r1", true, true, "d")] });
    let found = summary(&cluster, &[of("w1", "good", "a"), drained]);
    let text = "1 replica; 1 of 2 workers usable: 1 drained: w2; no usable worker for 1 model: b";
    assert_eq!((found.text.as_str(), found.is_wrong), (text, true));
    // That it ends is what it was told to.
    let mut ended = of("w2", "unreachable", "a");
    (ended["state"], ended["failed_check"]) = ("draining".into(), "refused".into());
    ended["doubted"] = "unreachable".into();
    let found = summary(&cluster, &[of("w1", "good", "a"), ended]);
    let text = "1 replica; 1 of 2 workers usable: 1 drained: w2";
    assert_eq!((found.text.as_str(), found.is_wrong), (text, false));
    // One that came just now is asked for its models: what is said of them would be a guess.
    let mut new = of("w2", "good", "b");
    for (age_s, is_wrong) in [(3, false), (10, true)] {
        (new["models"], new["verdict_for_s"]) = (json!([]), age_s.into());
        let found = summary(&configured, &[of("w1", "good", "a"), new.clone()]);
        assert_eq!(found.is_wrong, is_wrong, "{}", found.text);
        assert_eq!(found.text.contains("old"), is_wrong, "{}", found.text);
    }
    // Prefill alone serves nobody.
    let mut half = of("w2", "good", "b");
    half["role"] = "prefill".into();
    let found = summary(&cluster, &[of("w1", "good", "a"), half]);
    assert!(found.text.ends_with("1 model: b"), "{}", found.text);
    // Where no worker is usable at all, that is said, and no model needs to be named.
    let found = summary(&cluster, &[of("w2", "stalled", "b")]);
    assert!(!found.text.contains("model"), "{}", found.text);
}

/// They answer, and the prompts that they would answer are computed nowhere.
#[test]
fn decode_workers_that_are_left_alone_are_told_before_requests_fail() {
    let of = |id: &str, role: &str, state: &str| {
        let mut worker = worker(id, state, "good", 9);
        (worker["role"], worker["models"]) = (role.into(), json!(["m"]));
        worker
    };
    let mut cluster = json!({
        "digest": "d", "settings": "s", "replicas": [replica("r1", true, true, "d")], "decode_alone": "indivisible",
    });
    let mut workers = [of("d1", "decode", "active"), of("p1", "prefill", "active")];
    let well = "1 replica; 2 workers usable";
    let told = |cluster: &Value, workers: &[Value]| {
        let found = summary(cluster, workers);
        (found.text, found.is_wrong)
    };
    assert_eq!(told(&cluster, &workers), (well.to_owned(), false));
    let nobody = "no usable prefill worker for 1 model (long prompts may get 503): m";
    let one = |workers: &str| format!("1 replica; {workers}; {nobody}");
    assert_eq!(
        told(&cluster, &workers[..1]),
        (one("1 worker usable"), true),
        "removed"
    );
    workers[1]["state"] = "draining".into();
    let drained = "1 of 2 workers usable: 1 drained: p1";
    assert_eq!(told(&cluster, &workers), (one(drained), true));
    cluster["decode_alone"] = "always".into();
    let well = format!("1 replica; {drained}");
    assert_eq!(told(&cluster, &workers), (well, false), "as it is meant");
}

/// Without traffic nothing ends it, and the next request is served.
#[test]
fn a_worker_that_the_next_request_tries_is_usable() {
    let cluster =
        json!({ "digest": "d", "settings": "s", "replicas": [replica("r1", true, true, "d")] });
    let mut ejected = worker("w2", "active", "ejected", 300);
    ejected["models"] = json!(["b"]);
    let mut well = worker("w1", "active", "good", 9);
    well["models"] = json!(["a"]);
    let mut of = |breaker: &str| {
        ejected["breaker"] = breaker.into();
        let found = summary(&cluster, &[well.clone(), ejected.clone()]);
        (found.text, found.is_wrong, worker_rank(&ejected))
    };
    let trial = "1 replica; 2 workers usable: 1 on trial after failed requests for 5 min: w2";
    assert_eq!(of("half_open"), (trial.to_owned(), false, 1));
    let (text, is_wrong, rank) = of("open");
    let open = "1 left alone after failed requests for 5 min: w2; no usable worker for 1 model: b";
    assert!(text.ends_with(open), "{text}");
    assert_eq!((is_wrong, rank), (true, 0));
    (ejected["breaker"], ejected["state"]) = ("half_open".into(), "draining".into());
    let text = summary(&cluster, &[well.clone(), ejected.clone()]).text;
    assert!(!text.contains("on trial"), "nothing is sent there: {text}");
    (ejected["state"], ejected["doubted"]) = ("active".into(), "stalled".into());
    let text = summary(&cluster, &[well, ejected]).text;
    assert!(
        text.contains("others say") && !text.contains("on trial"),
        "{text}"
    );
}

#[test]
fn a_worker_that_asked_to_be_left_alone_is_noted() {
    let cluster =
        json!({ "digest": "d", "settings": "s", "replicas": [replica("r1", true, true, "d")] });
    let mut paused = worker("w1", "active", "good", 900);
    paused["paused_s"] = 12.into();
    let found = summary(&cluster, std::slice::from_ref(&paused));
    let text = "1 replica; 1 worker usable: 1 asked to be left alone for another 12 s: w1";
    assert_eq!((found.text.as_str(), found.is_wrong), (text, false));
    // Clients of its model get 503 until then, unless another one serves it.
    paused["models"] = json!(["m"]);
    let mut other = worker("w2", "active", "good", 9);
    other["models"] = json!(["n"]);
    let found = summary(&cluster, &[paused.clone(), other.clone()]);
    let text = "1 replica; 2 workers usable: 1 asked to be left alone for another 12 s: w1; no worker to ask now for 1 model: m";
    assert_eq!((found.text.as_str(), found.is_wrong), (text, true));
    other["models"] = json!(["m"]);
    assert!(!summary(&cluster, &[paused.clone(), other]).is_wrong);
    paused["state"] = "draining".into();
    let text = summary(&cluster, &[paused]).text;
    assert!(!text.contains("left alone"), "{text}");
}

#[test]
fn what_others_say_of_a_worker_counts() {
    let replicas = [replica("r1", true, true, "d")];
    let cluster = json!({ "digest": "d", "settings": "s", "replicas": replicas });
    let mut doubted = worker("w1", "active", "good", 900);
    doubted["doubted"] = "stalled".into();
    let found = summary(&cluster, &[doubted]);
    let text = "1 replica; 0 of 1 worker usable: 1 giving no tokens, others say: w1";
    assert_eq!((found.text.as_str(), found.is_wrong), (text, true));
}
