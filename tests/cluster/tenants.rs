//! Limits of a key hold over all replicas together.

use std::time::Duration;

use grapevine_tests::chat::{self, CHATS, chat};
use grapevine_tests::cluster::Replica;
use grapevine_tests::http1::{self, Response};
use grapevine_tests::invariants;
use grapevine_tests::keys::KeyFile;
use grapevine_tests::wait::{LIMIT, eventually, so};

async fn ask(replica: &Replica, key: &str) -> Response {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str())];
    let body = chat("short", 1).to_string();
    http1::exchange(replica.data(), "POST", CHATS, &headers, body.as_bytes()).await
}

/// Waits until a replica answers the key with this status.
async fn answers(replica: &Replica, key: &str, status: u16) {
    eventually(
        LIMIT,
        "replicas hear of each other's requests",
        async || {
            let found = ask(replica, key).await.head.status;
            so(found == status, || {
                format!("{} says {found}, not {status}", replica.name)
            })
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_key_hold_over_the_cluster() {
    let mut file = KeyFile::new();
    let counted = file.add("counted", "max_requests = 2").await;
    let alone = file.add("alone", "max_requests = 2\ncluster = false").await;
    let rated = file.add("rated", "requests_per_minute = 4").await;
    let workers = chat::workers(2, &chat::paced(Duration::from_millis(10))).await;
    let cluster = file.plan().workers(&workers).start(2).await;
    let [one, other] = &cluster.replicas[..] else {
        panic!("two replicas");
    };

    let mut held = vec![
        chat::held(one.data(), &counted).await,
        chat::held(one.data(), &counted).await,
    ];
    answers(other, &counted, 429).await;
    // One ends at one replica, and there is room at the other.
    held.pop();
    answers(other, &counted, 200).await;
    held.push(chat::held(other.data(), &counted).await);
    answers(one, &counted, 429).await;
    drop(held);
    for replica in [one, other] {
        answers(replica, &counted, 200).await;
    }

    // A limit of each replica: requests on the other one do not count.
    let held = [
        chat::held(one.data(), &alone).await,
        chat::held(one.data(), &alone).await,
    ];
    assert_eq!(ask(one, &alone).await.head.status, 429);
    assert_eq!(ask(other, &alone).await.head.status, 200);
    drop(held);

    for replica in [one, other] {
        // On a busy machine they may have lost each other for a moment.
        eventually(
            LIMIT,
            "it knows of two replicas that are ready",
            async || {
                let view = replica.admin().view().await;
                let ready = view.replicas.iter().filter(|of| of.live && of.ready);
                let is_shared = ready.count() == 2;
                so(is_shared, || format!("{view:?}"))
            },
        )
        .await;
        for remaining in ["1", "0"] {
            let answer = ask(replica, &rated).await;
            assert_eq!(answer.head.status, 200, "{}", answer.text());
            let told = answer.head.header("x-ratelimit-remaining-requests");
            assert_eq!(told, Some(remaining), "half of four");
        }
        assert_eq!(ask(replica, &rated).await.head.status, 429);
    }
    invariants::hold(&cluster, &workers, &[]).await;
}
