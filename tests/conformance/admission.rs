//! Limits hold to the end of an answer, and the queue works: order, shares, deadlines, clients that leave.

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_testbed::fake_worker::{Config, Entry, FakeWorker, Fault, Rule, When};
use grapevine_tests::chat::{self, MODEL, Stream, chat, paced, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, Response, request};
use grapevine_tests::wait::{LIMIT, eventually, quantile};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::errors::assert_error;
use crate::house::{House, quick};
use crate::retries::refusal;

const CHATS: &str = "/v1/chat/completions";

/// A plan for one request at a time, with a queue of this length.
fn narrow(queue: u32) -> Plan {
    Plan::default()
        .set("limits.requests", "1")
        .set("admission.queue_size", &queue.to_string())
}

/// Takes the only place, until it is dropped.
async fn hold(house: &House) -> Stream {
    let body = streamed("held", 100_000);
    let mut held = Stream::open(house.data(), &body).await.expect("accepted");
    held.read_events(1).await.expect("it has begun");
    held
}

/// Sends a request in the background; `id` names it in the worker's log.
fn ask(address: SocketAddr, id: &str, header: (&str, &str)) -> JoinHandle<Response> {
    let headers = [("x-request-id", id), header];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
    tokio::spawn(async move {
        let headers = headers.each_ref().map(|(n, v)| (n.as_str(), v.as_str()));
        let body = chat("waiting", 1).to_string();
        http1::exchange(address, "POST", CHATS, &headers, body.as_bytes()).await
    })
}

/// Waits until so many requests are in queues of this kind.
pub(crate) async fn waiting(house: &House, queue: &str, count: usize) {
    let admin = house.cluster.replicas[0].admin();
    eventually(LIMIT, "requests wait", async || {
        let length = admin.metrics().await.sum("grapevine_queue_length", queue);
        (length == count as f64)
            .then_some(())
            .ok_or_else(|| format!("{length} of {count}"))
    })
    .await;
}

/// The entries of these requests, in the order in which the worker got them.
fn entries_of(house: &House, asked: &[&str]) -> Vec<Entry> {
    let mut log = house.workers[0].log();
    log.retain(|entry| {
        let id = entry.request_id.as_deref();
        id.is_some_and(|id| asked.contains(&id))
    });
    log
}

fn ids_of(entries: &[Entry]) -> Vec<&str> {
    let ids = entries.iter().map(|entry| entry.request_id.as_deref());
    ids.map(|id| id.expect("asked with one")).collect()
}

/// The worker's own count in flight would not do: when a client leaves, its worker notices a moment after the router
/// has freed the place.
fn assert_one_at_a_time(entries: &[Entry]) {
    for pair in entries.windows(2) {
        let end = pair[0].end_us.expect("it is over");
        assert!(pair[1].start_us >= end, "{pair:?}");
    }
}

/// Sends the requests in turn, each one queued before the next, then frees the place; returns the order in which
/// the worker got them.
async fn order(house: &House, asked: &[(&str, (&str, &str))]) -> Vec<Entry> {
    let held = hold(house).await;
    let mut answers = Vec::new();
    for (number, (id, header)) in asked.iter().enumerate() {
        answers.push(ask(house.data(), id, *header));
        waiting(house, "admission", number + 1).await;
    }
    held.leave(false);
    for answer in answers {
        let answer = answer.await.expect("no panic");
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    let ids: Vec<_> = asked.iter().map(|(id, _)| *id).collect();
    entries_of(house, &ids)
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_are_served_in_their_order() {
    let house = House::of(narrow(10), vec![paced(Duration::from_millis(2))]).await;
    let none = ("x-nothing", "1");
    let asked = ["first", "second", "third", "fourth"].map(|id| (id, none));
    let served = order(&house, &asked).await;
    assert_eq!(ids_of(&served), ["first", "second", "third", "fourth"]);
    assert_one_at_a_time(&served);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_more_urgent_go_first_and_none_starves() {
    let plan = narrow(20)
        .set("admission.priority_max", "\"high\"")
        .set("admission.passed_over_max", "2");
    let house = House::of(plan, vec![paced(Duration::from_millis(2))]).await;
    let claim = |class| ("x-priority", class);
    let asked = [
        ("low", claim("low")),
        ("normal", claim("nonsense")),
        ("high-1", claim("high")),
        ("high-2", claim("HIGH")),
        ("high-3", claim("-1")),
        ("high-4", claim("high")),
    ];
    let served = order(&house, &asked).await;
    // Two may overtake the others; then each that was passed over twice has its turn.
    assert_eq!(
        ids_of(&served),
        ["high-1", "high-2", "normal", "low", "high-3", "high-4"]
    );

    // By default a request without a key has at most normal priority.
    let house = House::of(narrow(20), vec![paced(Duration::from_millis(2))]).await;
    let asked = [("usual", claim("normal")), ("bold", claim("high"))];
    assert_eq!(ids_of(&order(&house, &asked).await), ["usual", "bold"]);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_flood_does_not_delay_another() {
    let plan = narrow(20).set("cluster.tenant_header", "\"x-tenant\"");
    let house = House::of(plan, vec![paced(Duration::from_millis(2))]).await;
    let names = ["a1", "a2", "a3", "a4", "a5", "a6", "b1", "b2", "b3"];
    let asked = names.map(|id| (id, ("x-tenant", &id[..1])));
    let served = order(&house, &asked).await;
    let served = ids_of(&served);
    let last_b = served.iter().position(|id| *id == "b3").expect("served");
    assert!(last_b <= 5, "b is served every other time: {served:?}");
    let of = |tenant: &str| {
        let own = served.iter().filter(|id| id.starts_with(tenant));
        own.cloned().collect::<Vec<_>>()
    };
    assert_eq!(of("a"), names[..6], "in their order");
    assert_eq!(of("b"), names[6..], "in their order");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_and_a_long_wait_are_refused_and_never_sent() {
    let plan = narrow(1).set("admission.queue_timeout", "\"4s\"");
    let house = House::of(plan, vec![paced(Duration::from_millis(10))]).await;
    let held = hold(&house).await;
    let late = ask(house.data(), "late", ("x-nothing", "1"));
    waiting(&house, "admission", 1).await;
    let begun = Instant::now();
    let full = ask(house.data(), "full", ("x-nothing", "1"));
    assert_error(&full.await.expect("no panic"), 503, "overloaded");
    println!("refused at a full queue after {:?}", begun.elapsed());
    assert_error(&late.await.expect("no panic"), 503, "overloaded");
    held.leave(false);
    let served = ask(house.data(), "served", ("x-nothing", "1"));
    assert_eq!(served.await.expect("no panic").head.status, 200);
    assert!(house.seen("late").is_empty() && house.seen("full").is_empty());
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    for result in ["queue_full", "queue_timeout"] {
        let counted = metrics.sum("grapevine_admissions_total", result);
        assert_eq!(counted, 1.0, "{result}");
    }
    let admin = house.cluster.replicas[0].admin().0;
    let page = http1::get(admin, "/").await.text();
    for told in [
        "requests that a full queue refused",
        "requests that waited too long",
    ] {
        assert!(page.contains(told), "{told} is not in {page}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_waiting_is_never_sent_to_a_worker() {
    let house = House::of(narrow(10), vec![paced(Duration::from_millis(10))]).await;
    let held = hold(&house).await;
    let mut leavers = Vec::new();
    for (number, by_reset) in [false, true, false, true].into_iter().enumerate() {
        let mut leaver = Connection::open(house.data()).await;
        let body = streamed("leaving", 3).to_string();
        let id = format!("leaver-{number}");
        let bytes = request("POST", CHATS, &[("x-request-id", &id)], body.as_bytes());
        leaver.send(&bytes).await.expect("taken");
        leavers.push((leaver, by_reset));
        waiting(&house, "admission", number + 1).await;
    }
    let stays = ask(house.data(), "stays", ("x-nothing", "1"));
    waiting(&house, "admission", 5).await;
    let left = Instant::now();
    for (leaver, by_reset) in leavers {
        if by_reset {
            leaver.reset();
        }
    }
    waiting(&house, "admission", 1).await;
    println!(
        "4 waiting clients gone: noticed within {:?}",
        left.elapsed()
    );
    held.leave(false);
    assert_eq!(stays.await.expect("no panic").head.status, 200);
    for number in 0..4 {
        let seen = house.seen(&format!("leaver-{number}"));
        assert!(seen.is_empty(), "a leaver was sent: {seen:?}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_asked_for_after_admission_only() {
    let body = chat("expected", 1).to_string();
    let head = format!(
        "POST {CHATS} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\n\r\n",
        body.len()
    );
    let house = House::of(narrow(1), vec![paced(Duration::from_millis(10))]).await;
    let held = hold(&house).await;
    let mut waits = Connection::open(house.data()).await;
    waits.send(head.as_bytes()).await.expect("taken");
    waiting(&house, "admission", 1).await;
    let early = timeout(Duration::from_millis(200), waits.head()).await;
    assert!(
        early.is_err(),
        "asked for before it was admitted: {early:?}"
    );

    // There is no room: the request is refused, and its body is never asked for.
    let mut refused = Connection::open(house.data()).await;
    refused.send(head.as_bytes()).await.expect("taken");
    let answer = refused.response().await.expect("answered");
    assert_error(&answer, 503, "overloaded");

    held.leave(false);
    let go_on = waits.head().await.expect("admitted");
    assert_eq!(go_on.status, 100);
    waits.send(body.as_bytes()).await.expect("taken");
    let answer = waits.response().await.expect("answered");
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    house.close().await;
}

/// All that it announces would count as what its tenant asks for, and nothing of it comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_announced_as_too_long_waits_for_nothing() {
    let house = House::of(narrow(1), vec![paced(Duration::from_millis(10))]).await;
    let held = hold(&house).await;
    let mut huge = Connection::open(house.data()).await;
    let length = 16_u64 << 30;
    let head = format!("POST {CHATS} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    huge.send(head.as_bytes()).await.expect("taken");
    let answer = huge.response().await.expect("answered");
    assert_error(&answer, 413, "request_too_large");
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let counted = metrics.sum("grapevine_limits_reached_total", "\"body_bytes\"");
    assert_eq!(counted, 1.0);
    held.leave(false);
    house.close().await;
}

/// A worker with a lower limit than its replica.
async fn worker_with_room_for_one(plan: Plan) -> House {
    let worker = chat::worker(paced(Duration::from_millis(10))).await;
    let url = worker.url();
    let plan = plan.set(
        "worker",
        &format!("[{{ url = {url:?}, models = [{MODEL:?}], max_in_flight = 1 }}]"),
    );
    let mut cluster = plan.found().await;
    let admin = cluster.join("r1", Vec::new()).await.admin();
    eventually(LIMIT, "the replica knows its worker", async || {
        let known = admin.ring().await.workers;
        (known == 1).then_some(()).ok_or_else(|| "none".to_owned())
    })
    .await;
    House {
        cluster,
        workers: vec![worker],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn room_at_a_worker_is_waited_for() {
    let house = worker_with_room_for_one(Plan::default()).await;
    let held = hold(&house).await;
    let none = ("x-nothing", "1");
    let mut answers = Vec::new();
    for (number, id) in ["one", "two", "three"].into_iter().enumerate() {
        answers.push(ask(house.data(), id, none));
        waiting(&house, "worker", number + 1).await;
    }
    held.leave(false);
    for answer in answers {
        let answer = answer.await.expect("no panic");
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    let served = entries_of(&house, &["one", "two", "three"]);
    assert_eq!(ids_of(&served), ["one", "two", "three"]);
    assert_one_at_a_time(&served);
    house.close().await;
}

/// What an operator does about a queue helps those that wait in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_added_takes_those_that_wait() {
    let house = worker_with_room_for_one(Plan::default()).await;
    let held = hold(&house).await;
    let none = ("x-nothing", "1");
    let mut answers = Vec::new();
    for (number, id) in ["one", "two"].into_iter().enumerate() {
        answers.push(ask(house.data(), id, none));
        waiting(&house, "worker", number + 1).await;
    }
    let new = chat::worker(paced(Duration::from_millis(10))).await;
    let admin = house.cluster.replicas[0].admin();
    admin.add_cold(&new.url(), &new.url(), &[MODEL]).await;
    for answer in answers {
        let answer = answer.await.expect("no panic");
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    let went = |worker: &FakeWorker| worker.stats().requests;
    assert_eq!(went(&new), 2);
    // And one that is drained gets none of them, though it has room again.
    admin
        .change(&new.url(), &json!({ "max_in_flight": 1 }))
        .await;
    let also = Stream::open(house.data(), &streamed("hold the other", 100_000)).await;
    let also = also.expect("it has begun");
    let before = went(&house.workers[0]);
    let answer = ask(house.data(), "three", none);
    waiting(&house, "worker", 1).await;
    let drained = json!({ "state": "draining" });
    admin.change(&house.workers[0].url(), &drained).await;
    held.leave(false);
    also.leave(false);
    let answer = answer.await.expect("no panic");
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert_eq!(went(&house.workers[0]), before);
    house.close().await;
}

/// While one that it may have is merely full a request waits, although another wants to be left alone.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_goes_by_the_workers_of_now() {
    let house = worker_with_room_for_one(Plan::default()).await;
    let (address, former) = (house.data(), &house.workers[0]);
    let asked = json!({ "model": MODEL, "input": "x", "max_output_tokens": 1 });
    let made = http1::post(address, "/v1/responses", &asked).await;
    let id = made.json::<Value>()["id"].as_str().map(str::to_owned);
    let path = format!("/v1/responses/{}", id.expect("an id"));
    let held = hold(&house).await;
    // The first that waits takes the only place of the new one.
    let body = streamed("held there", 100_000);
    let first = tokio::spawn(async move { Stream::open(address, &body).await });
    waiting(&house, "worker", 1).await;
    let mut second = ask(address, "second", ("x-nothing", "1"));
    waiting(&house, "worker", 2).await;
    let new = chat::worker(paced(Duration::from_millis(10))).await;
    let worker = json!({
        "id": new.url(), "url": new.url(), "models": [MODEL], "max_in_flight": 1,
    });
    let admin = house.cluster.replicas[0].admin();
    admin.add_described(&worker).await;
    let first = first.await.expect("no panic").expect("it has begun");
    waiting(&house, "worker", 1).await;
    // What a response is read by takes no place of its worker.
    let rule = Rule {
        when: When {
            path: Some(path.clone()),
            ..When::default()
        },
        ..Rule::always(refusal(503, "30"))
    };
    former.add_rule(rule).expect("room for a rule");
    let refused = http1::get(address, &path).await;
    assert_eq!(refused.head.status, 503, "{}", refused.text());
    let early = timeout(Duration::from_millis(200), &mut second).await;
    assert!(early.is_err(), "sent away: {early:?}");
    first.leave(false);
    let answer = second.await.expect("no panic");
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert_eq!(new.stats().requests, 2);
    held.leave(false);
    house.close().await;
}

/// Who waits for room at a worker that is removed gets what a new request gets, and does not go there.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_model_that_goes_is_told_so() {
    let house = worker_with_room_for_one(Plan::default()).await;
    let admin = house.cluster.replicas[0].admin();
    let held = hold(&house).await;
    let last = ask(house.data(), "last", ("x-nothing", "1"));
    waiting(&house, "worker", 1).await;
    let former = house.workers[0].url();
    admin.remove(&former).await;
    assert_error(&last.await.expect("no panic"), 503, "no_worker_available");

    // Beside another model its own is unknown. What the worker still had counts there until it has ended.
    held.leave(false);
    let other = chat::worker(paced(Duration::from_millis(10))).await;
    admin.add_cold("other", &other.url(), &["other"]).await;
    let worker = json!({
        "id": former, "url": former, "models": [MODEL], "max_in_flight": 1,
    });
    admin.add_described(&worker).await;
    let again = hold(&house).await;
    let gone = ask(house.data(), "gone", ("x-nothing", "1"));
    waiting(&house, "worker", 1).await;
    admin.remove(&former).await;
    assert_error(&gone.await.expect("no panic"), 404, "model_not_found");
    for id in ["last", "gone"] {
        assert!(house.seen(id).is_empty(), "{id} was sent");
    }
    again.leave(false);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_takes_longer_than_the_queue_may_wait_all_the_same() {
    let plan = Plan::default().set("admission.queue_timeout", "\"4s\"");
    let house = worker_with_room_for_one(plan).await;
    let held = hold(&house).await;
    let body = chat("slowly", 1).to_string();
    let bytes = request("POST", CHATS, &[], body.as_bytes());
    let (most, rest) = bytes.split_at(bytes.len() - 1);
    let mut slow = Connection::open(house.data()).await;
    slow.send(most).await.expect("taken");
    // The client's own time: it does not wait for the replica.
    sleep(Duration::from_secs(5)).await;
    slow.send(rest).await.expect("taken");
    waiting(&house, "worker", 1).await;
    held.leave(false);
    let answer = slow.response().await.expect("answered");
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    house.close().await;
}

/// Results of a load.
#[derive(Default)]
struct Got {
    served: usize,
    refused: Vec<Duration>,
}

/// `clients` send requests again and again for `time`; a refused one tries again after `pause`.
async fn load(address: SocketAddr, clients: usize, time: Duration, pause: Duration) -> Got {
    let until = Instant::now() + time;
    let client = |number: usize| async move {
        let mut got = Got::default();
        let body = chat(&format!("client {number}"), 40);
        while Instant::now() < until {
            let asked = Instant::now();
            let answer = http1::post(address, CHATS, &body).await;
            if answer.head.status == 200 {
                got.served += 1;
            } else {
                assert_error(&answer, 503, "overloaded");
                got.refused.push(asked.elapsed());
                sleep(pause).await;
            }
        }
        got
    };
    let clients: Vec<_> = (0..clients)
        .map(|number| tokio::spawn(client(number)))
        .collect();
    let mut all = Got::default();
    for client in clients {
        let got = client.await.expect("no panic");
        all.served += got.served;
        all.refused.extend(got.refused);
    }
    all.refused.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overload_is_turned_away_and_capacity_goes_on_being_used() {
    const PLACES: usize = 4;
    let plan = Plan::default()
        .set("limits.requests", &PLACES.to_string())
        .set("admission.queue_size", &PLACES.to_string());
    let config = Config {
        ..paced(Duration::from_millis(5))
    };
    let house = House::of(plan, vec![config]).await;
    let second = Duration::from_millis(1_500);
    let capacity = load(house.data(), PLACES, second, Duration::ZERO).await;
    assert!(capacity.refused.is_empty(), "the capacity is no overload");
    let pause = Duration::from_millis(200);
    let overload = load(house.data(), 10 * PLACES, 2 * second, pause).await;
    let share = overload.served as f64 / (2 * capacity.served) as f64;
    println!(
        "10 x capacity: goodput {:.0} % of capacity (90 % promised); {} refused, p50 {:?}, p99 {:?} (100 ms promised)",
        100.0 * share,
        overload.refused.len(),
        quantile(&overload.refused, 0.5),
        quantile(&overload.refused, 0.99),
    );
    assert!(
        overload.refused.len() > overload.served,
        "it was no overload"
    );
    // The machine may be busier than it was when the capacity was measured.
    assert!(share > 0.25, "{share} of the capacity was used");
    assert_eq!(house.workers[0].stats().in_flight_peak as usize, PLACES);
    let after = Instant::now();
    let answer = http1::post(house.data(), CHATS, &chat("after", 1)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    println!("served again after {:?}", after.elapsed());
    waiting(&house, "admission", 0).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_room_is_429_where_that_was_chosen() {
    let plan = narrow(0).set("admission.no_room_status", "429");
    let house = House::of(plan, vec![quick()]).await;
    let held = hold(&house).await;
    let answer = http1::post(house.data(), CHATS, &chat("no room", 1)).await;
    assert_error(&answer, 429, "overloaded");
    assert_eq!(answer.head.header("retry-after"), Some("1"));
    held.leave(false);
    // A worker's own report that it is full; an answer for another reason stays as it is.
    for (said, shown) in [(503, 429), (500, 500)] {
        let rule = Rule::always(Fault::status(said));
        house.workers[0].add_rule(rule).expect("room for a rule");
        let answer = eventually(LIMIT, "the held one's place is free", async || {
            let answer = http1::post(house.data(), CHATS, &chat("full worker", 1)).await;
            let is_ours = answer.text().contains("\"overloaded\"");
            (!is_ours)
                .then_some(answer)
                .ok_or_else(|| "not yet".to_owned())
        });
        let (answer, _) = answer.await;
        assert_eq!(answer.head.status, shown, "{}", answer.text());
        assert_eq!(answer.head.header("retry-after").is_some(), shown == 429);
        house.workers[0].clear_rules();
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_queue_refuses_at_once() {
    let house = House::of(narrow(0), vec![quick()]).await;
    let held = hold(&house).await;
    let answer = http1::post(house.data(), CHATS, &chat("no room", 1)).await;
    assert_error(&answer, 503, "overloaded");
    held.leave(false);
    house.close().await;
}
