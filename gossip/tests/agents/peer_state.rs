//! Peer states between agents with real sockets and certificates on loopback.

use std::ops::Deref;
use std::time::Duration;

use crate::running::{LIMIT, Running, authority};
use grapevine_gossip::config::Facts;
use grapevine_gossip::identity::Authority;
use grapevine_gossip::peer_state::{Claim, HealthClaim, PeerState, PeerStates, TenantUse};
use grapevine_gossip::worker::{RawWorker, WorkerId, WorkerSpec};
use grapevine_gossip::{Agent, Metrics};
use tokio::time::{Instant, timeout};

const TENANT: u64 = 7;

/// An agent that knows one worker.
struct Stating(Running);

impl Deref for Stating {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.0
    }
}

impl Stating {
    async fn start(authority: &Authority, replica: &str, seeds: &[String]) -> Self {
        let running = Running::of(authority, replica, seeds).await;
        let spec = WorkerSpec::new(RawWorker::at(worker().as_str())).expect("valid");
        running.agent.configure(worker(), spec).expect("room");
        Self(running)
    }

    fn publish(&self, claim: Claim, in_flight: u32) {
        self.agent.publish_state(PeerState {
            health: vec![said(claim)],
            usage: vec![TenantUse {
                tenant: TENANT,
                in_flight,
                queued: 1,
            }],
            ..PeerState::default()
        });
    }

    /// Waits until what the others published is as wanted.
    async fn reads(&self, what: &str, wanted: impl Fn(&PeerStates) -> bool) {
        let mut changes = self.agent.watch_peer_states();
        let seen = timeout(LIMIT, async {
            while !wanted(&self.agent.peer_states()) {
                changes.changed().await.expect("the agent runs");
            }
        });
        let is_seen = seen.await.is_ok();
        let states = self.agent.peer_states();
        assert!(
            is_seen,
            "{} never read {what}: {states:?}",
            self.agent.replica()
        );
    }
}

fn worker() -> WorkerId {
    "http://127.0.0.1:8000".parse().expect("valid")
}

fn said(claim: Claim) -> HealthClaim {
    HealthClaim {
        worker: worker(),
        epoch: 0,
        claim,
        age: Duration::from_millis(5),
    }
}

fn claims(states: &PeerStates) -> Vec<(String, Claim)> {
    let worker = worker();
    let claims = states.claims_on(&worker);
    claims
        .map(|(from, said, _)| (from.to_string(), said.claim))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_states_reach_the_others_and_end_with_their_replica() {
    let authority = authority();
    let a = Stating::start(&authority, "a", &[]).await;
    // Before any peer is there: a peer gets it when it connects.
    a.publish(Claim::Stalled, 3);
    let b = Stating::start(&authority, "b", &[a.seed()]).await;
    let c = Stating::start(&authority, "c", &[a.seed(), b.seed()]).await;
    b.publish(Claim::Good, 4);
    let both = vec![
        ("a".to_owned(), Claim::Stalled),
        ("b".to_owned(), Claim::Good),
    ];
    c.reads("a's and b's claims", |states| claims(states) == both)
        .await;
    c.reads("both uses", |states| {
        let used = states.others_usage(TENANT);
        (used.in_flight, used.queued) == (7, 2)
    })
    .await;
    b.reads("a's", |states| states.others_usage(TENANT).in_flight == 3)
        .await;
    assert_eq!(
        a.agent.peer_states().others_usage(99),
        TenantUse {
            tenant: 99,
            ..TenantUse::default()
        }
    );
    for (_, said, age) in c.agent.peer_states().claims_on(&worker()) {
        assert!(age >= said.age && said.age >= Duration::from_millis(5));
    }

    // What changed is read at once; what did not is renewed, and so stays.
    let started = Instant::now();
    a.publish(Claim::Good, 0);
    c.reads("the change", |states| {
        states.others_usage(TENANT).in_flight == 4
            && claims(states)
                .iter()
                .all(|(_, claim)| *claim == Claim::Good)
    })
    .await;
    println!("a change was read after {:?}", started.elapsed());
    let renewed =
        |running: &Running| running.count("gossip_peer_state_parts_total{fate=\"fresh\"}");
    let before = renewed(&c);
    timeout(LIMIT, async {
        while renewed(&c) < before + 8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("renewed twice");
    assert_eq!(claims(&c.agent.peer_states()).len(), 2);
    assert_eq!(c.count("gossip_peer_states"), 2);
    let bytes = a.count("gossip_bytes_total{direction=\"out\",plane=\"bulletin\"}");
    let frames = a.count("gossip_frames_total{direction=\"out\",plane=\"bulletin\"}");
    println!("{frames} frames, {bytes} bytes");
    assert!(bytes > 0);

    a.agent.shutdown().await;
    let b_only = vec![("b".to_owned(), Claim::Good)];
    c.reads("a's end", |states| claims(states) == b_only).await;
    for running in [&b, &c] {
        assert_eq!(running.count("gossip_refused_total"), 0);
        running.agent.shutdown().await;
    }
}

#[tokio::test]
async fn a_cluster_of_one_posts_to_nobody() {
    let agent = Agent::solo("demo", "a", &Facts::default(), Metrics::default()).expect("starts");
    agent.publish_state(PeerState {
        health: vec![said(Claim::Stalled)],
        usage: Vec::new(),
        ..PeerState::default()
    });
    let states = agent.peer_states();
    assert_eq!(states.peers().len(), 0);
    assert_eq!(states.claims_on(&worker()).count(), 0);
    assert_eq!(states.others_usage(TENANT).in_flight, 0);
    agent.shutdown().await;
}
