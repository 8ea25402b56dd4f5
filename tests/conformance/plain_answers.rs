//! Plain answers that take longer than the limit for a first token: their first byte is their last.

use grapevine_testbed::fake_worker::{Canned, Config, Drip, EngineConfig, Fault, Rule, When};
use grapevine_tests::chat::{self, Ending, MODEL, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::json;
use tokio::time::{Duration, Instant};

use crate::house::{House, quick};
use crate::odd_workers::raw_worker;
use crate::stalls::of_clients;

/// Limit for a first token, and for the silence of a worker.
const SILENCE: Duration = Duration::from_secs(1);
/// Length of an answer that takes three times as long, at the pace of [`slow`].
const TOKENS: u32 = 150;

fn slow() -> Config {
    chat::paced(Duration::from_millis(20))
}

fn plan(token_probe: bool) -> Plan {
    Plan::default()
        .set("timeouts.first_token", "\"1s\"")
        .set("timeouts.first_token_per_1k", "\"0s\"")
        .set("timeouts.inter_token", "\"1s\"")
        .set("health.token_timeout", "\"1s\"")
        .set("health.token_probe", &token_probe.to_string())
}

fn on(path: &str, fault: Fault) -> Rule {
    let when = When {
        path: Some(path.to_owned()),
        ..When::default()
    };
    Rule {
        when,
        ..Rule::always(fault)
    }
}

/// From now on no worker shows its metrics, so counters are no sign of life.
fn hide_counters(house: &House) {
    for worker in &house.workers {
        worker
            .add_rule(on("/metrics", Fault::status(404)))
            .expect("there is room");
    }
}

/// Sends a request with a long answer; one worker must compute it once, and none may count as stalled.
async fn is_answered_once(house: &House, path: &str, body: &serde_json::Value) {
    let before: usize = house.workers.iter().map(of_clients).sum();
    let sent = Instant::now();
    let response = http1::post(house.data(), path, body).await;
    let took = sent.elapsed();
    assert_eq!(response.head.status, 200, "{}", response.text());
    assert!(took > SILENCE * 2, "{took:?} shows nothing");
    let after: usize = house.workers.iter().map(of_clients).sum();
    assert_eq!(after - before, 1, "it was sent once");
    let admin = house.cluster.replicas[0].admin();
    for worker in admin.workers().await {
        assert_eq!(worker.verdict, "good", "{worker:?}");
    }
    println!("answered after {took:?}, {SILENCE:?} for a first token");
}

const CHATS: &str = "/v1/chat/completions";

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_waited_for_while_engine_counters_move() {
    let house = House::of(plan(false), vec![slow(); 3]).await;
    is_answered_once(&house, CHATS, &chat("counters", TOKENS)).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_waited_for_while_questions_are_answered() {
    let house = House::of(plan(true), vec![slow(); 3]).await;
    hide_counters(&house);
    is_answered_once(&house, CHATS, &chat("questions", TOKENS)).await;
    let admin = house.cluster.replicas[0].admin();
    let asked = admin.metrics().await;
    let asked = asked.sum("grapevine_token_probes_total", "token\"");
    let most = 2.0 + 4.0 * f64::from(TOKENS) * 0.02;
    assert!(
        (1.0..most).contains(&asked),
        "{asked} questions for one answer"
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_waited_for_while_others_get_tokens() {
    let house = House::of(plan(false), vec![slow(); 1]).await;
    hide_counters(&house);
    let talk = streamed("of somebody else", 2 * TOKENS);
    let mut others = chat::Stream::open(house.data(), &talk)
        .await
        .expect("a head");
    others.read_events(2).await.expect("it has begun");
    is_answered_once(&house, CHATS, &chat("others", TOKENS)).await;
    assert_eq!(others.finish().await.ending, Ending::Done);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_batch_is_waited_for_at_a_worker_that_takes_no_completions() {
    let config = Config {
        engine: EngineConfig {
            prefill_tokens_per_s: 60.0,
            step_tokens_max: 8,
            ..quick().engine
        },
        ..quick()
    };
    let house = House::of(plan(true), vec![config; 2]).await;
    for worker in &house.workers {
        for path in [CHATS, "/v1/completions"] {
            worker
                .add_rule(on(path, Fault::status(404)))
                .expect("there is room");
        }
    }
    let text = |number: u32| format!("document {number} of a long batch that is computed slowly");
    let inputs: Vec<String> = (0..16).map(text).collect();
    let batch = json!({ "model": MODEL, "input": inputs });
    is_answered_once(&house, "/v1/embeddings", &batch).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_worker_is_left_by_plain_answers() {
    let house = House::of(plan(true), vec![slow(); 2]).await;
    let admin = house.cluster.replicas[0].admin();
    let body = chat("whose worker freezes", TOKENS);
    let home = &house.workers[house.home(&body).await];
    let waiting = tokio::spawn({
        let (data, body) = (house.data(), body.clone());
        async move { http1::post(data, CHATS, &body).await }
    });
    eventually(LIMIT, "it computes", async || {
        let seen = of_clients(home);
        (seen == 1)
            .then_some(())
            .ok_or_else(|| format!("{seen} requests"))
    })
    .await;
    home.freeze(true);
    let took = admin.verdict(&home.url(), "stalled").await;
    assert!(took >= SILENCE / 2, "left after {took:?}");
    println!("left {took:?} after it froze, {SILENCE:?} of silence allowed");
    let response = waiting.await.expect("no panic");
    assert_eq!(response.head.status, 200, "{}", response.text());
    let sent: usize = house.workers.iter().map(of_clients).sum();
    assert_eq!(sent, 2, "once more, at the other one");
    home.freeze(false);
    admin.verdict(&home.url(), "good").await;
    house.close().await;
}

/// A long one is not kept, and the counts stand at its end, at its beginning, or before what was asked for of a long prompt;
/// nor has one in chunks a length that its head says.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_a_long_answer_and_of_one_in_chunks_are_counted() {
    const PATH: &str = "/v1/embeddings";
    let body = json!({ "model": MODEL, "input": "a text" });
    let prompt_tokens = async |house: &House| {
        let answer = http1::post(house.data(), PATH, &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        metrics.sum("grapevine_prompt_tokens_total", "")
    };
    let long = House::of(Plan::default(), vec![quick()]).await;
    let numbers = "0.25,".repeat(40_000);
    let usage = r#""usage":{"prompt_tokens":7,"total_tokens":7}"#;
    let rerank = format!(r#"{{"id":"rerank-1","model":"m",{usage},"results":[{numbers}1]}}"#);
    let embedding = format!(r#"{{"data":[{{"embedding":[{numbers}1]}}],{usage}}}"#);
    let with_ids = format!(r#"{{"choices":[{numbers}1],{usage},"prompt_token_ids":[{numbers}1]}}"#);
    for (answer, tokens) in [(embedding, 7.0), (rerank, 14.0), (with_ids, 21.0)] {
        long.reply_next(Canned {
            status: 200,
            headers: Vec::new(),
            body: Some(answer),
            repeat: 1,
            gzip: false,
        });
        assert_eq!(prompt_tokens(&long).await, tokens);
    }
    long.close().await;

    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
        1a\r\n{\"data\":[],\"usage\":{\"promp\r\n11\r\nt_tokens\":9}    }\r\n0\r\n\r\n";
    let (url, _serving) = raw_worker(answer).await;
    let plan = Plan::default().worker(&url, &[MODEL]);
    let pieces = House::with(plan, Vec::new()).await;
    assert_eq!(prompt_tokens(&pieces).await, 9.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_of_a_plain_answer_may_pause_while_its_worker_lives() {
    const BYTES: u32 = 100_000;
    let house = House::of(plan(true), vec![quick(); 1]).await;
    hide_counters(&house);
    let canned = Canned {
        status: 200,
        headers: Vec::new(),
        body: Some("x".to_owned()),
        repeat: BYTES,
        gzip: false,
    };
    let drip = Drip {
        bytes: (BYTES / 2).try_into().expect("not zero"),
        every_ms: 2_500,
    };
    let fault = Fault {
        reply: Some(canned),
        drip: Some(drip),
        ..Fault::default()
    };
    house.workers[0]
        .add_rule(on(CHATS, fault))
        .expect("there is room");
    let response = http1::post(house.data(), CHATS, &chat("pauses", 1)).await;
    assert_eq!(response.head.status, 200);
    assert_eq!(response.body.len(), BYTES as usize, "all of it");
    house.close().await;
}
