//! Metrics and model lists of workers: late, too long, malformed, after a restart, from another address.

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_testbed::fake_worker::{Canned, Config, Fault, Rule, When};
use grapevine_tests::chat::{self, CHATS, MODEL, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::house::{House, quick};

fn metrics_are(fault: Fault) -> Rule {
    let when = When {
        path: Some("/metrics".to_owned()),
        ..When::default()
    };
    Rule {
        when,
        ..Rule::always(fault)
    }
}

fn metrics_say(text: &str, repeat: u32) -> Rule {
    let reply = Canned {
        status: 200,
        headers: Vec::new(),
        body: Some(text.to_owned()),
        repeat,
        gzip: false,
    };
    metrics_are(Fault {
        reply: Some(reply),
        ..Fault::default()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_that_are_late_huge_or_senseless_make_no_worker_sick() {
    let plan = Plan::default().set("health.scrape_timeout", "\"1min\"");
    let mut cluster = plan.found().await;
    let admin = cluster.join("r1", Vec::new()).await.admin();
    let rules = [
        metrics_are(Fault::delay_ms(3_600_000)),
        metrics_say(&"x".repeat(1024), 10 * 1024),
        metrics_say(
            "\0\u{1f347} vllm:cache_config_info{ \nprocess_start_time_seconds x\n",
            1,
        ),
    ];
    let mut workers = Vec::new();
    for rule in rules {
        let worker = chat::worker(quick()).await;
        worker.add_rule(rule).expect("there is room");
        admin.add_cold(&worker.url(), &worker.url(), &[MODEL]).await;
        workers.push(worker);
    }
    let count = |at: usize, path: &str| workers[at].stats().paths.get(path).copied().unwrap_or(0);
    for (at, worker) in workers.iter().enumerate() {
        eventually(
            LIMIT,
            "asked, and probed many times meanwhile",
            async || {
                let (scrapes, probes) = (count(at, "/metrics"), count(at, "/health"));
                so(scrapes >= 1 && probes >= 20, || {
                    format!("{scrapes} scrapes, {probes} probes")
                })
            },
        )
        .await;
        let seen = admin.worker(&worker.url()).await;
        assert_eq!((&*seen.verdict, &*seen.health), ("good", "healthy"));
        // No late or truncated page was used.
        assert_eq!(seen.metrics_age_s.is_some(), at == 2, "{seen:?}");
        assert_eq!(seen.epoch, 0, "{seen:?}");
    }
    let data = cluster.replicas[0].data();
    for number in 0..30 {
        let answer = http1::post(data, CHATS, &chat(&format!("question {number}"), 1)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    House { cluster, workers }.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_restarted_keeps_its_keys_and_starts_slowly() {
    // Asked again after 60 probes.
    let plan = Plan::default().set("health.interval", "\"20ms\"");
    let plan = plan.set("health.slow_start", "\"1h\"");
    let house = House::of(plan, vec![quick(); 3]).await;
    let admin = house.cluster.replicas[0].admin();
    let chats = chat::distinct(60);
    let home = house.home(&chats[0]).await;
    let (worker, url) = (&house.workers[home], house.workers[home].url());
    eventually(LIMIT, "its start is known", async || {
        let seen = admin.worker(&url).await;
        let known = seen.epoch > 0;
        so(known, || format!("{seen:?}"))
    })
    .await;
    assert_eq!(
        admin.worker(&url).await.slow_start,
        None,
        "the first word about it is no restart"
    );
    let before = admin.explain(&chats).await;
    worker.restart();
    eventually(LIMIT, "the restart is known", async || {
        let seen = admin.worker(&url).await;
        let slow = seen.slow_start.is_some_and(|share| share < 0.25);
        so(slow, || format!("{seen:?}"))
    })
    .await;
    let homes = |explained: Vec<grapevine_tests::admin::Explained>| -> Vec<_> {
        explained.into_iter().map(|one| one.home).collect()
    };
    let before = homes(before);
    assert_eq!(homes(admin.explain(&chats).await), before);
    // One at a time, the worker still serves its own requests.
    let answer = http1::post(house.data(), CHATS, &chats[0]).await;
    assert_eq!(answer.head.status, 200);
    house.close().await;
}

/// TCP connections of this machine that are open to an address.
fn connections_to(address: SocketAddr) -> usize {
    let SocketAddr::V4(address) = address else {
        panic!("tests listen on IPv4");
    };
    let ip = u32::from_le_bytes(address.ip().octets());
    let remote = format!("{ip:08X}:{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux tells its connections");
    let is_open = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Local address, remote address, state; 01 is ESTABLISHED.
        fields.get(2) == Some(&remote.as_str()) && fields.get(3) == Some(&"01")
    };
    table.lines().filter(is_open).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_at_another_address_is_left_at_the_old_one() {
    let patient = Config {
        keep_alive: Duration::from_secs(3600),
        ..quick()
    };
    let old = chat::worker(patient.clone()).await;
    let new = chat::worker(patient).await;
    let plan = Plan::default().set("timeouts.upstream_idle", "\"1h\"");
    let mut cluster = plan.found().await;
    let admin = cluster.join("r1", Vec::new()).await.admin();
    let data = cluster.replicas[0].data();
    admin.add_cold("w", &old.url(), &[MODEL]).await;
    let ask = async || {
        for number in 0..20 {
            let answer = http1::post(data, CHATS, &chat(&format!("question {number}"), 1)).await;
            assert_eq!(answer.head.status, 200, "{}", answer.text());
        }
    };
    eventually(LIMIT, "the worker is known", async || {
        let known = admin.ring().await.workers;
        so(known == 1, || format!("{known}"))
    })
    .await;
    ask().await;
    assert!(connections_to(old.addr()) > 0 && old.log().len() == 20);

    admin.add_cold("w", &new.url(), &[MODEL]).await;
    let (_, took) = eventually(LIMIT, "a request goes to the new address", async || {
        ask().await;
        let seen = new.log().len();
        so(seen > 0, || format!("{seen}"))
    })
    .await;
    let before = old.log().len();
    ask().await;
    assert_eq!(
        old.log().len(),
        before,
        "the old address is not used any more"
    );
    println!("20 requests, some of them to the new address, took {took:?}");
    let (_, took) = eventually(LIMIT, "no connection to the old address", async || {
        let open = connections_to(old.addr());
        so(open == 0, || format!("{open}"))
    })
    .await;
    println!("no connection to the old address {took:?} later");
    let workers = vec![old, new];
    House { cluster, workers }.close().await;
}

/// A connection that its worker has closed would stay half open until the next check.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_rest_are_closed_however_seldom_their_worker_is_checked() {
    let plan = Plan::default().set("health.interval", "\"1h\"");
    let plan = plan.set("timeouts.upstream_idle", "\"1s\"");
    let house = House::of(plan, vec![quick()]).await;
    let admin = house.cluster.replicas[0].admin();
    let resting = async || {
        let shown: Value = http1::get(admin.0, "/workers").await.json();
        shown["workers"][0]["idle_connections"]
            .as_u64()
            .unwrap_or_else(|| panic!("{shown}"))
    };
    let data = house.data();
    eventually(LIMIT, "connections rest", async || {
        let mut wave = JoinSet::new();
        for number in 0..20 {
            wave.spawn(async move {
                let body = chat(&format!("question {number}"), 1);
                http1::post(data, CHATS, &body).await.head.status
            });
        }
        assert_eq!(wave.join_all().await, [200; 20]);
        let resting = resting().await;
        so(resting > 0, || format!("{resting} rest"))
    })
    .await;
    eventually(LIMIT, "they are closed", async || {
        let resting = resting().await;
        so(resting == 0, || format!("{resting} rest"))
    })
    .await;
    house.close().await;
}
