//! `/v1/responses` and `/v1/messages`: any replica serves a response from the one worker that holds it, and
//! streams without an end mark end well, or with an error that their clients know.

mod streams;
mod tenants;
mod waiting;

use std::collections::BTreeSet;
use std::time::Duration;

use grapevine_testbed::fake_worker::{FakeWorker, Fault, Rule, StopMode, When};
use grapevine_tests::chat::{self, EXPLAIN, MODEL};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1::{self, Response};
use grapevine_tests::invariants;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::errors::assert_error;
use crate::house::{House, quick};

const PATH: &str = "/v1/responses";

fn asked(input: &str) -> Value {
    json!({ "model": MODEL, "input": input, "max_output_tokens": 3 })
}

fn streamed(input: &str) -> Value {
    let mut body = asked(input);
    body["stream"] = true.into();
    body
}

fn worker_of(answer: &Response) -> &str {
    answer.head.header("x-grapevine-worker").expect("explained")
}

async fn replicas(count: usize, workers: usize) -> (Cluster, Vec<FakeWorker>) {
    let mut plan = Plan::default();
    let mut running = Vec::new();
    for _ in 0..workers {
        let worker = chat::worker(quick()).await;
        plan = plan.worker(&worker.url(), &[MODEL]);
        running.push(worker);
    }
    (plan.start(count).await, running)
}

/// Makes a response. Its id, and the worker that holds it.
async fn held_somewhere(house: &House) -> (String, &FakeWorker) {
    let body = asked("who has it?").to_string();
    let made = http1::exchange(house.data(), "POST", PATH, &[EXPLAIN], body.as_bytes()).await;
    assert_eq!(made.head.status, 200, "{}", made.text());
    let holder = house.workers.iter().find(|w| w.url() == worker_of(&made));
    let id = made.json::<Value>()["id"].as_str().map(str::to_owned);
    (id.expect("an id"), holder.expect("one of them"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_replica_reaches_the_worker_that_holds_a_response() {
    let (cluster, workers) = replicas(2, 4).await;
    let data: Vec<_> = cluster.running().map(|replica| replica.data()).collect();
    let mut used = BTreeSet::new();
    for number in 0..12 {
        let stream = number % 3 == 2;
        let mut body = asked(&format!("question {number}"));
        body["stream"] = stream.into();
        let body = body.to_string();
        let first =
            http1::exchange(data[number % 2], "POST", PATH, &[EXPLAIN], body.as_bytes()).await;
        assert_eq!(first.head.status, 200, "{}", first.text());
        let holder = worker_of(&first).to_owned();
        used.insert(holder.clone());
        let id = if stream {
            let text = first.text();
            assert!(
                text.contains("event: response.completed") && !text.contains("[DONE]"),
                "{text}"
            );
            let (_, rest) = text.split_once(r#""id":"resp_"#).expect("an id");
            format!("resp_{}", rest.split('"').next().expect("its end"))
        } else {
            first.json::<Value>()["id"]
                .as_str()
                .expect("an id")
                .to_owned()
        };
        for data in &data {
            // Twice: the replica remembers the worker that it has found by asking.
            for _ in 0..2 {
                let got =
                    http1::exchange(*data, "GET", &format!("{PATH}/{id}"), &[EXPLAIN], b"").await;
                assert_eq!(got.head.status, 200, "{}", got.text());
                assert_eq!(got.json::<Value>()["id"], id.as_str());
                assert_eq!(worker_of(&got), holder);
            }
            let cancel = format!("{PATH}/{id}/cancel");
            let cancelled = http1::exchange(*data, "POST", &cancel, &[EXPLAIN], b"").await;
            assert_eq!(
                cancelled.head.status,
                400,
                "the worker's word: {}",
                cancelled.text()
            );
            assert_eq!(worker_of(&cancelled), holder);
            let mut next = asked("and then?");
            next["previous_response_id"] = id.as_str().into();
            let next = next.to_string();
            let next = http1::exchange(*data, "POST", PATH, &[EXPLAIN], next.as_bytes()).await;
            assert_eq!(next.head.status, 200, "{}", next.text());
            assert_eq!(worker_of(&next), holder);
        }
    }
    assert!(used.len() > 1, "all by chance: {used:?}");
    // A response that is read names no model; its tokens were counted when they were made.
    for replica in cluster.running() {
        let metrics = replica.admin().metrics().await;
        for name in [
            "grapevine_prompt_tokens_total",
            "grapevine_completion_tokens_total",
        ] {
            assert!(metrics.sum(name, "") > 0.0, "{name}");
            assert_eq!(metrics.sum(name, "model=\"unknown\""), 0.0, "{name}");
        }
    }
    for data in &data {
        let missing = http1::get(*data, "/v1/responses/resp_nobody").await;
        assert_error(&missing, 404, "not_found");
        let mut next = asked("and then?");
        next["previous_response_id"] = "resp_nobody".into();
        let nobody = http1::post(*data, PATH, &next).await;
        assert_error(&nobody, 404, "not_found");
        let told = format!("no worker of the model `{MODEL}` holds the response `resp_nobody`");
        assert!(nobody.text().contains(&told), "{}", nobody.text());
        let odd = http1::get(*data, "/v1/responses/resp_1%2f..%2fsleep").await;
        assert_error(&odd, 404, "not_found");
    }
    invariants::hold(&cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_delays_a_search_by_its_limit() {
    let plan = Plan::default().set("timeouts.response_search", "\"1s\"");
    let house = House::of(plan, vec![quick(); 3]).await;
    let answer = http1::exchange(
        house.data(),
        "POST",
        PATH,
        &[EXPLAIN],
        asked("x").to_string().as_bytes(),
    )
    .await;
    let id = answer.json::<Value>()["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let holder = worker_of(&answer).to_owned();
    let other = house.workers.iter().find(|worker| worker.url() != holder);
    let hung = other.expect("three of them");
    // Its probes succeed, so the worker is healthy otherwise.
    let when = When {
        path: Some("/v1/responses/resp_nobody".to_owned()),
        ..When::default()
    };
    hung.add_rule(Rule {
        when,
        ..Rule::always(Fault::never_answer())
    })
    .expect("room for a rule");
    let since = Instant::now();
    let missing = http1::get(house.data(), "/v1/responses/resp_nobody").await;
    assert_error(&missing, 503, "no_worker_available");
    let took = since.elapsed();
    assert!(took >= Duration::from_secs(1), "{took:?}");
    println!("a search with one worker that hangs took {took:?}");
    let got = http1::get(house.data(), &format!("{PATH}/{id}")).await;
    assert_eq!(
        got.head.status,
        200,
        "what is remembered needs no search: {}",
        got.text()
    );
    hung.clear_rules();
    house.close().await;
}

/// The process is gone, and the response with it: so says a replica that remembers the holder, and one that does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_of_a_dead_holder_is_nowhere_by_every_replica() {
    let (cluster, workers) = replicas(2, 3).await;
    let house = House { cluster, workers };
    let (id, holder) = held_somewhere(&house).await;
    let path = format!("{PATH}/{id}");
    holder.terminate(StopMode::Exit);
    for replica in house.cluster.running() {
        eventually(LIMIT, "it is nowhere", async || {
            let got = http1::get(replica.data(), &path).await;
            (got.head.status == 404)
                .then_some(())
                .ok_or_else(|| got.text())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_prompt_has_the_same_home_in_every_form() {
    let house = House::new(6).await;
    let system = "You are terse. ".repeat(60);
    let messages = json!([{ "role": "user", "content": "What is a list?" }]);
    let with_system = json!([
        { "role": "system", "content": system },
        { "role": "user", "content": "What is a list?" },
    ]);
    let chat = json!({ "model": MODEL, "messages": with_system, "max_tokens": 1 });
    house.home(&chat).await;
    let parts = json!([{ "type": "text", "text": system }]);
    let input = json!([{ "role": "user", "content": [{ "type": "input_text", "text": "What is a list?" }] }]);
    let mut keys = BTreeSet::new();
    for (path, body) in [
        ("/v1/chat/completions", chat),
        (
            "/v1/messages",
            json!({ "model": MODEL, "system": system, "messages": messages, "max_tokens": 1 }),
        ),
        (
            "/v1/messages",
            json!({ "model": MODEL, "system": parts, "messages": messages, "max_tokens": 1 }),
        ),
        (
            PATH,
            json!({ "model": MODEL, "instructions": system, "input": "What is a list?" }),
        ),
        (
            PATH,
            json!({ "model": MODEL, "instructions": system, "input": input }),
        ),
    ] {
        let admin = house.cluster.replicas[0].admin().0;
        let explain = format!("/explain?load=ignore&path={path}");
        let explained: Value = http1::post(admin, &explain, &body).await.json();
        assert!(explained["key"].is_string(), "{explained}");
        keys.insert(explained["key"].to_string());
    }
    assert_eq!(keys.len(), 1, "{keys:?}");
    house.close().await;
}
