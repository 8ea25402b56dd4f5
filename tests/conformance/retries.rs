//! Which requests are retried, how often, and what a client gets when every attempt fails.

use std::time::Duration;

use grapevine_testbed::fake_worker::{
    Canned, Config, EngineConfig, Fault, How, Point, Rule, StopMode,
};
use grapevine_tests::chat::{self, Ending, MODEL, Stream, chat, paced, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Response};
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::errors::assert_error;
use crate::house::{House, quick};
use crate::unreachable::closed_port;

const CHATS: &str = "/v1/chat/completions";

fn no_budget() -> Plan {
    Plan::default()
        .set("retry.budget", "0.0")
        .set("retry.budget_floor", "0")
}

/// A refusal with a `Retry-After`.
pub(crate) fn refusal(status: u16, retry_after: &str) -> Fault {
    let header = ("retry-after".to_owned(), retry_after.to_owned());
    let reply = Canned {
        status,
        headers: vec![header],
        body: None,
        repeat: 1,
        gzip: false,
    };
    Fault {
        reply: Some(reply),
        ..Fault::default()
    }
}

pub(crate) fn retry_after(answer: &Response) -> u64 {
    let value = answer.head.header("retry-after");
    let value = value.unwrap_or_else(|| panic!("no Retry-After: {:?}", answer.head));
    value.parse().expect("whole seconds")
}

/// vLLM's `/pause`: its `/health` is 200, and it does not say for how long.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_paused_costs_nothing_and_is_left_alone() {
    let house = House::of(no_budget(), vec![quick(); 2]).await;
    let mut paused = Fault::status(503);
    if let Some(reply) = &mut paused.reply {
        let message = "Generation is paused. Please retry after it resumes.";
        reply.body = Some(json!({ "error": { "message": message } }).to_string());
    }
    let worker = &house.workers[0];
    worker.add_rule(Rule::always(paused)).expect("room");
    let begun = Instant::now();
    for number in 0..20 {
        let body = chat(&format!("question {number}"), 1);
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    let most = 1 + begun.elapsed().as_secs() / 5;
    let asked = worker.stats().requests;
    assert!((1..=most).contains(&asked), "{asked} of {most}");
    house.close().await;
}

/// Requests that all workers have seen.
fn seen(house: &House) -> u64 {
    let seen = house.workers.iter().map(|worker| worker.stats().requests);
    seen.sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_refusals_is_not_multiplied() {
    const CLIENTS: u64 = 16;
    const EACH: u64 = 25;
    let house = House::new(4).await;
    for worker in &house.workers {
        let full = Rule::always(Fault::status(503));
        worker.add_rule(full).expect("room for a rule");
    }
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let data = house.data();
        clients.spawn(async move {
            for number in 0..EACH {
                let body = chat(&format!("client {client} request {number}"), 1);
                let answer = http1::post(data, CHATS, &body).await;
                assert_eq!(answer.head.status, 503, "{}", answer.text());
                assert_eq!(retry_after(&answer), 1);
            }
        });
    }
    clients.join_all().await;
    let (requests, attempts) = (CLIENTS * EACH, seen(&house));
    println!("{requests} requests that every worker refuses: {attempts} attempts");
    assert!(attempts >= requests);
    assert!(
        attempts as f64 <= 1.2 * requests as f64 + 3.0,
        "{attempts} attempts of {requests} requests"
    );
    for worker in &house.workers {
        worker.clear_rules();
    }
    let answer = http1::post(house.data(), CHATS, &chat("after the storm", 1)).await;
    assert_eq!(answer.head.status, 200, "over at once: {}", answer.text());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_say_when_are_left_alone_until_then() {
    let house = House::new(2).await;
    for (worker, after) in house.workers.iter().zip(["90", "30"]) {
        let rule = Rule::next(1, refusal(503, after));
        worker.add_rule(rule).expect("room for a rule");
    }
    let first = http1::post(house.data(), CHATS, &chat("first", 1)).await;
    assert_eq!(first.head.status, 503, "{}", first.text());
    assert!((1..=30).contains(&retry_after(&first)), "{:?}", first.head);
    assert_eq!(seen(&house), 2, "each was asked once");
    for number in 0..20 {
        let body = streamed(&format!("question {number}"), 1);
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_error(&answer, 503, "no_worker_available");
        assert!(
            (1..=30).contains(&retry_after(&answer)),
            "{:?}",
            answer.head
        );
    }
    assert_eq!(seen(&house), 2, "nobody was asked again");
    let admin = house.cluster.replicas[0].admin();
    let workers = admin.workers().await;
    assert!(workers.iter().all(|worker| worker.health == "healthy"));
    let metrics = admin.metrics().await;
    assert_eq!(metrics.sum("grapevine_workers_paused", ""), 2.0);
    assert_eq!(metrics.sum("grapevine_models_left_alone", ""), 1.0);
    // For whoever looks later, once it has lasted.
    eventually(LIMIT, "the log and the events have it", async || {
        let log = house.cluster.replicas[0].log();
        let events = http1::get(admin.0, "/events").await.text();
        let is_told = log.contains("no worker to ask now: every usable one asked to be left alone")
            && events.contains("waits for workers: every usable one asked to be left alone");
        is_told
            .then_some(())
            .ok_or_else(|| format!("{log}\n{events}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_ends_and_one_worker_that_pauses_harms_nobody() {
    let house = House::new(2).await;
    let body = chat("asked twice", 1);
    let home = house.home(&body).await;
    let rule = Rule::next(1, refusal(429, "2"));
    house.workers[home].add_rule(rule).expect("room for a rule");
    let begun = Instant::now();
    for _ in 0..10 {
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    let asked = house.workers[home].stats().requests;
    // It may be asked again two seconds after the first of these ten.
    let took = begun.elapsed();
    assert!(
        asked == 1 || took >= Duration::from_secs(2),
        "{asked} times in {took:?}"
    );
    eventually(LIMIT, "it is asked again", async || {
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let complete = house.workers[home].stats().complete;
        (complete > 1)
            .then_some(())
            .ok_or_else(|| format!("{complete} answers"))
    })
    .await;
    house.close().await;
}

/// Where clients bring the keys that workers want, as those of a gateway behind this router, a limit is that of one client.
#[tokio::test(flavor = "multi_thread")]
async fn a_429_to_a_clients_own_key_is_that_clients_alone() {
    let event = || Fault {
        reply: Some(Canned {
            status: 200,
            headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
            body: Some("data: {\"error\":{\"message\":\"slow down\",\"code\":429}}\n\n".to_owned()),
            repeat: 1,
            gzip: false,
        }),
        ..Fault::default()
    };
    let house = House::of(no_budget(), vec![quick(); 2]).await;
    let ask = async |house: &House, header: (&str, &str), body: &Value| {
        let body = body.to_string();
        http1::exchange(house.data(), "POST", CHATS, &[header], body.as_bytes()).await
    };
    let metrics = async |house: &House| house.cluster.replicas[0].admin().metrics().await;
    let (plain, stream) = (chat("whose limit", 1), streamed("whose limit", 1));
    let home = house.home(&plain).await;
    let mut asked = 0;
    for (header, body, fault, after) in [
        (
            ("authorization", "Bearer one"),
            &plain,
            refusal(429, "60"),
            60,
        ),
        (("x-api-key", "one"), &plain, refusal(429, "60"), 60),
        (
            ("authorization", "Bearer one"),
            &stream,
            refusal(429, "60"),
            60,
        ),
        // It says no time, and every 429 does.
        (("authorization", "Bearer one"), &stream, event(), 1),
    ] {
        let rule = Rule::next(1, fault);
        house.workers[home].add_rule(rule).expect("room for a rule");
        let answer = ask(&house, header, body).await;
        assert_eq!(answer.head.status, 429, "{}", answer.text());
        assert_eq!(retry_after(&answer), after, "{header:?} {body}");
        let other = ask(&house, ("authorization", "Bearer two"), body).await;
        assert_eq!(other.head.status, 200, "{}", other.text());
        asked += 2;
        assert_eq!(
            house.workers[home].stats().requests,
            asked,
            "no other worker"
        );
    }
    let seen = metrics(&house).await;
    assert_eq!(seen.sum("grapevine_workers_paused", ""), 0.0);
    assert_eq!(
        seen.sum("grapevine_attempts_total", "result=\"back_pressure\""),
        0.0
    );
    assert_eq!(seen.sum("grapevine_retries_total", ""), 0.0);
    // A 503 is the worker's own, whoever asks.
    let rule = Rule::next(1, refusal(503, "60"));
    house.workers[home].add_rule(rule).expect("room for a rule");
    let answer = ask(&house, ("authorization", "Bearer one"), &plain).await;
    assert_eq!(
        answer.head.status,
        503,
        "there is no budget: {}",
        answer.text()
    );
    assert_eq!(
        metrics(&house).await.sum("grapevine_workers_paused", ""),
        1.0
    );
    house.close().await;

    // Where this replica brings the key, it is this replica that came too often.
    let plan = Plan::default().set("workers.api_key", "\"workers-key\"");
    let house = House::of(plan, vec![quick(); 2]).await;
    let home = house.home(&plain).await;
    let rule = Rule::next(1, refusal(429, "60"));
    house.workers[home].add_rule(rule).expect("room for a rule");
    let answer = ask(&house, ("authorization", "Bearer one"), &plain).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert_eq!(
        metrics(&house).await.sum("grapevine_workers_paused", ""),
        1.0
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_worker_costs_many_requests_at_once_no_budget() {
    let (_bound, dead) = closed_port();
    let plan = no_budget().worker(&dead, &[MODEL]);
    let house = House::of(plan, vec![quick(); 2]).await;
    let mut requests = JoinSet::new();
    for number in 0..96 {
        let data = house.data();
        requests.spawn(async move {
            let outcome = chat::stream(data, &streamed(&format!("question {number}"), 1)).await;
            assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
        });
    }
    requests.join_all().await;

    // A failure that the worker caused does count: the client gets it.
    let body = chat("sick", 1);
    let home = house.home(&body).await;
    let sick = Rule::next(1, Fault::status(500));
    house.workers[home].add_rule(sick).expect("room for a rule");
    let answer = http1::post(house.data(), CHATS, &body).await;
    assert_eq!(answer.head.status, 500, "{}", answer.text());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_been_done_is_not_done_twice() {
    // One lane: the next client finds the idle connection that the one before it left.
    let plan = Plan::default()
        .set("listen.open_paths", r#"["POST /opened"]"#)
        .set("listen.threads", "1");
    let house = House::of(plan, vec![quick()]).await;
    let worker = &house.workers[0];
    let cut = || Rule::next(1, Fault::stop(Point::Head(0), How::Fin));
    let once = json!({ "model": MODEL, "prompt": "once" });
    let opened = || http1::post(house.data(), "/opened", &once);
    assert_eq!(
        opened().await.head.status,
        404,
        "the worker's word leaves an idle connection"
    );
    worker.reset();
    worker.add_rule(cut()).expect("room for a rule");
    assert_error(&opened().await, 502, "upstream_failed");
    assert_eq!(seen(&house), 1, "an opened path may store something");

    // A chat only computes: it may be sent again on a new connection.
    eventually(LIMIT, "served again", async || {
        let answer = http1::post(house.data(), CHATS, &chat("before", 1)).await;
        let status = answer.head.status;
        (status == 200)
            .then_some(())
            .ok_or_else(|| status.to_string())
    })
    .await;
    worker.reset();
    worker.add_rule(cut()).expect("room for a rule");
    let answer = http1::post(house.data(), CHATS, &chat("twice", 1)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert_eq!(seen(&house), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_deadline_holds_over_all_attempts() {
    // Silence: the deadline ends it, even if the first-token limit is later.
    let plan = Plan::default()
        .set("timeouts.whole_request", "\"1s\"")
        .set("breaker.failure_threshold", "1");
    let house = House::of(plan, vec![quick(); 2]).await;
    for worker in &house.workers {
        let silent = Rule::always(Fault::never_answer());
        worker.add_rule(silent).expect("room for a rule");
    }
    for body in [chat("silence", 1), streamed("silence", 1)] {
        let answer = http1::post(house.data(), CHATS, &body).await;
        let error = assert_error(&answer, 504, "upstream_timeout");
        let message = error["message"].as_str().expect("a text");
        assert!(message.contains("whole request"), "{message}");
    }
    assert_eq!(seen(&house), 2, "nobody was asked when time was over");
    for worker in &house.workers {
        worker.clear_rules();
    }
    let answer = http1::post(house.data(), CHATS, &chat("after", 1)).await;
    assert_eq!(
        answer.head.status,
        200,
        "no breaker opened: {}",
        answer.text()
    );
    house.close().await;

    // A pause that would end after the deadline is not begun: the worker's error is sent at once, and no 504.
    let plan = Plan::default()
        .set("timeouts.whole_request", "\"30s\"")
        .set("retry.initial_backoff", "\"60s\"")
        .set("retry.max_backoff", "\"60s\"");
    let house = House::of(plan, vec![quick(); 2]).await;
    for worker in &house.workers {
        let sick = Rule::always(Fault::status(500));
        worker.add_rule(sick).expect("room for a rule");
    }
    let answer = http1::post(house.data(), CHATS, &chat("sick", 1)).await;
    assert_eq!(answer.head.status, 500, "{}", answer.text());
    assert_eq!(seen(&house), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_worker_is_left_for_another_in_time() {
    let plan = Plan::default()
        .set("timeouts.first_token", "\"300ms\"")
        .set("timeouts.first_token_per_1k", "\"0s\"");
    let house = House::of(plan, vec![quick(); 2]).await;
    let body = streamed("silence", 1);
    let home = house.home(&body).await;
    let silent = Rule::next(1, Fault::never_answer());
    house.workers[home]
        .add_rule(silent)
        .expect("room for a rule");
    let outcome = chat::stream(house.data(), &body).await;
    assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    assert_eq!(outcome.worker, Some(house.workers[1 - home].url()));
    for worker in &house.workers {
        let silent = Rule::always(Fault::never_answer());
        worker.add_rule(silent).expect("room for a rule");
    }
    let answer = http1::post(house.data(), CHATS, &chat("all are silent", 1)).await;
    let error = assert_error(&answer, 504, "upstream_timeout");
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("first token"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_a_worker_that_is_told_to_stop_do_not_wait_for_their_limits() {
    let plan = no_budget().set("timeouts.worker_gone", "\"300ms\"");
    let slow = Config {
        engine: EngineConfig {
            step_base: Duration::from_millis(100),
            ..quick().engine
        },
        ..quick()
    };
    let house = House::of(plan, vec![slow; 2]).await;
    let body = streamed("to be continued", 10_000);
    let home = house.home(&body).await;
    let leaving = &house.workers[home];
    let mut begun = Stream::open(house.data(), &body).await.expect("taken");
    begun.read_events(2).await.expect("it goes on");

    // A second one waits for its first token, and its client has got nothing.
    let waits = Rule::next(1, Fault::never_answer());
    leaving.add_rule(waits).expect("room for a rule");
    let data = house.data();
    let waiting = tokio::spawn(async move {
        let body = streamed("to be continued", 2);
        chat::stream(data, &body).await
    });
    eventually(LIMIT, "it has both", async || {
        let requests = leaving.stats().requests;
        (requests == 2)
            .then_some(())
            .ok_or_else(|| requests.to_string())
    })
    .await;
    leaving.terminate(StopMode::Hang);
    let outcome = begun.finish().await;
    let Ending::ErrorEvent(error) = &outcome.ending else {
        panic!("{outcome:?}")
    };
    assert_eq!(error["code"], "upstream_broke");
    let moved = waiting.await.expect("no panic");
    assert_eq!(moved.ending, Ending::Done, "{moved:?}");
    assert_eq!(moved.worker, Some(house.workers[1 - home].url()));
}

/// As `grapevine register` removes the one that it wraps, before it ends it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_under_way_at_a_removed_worker_ends_with_it() {
    for moves in [false, true] {
        let plan = no_budget().set("timeouts.worker_gone", "\"300ms\"");
        let house = House::of(plan, vec![paced(Duration::from_millis(20)); 2]).await;
        let elsewhere = chat::worker(quick()).await;
        let body = streamed("to be cut", 10_000);
        let leaving = &house.workers[house.home(&body).await];
        let mut begun = Stream::open(house.data(), &body).await.expect("taken");
        begun.read_events(2).await.expect("it goes on");
        let (admin, id) = (house.cluster.replicas[0].admin(), leaving.url());
        if moves {
            // Another one has its name, and its load, from now on.
            admin.change(&id, &json!({ "url": elsewhere.url() })).await;
        } else {
            admin.remove(&id).await;
        }
        begun.read_events(20).await.expect("it goes on");
        leaving.terminate(StopMode::Hang);
        let outcome = begun.finish().await;
        let Ending::ErrorEvent(error) = &outcome.ending else {
            panic!("{moves}: {outcome:?}")
        };
        assert_eq!(error["code"], "upstream_broke", "{moves}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_drains_is_left_alone_at_no_cost() {
    let house = House::of(no_budget(), vec![quick(); 2]).await;
    let body = chat("where to", 1);
    let home = house.home(&body).await;
    let drains = StopMode::Drain(Duration::from_secs(60));
    let held = Stream::open(house.data(), &streamed("where to", 100_000)).await;
    let mut held = held.expect("accepted");
    held.read_events(1).await.expect("it has begun");
    house.workers[home].terminate(drains);
    for _ in 0..20 {
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    let drained = house.workers[home].stats();
    assert_eq!(drained.in_flight, 1, "it drains all the while");
    // How often depends on how many probes have passed meanwhile.
    println!(
        "asked {} of 20 times while it drained",
        drained.requests - 1
    );
    held.leave(false);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_unknown_form_are_answered_by_the_worker() {
    let house = House::new(1).await;
    for messages in [json!(7), json!({ "role": "user", "content": "no list" })] {
        let body = json!({ "model": MODEL, "messages": messages });
        let answer = http1::post(house.data(), CHATS, &body).await;
        let direct = http1::post(house.workers[0].addr(), CHATS, &body).await;
        println!("{messages}: {}", answer.text());
        assert_eq!(answer.head.status, 400, "{}", answer.text());
        assert_eq!(answer.text(), direct.text(), "vLLM's own words");
        let body = json!({ "model": "other", "messages": messages });
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_error(&answer, 404, "model_not_found");
    }
    let numbers = json!([{ "role": "user", "content": 7 }]);
    let body = json!({ "model": MODEL, "messages": numbers });
    let answer = http1::post(house.data(), CHATS, &body).await;
    let direct = http1::post(house.workers[0].addr(), CHATS, &body).await;
    assert_eq!(answer.head.status, direct.head.status);
}

/// The fleet of now counts for each attempt, not the one that was there when the request came.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_replaces_another_one_takes_what_that_one_lost() {
    let house = House::new(1).await;
    let old = &house.workers[0];
    old.add_rule(Rule::next(1, Fault::never_answer()))
        .expect("room for a rule");
    let waiting = tokio::spawn({
        let (data, body) = (house.data(), chat("who answers?", 1));
        async move { http1::post(data, "/v1/chat/completions", &body).await }
    });
    eventually(LIMIT, "it is asked", async || {
        let seen = old.stats().requests;
        (seen == 1).then_some(()).ok_or_else(|| seen.to_string())
    })
    .await;
    let new = chat::worker(quick()).await;
    let admin = house.cluster.replicas[0].admin();
    admin.add_cold(&new.url(), &new.url(), &[MODEL]).await;
    admin.verdict(&new.url(), "good").await;
    old.terminate(StopMode::Exit);
    let answer = waiting.await.expect("no panic");
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert_eq!(new.stats().requests, 1);
    house.close().await;
}

/// A worker that refuses a prompt holds nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_refused_is_not_expected_in_its_cache() {
    let house = House::new(1).await;
    let body = chat(&"a long prompt ".repeat(400), 1);
    let admin = house.cluster.replicas[0].admin();
    let expected = async || {
        let told = admin.explain(std::slice::from_ref(&body)).await;
        told[0].expected_tokens
    };
    let rule = Rule::next(1, Fault::status(422));
    house.workers[0].add_rule(rule).expect("room for a rule");
    let refused = http1::post(house.data(), CHATS, &body).await;
    assert_eq!(refused.head.status, 422, "{}", refused.text());
    assert_eq!(expected().await, 0);
    let answer = http1::post(house.data(), CHATS, &body).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert!(expected().await > 1_000);
    house.close().await;
}

/// Its worker drops it from its queue, or ends it halfway.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_left_before_it_was_computed_is_not_expected_in_a_cache() {
    let house = House::new(1).await;
    let (known, given_up) = ("a long beginning ".repeat(400), "and more ".repeat(400));
    let body = |text: &str| streamed(text, 1);
    let admin = house.cluster.replicas[0].admin();
    let expected = async |body: &Value| {
        let told = admin.explain(std::slice::from_ref(body)).await;
        told[0].expected_tokens
    };
    let answer = http1::post(house.data(), CHATS, &body(&known)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    let before = expected(&body(&known)).await;
    assert!(before > 1_000);
    let asked = json!({
        "model": MODEL, "stream": true, "max_tokens": 1,
        "messages": [
            { "role": "user", "content": known },
            { "role": "user", "content": given_up },
        ],
    });
    house.workers[0]
        .add_rule(Rule::next(1, Fault::delay_ms(60_000)))
        .expect("room for a rule");
    let client = tokio::spawn({
        let (data, asked) = (house.data(), asked.clone());
        async move { http1::post(data, CHATS, &asked).await }
    });
    eventually(LIMIT, "it waits there", async || {
        let expected = expected(&asked).await;
        (expected > before)
            .then_some(())
            .ok_or_else(|| expected.to_string())
    })
    .await;
    client.abort();
    eventually(LIMIT, "only what was computed is expected", async || {
        let expected = expected(&asked).await;
        (expected == before)
            .then_some(())
            .ok_or_else(|| expected.to_string())
    })
    .await;
    house.close().await;
}

/// A plain answer says nothing before it is whole, long after its prompt was computed.
#[tokio::test(flavor = "multi_thread")]
async fn the_prompt_of_a_long_plain_answer_waits_no_more_after_a_while() {
    let house = House::of(Plan::default(), vec![paced(Duration::from_millis(20))]).await;
    let admin = house.cluster.replicas[0].admin();
    let url = house.workers[0].url();
    let (data, body) = (house.data(), chat(&"a long prompt ".repeat(400), 4_000));
    let client = tokio::spawn(async move { http1::post(data, CHATS, &body).await });
    for waits in [true, false] {
        eventually(LIMIT, "its prompt waits, and then no more", async || {
            let seen = admin.worker(&url).await;
            let is_so = (seen.pending_prefill_tokens > 1_000.0) == waits;
            let goes_on = seen.in_flight == 1.0 && seen.context_tokens > 1_000.0;
            (is_so && goes_on)
                .then_some(())
                .ok_or_else(|| format!("{seen:?}"))
        })
        .await;
    }
    client.abort();
    eventually(LIMIT, "all of it is over", async || {
        let seen = admin.worker(&url).await;
        let is_so = seen.pending_prefill_tokens == 0.0 && seen.context_tokens == 0.0;
        is_so.then_some(()).ok_or_else(|| format!("{seen:?}"))
    })
    .await;
    house.close().await;
}
