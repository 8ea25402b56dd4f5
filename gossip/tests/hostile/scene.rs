//! Three honest agents that agree on some workers, and what must be true of them after every attack.

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_gossip::config::{Facts, GossipConfig};
use grapevine_gossip::identity::{self, Authority, Identity};
use grapevine_gossip::registry::Digest;
use grapevine_gossip::view::View;
use grapevine_gossip::worker::{RawWorker, Source, WorkerId, WorkerSpec};
use grapevine_gossip::{Agent, Metrics};
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep, timeout};

use super::chitchat::{Node, Standing};
use super::rogue::{LIMIT, Line, Pem, Rogue};

pub(crate) const CLUSTER: &str = "demo";
const WORKERS: u16 = 4;

/// An honest replica.
pub(crate) struct Honest {
    pub(crate) agent: Agent,
    metrics: Registry,
}

/// The three, and the authority that they share with the rogues.
pub(crate) struct Scene {
    pub(crate) authority: Authority,
    pub(crate) honest: Vec<Honest>,
    digest: Digest,
}

impl Scene {
    /// Starts them and adds workers.
    pub(crate) async fn new() -> Self {
        let authority = identity::create(CLUSTER).expect("authority");
        let mut honest: Vec<Honest> = Vec::new();
        for name in ["h1", "h2", "h3"] {
            let seeds = honest.iter().map(|known| known.address().to_string());
            let seeds = seeds.collect();
            honest.push(Honest::start(&authority, name, seeds).await);
        }
        for replica in &honest {
            replica.sees("all three", |view| live(view) == 3).await;
        }
        for port in 0..WORKERS {
            let (id, spec) = worker(8000 + port);
            let put = honest[0].agent.put_worker(id, Source::Admin, spec).await;
            put.expect("room");
        }
        for replica in &honest {
            let all = |view: &View| view.workers().len() == usize::from(WORKERS);
            replica.sees("the workers", all).await;
        }
        let digest = honest[0].agent.view().registry();
        Self {
            authority,
            honest,
            digest,
        }
    }

    /// A peer with a valid certificate of its own.
    pub(crate) fn rogue(&self, id: &str) -> Rogue {
        Rogue::start(CLUSTER, id, &pem(&self.authority, id))
    }

    pub(crate) fn victim(&self) -> &Honest {
        &self.honest[0]
    }

    /// What a digest would hold of an honest replica.
    pub(crate) fn standing(&self, index: usize, heartbeat: u64, version: u64) -> Standing {
        Standing {
            node: self.honest[index].node(),
            heartbeat,
            version,
        }
    }

    /// Equal digests, everybody alive, the same workers; and a change still reaches everybody.
    pub(crate) async fn unharmed(&self, attack: &str) {
        for replica in &self.honest {
            let is_well = |view: &View| {
                let alive = ["h1", "h2", "h3"].iter().all(|id| {
                    view.replicas()
                        .iter()
                        .any(|r| r.id.as_str() == *id && r.live)
                });
                alive && view.registry() == self.digest
            };
            replica
                .sees(&format!("an unharmed cluster after {attack}"), is_well)
                .await;
            assert_eq!(replica.sum("gossip_restarts_total", ""), 0.0, "{attack}");
            assert!(*replica.agent.ready().borrow(), "{attack}");
        }
    }

    /// Waits until all agree, on whatever it is by now.
    pub(crate) async fn settle(&mut self) {
        let all = &self.honest;
        self.digest = eventually("they agree", || {
            let digests: Vec<_> = all.iter().map(|r| r.agent.view().registry()).collect();
            digests
                .windows(2)
                .all(|pair| pair[0] == pair[1])
                .then(|| digests[0])
        })
        .await;
    }

    /// The same after a change went through: digests are other ones from then on.
    pub(crate) async fn still_works(&mut self, attack: &str) {
        self.unharmed(attack).await;
        let (id, spec) = worker(9000);
        let started = Instant::now();
        let ack = self.honest[1]
            .agent
            .put_worker(id.clone(), Source::Admin, spec)
            .await
            .expect("room");
        assert!(ack.replicated, "{attack}");
        for replica in &self.honest {
            replica
                .sees("a new worker", |view| view.worker(&id).is_some())
                .await;
        }
        println!("{attack}: a change reached all in {:?}", started.elapsed());
        self.digest = self.honest[1].agent.view().registry();
        self.unharmed(attack).await;
    }
}

impl Honest {
    pub(crate) async fn start(authority: &Authority, name: &str, seeds: Vec<String>) -> Self {
        Self::start_behind(authority, name, seeds, None).await
    }

    /// Others dial it at the second address.
    pub(crate) async fn start_behind(
        authority: &Authority,
        name: &str,
        seeds: Vec<String>,
        advertise: Option<SocketAddr>,
    ) -> Self {
        let pem = pem(authority, name);
        let identity =
            Identity::from_pem(CLUSTER, name, &pem.ca, &pem.cert, &pem.key).expect("identity");
        let facts = Facts {
            http: "127.0.0.1:80".into(),
            version: "test".into(),
            ..Facts::default()
        };
        let config = GossipConfig {
            seeds,
            advertise: advertise.map(|address| address.to_string()),
            ..GossipConfig::new(([127, 0, 0, 1], 0).into(), facts)
        };
        let mut metrics = Registry::default();
        let handles = Metrics::register(&mut metrics);
        let agent = Agent::start(config, identity, |_| 1.0, handles).await;
        let agent = agent.expect("starts");
        let mut ready = agent.ready();
        let is_ready = timeout(LIMIT, ready.wait_for(|ready| *ready)).await.is_ok();
        assert!(is_ready, "{name} never became ready");
        Self { agent, metrics }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.agent.local_addr().expect("bound")
    }

    /// As chitchat names it.
    pub(crate) fn node(&self) -> Node {
        let view = self.agent.view();
        let own = view
            .replicas()
            .iter()
            .find(|r| r.id == *self.agent.replica());
        let own = own.expect("everybody knows itself");
        Node {
            id: own.id.to_string(),
            generation: own.generation,
            address: own.gossip_addr,
        }
    }

    pub(crate) async fn sees(&self, what: &str, wanted: impl Fn(&View) -> bool) {
        let mut views = self.agent.watch();
        let seen = timeout(LIMIT, views.wait_for(|view| wanted(view))).await;
        let is_seen = seen.map(|view| view.is_ok()).is_ok();
        assert!(
            is_seen,
            "{} never saw {what}: {:?}",
            self.agent.replica(),
            self.agent.view()
        );
    }

    /// Sum over the series of a metric whose labels contain `label`.
    pub(crate) fn sum(&self, name: &str, label: &str) -> f64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).expect("encodes");
        let of = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            let is_it = (labels.is_empty() || labels.starts_with('{')) && labels.contains(label);
            is_it.then(|| value.parse::<f64>().expect("a number"))
        };
        let values: Vec<f64> = text.lines().filter_map(of).collect();
        assert!(!values.is_empty(), "no metric {name} with {label}");
        values.iter().sum()
    }

    /// Refused messages, by reason; all with an empty one.
    pub(crate) fn refused(&self, reason: &str) -> f64 {
        self.sum("gossip_refused_total", reason)
    }
}

/// Waits until `look` gives something.
pub(crate) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "never: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Sends one message until it is cut off; returns how often.
pub(crate) async fn until_cut(line: &Line, bytes: &[u8]) -> usize {
    for times in 0..1000 {
        if line.is_over() || !line.send(bytes).await {
            assert!(line.is_banned().await);
            return times;
        }
    }
    panic!("never cut off");
}

pub(crate) fn pem(authority: &Authority, id: &str) -> Pem {
    let leaf = identity::issue(&authority.cert_pem, &authority.key_pem, CLUSTER, id).expect("leaf");
    Pem {
        ca: authority.cert_pem.clone(),
        cert: leaf.cert_pem,
        key: leaf.key_pem,
    }
}

pub(crate) fn worker(port: u16) -> (WorkerId, WorkerSpec) {
    let spec = WorkerSpec::new(RawWorker::at(format!("http://127.0.0.1:{port}"))).expect("spec");
    (spec.default_id(), spec)
}

fn live(view: &View) -> usize {
    let replicas = view.replicas().iter();
    replicas.filter(|replica| replica.live).count()
}

/// Resident memory of this process in KiB.
pub(crate) fn resident_kib() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|n| n.parse().ok()).expect("a number")
}
