//! What is shown of a cluster in which much is wrong, of a large one, and of one with hostile names.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::*;
use crate::page::history::marks::{Kind, Mark, Subject};
use crate::page::history::tracks::WorkerSample;
use crate::page::history::{EVERY, SAMPLES_MAX, Taken};
use crate::page::html::{Shell, detail, parts_of};

fn replica(id: &str, live: bool, ring: &str) -> Value {
    json!({
        "id": id, "live": live, "ready": true, "leaving": false, "ring": ring, "settings": "s", "for_s": 40,
        "registry": "0badcafe", "version": "1.0.0", "admin": "10.0.0.1:30001", "heard_ms": 300,
        "round_trip_ms": 0.42, "certificate_days": 80,
    })
}

fn worker(id: &str, verdict: &str, in_flight: f64) -> Value {
    json!({
        "id": id, "state": "active", "verdict": verdict, "verdict_for_s": 12, "models": ["m"], "role": "any",
        "in_flight": in_flight, "in_flight_here": 1, "hit_rate": 0.25, "breaker": "closed", "sources": ["config"], "drained": false,
    })
}

fn facts(replicas: &[Value], workers: Vec<Value>) -> Facts {
    let ids: Vec<_> = workers.iter().map(|worker| worker["id"].clone()).collect();
    let shares = vec![1.0 / ids.len() as f64; ids.len()];
    let replica_ids: Vec<_> = replicas.iter().map(|of| of["id"].clone()).collect();
    let link = |of: &Value| {
        let hears = replica_ids.iter().filter(|id| *id != of);
        let hears = hears.map(|id| json!({ "replica": id, "ago_ms": null }));
        json!({ "replica": of, "hears": hears.collect::<Vec<_>>() })
    };
    Facts {
        links: json!({ "links": replica_ids.iter().map(link).collect::<Vec<_>>() }),
        cluster: json!({ "replica": "r1", "digest": "d", "settings": "s", "replicas": replicas, "missing": [] }),
        rings: json!({ "digest": "d", "pools": [{
            "model": "m", "role": "any", "digest": "p", "policy": "prefix", "panic": false,
            "count": ids.len(), "workers": ids, "shares": shares,
        }] }),
        workers,
        ..Facts::default()
    }
}

/// An hour in which everything moves, as long paths are.
fn busy_hour(workers: &[&str]) -> (History, Moment) {
    let mut history = History::default();
    for n in 0..=SAMPLES_MAX as u64 {
        let mut taken = Taken::default();
        let wild = |of: u64| n * of + n * n * 7 % 97;
        taken.counted.outcomes = std::array::from_fn(|at| wild(40 + at as u64));
        taken.counted.verdicts = std::array::from_fn(|at| wild(9 + at as u64));
        let buckets = [&mut taken.counted.first_token, &mut taken.counted.queue];
        for (at, buckets) in buckets.into_iter().enumerate() {
            for (bound, share) in [(0.01, 1), (0.1, 3), (1.0, 4), (f64::INFINITY, 5)] {
                buckets.add(bound, wild(at as u64 + 5) * share);
            }
        }
        taken.counted.inter_token = taken.counted.first_token.clone();
        taken.levels.in_flight = (n * 37 % 101) as f32;
        taken.levels.usable = (n % 7) as f32;
        let sample = WorkerSample {
            in_flight: (n * 13 % 17) as f32,
            prompt_tokens: n * 100,
            cached_tokens: n * 25,
            tells: true,
            ..WorkerSample::default()
        };
        taken.workers = workers
            .iter()
            .map(|id| ((*id).to_owned(), sample))
            .collect();
        history.take(EVERY * n as u32, taken);
    }
    let at = EVERY * SAMPLES_MAX as u32;
    let mark = |n: u32, kind, text: &str| Mark {
        at: at - Duration::from_secs(u64::from(n) * 60),
        kind,
        subject: Subject::Worker(format!("http://10.0.0.{n}:8000")),
        text: text.to_owned(),
    };
    history.mark((0..40).rev().map(|n| match n % 2 {
        0 => mark(n, Kind::Fault, "is giving no tokens"),
        _ => mark(n, Kind::Repair, "is well again (was giving no tokens)"),
    }));
    let clock = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    (history, Moment { at, clock })
}

fn whole(facts: &Facts, history: &History, now: Moment) -> String {
    let shell = Shell {
        replica: "r1",
        title: "Overview",
        live: Some("/page/live".to_owned()),
        has_session: false,
    };
    shell.around(&parts_of(&Overview::of(
        facts,
        Hour::of_cluster(history, now),
    )))
}

#[test]
fn the_worst_comes_first_and_the_headline_is_that_of_status() {
    let (history, now) = busy_hour(&["w1"]);
    let workers = vec![
        worker("w1", "good", 1.0),
        worker("w2", "good", 9.0),
        worker("w3", "stalled", 0.0),
    ];
    let replicas = [
        replica("r1", true, "d"),
        replica("r2", true, "other"),
        replica("r3", false, "d"),
    ];
    let facts = facts(&replicas, workers);
    let shown = Overview::of(&facts, Hour::of_cluster(&history, now));
    assert_eq!(shown.headline, summary(&facts.cluster, &facts.workers));
    assert!(shown.headline.is_wrong);
    let replicas: Vec<_> = shown
        .replicas
        .rows
        .iter()
        .map(|row| (&*row.id, row.standing))
        .collect();
    let expected = [
        ("r3", Standing::Bad),
        ("r2", Standing::Doubtful),
        ("r1", Standing::Well),
    ];
    assert_eq!(replicas, expected);
    assert_eq!(shown.replicas.rows[0].state, "dead for 40 s");
    // Since when it is so is not known: it lives for 40 s.
    assert_eq!(shown.replicas.rows[1].state, "with another ring");
    assert!(shown.replicas.rows[1].is_other_ring);
    let workers: Vec<_> = shown.workers.rows.iter().map(|row| &*row.id).collect();
    assert_eq!(workers, ["w3", "w2", "w1"]);
    assert_eq!(shown.workers.rows[0].state, "giving no tokens for 12 s");
    assert_eq!(shown.workers.rows[2].hit_rate, Some(0.25));
    assert_eq!(shown.links.ids, ["r1", "r2", "r3"]);
    assert_eq!(shown.marks.rows[0].text, "is giving no tokens");
    assert_eq!((shown.marks.rows.len(), shown.marks.more), (30, 10));
    let html = whole(&facts, &history, now);
    for text in [
        "Something is wrong",
        "1 dead for 40 s: r3",
        "another ring",
        "heard within 1 s, round trip 0.42 ms",
        "80 days",
    ] {
        assert!(html.contains(text), "{text}");
    }
}

/// 150 kB is the goal for all of it, and nothing else is loaded.
#[test]
fn the_page_stays_small_however_many_workers_there_are() {
    let sizes = [(3, 12), (32, 1_000), (200, 5_000)].map(|(replicas, workers)| {
        let replicas: Vec<_> = (0..replicas)
            .map(|n| replica(&format!("r{n}"), true, "d"))
            .collect();
        let workers =
            (0..workers).map(|n| worker(&format!("http://10.1.2.3:{n}"), "good", f64::from(n)));
        let facts = facts(&replicas, workers.collect());
        let (history, now) = busy_hour(&[]);
        let html = whole(&facts, &history, now);
        let all = html.len() + crate::page::html::STYLE.len() + crate::page::html::SCRIPT.len();
        assert!(all < 150_000, "{all}");
        let shown = Overview::of(&facts, Hour::of_cluster(&history, now));
        assert_eq!(
            shown.workers.rows.len() + shown.workers.more,
            facts.workers.len()
        );
        all
    });
    println!("bytes with style and script: {sizes:?}");
}

#[test]
fn hostile_names_are_text() {
    let hostile = "<script>alert(1)</script>\"'&--></title>";
    let mut bad = worker(hostile, "stalled", 1.0);
    bad["models"] = json!([hostile]);
    bad["sources"] = json!([hostile]);
    bad["breaker"] = json!(hostile);
    bad["labels"] = json!({ hostile: hostile });
    bad["warm_up"] = json!({ "by": hostile, "left_ms": 1 });
    let mut other = replica(hostile, true, hostile);
    for name in ["version", "admin", "registry"] {
        other[name] = json!(hostile);
    }
    let mut facts = facts(&[replica("r1", true, "d"), other], vec![bad]);
    facts.rings["pools"][0]["model"] = json!(hostile);
    facts.cluster["twins"] = json!([{ "id": hostile, "kept": hostile, "cut_off": hostile }]);
    facts.sources = vec![json!({ "source": hostile, "failure": hostile })];
    facts.has_keys = true;
    facts.tenants = vec![TenantUse {
        name: hostile.to_owned(),
        ..TenantUse::default()
    }];
    facts.limits.reached = vec![(hostile.to_owned(), 1)];
    let (mut history, now) = busy_hour(&[hostile]);
    history.mark([Mark {
        at: now.at,
        kind: Kind::Fault,
        subject: Subject::Workers(vec![hostile.to_owned()], 0),
        text: hostile.to_owned(),
    }]);
    let of_worker = |id: &str| Hour::of_worker(&history, id, now);
    let pages = [
        parts_of(&Overview::of(&facts, Hour::of_cluster(&history, now))),
        detail::worker(facts.workers.first(), hostile, &of_worker(hostile)),
        detail::replica(
            &facts.cluster,
            hostile,
            &Hour::of_replica(&history, hostile, now),
        ),
        detail::worker(None, "<b>none", &of_worker("<b>none")),
    ];
    for parts in pages {
        let shell = Shell {
            replica: hostile,
            title: hostile,
            live: Some(format!("/page/live?id={hostile}")),
            has_session: true,
        };
        let html = shell.around(&parts);
        for raw in ["<script>alert", "</title>\"", "--><", "<b>none"] {
            assert!(!html.contains(raw), "{raw} in {html}");
        }
        assert_eq!(html.matches("<script").count(), 1, "the page's own");
        assert!(html.contains("&lt;script&gt;") || html.contains("&lt;b&gt;none"));
        // No style and no handler that the policy would refuse.
        assert!(
            !html.contains(" style=") && !html.contains(" onclick="),
            "{html}"
        );
    }
}

#[test]
fn of_each_source_is_shown_what_is_missing_and_what_is_contested() {
    let mut facts = facts(&[replica("r1", true, "d")], Vec::new());
    facts.sources = vec![json!({
        "source": "dns", "up": true, "registered": 9, "seen": 4, "ready": 3, "missing": 2, "contested": 1,
    })];
    let (history, now) = busy_hour(&[]);
    let shown = Overview::of(&facts, Hour::of_cluster(&history, now));
    assert_eq!(shown.sources.rows[0].counts, [9, 4, 3, 2, 1]);
    assert!(whole(&facts, &history, now).contains("Contested"));
}

#[test]
fn aliases_can_be_chosen_in_the_form() {
    let mut facts = facts(&[replica("r1", true, "d")], vec![worker("w1", "good", 1.0)]);
    facts.cluster["models"] =
        json!([{ "name": "chat", "targets": ["m"] }, { "name": "old", "targets": ["gone"] }]);
    let (history, now) = busy_hour(&["w1"]);
    let overview = Overview::of(&facts, Hour::of_cluster(&history, now));
    assert_eq!(overview.models.rows, ["chat", "m"]);
    assert!(
        overview
            .headline
            .text
            .ends_with("no usable worker for 1 model: old")
    );
}

#[test]
fn every_sign_has_its_word() {
    let (history, now) = busy_hour(&[]);
    let facts = facts(
        &[replica("r1", true, "d"), replica("r2", false, "d")],
        vec![worker("w", "unreachable", 0.0)],
    );
    let html = whole(&facts, &history, now);
    for part in html.split("aria-hidden=\"true\">").skip(1) {
        let (sign, after) = part.split_once("</span>").unwrap_or_default();
        if ["✖", "▲", "◆", "●"].contains(&sign) {
            let next = after.chars().next();
            assert!(next.is_some_and(char::is_alphanumeric), "{sign}{after:.40}");
        }
    }
    // One first heading, and every table has heads of columns and of rows.
    assert_eq!(html.matches("<h1").count(), 1);
    let tables = html.matches("<table>").count();
    assert!(tables >= 2 && html.matches("scope=\"col\"").count() > tables);
    assert!(html.matches("scope=\"row\"").count() >= tables);
    assert_eq!(html.matches("role=\"img\" aria-label=").count(), 7);
}
