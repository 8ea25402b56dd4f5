//! Reports of a made-up run of a minute: a replica cut off for 20 s, a worker killed.

use super::super::record::{
    Agreement, FailedRequest, Mark, MarkKind, Place, Promise, ReplicaSample, ReplicaState, Sample,
    Seen, Window,
};
use super::phases::phases;
use super::*;
use grapevine_bench::tally::{Summary, Times};

fn window(second: u64) -> Window {
    let hurt = (20..40).contains(&second);
    let wave = (second as f64 * 0.9).sin();
    let failed = if second == 45 { 6 } else { 0 };
    let succeeded = (50.0 + 4.0 * wave) as u64;
    Window {
        at_ms: second * 1_000,
        length_ms: 1_000,
        sent: succeeded + failed,
        succeeded,
        failed,
        refused: failed / 2,
        p50_ms: Some(120.0 + 20.0 * wave + if hurt { 60.0 } else { 0.0 }),
        p99_ms: Some(300.0 + 90.0 * wave + if second == 45 { 2_400.0 } else { 0.0 }),
        first_token_p50_ms: Some(30.0 + 4.0 * wave),
        first_token_p99_ms: Some(90.0 + 30.0 * wave),
        prompt_tokens: 40_000,
        prompt_tokens_told: 40_000,
        cached_tokens: if hurt { 20_000 } else { 32_000 },
        by_worker: (1..=4)
            .filter(|worker| second < 45 || *worker < 4)
            .map(|worker| (format!("w{worker}"), succeeded / 4 + worker))
            .collect(),
    }
}

fn replica(name: &str, at_ms: u64, cut: bool) -> ReplicaSample {
    let paused = name == "r2" && (46_000..52_000).contains(&at_ms);
    ReplicaSample {
        name: name.into(),
        state: if paused {
            ReplicaState::Silent
        } else {
            ReplicaState::Up
        },
        seen: (!paused).then(|| Seen {
            ready: !(at_ms < 2_000 && name == "r3"),
            ring: if cut { "5b1d" } else { "77aa" }.into(),
            registry: if cut { "01" } else { "02" }.into(),
            workers: 4,
            live_peers: if cut { 0 } else { 2 },
            isolated: cut,
            in_flight: 6,
        }),
        pid: Some(7),
        rss_bytes: Some((60 << 20) + at_ms * 40),
        open_files: Some(80 + at_ms / 10_000),
        cpu_s: Some(at_ms as f64 / 5_000.0),
    }
}

fn mark(at_ms: u64, until_ms: Option<u64>, kind: MarkKind, node: Option<&str>, text: &str) -> Mark {
    Mark {
        at_ms,
        until_ms,
        kind,
        node: node.map(str::to_owned),
        text: text.into(),
    }
}

fn failure(number: u64) -> FailedRequest {
    FailedRequest {
        sent_ms: 44_000 + 100 * number,
        failed_ms: 45_200,
        begun: number.is_multiple_of(2),
        replica: Some("r1".into()).filter(|_| number > 1),
        worker: Some("w4".into()).filter(|_| number > 1),
        kind: if number.is_multiple_of(2) {
            "cut"
        } else {
            "status_503"
        }
        .into(),
    }
}

fn promise(text: &str, held: bool, seen: &str) -> Promise {
    Promise {
        text: text.into(),
        held,
        seen: seen.into(),
    }
}

fn record() -> Record {
    let samples = (0..120).map(|half| {
        let at_ms = half * 500;
        let cut = (20_000..40_500).contains(&at_ms);
        Sample {
            at_ms,
            replicas: vec![
                replica("r1", at_ms, false),
                replica("r2", at_ms, false),
                replica("r3", at_ms, cut),
            ],
            agreement: Some(Agreement {
                asked: 10,
                equal: if cut {
                    6
                } else {
                    10 - usize::from(half % 7 == 0)
                },
            }),
            agreement_idle: Some(Agreement {
                asked: 10,
                equal: if cut { 7 } else { 10 },
            }),
        }
    });
    use MarkKind::{Fault, Heal, Note, Phase};
    Record {
        scenario: "partition".into(),
        title: "One replica of three is cut off; a worker is added there and another removed here"
            .into(),
        place: Place::Processes,
        seed: Some(7),
        began: "2026-11-21T18:00:00Z".into(),
        duration_ms: 60_000,
        promises: vec![
            promise(
                "no request fails but on a killed process",
                true,
                "6 failed, all excused",
            ),
            promise(
                "rings are equal 2 s after the last repair",
                false,
                "2 rings after 2.4 s",
            ),
        ],
        marks: vec![
            mark(0, None, Phase, None, "before"),
            mark(20_000, None, Phase, None, "cut off"),
            mark(
                20_000,
                Some(40_000),
                Fault,
                Some("r3"),
                "cut gossip of replica 3",
            ),
            mark(25_000, None, Note, Some("w5"), "add worker 5 at replica 3"),
            mark(40_000, None, Heal, None, "heal all links"),
            mark(40_000, None, Phase, None, "after"),
            mark(45_000, None, Fault, Some("w4"), "kill worker 4"),
            mark(46_000, Some(52_000), Fault, Some("r2"), "pause replica 2"),
        ],
        samples: samples.collect(),
        windows: (0..60).map(window).collect(),
        failures: (0..6).map(failure).collect(),
        totals: Summary {
            requests: 3_006,
            succeeded: 3_000,
            failures: [("cut".to_owned(), 3), ("status_503".to_owned(), 3)].into(),
            requests_per_s: 50.1,
            latency: Times {
                count: 3_000,
                p50_ms: 120.0,
                p99_ms: 410.0,
                ..Times::default()
            },
            hit_rate: 0.7,
            ..Summary::default()
        },
        shed: 2,
        notes: vec!["3 further marks were not kept".into()],
    }
}

/// The tags of a page, which a browser does not show as text.
fn tags(page: &str) -> Vec<&str> {
    let ends = page.split('<').skip(1);
    ends.filter_map(|rest| rest.split_once('>').map(|(tag, _)| tag))
        .collect()
}

#[test]
fn a_run_is_told_in_parts() {
    let all = phases(&record());
    let names: Vec<&str> = all.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names, ["before", "cut off", "after"]);
    let rates: Vec<_> = all.iter().map(|phase| phase.hit_rate).collect();
    assert_eq!(rates, [Some(0.8), Some(0.5), Some(0.8)]);
    assert_eq!((all[1].failed, all[2].failed), (0, 6));
    assert!(all[2].p99_ms > Some(2_000.0) && all[0].p99_ms < Some(400.0));
    assert_eq!(all[1].agreement_idle, Some(0.7));
    let unnamed = Record {
        marks: record()
            .marks
            .into_iter()
            .filter(|mark| mark.kind != MarkKind::Phase)
            .collect(),
        ..record()
    };
    let bounds: Vec<_> = phases(&unnamed)
        .iter()
        .map(|p| (p.from_ms, p.until_ms))
        .collect();
    assert_eq!(
        bounds,
        [(0, 20_000), (20_000, 60_000)],
        "the killed worker stays dead"
    );
}

#[test]
fn the_terminal_shows_verdicts_events_and_failures() {
    let shown = text(&record());
    for part in [
        "ok     no request fails",
        "FAILED rings are equal 2 s after the last repair: 2 rings after 2.4 s",
        "  0:20.0    0:40.0  fault  r3         cut gossip of replica 3",
        "3006 (50.1/s), 3000 answered, 6 failed, 2 due but not sent",
        "failed   3 status_503",
        "cut sent 0:44.2, failed 0:45.2, begun, replica r1, worker w4",
        "further marks",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    let unjudged = Record {
        promises: Vec::new(),
        ..record()
    };
    assert!(
        !unjudged.held()
            && text(&unjudged)
                .to_string()
                .contains("FAILED nothing was judged")
    );
}

#[test]
fn a_page_needs_nothing_else() {
    let page = html::page(&record());
    for tag in tags(&page) {
        let leads_out = ["src=", "href=", "@import", "http:", "https:", "url(http"];
        assert!(!leads_out.iter().any(|way| tag.contains(way)), "{tag}");
    }
    assert!(page.contains("default-src 'none'"));
    for part in [
        "✗ broken",
        "rings are equal 2 s",
        "Prefix cache hits",
        "Open files",
        "cut gossip of replica 3",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let count = |tag: &str| page.matches(tag).count();
    assert_eq!(
        (count("<svg"), count("<figure")),
        (count("</svg>"), count("</figure>"))
    );
    assert_eq!(count("<figure"), 13, "12 plots and the timeline");
}

#[test]
fn texts_from_outside_are_text() {
    const EVIL: &str = "<script>alert('x')</script>\"&'";
    let evil = || EVIL.to_owned();
    let mut record = record();
    let clean = tags(&html::page(&record)).len();
    record.scenario = evil();
    record.title = evil();
    record.began = evil();
    record.promises[0].text = evil();
    record.promises[0].seen = evil();
    record.marks[2].text = evil();
    record.notes[0] = evil();
    record.failures[3].replica = Some(evil());
    record.failures[3].worker = Some(evil());
    record.failures[3].kind = evil();
    record.totals.failures = [("cut".to_owned(), 3), (evil(), 3)].into();
    for mark in &mut record.marks {
        if mark.node.as_deref() == Some("r3") {
            mark.node = Some(evil());
        }
    }
    for sample in &mut record.samples {
        sample.replicas[2].name = evil();
    }
    for window in &mut record.windows {
        window.by_worker.insert(evil(), 1);
    }
    let page = html::page(&record);
    // A legend entry is new with the worker's name: its own elements and line are all that is added.
    let added = tags(&page).len() - clean;
    assert!(added <= 12, "{added} new tags");
    assert!(!page.contains("<script>alert") && page.contains("&lt;script&gt;alert"));
    assert_eq!(
        page.matches("alert('x')").count(),
        page.matches("&lt;script&gt;alert('x')").count()
    );
    let index = html::index(&[record], &["x.html".to_owned()]);
    assert!(!index.contains("<script>"));
}

#[test]
fn files_can_be_read_again_and_do_not_cover_each_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let into = dir.path().join("deep/er");
    let records = [
        record(),
        record(),
        Record {
            scenario: "../index".into(),
            ..record()
        },
    ];
    let paths = write(&into, &records).expect("written");
    let names: Vec<_> = paths
        .iter()
        .filter_map(|path| path.file_name()?.to_str())
        .collect();
    assert_eq!(
        names,
        [
            "index.html",
            "partition.html",
            "partition-2.html",
            "---index.html"
        ]
    );
    let json = std::fs::read_to_string(into.join("partition-2.json")).expect("written");
    let read: Record = serde_json::from_str(&json).expect("its own JSON");
    assert_eq!(html::page(&read), html::page(&records[1]));
    let index = std::fs::read_to_string(&paths[0]).expect("written");
    assert!(index.contains("href=\"partition-2.html\"") && index.contains("0 of 3"));
    let one = write(&dir.path().join("one"), &records[..1]).expect("written");
    assert_eq!(one.len(), 1, "one page needs no index");
}

#[test]
fn nothing_at_all_makes_a_page() {
    let empty = Record {
        duration_ms: 0,
        promises: Vec::new(),
        marks: Vec::new(),
        samples: Vec::new(),
        windows: Vec::new(),
        failures: Vec::new(),
        totals: Summary::default(),
        notes: Vec::new(),
        ..record()
    };
    assert!(html::page(&empty).contains("Nothing was judged"));
    assert!(!html::page(&empty).contains("NaN") && !html::page(&record()).contains("NaN"));
    assert!(!text(&empty).is_empty());
}

#[test]
fn a_page_of_a_long_run_is_no_larger_than_a_browser_likes() {
    let long = Record {
        duration_ms: 8 * 3_600_000,
        windows: (0..7_200).map(window).collect(),
        samples: std::iter::repeat_n(record().samples, 50)
            .flatten()
            .collect(),
        marks: std::iter::repeat_n(record().marks, 250).flatten().collect(),
        ..record()
    };
    let page = html::page(&long);
    assert!(page.len() < 8 << 20, "{} bytes", page.len());
}
