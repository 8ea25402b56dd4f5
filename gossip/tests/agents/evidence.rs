//! Evidence and heat between agents with real sockets and certificates on loopback.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::listening::Listening;
use crate::running::{LIMIT, Running, authority};
use grapevine_gossip::Agent;
use grapevine_gossip::evidence::{
    Evidence, EvidenceEvent, HeatReport, LINKS_MAX, Lack, Retraction,
};
use grapevine_gossip::identity::Authority;
use grapevine_gossip::worker::{RawWorker, Source, WorkerId, WorkerSpec};
use tokio::time::{Instant, timeout};

async fn start(authority: &Authority, replica: &str, seeds: &[String]) -> Listening {
    Listening::to(Running::of(authority, replica, seeds).await)
}

fn worker() -> WorkerId {
    "http://127.0.0.1:8000".parse().expect("valid")
}

fn evidence(epoch: u64, links: impl IntoIterator<Item = u64>) -> Evidence {
    Evidence {
        worker: worker(),
        epoch,
        links: links.into_iter().collect(),
    }
}

/// Adds the worker, or restarts it in a later epoch, and waits until all see it.
async fn put_worker(by: &Agent, all: &[&Listening], epoch: u64) {
    let mut raw = RawWorker::at(worker().as_str());
    raw.epoch = epoch;
    let spec = WorkerSpec::new(raw).expect("valid");
    by.put_worker(worker(), Source::Admin, spec)
        .await
        .expect("room");
    for running in all {
        let mut views = running.agent.watch();
        let is_there = |worker: &grapevine_gossip::registry::Worker| worker.spec.epoch() == epoch;
        let seen = views.wait_for(|view| view.worker(&worker()).is_some_and(is_there));
        let seen = timeout(LIMIT, seen).await.map(|view| view.is_ok());
        assert_eq!(seen, Ok(true), "the worker");
    }
}

fn evidence_from<'a>(from: &'a str) -> impl Fn(&EvidenceEvent) -> Option<Evidence> + 'a {
    move |heard| match heard {
        EvidenceEvent::Evidence { from: by, evidence } if by.as_str() == from => {
            Some(evidence.clone())
        }
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_hear_each_other_and_a_newcomer_all() {
    let authority = authority();
    let mut a = start(&authority, "a", &[]).await;
    let mut b = start(&authority, "b", &[a.seed()]).await;
    let mut c = start(&authority, "c", &[a.seed(), b.seed()]).await;
    for running in [&a, &b, &c] {
        running.becomes_ready().await;
        running.is_linked_to(2).await;
    }
    put_worker(&a.agent, &[&a, &b, &c], 1).await;

    let said = evidence(1, [1, 2, 3]);
    let retraction = Retraction {
        worker: worker(),
        epoch: 1,
        links: vec![3],
        lack: Lack::NotComputed,
    };
    let report = HeatReport {
        version: 1,
        counts: vec![(1, 50), (2, 20)],
        total: 90,
    };
    a.agent.send_evidence(said.clone());
    a.agent.send_retraction(retraction.clone());
    a.agent.send_heat(report.clone());
    for other in [&mut b, &mut c] {
        // Heat and evidence are streams of their own, so either may come first.
        let mut left = vec![
            EvidenceEvent::Evidence {
                from: a.agent.replica().clone(),
                evidence: said.clone(),
            },
            EvidenceEvent::Retraction {
                from: a.agent.replica().clone(),
                retraction: retraction.clone(),
            },
            EvidenceEvent::Heat {
                from: a.agent.replica().clone(),
                report: report.clone(),
            },
        ];
        while !left.is_empty() {
            let heard = other.receives("a", |heard| Some(heard.clone())).await;
            let at = left.iter().position(|wanted| *wanted == heard);
            left.remove(at.unwrap_or_else(|| panic!("not said: {heard:?}")));
        }
    }

    // What they believe is more than fits the channel of a newcomer: its listener works it off.
    const BELIEVED: u64 = 5_000;
    for running in [&a, &b, &c] {
        running.agent.serve_evidence(Arc::new(|| {
            let believed = (0..BELIEVED).map(|n| evidence(1, [n]));
            // A former life, and nothing at all: not to be passed on.
            believed
                .chain([evidence(0, [7]), evidence(1, [])])
                .collect()
        }));
    }
    let mut d = start(&authority, "d", &[b.seed()]).await;
    let mut taken = BTreeSet::new();
    while taken.len() < BELIEVED as usize {
        let evidence = d.receives("the snapshot", |heard| match heard {
            EvidenceEvent::Evidence { evidence, .. } => Some(evidence.clone()),
            EvidenceEvent::Lost { from } => panic!("lost something of {from}"),
            _ => None,
        });
        let evidence = evidence.await;
        assert_eq!(evidence.epoch, 1, "nothing of a former life");
        taken.extend(evidence.links);
    }
    d.becomes_ready().await;

    // A restarted worker holds nothing of what it held.
    put_worker(&a.agent, &[&a, &b, &c, &d], 2).await;
    d.is_linked_to(3).await;
    c.is_linked_to(3).await;
    c.agent.send_evidence(evidence(1, [8]));
    c.agent.send_evidence(evidence(2, [9]));
    for other in [&mut a, &mut b, &mut d] {
        let heard = other.receives("c", evidence_from("c")).await;
        assert_eq!(heard, evidence(2, [9]));
    }
    assert_eq!(c.count("gossip_evidence_records_total{fate=\"stale\"}"), 1);

    a.agent.shutdown().await;
    for other in [&mut b, &mut c] {
        let gone = |heard: &EvidenceEvent| match heard {
            EvidenceEvent::Gone { from } => Some(from.to_string()),
            _ => None,
        };
        assert_eq!(other.receives("a's end", gone).await, "a");
    }
    for running in [b, c, d] {
        running.agent.shutdown().await;
    }
}

/// What a busy cluster sends; the figures are printed, not asserted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_arrives_whole() {
    let authority = authority();
    let a = start(&authority, "a", &[]).await;
    let mut b = start(&authority, "b", &[a.seed()]).await;
    let mut c = start(&authority, "c", &[a.seed()]).await;
    for running in [&a, &b, &c] {
        running.becomes_ready().await;
        running.is_linked_to(2).await;
    }
    put_worker(&a.agent, &[&a, &b, &c], 1).await;

    const RECORDS: u64 = 2_000;
    const LINKS: u64 = 16;
    let started = Instant::now();
    for n in 0..RECORDS {
        a.agent
            .send_evidence(evidence(1, (0..LINKS).map(|link| n * LINKS + link)));
        if n % 20 == 19 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    for other in [&mut b, &mut c] {
        let mut seen = BTreeSet::new();
        while seen.len() < RECORDS as usize {
            let heard = other.receives("a", evidence_from("a")).await;
            assert_eq!(heard.links.len(), LINKS as usize);
            assert!(seen.insert(heard.links[0]), "heard twice");
        }
        assert_eq!(
            other.count("gossip_evidence_batches_total{fate=\"lost\"}"),
            0
        );
    }
    let bytes = a.count("gossip_bytes_total{direction=\"out\",plane=\"evidence\"}");
    let frames = a.count("gossip_frames_total{direction=\"out\",plane=\"evidence\"}");
    println!(
        "{RECORDS} records of {LINKS} links in {:?}: {} bytes a record and peer, {} frames a peer",
        started.elapsed(),
        bytes / 2 / RECORDS,
        frames / 2
    );

    // One record of the greatest length, from telling to hearing.
    let mut delays = Vec::new();
    for n in 0..50 {
        let started = Instant::now();
        a.agent.send_evidence(evidence(1, n..n + LINKS_MAX as u64));
        b.receives("a", evidence_from("a")).await;
        delays.push(started.elapsed());
    }
    delays.sort_unstable();
    println!(
        "told to heard: median {:?}, greatest {:?}",
        delays[25], delays[49]
    );
    for running in [a, b, c] {
        running.agent.shutdown().await;
    }
}
