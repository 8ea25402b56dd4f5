//! Agents with real sockets and certificates on loopback, each on a free port, and what tests ask them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::config::{EvidenceConfig, Facts, GossipConfig};
use grapevine_gossip::identity::{self, Authority, Identity};
use grapevine_gossip::view::View;
use grapevine_gossip::{Agent, ExtraPlane, Metrics, Network, SystemNetwork};
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep, timeout};

/// Generous: states are asserted, speeds are printed.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// An agent and its counters.
pub(crate) struct Running {
    pub(crate) agent: Agent,
    metrics: Registry,
}

impl Running {
    /// Of the cluster `demo`, with a fresh certificate of this authority, on a free port.
    pub(crate) async fn of(authority: &Authority, replica: &str, seeds: &[String]) -> Self {
        Self::start(issue(authority, "demo", replica), seeds).await
    }

    /// The same with these limits of evidence.
    pub(crate) async fn of_limits(
        authority: &Authority,
        replica: &str,
        seeds: &[String],
        evidence: EvidenceConfig,
    ) -> Self {
        let config = GossipConfig {
            evidence,
            ..config(([127, 0, 0, 1], 0).into(), seeds)
        };
        let identity = issue(authority, "demo", replica);
        Self::start_all(Arc::new(SystemNetwork), config, identity, Vec::new()).await
    }

    /// On a free port.
    pub(crate) async fn start(identity: Identity, seeds: &[String]) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), identity, seeds).await
    }

    pub(crate) async fn start_at(bind: SocketAddr, identity: Identity, seeds: &[String]) -> Self {
        Self::start_on(Arc::new(SystemNetwork), bind, identity, seeds).await
    }

    pub(crate) async fn start_on(
        network: Arc<dyn Network>,
        bind: SocketAddr,
        identity: Identity,
        seeds: &[String],
    ) -> Self {
        Self::start_all(network, config(bind, seeds), identity, Vec::new()).await
    }

    /// On a free port, with a plane beside those of the crate.
    pub(crate) async fn start_with(
        identity: Identity,
        seeds: &[String],
        extra: ExtraPlane,
    ) -> Self {
        let config = config(([127, 0, 0, 1], 0).into(), seeds);
        Self::start_all(Arc::new(SystemNetwork), config, identity, vec![extra]).await
    }

    async fn start_all(
        network: Arc<dyn Network>,
        config: GossipConfig,
        identity: Identity,
        extra: Vec<ExtraPlane>,
    ) -> Self {
        let mut metrics = Registry::default();
        let handles = Metrics::register(&mut metrics);
        let agent = Agent::start_with(network, config, identity, |_| 1.0, handles, extra).await;
        Self {
            agent: agent.expect("starts"),
            metrics,
        }
    }

    pub(crate) fn name(&self) -> String {
        self.agent.replica().to_string()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.agent.local_addr().expect("bound")
    }

    /// Its address, as the others have it among their seeds.
    pub(crate) fn seed(&self) -> String {
        self.address().to_string()
    }

    /// Waits until the view is as wanted.
    pub(crate) async fn sees(&self, what: &str, wanted: impl FnMut(&View) -> bool) {
        let mut wanted = wanted;
        let mut views = self.agent.watch();
        let seen = timeout(LIMIT, views.wait_for(|view| wanted(view)))
            .await
            .map(|view| view.is_ok());
        assert_eq!(
            seen,
            Ok(true),
            "{} never saw {what}: {:?}",
            self.name(),
            self.agent.view()
        );
    }

    pub(crate) async fn sees_live(&self, count: usize) {
        let what = format!("{count} live replicas");
        self.sees(&what, |view| live(view) == count).await;
    }

    pub(crate) fn live(&self) -> usize {
        live(&self.agent.view())
    }

    pub(crate) async fn becomes_ready(&self) {
        let ready = timeout(LIMIT, self.agent.ready().wait_for(|ready| *ready))
            .await
            .is_ok();
        assert!(ready, "{} never became ready", self.name());
    }

    /// A sum over the series that begin like this. Panics if there is none: counters are there before they count.
    pub(crate) fn count(&self, line: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).expect("encodes");
        let found = text.lines().filter(|found| found.starts_with(line));
        let values: Vec<u64> = found
            .filter_map(|found| found.rsplit_once(' ')?.1.parse().ok())
            .collect();
        assert!(!values.is_empty(), "no metric begins with {line}");
        values.iter().sum()
    }

    /// Waits until so many peers are connected.
    pub(crate) async fn is_linked_to(&self, others: u64) {
        self.counts("gossip_peers_linked", others).await;
    }

    /// Waits until that sum is so great. Metrics have no watch, so this looks again and again.
    pub(crate) async fn counts(&self, line: &str, at_least: u64) {
        let what = format!("{}: {line} of {at_least}", self.name());
        until(&what, || self.count(line) >= at_least).await;
    }
}

fn config(bind: SocketAddr, seeds: &[String]) -> GossipConfig {
    let facts = Facts {
        http: "127.0.0.1:80".into(),
        version: "test".into(),
        ..Facts::default()
    };
    GossipConfig {
        seeds: seeds.to_vec(),
        ..GossipConfig::new(bind, facts)
    }
}

/// Looks again and again; how long it took.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "never: {what}");
        sleep(Duration::from_millis(5)).await;
    }
    begun.elapsed()
}

/// Replicas of a view that are alive.
pub(crate) fn live(view: &View) -> usize {
    let replicas = view.replicas().iter();
    replicas.filter(|replica| replica.live).count()
}

/// Of the cluster `demo`.
pub(crate) fn authority() -> Authority {
    identity::create("demo").expect("an authority")
}

/// A fresh certificate of this authority.
pub(crate) fn issue(authority: &Authority, cluster: &str, replica: &str) -> Identity {
    let (cert, key) = (&authority.cert_pem, &authority.key_pem);
    let leaf = identity::issue(cert, key, cluster, replica).expect("a leaf");
    Identity::from_pem(cluster, replica, cert, &leaf.cert_pem, &leaf.key_pem).expect("an identity")
}
