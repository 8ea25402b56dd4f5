//! Workers that use https, ask for certificates, or need keys of their own.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use grapevine_testbed::fake_worker::{Config, FakeWorker};
use grapevine_tests::admin::Admin;
use grapevine_tests::chat::{self, CHATS, MODEL, Stream, chat, streamed};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1::{self, exchange};
use grapevine_tests::invariants;
use grapevine_tests::tls::{Authority, Front, Pair};
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};

use crate::house::{quick, until_log_says};

const REQUESTS: usize = 40;
const HOSTS: &[&str] = &["localhost", "127.0.0.1"];

fn quoted(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

async fn health(admin: Admin) -> Vec<String> {
    let mut workers = admin.workers().await;
    workers.sort_by(|one, other| one.id.cmp(&other.id));
    workers.into_iter().map(|worker| worker.health).collect()
}

/// Waits until the workers, in the order of their ids, have these healths.
async fn until_health_is(cluster: &Cluster, expected: &[&str]) {
    let admin = cluster.replicas[0].admin();
    eventually(LIMIT, "health is as expected", async || {
        let health = health(admin).await;
        so(health == expected, || {
            format!("{health:?}, not {expected:?}")
        })
    })
    .await;
}

/// Replaces a pair that a replica watches.
fn replace(old: &Pair, new: &Pair) {
    for (from, to) in [(&new.cert, &old.cert), (&new.key, &old.key)] {
        std::fs::copy(from, to).expect("copied");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn https_workers_are_verified_and_shown_a_certificate() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (authority, stranger) = (Authority::new(), Authority::new());
    let fakes = chat::workers(3, &quick()).await;
    let pair = authority.issue(dir.path(), "worker", HOSTS);
    let misnamed = authority.issue(dir.path(), "misnamed", &["other.example"]);
    let fronts = [
        Front::start(&pair, None, fakes[0].addr()).await,
        Front::start(&pair, Some(&authority), fakes[1].addr()).await,
        Front::start(&misnamed, None, fakes[2].addr()).await,
    ];
    // Both are wrong at first: the authority that the replica trusts, and the certificate that it shows.
    let ca = dir.path().join("ca.pem");
    stranger.write(&ca);
    let client = stranger.issue(dir.path(), "client", &["replica.example"]);
    let plan = Plan::default()
        .set("workers.ca", &quoted(&ca))
        .set("workers.client_cert", &quoted(&client.cert))
        .set("workers.client_key", &quoted(&client.key))
        .set("tls.refresh", "\"200ms\"");
    let mut cluster = plan.found().await;
    let admin = cluster.join("r1", Vec::new()).await.admin();
    // A certificate may prove a name or an address.
    let [first, asking, wrong] = fronts;
    admin.add("w1", &first.url("localhost"), &[MODEL]).await;
    admin.add("w2", &asking.url("127.0.0.1"), &[MODEL]).await;
    let data = cluster.replicas[0].data();

    until_health_is(&cluster, &["unhealthy"; 2]).await;
    let refused = http1::post(data, CHATS, &chat("hello", 1)).await;
    assert_eq!(refused.head.status, 503, "{}", refused.text());
    let error: Value = refused.json();
    assert_eq!(error["error"]["code"], "no_worker_available", "{error}");
    assert!(
        fakes.iter().all(|fake| fake.stats().requests == 0),
        "sent to an unknown worker"
    );
    until_log_says(&cluster, "UnknownIssuer").await;

    authority.write(&ca);
    until_health_is(&cluster, &["healthy", "unhealthy"]).await;
    let answer = http1::post(data, CHATS, &chat("hello", 1)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());

    admin
        .add_cold("w3", &wrong.url("localhost"), &[MODEL])
        .await;
    until_log_says(&cluster, "not valid for name").await;
    let known = authority.issue(dir.path(), "known", &["replica.example"]);
    replace(&client, &known);
    until_health_is(&cluster, &["healthy", "healthy", "unhealthy"]).await;
    // Many more than are sent to one worker alone.
    let connections = || first.accepted() + asking.accepted();
    let before = connections();
    for number in 0..REQUESTS {
        let outcome = chat::stream(
            data,
            &streamed(&format!("{number} {}", "x".repeat(9_000)), 3),
        )
        .await;
        assert_eq!(outcome.ending, chat::Ending::Done, "{outcome:?}");
    }
    let opened = connections() - before;
    println!("{REQUESTS} requests to https workers: {opened} connections, checks included");
    assert!(opened < REQUESTS / 2, "connections are not used again");
    let served: Vec<u64> = fakes.iter().map(|fake| fake.stats().requests).collect();
    assert!(
        served[0] > 1 && served[1] > 0 && served[2] == 0,
        "{served:?}"
    );

    let long = streamed("a very long answer", 100_000);
    let mut long = Stream::open(data, &long).await.expect("accepted");
    long.read_events(2).await.expect("it has begun");
    long.leave(false);
    eventually(LIMIT, "the worker sees the close", async || {
        let gone: u64 = fakes.iter().map(|fake| fake.stats().clients_gone).sum();
        so(gone == 1, || format!("{gone} gone"))
    })
    .await;
    invariants::hold(&cluster, &fakes, &["the old ones stay"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_https_address_of_a_plain_port_is_told_to_be_one() {
    let fakes = chat::workers(1, &quick()).await;
    let mut cluster = Plan::default().found().await;
    let admin = cluster.join("r1", Vec::new()).await.admin();
    let url = format!("https://{}", fakes[0].addr());
    admin.add_cold("w1", &url, &[MODEL]).await;
    until_log_says(&cluster, "does not speak TLS: declare it as http://").await;
}

/// Values of `Authorization` that a worker saw in requests.
fn keys_seen(worker: &FakeWorker) -> Vec<String> {
    let entries = worker.log().into_iter();
    let headers = entries.flat_map(|entry| entry.headers);
    let mut seen: Vec<String> = headers
        .filter(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        .map(|(_, value)| value)
        .collect();
    seen.sort();
    seen.dedup();
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn each_worker_gets_its_own_key_and_nobody_else_sees_it() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let key_file = dir.path().join("w1.key");
    std::fs::write(&key_file, "first-own-key\n").expect("written");
    let guarded = Config {
        api_key: Some("first-own-key".to_owned()),
        ..quick()
    };
    let mut workers = vec![chat::worker(guarded).await];
    workers.extend(chat::workers(2, &quick()).await);
    let [own, added, moved] = workers.as_slice() else {
        panic!("three workers");
    };
    let plan = Plan::default()
        .set("workers.api_key", "\"common-key\"")
        .set("tls.refresh", "\"200ms\"")
        .worker_with(
            &own.url(),
            &[],
            &format!("id = \"w1\"\napi_key_file = {}\n", quoted(&key_file)),
        );
    let cluster = plan.start(1).await;
    let admin = cluster.replicas[0].admin();
    let (data, control) = (cluster.replicas[0].data(), admin.0);
    admin.add_cold("w2", &added.url(), &[MODEL]).await;
    until_health_is(&cluster, &["healthy"; 2]).await;
    eventually(
        LIMIT,
        "checks have the key that models are told for",
        async || {
            let workers = admin.workers().await;
            let knows = workers.iter().all(|worker| worker.models == [MODEL]);
            so(knows, || format!("{workers:?}"))
        },
    )
    .await;

    let client = [("authorization", "Bearer client-key")];
    // Enough prompts for two workers to get some of each, and new ones each time: a prompt that went elsewhere while its home
    // was away stays where it is cached.
    let prompts = AtomicUsize::new(0);
    let spread = async || {
        let mut statuses = Vec::new();
        for _ in 0..24 {
            let number = prompts.fetch_add(1, Ordering::Relaxed);
            let body = chat(&format!("{number} {}", "x".repeat(9_000)), 1).to_string();
            let answer = exchange(data, "POST", CHATS, &client, body.as_bytes()).await;
            statuses.push(answer.head.status);
        }
        statuses.sort_unstable();
        statuses.dedup();
        statuses
    };
    assert_eq!(spread().await, [200]);
    assert_eq!(keys_seen(own), ["Bearer first-own-key"]);
    assert_eq!(keys_seen(added), ["Bearer common-key"]);

    std::fs::write(&key_file, "second-own-key\n").expect("written");
    eventually(LIMIT, "the new key is sent", async || {
        spread().await;
        let seen = keys_seen(own);
        so(seen.contains(&"Bearer second-own-key".to_owned()), || {
            format!("{seen:?}")
        })
    })
    .await;

    // A change of a known id to another address does not send its key there.
    let body = json!({ "url": moved.url() }).to_string();
    let answer = exchange(control, "PATCH", "/workers/w1", &[], body.as_bytes()).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    eventually(LIMIT, "requests go to the other address", async || {
        let statuses = spread().await;
        let seen = keys_seen(moved);
        let there = !seen.is_empty() && statuses == [200];
        so(there, || format!("{statuses:?}"))
    })
    .await;
    assert_eq!(keys_seen(moved), ["Bearer common-key"]);
    assert_eq!(keys_seen(added), ["Bearer common-key"]);

    for path in ["/workers", "/workers/w1", "/cluster", "/metrics"] {
        let shown = http1::get(control, path).await.text();
        assert!(
            !shown.contains("own-key") && !shown.contains("common-key"),
            "{path}: {shown}"
        );
    }
    let log = cluster.replicas[0].log();
    assert!(
        !log.contains("own-key") && !log.contains("common-key"),
        "{log}"
    );
    invariants::hold(&cluster, &workers, &[]).await;
}
