//! `/v1/responses` and `/v1/messages`: any replica serves a response from the one worker that holds it, and
//! streams without an end mark end well, or with an error that their clients know.

use std::collections::BTreeSet;
use std::time::Duration;

use grapevine_testbed::fake_worker::{
    Canned, Config, EngineConfig, Entry, FakeWorker, Fault, How, Point, Rule, StopMode, When,
};
use grapevine_tests::chat::{self, EXPLAIN, MODEL};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1::{self, Connection, Response, request};
use grapevine_tests::invariants;
use grapevine_tests::keys::KeyFile;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::admission;
use crate::errors::assert_error;
use crate::house::{House, quick};
use crate::retries::{refusal, retry_after};

const PATH: &str = "/v1/responses";

fn asked(input: &str) -> Value {
    json!({ "model": MODEL, "input": input, "max_output_tokens": 3 })
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
        assert_error(&http1::post(*data, PATH, &next).await, 404, "not_found");
        let odd = http1::get(*data, "/v1/responses/resp_1%2f..%2fsleep").await;
        assert_error(&odd, 404, "not_found");
    }
    invariants::hold(&cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_read_as_a_stream_counts_no_tokens() {
    let house = House::new(1).await;
    let made = http1::post(house.data(), PATH, &asked("x")).await;
    let id = made.json::<Value>()["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let counted = async || {
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        metrics.sum("grapevine_completion_tokens_total", "")
    };
    let before = counted().await;
    assert!(before > 0.0, "those of the response itself");
    let path = format!("{PATH}/{id}");
    let delta = "event: response.output_text.delta\ndata: {}\n\n";
    let reply = Canned {
        status: 200,
        headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
        body: Some(format!(
            "{delta}{delta}event: response.completed\ndata: {{}}\n\n"
        )),
        // Longer than what is waited for as a whole.
        repeat: 4_000,
        gzip: false,
    };
    let rule = Rule {
        when: When {
            path: Some(path.clone()),
            ..When::default()
        },
        ..Rule::always(Fault {
            reply: Some(reply),
            ..Fault::default()
        })
    };
    house.workers[0].add_rule(rule).expect("room for a rule");
    let read = http1::get(house.data(), &path).await;
    assert_eq!(read.text().matches("delta").count(), 8_000);
    // The line is written when all is counted.
    house.until_log_says("endpoint=\"responses_by_id\"").await;
    assert_eq!(counted().await, before);
    house.close().await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_key_finds_no_response_at_workers_of_other_models() {
    let mut file = KeyFile::new();
    let free = file.add("free", "tenant = \"t\"").await;
    let limits = "tenant = \"t\"\nmodels = [\"fake-model\"]";
    let bound = file.add("bound", limits).await;
    let limits = "tenant = \"t\"\nmodels = [\"fast\"]";
    let by_alias = file.add("by-alias", limits).await;
    let other = Config {
        models: vec!["b".to_owned()],
        ..quick()
    };
    let plan = file
        .plan()
        .set("model", r#"[{ name = "fast", targets = ["fake-model"] }]"#);
    let house = House::of(plan, vec![quick(), quick(), other]).await;
    let ask = async |key: &str, method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        http1::exchange(house.data(), method, path, &headers, body.as_bytes()).await
    };
    for (model, found) in [(MODEL, 200), ("b", 404)] {
        let mut body = asked("x");
        body["model"] = model.into();
        let made = ask(&free, "POST", PATH, &body.to_string()).await;
        assert_eq!(made.head.status, 200, "{}", made.text());
        let path = format!(
            "{PATH}/{}",
            made.json::<Value>()["id"].as_str().expect("an id")
        );
        assert_eq!(ask(&free, "GET", &path, "").await.head.status, 200);
        for key in [&bound, &by_alias] {
            let got = ask(key, "GET", &path, "").await;
            assert_eq!(got.head.status, found, "{model}");
        }
        assert_eq!(ask("gv-unknown", "GET", &path, "").await.head.status, 401);
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_there_for_its_tenant_alone() {
    let mut file = KeyFile::new();
    let own = file.add("own", "tenant = \"a\"").await;
    let same = file.add("same", "tenant = \"a\"").await;
    let foreign = file.add("foreign", "tenant = \"b\"").await;
    let house = House::of(file.plan(), vec![quick(), quick()]).await;
    let ask = async |key: &str, method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        http1::exchange(house.data(), method, path, &headers, body.as_bytes()).await
    };
    // The last answer repeats its question, and is too long to be buffered whole.
    let long = "whose is it? ".repeat(8_000);
    for (stream, input) in [
        (false, "whose is it?"),
        (true, "whose is it?"),
        (false, &long),
    ] {
        let mut body = asked(input);
        body["stream"] = stream.into();
        let made = ask(&own, "POST", PATH, &body.to_string()).await;
        assert_eq!(made.head.status, 200, "{}", made.text());
        let text = made.text();
        let (_, rest) = text.split_once(r#""id":"resp_"#).expect("an id");
        let id = format!("resp_{}", rest.split('"').next().expect("its end"));
        let path = format!("{PATH}/{id}");
        let cancel = format!("{path}/cancel");
        let mut next = asked("and then?");
        next["previous_response_id"] = id.as_str().into();
        let next = next.to_string();
        let seen = || -> usize {
            let logs = house.workers.iter().map(|worker| worker.log());
            let named = |log: Vec<_>| -> usize {
                log.iter()
                    .filter(|entry: &&Entry| entry.path.contains(&id))
                    .count()
            };
            logs.map(named).sum()
        };
        for (method, path, body) in [
            ("GET", &path, ""),
            ("DELETE", &path, ""),
            ("POST", &cancel, ""),
            ("POST", &PATH.to_owned(), next.as_str()),
        ] {
            let asked = house
                .workers
                .iter()
                .map(|w| w.stats().requests)
                .sum::<u64>();
            let answer = ask(&foreign, method, path, body).await;
            assert_error(&answer, 404, "not_found");
            let now = house
                .workers
                .iter()
                .map(|w| w.stats().requests)
                .sum::<u64>();
            assert_eq!(now, asked, "{method} {path}: a worker was asked");
            let unknown = ask(
                &foreign,
                method,
                &path.replace(&id, "resp_nobody"),
                &body.replace(&id, "resp_nobody"),
            )
            .await;
            assert_eq!(unknown.text(), answer.text().replace(&id, "resp_nobody"));
        }
        assert_eq!(seen(), 0, "of the foreign key");
        for key in [&own, &same] {
            assert_eq!(ask(key, "GET", &path, "").await.head.status, 200);
            assert_eq!(ask(key, "POST", PATH, &next).await.head.status, 200);
        }
        assert_error(&ask(&foreign, "GET", &path, "").await, 404, "not_found");
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let foreign = metrics.sum("grapevine_response_searches_total", "\"foreign\"");
    assert_eq!(foreign, 15.0);
    house.close().await;
}

/// vLLM lets clients choose ids (`request_id`).
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_a_client_chose_stays_its_tenants() {
    let mut file = KeyFile::new();
    let own = file.add("own", "tenant = \"a\"").await;
    let foreign = file.add("foreign", "tenant = \"b\"").await;
    let house = House::of(file.plan(), vec![quick()]).await;
    let ask = async |key: &str, method: &str, path: &str, body: &Value| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        http1::exchange(house.data(), method, path, &headers, body.as_bytes()).await
    };
    let path = format!("{PATH}/chosen-1");
    let mut body = asked("mine");
    body["request_id"] = "chosen-1".into();
    let made = ask(&own, "POST", PATH, &body).await;
    assert_eq!(made.json::<Value>()["id"], "chosen-1", "{}", made.text());
    let theirs = ask(&foreign, "GET", &path, &Value::Null).await;
    assert_error(&theirs, 404, "not_found");
    // Nor by making a response with the same id.
    assert_eq!(ask(&foreign, "POST", PATH, &body).await.head.status, 200);
    let theirs = ask(&foreign, "GET", &path, &Value::Null).await;
    assert_error(&theirs, 404, "not_found");
    let got = ask(&own, "GET", &path, &Value::Null).await;
    assert_eq!(got.head.status, 200, "{}", got.text());
    // Ids of such a form are never recorded, so they cannot be asked for.
    let mut next = asked("and then?");
    for id in ["a.b", "", "a/../b", &"x".repeat(129)] {
        next["previous_response_id"] = id.into();
        let answer = ask(&own, "POST", PATH, &next).await;
        let error = assert_error(&answer, 400, "invalid_request");
        assert_eq!(error["param"], "previous_response_id", "{error}");
    }
    house.close().await;
}

/// A request that waits for the one worker that holds a response does not move to others, which do not hold
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_read_and_cancelled_while_every_place_is_taken() {
    let plan = Plan::default().set("limits.requests", "1");
    let house = House::of(plan, vec![chat::paced(Duration::from_millis(20))]).await;
    let made = http1::post(house.data(), PATH, &asked("x")).await;
    let made = made.json::<Value>();
    let id = made["id"].as_str().expect("an id");
    let body = chat::streamed("held", 4_000);
    let mut held = chat::Stream::open(house.data(), &body)
        .await
        .expect("accepted");
    held.read_events(1).await.expect("it has begun");
    let path = format!("{PATH}/{id}");
    let cancel = format!("{path}/cancel");
    // That it cannot be cancelled is the worker's word.
    for (method, path, status) in [("GET", &path, 200), ("POST", &cancel, 400)] {
        let answer = http1::exchange(house.data(), method, path, &[], b"");
        let answer = timeout(LIMIT, answer).await.expect("it waits for a place");
        assert_eq!(answer.head.status, status, "{method}: {}", answer.text());
        let log = house.workers[0].log();
        let seen = log.iter().find(|entry| entry.path == *path).expect("asked");
        let is_length = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("content-length");
        let length = seen.headers.iter().find(is_length);
        let length = length.map(|(_, value)| value.as_str());
        assert_eq!(
            length,
            (method == "POST").then_some("0"),
            "{method} without a body"
        );
    }
    held.leave(false);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_looks_bad_is_waited_for() {
    let plan = Plan::default()
        .set("health.interval", "\"100ms\"")
        .set("health.failure_threshold", "1");
    let house = House::of(plan, vec![quick(); 2]).await;
    let body = asked("who has it?").to_string();
    let made = http1::exchange(house.data(), "POST", PATH, &[EXPLAIN], body.as_bytes()).await;
    let id = made.json::<Value>()["id"].as_str().map(str::to_owned);
    let path = format!("{PATH}/{}", id.expect("an id"));
    let holder = house.workers.iter().find(|w| w.url() == worker_of(&made));
    let holder = holder.expect("one of them");
    let on = |path: &str, fault: Fault| {
        let when = When {
            path: Some(path.to_owned()),
            ..When::default()
        };
        let rule = Rule {
            when,
            ..Rule::always(fault)
        };
        holder.add_rule(rule).expect("room for a rule");
    };
    on(&path, Fault::delay_ms(4_000));
    let waiting = tokio::spawn({
        let (data, path) = (house.data(), path.clone());
        async move { http1::get(data, &path).await }
    });
    eventually(LIMIT, "it is asked", async || {
        let log = holder.log();
        let is_asked = log.iter().any(|entry| entry.path == path);
        is_asked.then_some(()).ok_or("not yet".to_owned())
    })
    .await;
    on("/health", Fault::status(500));
    let admin = house.cluster.replicas[0].admin();
    admin.verdict(&holder.url(), "unhealthy").await;
    let got = waiting.await.expect("no panic");
    assert_eq!(got.head.status, 200, "{}", got.text());
    holder.clear_rules();
    admin.verdict(&holder.url(), "good").await;
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

/// Makes a response. Its id, and the worker that holds it.
async fn held_somewhere(house: &House) -> (String, &FakeWorker) {
    let body = asked("who has it?").to_string();
    let made = http1::exchange(house.data(), "POST", PATH, &[EXPLAIN], body.as_bytes()).await;
    assert_eq!(made.head.status, 200, "{}", made.text());
    let holder = house.workers.iter().find(|w| w.url() == worker_of(&made));
    let id = made.json::<Value>()["id"].as_str().map(str::to_owned);
    (id.expect("an id"), holder.expect("one of them"))
}

/// Other workers are idle: for them alone nobody would have to wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_asks_to_be_left_alone_is_not_waited_for() {
    // Short, so that a request that waits all the same fails the test soon.
    let plan = Plan::default().set("admission.queue_timeout", "\"5s\"");
    let house = House::of(plan, vec![quick(); 3]).await;
    let (id, holder) = held_somewhere(&house).await;
    let mut next = asked("and then?");
    next["previous_response_id"] = id.as_str().into();
    let rule = Rule::next(1, refusal(429, "60"));
    holder.add_rule(rule).expect("room for a rule");
    let told = http1::post(house.data(), PATH, &next).await;
    assert_eq!(told.head.status, 429, "the holder's word: {}", told.text());
    assert!((2..=60).contains(&retry_after(&told)), "{:?}", told.head);
    let told = http1::post(house.data(), PATH, &next).await;
    assert_error(&told, 503, "no_worker_available");
    assert!((2..=60).contains(&retry_after(&told)), "{:?}", told.head);
    let seen = holder.log();
    let seen = seen.iter().filter(|entry| entry.path == PATH).count();
    assert_eq!(seen, 2, "it was left alone");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_full_holder_holds_nobody_back() {
    let workers = chat::workers(3, &quick()).await;
    let plan = Plan::default().set("admission.queue_timeout", "\"20s\"");
    let plan = workers.iter().fold(plan, |plan, worker| {
        plan.worker_with(&worker.url(), &[MODEL], "max_in_flight = 1\n")
    });
    let house = House::with(plan, workers).await;
    let (id, holder) = held_somewhere(&house).await;
    let mut next = asked("and then?");
    next["previous_response_id"] = id.as_str().into();
    let mut long = next.clone();
    long["stream"] = true.into();
    long["max_output_tokens"] = 100_000.into();
    let mut busy = Connection::open(house.data()).await;
    let bytes = request("POST", PATH, &[], long.to_string().as_bytes());
    busy.send(&bytes).await.expect("taken");
    assert_eq!(busy.head().await.expect("it has begun").status, 200);

    let waiting = tokio::spawn({
        let (data, next) = (house.data(), next.clone());
        async move { http1::exchange(data, "POST", PATH, &[EXPLAIN], next.to_string().as_bytes()).await }
    });
    admission::waiting(&house, "worker", 1).await;
    for number in 0..6 {
        let body = chat::chat(&format!("question {number}"), 1);
        let answer = http1::post(house.data(), "/v1/chat/completions", &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    assert!(!waiting.is_finished(), "the others went past it");
    // What the holder has is read, and cancelled, without a place there.
    let got = http1::get(house.data(), &format!("{PATH}/{id}")).await;
    assert_eq!(got.head.status, 200, "{}", got.text());
    let cancel = format!("{PATH}/{id}/cancel");
    let told = http1::exchange(house.data(), "POST", &cancel, &[], b"").await;
    assert_eq!(told.head.status, 400, "its own word: {}", told.text());
    assert!(!waiting.is_finished(), "the holder is full");
    drop(busy);
    let got = waiting.await.expect("no panic");
    assert_eq!(got.head.status, 200, "{}", got.text());
    assert_eq!(worker_of(&got), holder.url());
    house.close().await;
}

/// A stored response that is followed as a stream takes nothing of what its worker computes with.
#[tokio::test(flavor = "multi_thread")]
async fn who_follows_a_response_takes_no_place_of_its_worker() {
    let worker = chat::worker(quick()).await;
    let plan = Plan::default().worker_with(&worker.url(), &[MODEL], "max_in_flight = 1\n");
    let house = House::with(plan, vec![worker]).await;
    let (id, holder) = held_somewhere(&house).await;
    let path = format!("{PATH}/{id}");
    let rule = Rule {
        when: When {
            path: Some(path.clone()),
            ..When::default()
        },
        ..Rule::always(Fault::stop(Point::Head(0), How::Stall))
    };
    holder.add_rule(rule).expect("room for a rule");
    let mut follows = Connection::open(house.data()).await;
    let bytes = request("GET", &path, &[], b"");
    follows.send(&bytes).await.expect("taken");
    eventually(LIMIT, "it is asked", async || {
        let log = holder.log();
        let is_asked = log.iter().any(|entry| entry.path == path);
        is_asked.then_some(()).ok_or("not yet".to_owned())
    })
    .await;
    let answer = http1::post(house.data(), PATH, &asked("and you?")).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    drop(follows);
    holder.clear_rules();
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_holder_tells_what_it_has() {
    let house = House::of(Plan::default(), vec![quick(); 2]).await;
    let (id, holder) = held_somewhere(&house).await;
    let admin = house.cluster.replicas[0].admin();
    let drained = json!({ "state": "draining" });
    admin.change(&holder.url(), &drained).await;
    let mut next = asked("and then?");
    next["previous_response_id"] = id.as_str().into();
    eventually(LIMIT, "nothing new", async || {
        let refused = http1::post(house.data(), PATH, &next).await;
        (refused.head.status == 503)
            .then_some(())
            .ok_or_else(|| refused.text())
    })
    .await;
    let got = http1::get(house.data(), &format!("{PATH}/{id}")).await;
    assert_eq!(got.head.status, 200, "{}", got.text());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_with_named_events_end_well_or_with_a_named_error() {
    let house = House::new(1).await;
    let worker = &house.workers[0];
    let message = json!({
        "model": MODEL, "max_tokens": 5, "stream": true, "system": "be brief",
        "messages": [{ "role": "user", "content": "hello" }],
    });
    let mut response = asked("hello");
    response["stream"] = true.into();
    for (path, body, last) in [
        ("/v1/messages", &message, "event: message_stop"),
        (PATH, &response, "event: response.completed"),
    ] {
        let is_anthropic = path == "/v1/messages";
        let whole = http1::post(house.data(), path, body).await;
        assert_eq!(whole.head.status, 200, "{}", whole.text());
        assert!(whole.text().contains(last), "{}", whole.text());
        let broken = Rule::next(1, Fault::stop(Point::Event(3), How::Fin));
        worker.add_rule(broken).expect("room for a rule");
        let cut = http1::post(house.data(), path, body).await.text();
        assert!(!cut.contains(last), "{cut}");
        let (_, error) = cut
            .rsplit_once("event: error\ndata: ")
            .expect("a named error");
        let error: Value = serde_json::from_str(error.trim_end()).expect("JSON");
        assert_eq!(error["type"], "error");
        if is_anthropic {
            assert_eq!(error["error"]["type"], "api_error", "{error}");
            assert_eq!(error["error"].get("code"), None, "{error}");
        } else {
            assert_eq!(error["error"]["code"], "upstream_broke");
        }
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    for endpoint in ["messages", "responses"] {
        let counted = |outcome: &str| {
            let has = [("endpoint", endpoint), ("outcome", outcome)];
            let has = has.map(|(name, value)| format!("{name}=\"{value}\""));
            let series = metrics.series("grapevine_requests_total").into_iter();
            let of_both = series.filter(|(labels, _)| has.iter().all(|has| labels.contains(has)));
            of_both.map(|(_, value)| value).sum::<f64>()
        };
        assert_eq!(
            (counted("success"), counted("worker_broke")),
            (1.0, 1.0),
            "{endpoint}"
        );
    }
    house.close().await;
}

fn streamed(input: &str) -> Value {
    let mut body = asked(input);
    body["stream"] = true.into();
    body
}

/// vLLM sends two events before its engine has the request: they are no answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_refused_behind_its_first_events_moves() {
    let engine = EngineConfig {
        queued_requests_max: Some(0),
        ..quick().engine
    };
    let full = Config { engine, ..quick() };
    let house = House::of(Plan::default(), vec![full, quick()]).await;
    for number in 0..20 {
        let body = streamed(&format!("question {number}")).to_string();
        let answer = http1::exchange(house.data(), "POST", PATH, &[EXPLAIN], body.as_bytes()).await;
        let text = answer.text();
        assert_eq!(answer.head.status, 200, "{text}");
        assert_eq!(worker_of(&answer), house.workers[1].url());
        let names = ["event: response.created", "event: response.completed"];
        let seen = names.map(|name| text.matches(name).count());
        assert_eq!(
            (seen, text.contains("event: error")),
            ([1, 1], false),
            "{text}"
        );
    }
    assert!(
        house.workers[0].stats().requests > 0,
        "the full one was asked"
    );
    house.close().await;
}

/// What stands in front of it is no token, so the time between two tokens does not hold yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_prompt_has_the_time_of_a_first_token() {
    let engine = EngineConfig {
        prefill_tokens_per_s: 60.0,
        step_tokens_max: 8,
        ..quick().engine
    };
    let slow = Config { engine, ..quick() };
    let plan = Plan::default().set("timeouts.inter_token", "\"200ms\"");
    let house = House::of(plan, vec![slow]).await;
    let body = streamed(&"a long question ".repeat(15));
    let answer = http1::post(house.data(), PATH, &body).await;
    let text = answer.text();
    assert!(text.contains("event: response.completed"), "{text}");
    house.close().await;
}

/// Whoever computes it, and when: its worker gives what it has of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_silence_of_a_stored_response_says_nothing_of_its_worker() {
    let plan = Plan::default()
        .set("timeouts.inter_token", "\"200ms\"")
        .set("health.token_probe", "false");
    let house = House::of(plan, vec![quick()]).await;
    let (id, holder) = held_somewhere(&house).await;
    let path = format!("{PATH}/{id}");
    let begun = "event: response.created\ndata: {}\n\nevent: response.in_progress\ndata: {}\n\n";
    let events = Canned {
        status: 200,
        headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
        // Longer than what is waited for as a whole.
        body: Some(format!("{begun}data: {}\n\n", "x".repeat(70_000))),
        repeat: 1,
        gzip: false,
    };
    let fault = Fault {
        reply: Some(events),
        ..Fault::stop(Point::Body(begun.len() as u64), How::Stall)
    };
    let rule = Rule {
        when: When {
            path: Some(path.clone()),
            ..When::default()
        },
        ..Rule::always(fault)
    };
    holder.add_rule(rule).expect("room for a rule");
    let admin = house.cluster.replicas[0].admin();
    // More than open a breaker.
    for _ in 0..6 {
        let mut follows = Connection::open(house.data()).await;
        let bytes = request("GET", &format!("{path}?stream=true"), &[], b"");
        follows.send(&bytes).await.expect("taken");
        assert_eq!(follows.head().await.expect("it has begun").status, 200);
        let mut text = String::new();
        while let Ok(Some(data)) = follows.data().await {
            text.push_str(&String::from_utf8_lossy(&data));
        }
        assert!(
            text.starts_with(begun) && text.contains("upstream_broke"),
            "{text}"
        );
        assert_eq!(admin.worker(&holder.url()).await.verdict, "good");
    }
    holder.clear_rules();
    house.close().await;
}

/// The name of its last event comes before that event.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_cut_within_its_last_event_is_not_whole() {
    let house = House::new(1).await;
    let body = streamed("hello");
    let whole = http1::post(house.data(), PATH, &body).await.text();
    let rule = Fault::stop(Point::Body(whole.len() as u64 - 10), How::Fin);
    house.workers[0]
        .add_rule(Rule::next(1, rule))
        .expect("room for a rule");
    let cut = http1::post(house.data(), PATH, &body).await.text();
    assert!(!cut.contains("response.completed"), "{cut}");
    assert!(cut.contains("event: error\n"), "{cut}");
    house.close().await;
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
