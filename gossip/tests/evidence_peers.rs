//! Evidence between peers that are not alike: one that is full and others that are empty, one that
//! sends far too much beside others that do not. Real sockets and certificates on loopback.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::config::{EvidenceConfig, Facts, GossipConfig};
use grapevine_gossip::evidence::{Evidence, EvidenceEvent, LINKS_MAX};
use grapevine_gossip::identity::{self, Authority, Identity};
use grapevine_gossip::worker::{RawWorker, WorkerId, WorkerSpec};
use grapevine_gossip::{Agent, Metrics};
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Generous: states are asserted, not speeds.
const LIMIT: Duration = Duration::from_secs(30);

struct Running {
    agent: Agent,
    events: mpsc::Receiver<EvidenceEvent>,
    metrics: Registry,
}

impl Running {
    fn address(&self) -> String {
        self.agent.local_addr().expect("bound").to_string()
    }

    /// Sum of the samples whose line begins so.
    fn metric(&self, line: &str) -> i64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).expect("encodes");
        let values = text.lines().filter(|found| found.starts_with(line));
        values
            .filter_map(|found| found.rsplit_once(' ')?.1.parse::<i64>().ok())
            .sum()
    }

    async fn reaches(&self, line: &str, least: i64) {
        let reached = async {
            while self.metric(line) < least {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = timeout(LIMIT, reached).await;
        let replica = self.agent.replica();
        assert!(
            reached.is_ok(),
            "{replica}: {line} is {}",
            self.metric(line)
        );
    }

    async fn is_ready(&self) {
        let mut ready = self.agent.ready();
        let ready = timeout(LIMIT, ready.wait_for(|ready| *ready)).await;
        assert!(ready.is_ok(), "{} never became ready", self.agent.replica());
    }
}

async fn start(
    authority: &Authority,
    replica: &str,
    seeds: &[String],
    evidence: EvidenceConfig,
) -> Running {
    let leaf =
        identity::issue(&authority.cert_pem, &authority.key_pem, "demo", replica).expect("leaf");
    let identity = Identity::from_pem(
        "demo",
        replica,
        &authority.cert_pem,
        &leaf.cert_pem,
        &leaf.key_pem,
    );
    let config = GossipConfig {
        seeds: seeds.to_vec(),
        evidence,
        ..GossipConfig::new(([127, 0, 0, 1], 0).into(), Facts::default())
    };
    let mut metrics = Registry::default();
    let handles = Metrics::register(&mut metrics);
    let agent = Agent::start(config, identity.expect("identity"), |_| 1.0, handles)
        .await
        .expect("starts");
    let spec = WorkerSpec::new(RawWorker::at(worker().as_str())).expect("valid");
    agent.configure(worker(), spec).expect("room");
    let events = agent.evidence();
    Running {
        agent,
        events,
        metrics,
    }
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
    let authority = identity::create("demo").expect("authority");
    let limits = EvidenceConfig::default;
    let full = start(&authority, "full", &[], limits()).await;
    full.agent
        .serve_evidence(Arc::new(|| (0..BELIEVED).map(|n| evidence([n])).collect()));
    let empty = start(&authority, "empty", &[full.address()], limits()).await;
    let few = start(&authority, "few", &[full.address()], limits()).await;
    few.agent.serve_evidence(Arc::new(|| vec![evidence([7])]));
    for running in [&full, &empty, &few] {
        running.is_ready().await;
        running.reaches("gossip_peers_linked", 2).await;
    }
    for round in 0..5 {
        let seeds = [empty.address(), few.address()];
        let seeds = &seeds[..1 + round % 2];
        let mut newcomer = start(&authority, &format!("new{round}"), seeds, limits()).await;
        newcomer.is_ready().await;
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

/// One replica sends what sixty times its allowance would be; the others lose nothing of each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_is_struck_and_others_stay_whole() {
    let authority = identity::create("demo").expect("authority");
    let narrow = || EvidenceConfig {
        peer_bytes_per_s: 64 << 10,
        ..EvidenceConfig::default()
    };
    let a = start(&authority, "a", &[], narrow()).await;
    let mut b = start(&authority, "b", &[a.address()], narrow()).await;
    let wide = EvidenceConfig {
        peer_bytes_per_s: 16 << 20,
        log_bytes: 64 << 20,
        ..EvidenceConfig::default()
    };
    let flooder = start(&authority, "f", &[a.address(), b.address()], wide).await;
    for running in [&a, &b, &flooder] {
        running.is_ready().await;
        running.reaches("gossip_peers_linked", 2).await;
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
            EvidenceEvent::Gone { from } => assert_eq!(from.as_str(), "f"),
            _ => {}
        }
    }
    telling.await.expect("ends");
    for struck in [&a, &b] {
        let dropped = "gossip_dropped_total{reason=\"evidence_flood\"}";
        struck.reaches(dropped, 10).await;
        struck
            .reaches("gossip_refused_total{reason=\"too_many\"}", 10)
            .await;
        // Cut off: the honest peer is the only one left.
        let is_cut = async {
            while struck.metric("gossip_peers_linked") != 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LIMIT, is_cut)
            .await
            .expect("the flooder is cut off");
    }
    flood.abort();
    for running in [flooder, a, b] {
        running.agent.shutdown().await;
    }
}
