//! Evidence between peers that are not alike: one that is full and others that are empty, one that is set to send far
//! more than others take. Real sockets and certificates on loopback.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::listening::Listening;
use crate::running::{LIMIT, Running, authority};
use grapevine_gossip::config::EvidenceConfig;
use grapevine_gossip::evidence::{Evidence, EvidenceEvent, LINKS_MAX};
use grapevine_gossip::identity::Authority;
use grapevine_gossip::worker::{RawWorker, WorkerId, WorkerSpec};
use tokio::time::timeout;

async fn start(
    authority: &Authority,
    replica: &str,
    seeds: &[String],
    evidence: EvidenceConfig,
) -> Listening {
    let running = Running::of_limits(authority, replica, seeds, evidence).await;
    let spec = WorkerSpec::new(RawWorker::at(worker().as_str())).expect("valid");
    running.agent.configure(worker(), spec).expect("room");
    Listening::to(running)
}

fn worker() -> WorkerId {
    "http://127.0.0.1:8000".parse().expect("valid")
}

fn evidence(links: impl IntoIterator<Item = u64>) -> Evidence {
    Evidence {
        worker: worker(),
        epoch: 0,
        links: links.into_iter().collect(),
    }
}

/// The seeds of the new replica have just started; the others that they know are full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_takes_from_the_fullest() {
    const BELIEVED: u64 = 1_000;
    let authority = authority();
    let limits = EvidenceConfig::default;
    let full = start(&authority, "full", &[], limits()).await;
    full.agent
        .serve_evidence(Arc::new(|| (0..BELIEVED).map(|n| evidence([n])).collect()));
    let empty = start(&authority, "empty", &[full.seed()], limits()).await;
    let few = start(&authority, "few", &[full.seed()], limits()).await;
    few.agent.serve_evidence(Arc::new(|| vec![evidence([7])]));
    for running in [&full, &empty, &few] {
        running.becomes_ready().await;
        running.is_linked_to(2).await;
    }
    for round in 0..5 {
        let seeds = [empty.seed(), few.seed()];
        let seeds = &seeds[..1 + round % 2];
        let mut newcomer = start(&authority, &format!("new{round}"), seeds, limits()).await;
        newcomer.becomes_ready().await;
        let mut taken = BTreeSet::new();
        while taken.len() < BELIEVED as usize {
            let heard = timeout(LIMIT, newcomer.events.recv())
                .await
                .expect("in time");
            if let EvidenceEvent::Evidence { from, evidence } = heard.expect("the agent runs") {
                assert_eq!(from.as_str(), "full");
                taken.extend(evidence.links);
            }
        }
        newcomer.agent.shutdown().await;
    }
    for running in [full, empty, few] {
        running.agent.shutdown().await;
    }
}

/// One replica is set to send sixteen times what the others take, and does: that is dropped, and nobody is cut off for
/// other settings. The others lose nothing of each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_replica_of_other_settings_sends_too_much_is_dropped_and_others_stay_whole() {
    let authority = authority();
    let narrow = || EvidenceConfig {
        peer_bytes_per_s: 64 << 10,
        ..EvidenceConfig::default()
    };
    let a = start(&authority, "a", &[], narrow()).await;
    let mut b = start(&authority, "b", &[a.seed()], narrow()).await;
    let wide = EvidenceConfig {
        peer_bytes_per_s: 4 << 20,
        log_bytes: 64 << 20,
        ..EvidenceConfig::default()
    };
    let flooder = start(&authority, "f", &[a.seed(), b.seed()], wide).await;
    for running in [&a, &b, &flooder] {
        running.becomes_ready().await;
        running.is_linked_to(2).await;
    }
    let tasks = tokio_util::task::TaskTracker::new();
    let agent = flooder.agent.clone();
    let flood = tasks.spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(20));
        loop {
            tick.tick().await;
            for n in 0..512 {
                agent.send_evidence(evidence(n..n + LINKS_MAX as u64));
            }
        }
    });

    // Meanwhile the honest ones go on.
    const TOLD: u64 = 200;
    const FIRST: u64 = 1 << 40;
    let agent = a.agent.clone();
    let telling = tasks.spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(20));
        for n in 0..TOLD {
            tick.tick().await;
            agent.send_evidence(evidence([FIRST + n]));
        }
    });
    let mut heard = BTreeSet::new();
    while heard.len() < TOLD as usize {
        let next = timeout(LIMIT, b.events.recv()).await.expect("in time");
        match next.expect("the agent runs") {
            EvidenceEvent::Evidence { from, evidence } if from.as_str() == "a" => {
                assert!(evidence.links[0] >= FIRST);
                assert!(heard.insert(evidence.links[0]), "heard twice");
            }
            EvidenceEvent::Gone { from } => panic!("{from} is gone"),
            _ => {}
        }
    }
    telling.await.expect("ends");
    for narrow in [&a, &b] {
        // More than a ban takes, were each of them an offence.
        let dropped = "gossip_dropped_total{reason=\"evidence_flood\"}";
        narrow.counts(dropped, 50).await;
        assert_eq!(narrow.count("gossip_refused_total"), 0);
        assert_eq!(narrow.count("gossip_peers_linked"), 2);
    }
    flood.abort();
    for running in [flooder, a, b] {
        running.agent.shutdown().await;
    }
}
