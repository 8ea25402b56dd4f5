//! Whole runs against fake workers, and what is shown of them; the documented form of the JSON.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grapevine_bench::client::Client;
use grapevine_bench::load::{Arrivals, Plan, Prompts, Stop};
use grapevine_bench::report::{Text, json, page};
use grapevine_bench::run::{RunResult, Setup, Side, WarmUp, run};
use grapevine_testbed::fake_worker::{Config, FakeWorker, Fault, How, Point, Rule};
use serde_json::Value;

async fn worker() -> FakeWorker {
    let config = Config {
        speed: 1_000.0,
        ..Config::default()
    };
    FakeWorker::start(config).await.expect("port 0")
}

fn side(name: &str, worker: &FakeWorker) -> Side {
    Side {
        name: name.to_owned(),
        urls: vec![worker.url()],
        client: Arc::new(Client::one(worker.url().parse().expect("URL"))),
    }
}

fn setup(sides: Vec<Side>, rounds: u64, requests: u64) -> Setup {
    let prompts = Prompts {
        max_tokens: 4,
        model: Some("fake-model".to_owned()),
        ..Prompts::default()
    };
    Setup {
        sides,
        rounds,
        warm_up: 5,
        plan: Plan {
            arrivals: Arrivals::Closed { clients: 3 },
            requests,
            duration: Duration::from_secs(60),
            timeout: Duration::from_secs(20),
            source: prompts.into(),
            first_session: 0,
            explain: false,
            seed: 1,
        },
    }
}

async fn measured(setup: &Setup) -> RunResult {
    run(setup, &Stop::default(), |_| ()).await
}

#[tokio::test]
async fn faults_are_counted_by_kind_and_code_and_the_rest_is_measured() {
    let worker = worker().await;
    let setup = setup(vec![side("one", &worker)], 1, 40);
    let refusal = r#"{"fault":{"reply":{"status":503,"body":"{\"error\":{\"message\":\"<b>busy\",\"code\":\"overloaded\"}}"}},"times":3}"#;
    // The warm-up meets none of them.
    let (mut is_first, stop) = (true, Stop::default());
    let result = run(&setup, &stop, |_| {
        if std::mem::take(&mut is_first) {
            worker
                .add_rule(serde_json::from_str(refusal).expect("a rule"))
                .expect("room");
            let cut = Fault::stop(Point::Event(2), How::Rst);
            worker.add_rule(Rule::next(2, cut)).expect("room");
        }
    });
    let result = result.await;
    let summary = &result.endpoints[0].summary;
    assert_eq!(
        (summary.requests, summary.succeeded, result.failed()),
        (40, 35, 5)
    );
    assert_eq!(worker.stats().requests, 45, "with the warm-up");
    let first = &summary.errors[0];
    assert_eq!(
        (first.kind.as_str(), first.code.as_str(), first.count),
        ("status_503", "overloaded", 3)
    );
    assert_eq!(summary.failures["cut"], 2);
    assert_eq!(
        (
            summary.latency.count,
            summary.ttft.count,
            summary.tpot.count
        ),
        (35, 35, 35)
    );
    assert!(summary.ttft.p50_ms <= summary.latency.p50_ms && summary.gap.count >= 3 * 35);
    let sent: u64 = result.endpoints[0]
        .windows
        .iter()
        .map(|window| window.sent)
        .sum();
    assert_eq!(
        (sent, result.is_unreachable(), result.interrupted),
        (40, false, false)
    );

    let text = Text(&result).to_string();
    assert!(text.contains("3 status_503 overloaded: <b>busy"), "{text}");
    let page = page(&result);
    assert!(page.contains("&lt;b&gt;busy") && !page.contains("<b>busy"));
    for outside in [
        "http-equiv=\"refresh\"",
        "src=",
        "url(http",
        "@import",
        "<link",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[tokio::test]
async fn caches_that_supply_nothing_are_a_line_at_zero_and_no_gap() {
    let worker = worker().await;
    let usage =
        r#"{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}"#;
    let body = format!(r#"{{"choices":[],"usage":{usage}}}"#);
    let rule = serde_json::json!({"fault": {"reply": {"status": 200, "body": body}}});
    worker
        .add_rule(serde_json::from_value(rule).expect("a rule"))
        .expect("room");
    let mut setup = setup(vec![side("one", &worker)], 1, 6);
    setup.plan.source = Prompts {
        stream: false,
        ..Prompts::default()
    }
    .into();
    let result = measured(&setup).await;
    let summary = &result.endpoints[0].summary;
    assert_eq!(
        (summary.succeeded, summary.known_hit_rate()),
        (6, Some(0.0))
    );
    assert!(page(&result).contains("Prefix cache hits"));
}

#[tokio::test]
async fn a_warm_up_has_the_time_of_all_rounds() {
    let worker = worker().await;
    worker
        .add_rule(Rule::next(40, Fault::delay_ms(100)))
        .expect("room");
    let mut setup = setup(vec![side("one", &worker)], 100, 1);
    // 8 at a time take five times as long as a round may.
    (setup.warm_up, setup.plan.duration) = (40, Duration::from_millis(100));
    let result = measured(&setup).await;
    let all = WarmUp {
        requests: 40,
        succeeded: 40,
    };
    assert_eq!(result.endpoints[0].warm_up, all);
    assert!(!Text(&result).to_string().contains("warm-up"));
}

#[tokio::test]
async fn what_a_warm_up_lacks_is_told() {
    let worker = worker().await;
    worker
        .add_rule(Rule::next(3, Fault::status(500)))
        .expect("room");
    let result = measured(&setup(vec![side("one", &worker)], 1, 4)).await;
    assert_eq!((result.failed(), worker.stats().requests), (0, 9));
    let told = "5 of 5 were sent, 2 answered whole";
    assert!(Text(&result).to_string().contains(told));
    assert!(page(&result).contains(told));
    let mut short = setup(vec![side("one", &worker)], 1, 4);
    short.plan.duration = Duration::from_nanos(1);
    let result = measured(&short).await;
    let told = "0 of 5 were sent, 0 answered whole";
    assert!(Text(&result).to_string().contains(told));
}

#[tokio::test]
async fn two_endpoints_get_the_same_requests_in_turn_and_the_slower_one_is_found() {
    let (fast, slow) = (worker().await, worker().await);
    slow.add_rule(Rule::always(Fault::delay_ms(40)))
        .expect("room");
    let setup = setup(vec![side("fast", &fast), side("slow", &slow)], 6, 6);
    let result = measured(&setup).await;
    assert_eq!(
        (fast.stats().requests, slow.stats().requests),
        (41, 41),
        "36 and the warm-up"
    );
    let bodies = |worker: &FakeWorker| {
        let log = worker.log();
        let mut hashes: Vec<_> = log.iter().map(|entry| entry.body_hash.clone()).collect();
        hashes.sort();
        hashes
    };
    assert_eq!(bodies(&fast), bodies(&slow));
    assert_eq!(
        bodies(&fast).into_iter().collect::<BTreeSet<_>>().len(),
        41,
        "none is sent twice"
    );

    let order: Vec<&str> = result.marks.iter().map(|mark| mark.text.as_str()).collect();
    assert_eq!(order[..4], ["fast", "slow", "slow", "fast"]);
    let comparison = result.comparison.as_ref().expect("two endpoints");
    let ttft = &comparison.ratios[0];
    assert_eq!((ttft.figure, ttft.pairs), ("ttft_p50_ms", 6));
    assert!(ttft.is_different() && ttft.second >= 40.0, "{ttft:?}");
    assert!(
        Text(&result)
            .to_string()
            .contains("slow against fast, medians of 6 pairs")
    );
    assert!(page(&result).contains("Side by side"));
}

#[tokio::test]
async fn an_endpoint_that_nobody_can_connect_to_is_said_to_be_unreachable() {
    let worker = worker().await;
    let setup = setup(vec![side("gone", &worker)], 1, 4);
    worker.kill().await;
    let result = measured(&setup).await;
    assert!(result.is_unreachable() && result.failed() == 4);
    let said = &result.endpoints[0].summary.errors[0];
    assert!(
        said.kind == "connect" && said.message.contains("refused"),
        "{said:?}"
    );
}

/// Each path of a document, with `[]` for the items of a list; names of maps whose keys are data are `*`.
fn paths(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    let is_data = ["failures", "workers", "by_worker"]
        .iter()
        .any(|name| path.ends_with(name));
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let key = if is_data { "*" } else { key };
                let path = if path.is_empty() {
                    key.to_owned()
                } else {
                    format!("{path}.{key}")
                };
                paths(value, &path, into);
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| paths(item, &format!("{path}[]"), into)),
        _ => {
            into.insert(path.to_owned());
        }
    }
}

#[tokio::test]
async fn the_document_of_the_json_lists_every_field_and_no_other() {
    let (one, other) = (worker().await, worker().await);
    one.add_rule(Rule::next(1, Fault::status(500)))
        .expect("room");
    let mut setup = setup(vec![side("one", &one), side("other", &other)], 2, 4);
    setup.warm_up = 0;
    setup.plan.explain = true;
    let result = measured(&setup).await;
    let mut found = BTreeSet::new();
    let value = serde_json::from_str(&json(&result)).expect("JSON");
    paths(&value, "", &mut found);
    // Times, sums and windows are described once for all places.
    let found: BTreeSet<String> = found
        .into_iter()
        .map(|path| {
            let path = path.replace("endpoints[].rounds[].", "endpoints[].summary.");
            let times = ["latency", "ttft", "gap", "tpot"];
            times.iter().fold(path, |path, time| {
                path.replace(&format!("summary.{time}."), "summary.TIMES.")
            })
        })
        .collect();
    let document =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bench.md"));
    let document = document.expect("docs/bench.md");
    let table = document.split("## The JSON").nth(1).expect("a chapter");
    let table = table.split("\n## ").next().expect("its text");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split(" |").next());
    let documented: BTreeSet<String> = names
        .flat_map(|names| names.split(", "))
        .map(|name| name.trim_matches('`').to_owned())
        .collect();
    let difference: Vec<_> = found.symmetric_difference(&documented).collect();
    assert!(difference.is_empty(), "{difference:#?}");
}
