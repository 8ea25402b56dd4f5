//! Two models behind one replica: when the requests of one fill every place and the queue, the other does not
//! wait.

use std::time::Duration;

use grapevine_testbed::fake_worker::Config;
use grapevine_tests::chat::{CHATS, MODEL, Stream, chat, paced, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, Response};
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::errors::assert_error;
use crate::house::House;

const LARGE: &str = MODEL;
const SMALL: &str = "small";
/// Places of the replica; of these one is kept for each model, and one for reading bodies.
const PLACES: usize = 5;

fn serving(model: &str) -> Config {
    Config {
        models: vec![model.to_owned()],
        ..paced(Duration::from_millis(20))
    }
}

fn of(model: &str, mut body: Value) -> Value {
    body["model"] = model.into();
    body
}

/// A worker for each model behind a replica with few places.
async fn house(queue: usize) -> House {
    let plan = Plan::default()
        .set("limits.requests", &PLACES.to_string())
        .set("admission.queue_size", &queue.to_string())
        .set("transfer.from_clients", "true");
    House::of(plan, vec![serving(LARGE), serving(SMALL)]).await
}

async fn sum(house: &House, name: &str, labels: &str) -> f64 {
    let admin = house.cluster.replicas[0].admin();
    admin.metrics().await.sum(name, labels)
}

/// Waits until so many requests wait for a place.
async fn queued(house: &House, count: usize) {
    eventually(LIMIT, "requests wait", async || {
        let length = sum(house, "grapevine_queue_length", "admission").await;
        so(length == count as f64, || format!("{length} of {count}"))
    })
    .await;
}

/// Opens streams of the large model until they are queued, and then fills the queue; both are held.
async fn flood(house: &House, queue: usize) -> (Vec<Stream>, Vec<JoinHandle<Response>>) {
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    let data = house.data();
    loop {
        let body = of(LARGE, streamed(&format!("held {}", held.len()), 4_000));
        let opened = tokio::select! {
            opened = Stream::open(data, &body) => opened,
            () = queued(house, 1) => break,
        };
        let mut opened = opened.expect("accepted");
        opened.read_events(1).await.expect("it has begun");
        held.push(opened);
        assert!(held.len() <= PLACES, "more than the places");
    }
    // The request without a place has left.
    queued(house, 0).await;
    for number in 0..queue {
        let body = of(LARGE, chat(&format!("waits {number}"), 1));
        waiting.push(tokio::spawn(async move {
            http1::post(data, CHATS, &body).await
        }));
        queued(house, number + 1).await;
    }
    (held, waiting)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_models_requests_do_not_wait_behind_a_large_ones() {
    const QUEUE: usize = 3;
    let house = house(QUEUE).await;
    let (held, waiting) = flood(&house, QUEUE).await;
    println!("{} streams of the large model hold places", held.len());
    assert!(held.len() > 1, "a busy model takes more than its reserve");
    let full = http1::post(house.data(), CHATS, &of(LARGE, chat("one more", 1))).await;
    assert_error(&full, 503, "overloaded");

    for number in 0..10 {
        let body = of(SMALL, chat(&format!("question {number}"), 1));
        let answer = timeout(LIMIT, http1::post(house.data(), CHATS, &body)).await;
        let answer = answer.expect("it waits behind the large model's");
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        assert_eq!(answer.json::<Value>()["model"], SMALL);
    }
    // No request of the large model ended meanwhile, and only its requests had to wait.
    let length = sum(&house, "grapevine_queue_length", "admission").await;
    assert_eq!(length, QUEUE as f64);
    let waited = sum(&house, "grapevine_queue_wait_seconds_count", "admission").await;
    assert_eq!(waited, 1.0, "whoever is refused at once has not waited");

    for stream in held {
        stream.leave(false);
    }
    for answer in waiting {
        let answer = answer.await.expect("no panic");
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_place_of_a_model_that_goes_is_told_so() {
    let house = house(1).await;
    let (held, waiting) = flood(&house, 1).await;
    let sent = house.workers[0].stats().requests;
    let admin = house.cluster.replicas[0].admin();
    admin.remove(&house.workers[0].url()).await;
    for stream in held {
        stream.leave(false);
    }
    for answer in waiting {
        assert_error(&answer.await.expect("no panic"), 404, "model_not_found");
    }
    assert_eq!(house.workers[0].stats().requests, sent);
}

/// Where workers take halves of requests no client says itself where blocks are, also one that came before.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_while_workers_get_roles_is_looked_at_anew() {
    let house = house(1).await;
    let (held, _) = flood(&house, 0).await;
    let (data, admin) = (house.data(), house.cluster.replicas[0].admin());
    let mut body = of(LARGE, chat("says where its blocks are", 1));
    body["kv_transfer_params"] = json!({ "do_remote_prefill": true });
    let steers = body.clone();
    let waits = tokio::spawn(async move { http1::post(data, CHATS, &steers).await });
    queued(&house, 1).await;
    let url = house.workers[0].url();
    admin.change(&url, &json!({ "role": "decode" })).await;
    let target = format!("/explain?path={CHATS}");
    eventually(LIMIT, "its worker has the role", async || {
        let explained = http1::post(admin.0, &target, &body).await;
        let refused = explained.head.status == 400;
        so(refused, || explained.text())
    })
    .await;
    let sent = house.workers[0].stats().requests;
    for stream in held {
        stream.leave(false);
    }
    let answer = waits.await.expect("no panic");
    assert_error(&answer, 400, "invalid_request");
    assert_eq!(house.workers[0].stats().requests, sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_asked_for_while_a_large_model_waits() {
    let house = house(1).await;
    let (held, waiting) = flood(&house, 1).await;
    let body = of(SMALL, chat("expected", 1)).to_string();
    let head = format!(
        "POST {CHATS} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\n\r\n",
        body.len()
    );
    let mut asks = Connection::open(house.data()).await;
    asks.send(head.as_bytes()).await.expect("taken");
    let go_on = timeout(LIMIT, asks.head()).await.expect("not asked for");
    assert_eq!(go_on.expect("a head").status, 100);
    // While its body is read the request holds the place for reading: the next one waits, unread.
    let mut next = Connection::open(house.data()).await;
    next.send(head.as_bytes()).await.expect("taken");
    queued(&house, 2).await;
    asks.send(body.as_bytes()).await.expect("taken");
    let answer = asks.response().await.expect("answered");
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert_eq!(next.head().await.expect("its turn").status, 100);
    next.send(body.as_bytes()).await.expect("taken");
    let answer = next.response().await.expect("answered");
    assert_eq!(answer.head.status, 200, "{}", answer.text());

    for stream in held {
        stream.leave(false);
    }
    for answer in waiting {
        assert_eq!(answer.await.expect("no panic").head.status, 200);
    }
    house.close().await;
}
