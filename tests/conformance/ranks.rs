//! A client's `X-data-parallel-rank` chooses among workers that share an address, and reaches all others
//! unchanged.

use grapevine_testbed::fake_worker::Config;
use grapevine_tests::chat::{self, CHATS, MODEL, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Response};
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};

use crate::errors::assert_error;
use crate::house::{House, quick};

const RANK: &str = "x-data-parallel-rank";

/// A worker with so many engines behind its address.
fn engines(count: u32) -> Config {
    Config {
        data_parallel: count,
        ..quick()
    }
}

async fn ask(house: &House, number: usize, rank: Option<&str>) -> Response {
    let id = format!("ask-{number}");
    let mut headers = vec![("x-request-id", id.as_str())];
    headers.extend(rank.map(|rank| (RANK, rank)));
    let body = chat(&format!("question {number}"), 1).to_string();
    http1::exchange(house.data(), "POST", CHATS, &headers, body.as_bytes()).await
}

/// Where it would go, as the admin port says.
async fn explain(house: &House, number: usize, rank: &str) -> Value {
    let admin = house.cluster.replicas[0].admin().0;
    let body = chat(&format!("question {number}"), 1).to_string();
    let answer = http1::exchange(admin, "POST", "/explain", &[(RANK, rank)], body.as_bytes()).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    answer.json()
}

/// The ranks that the worker saw for this request.
fn seen(house: &House, number: usize) -> Vec<String> {
    let entries = house.seen(&format!("ask-{number}")).into_iter();
    let headers = entries.flat_map(|entry| entry.headers);
    let ranks = headers.filter(|(name, _)| name.eq_ignore_ascii_case(RANK));
    ranks.map(|(_, value)| value).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_names_a_rank_gets_it() {
    let worker = chat::worker(engines(3)).await;
    let plan = [0, 1, 2].iter().fold(Plan::default(), |plan, rank| {
        plan.worker(&format!("{}@{rank}", worker.url()), &[MODEL])
    });
    let house = House::with(plan, vec![worker]).await;
    let mut homes = std::collections::BTreeSet::new();
    for number in 0..30 {
        let named = ["0", "1", "2"][number % 3];
        let answer = ask(&house, number, Some(named)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        assert_eq!(seen(&house, number), [named], "of request {number}");
        let explained = explain(&house, number, named).await;
        let worker = format!("{}@{named}", house.workers[0].url());
        assert_eq!(explained["worker"], worker.as_str(), "{explained}");
        let answer = ask(&house, 100 + number, None).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        homes.extend(seen(&house, 100 + number));
    }
    assert!(homes.len() > 1, "without it the router chooses: {homes:?}");
    for (number, nobodys) in ["3", "-1", "x", "1, 1"].into_iter().enumerate() {
        let answer = ask(&house, 200 + number, Some(nobodys)).await;
        assert_error(&answer, 400, "invalid_request");
        assert!(
            answer.text().contains("X-data-parallel-rank"),
            "{}",
            answer.text()
        );
        assert!(seen(&house, 200 + number).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_rank_chooses_among_its_engines_by_itself() {
    let worker = chat::worker(engines(8)).await;
    let plan = Plan::default().workers([&worker]);
    let house = House::with(plan, vec![worker]).await;
    for (number, rank) in ["7", "as it came"].into_iter().enumerate() {
        let answer = ask(&house, number, Some(rank)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        assert_eq!(seen(&house, number), [rank]);
    }
    house.close().await;
}

/// The header that an engine refuses then is the replica's own: its client does not get that.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_the_engine_does_not_have_is_no_mistake_of_the_clients() {
    let worker = chat::worker(engines(1)).await;
    let plan = [0, 1].iter().fold(Plan::default(), |plan, rank| {
        plan.worker(&format!("{}@{rank}", worker.url()), &[MODEL])
    });
    let plan = plan.set("retry.budget_floor", "100");
    let house = House::with(plan, vec![worker]).await;
    let admin = house.cluster.replicas[0].admin();
    let wrong = format!("{}@1", house.workers[0].url());
    let mut number = 0;
    eventually(LIMIT, "its worker is shown", async || {
        let answer = ask(&house, number, None).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        number += 1;
        let verdict = admin.worker(&wrong).await.verdict;
        (verdict == "ejected").then_some(()).ok_or(verdict)
    })
    .await;
    // Where there is no other, it is the router's word: the client has done nothing wrong.
    let right = format!("{}@0", house.workers[0].url());
    admin.change(&right, &json!({ "state": "draining" })).await;
    let refused = ask(&house, number, None).await;
    assert!(refused.head.status >= 500, "{}", refused.text());
}
