//! Starts gossip, before all that follows it: a peer's snapshot may come at once.

use std::sync::Arc;

use grapevine_gossip::config::Facts;
use grapevine_gossip::evidence::EvidenceEvent;
use grapevine_gossip::plane::Plane;
use grapevine_gossip::{Agent, Hosted, Identity, SystemNetwork};
use grapevine_placement::load::damp;
use tokio::sync::mpsc;

use super::listeners::Listeners;
use crate::all_metrics::AllMetrics;
use crate::config::Config;
use crate::http::hops;
use crate::kv_events::{Caches, HandoverPlane};
use crate::tls::GossipFiles;

/// Gossip, under way.
pub(super) struct Gossip {
    pub(super) agent: Arc<Agent>,
    /// What peers send about caches, from the first message on.
    pub(super) heard: mpsc::Receiver<EvidenceEvent>,
    /// Its certificate and key, as they were when they were read; none for a replica alone.
    pub(super) identity: Option<GossipFiles>,
    /// Its metrics are among them, so all are complete.
    pub(super) metrics: Arc<AllMetrics>,
    /// What is known of workers' caches; peers that start may ask for it at once.
    pub(super) caches: Arc<Caches>,
}

/// Meets the others, or begins alone. `metrics`: those of the replica, without gossip's.
/// Errors: the port cannot be bound, or the certificate cannot be used.
pub(super) async fn start_gossip(
    config: &Config,
    replica: &str,
    listeners: &Listeners,
    mut metrics: AllMetrics,
) -> anyhow::Result<Gossip> {
    let models = &metrics.requests.models;
    models.limit(config.metrics.model_series as usize);
    let identity = GossipFiles::seen(config);
    let caches = Arc::new(Caches::new(
        &config.kv_events,
        rand::random(),
        metrics.kv_events.clone(),
    ));
    let agent = start_agent(config, replica, listeners, &mut metrics, &caches).await?;
    let agent = Arc::new(agent);
    Ok(Gossip {
        caches,
        heard: agent.evidence(),
        agent,
        identity,
        metrics: Arc::new(metrics),
    })
}

async fn start_agent(
    config: &Config,
    replica: &str,
    listeners: &Listeners,
    metrics: &mut AllMetrics,
    caches: &Arc<Caches>,
) -> anyhow::Result<Agent> {
    let facts = Facts {
        http: config.reached_at(listeners.data.local_addr()?),
        admin: config.reached_at(listeners.admin.local_addr()?),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: config.fingerprint(),
    };
    let cluster = config.cluster.id.as_str();
    let gossip_metrics = grapevine_gossip::Metrics::register(metrics.registry_mut());
    let Some(files) = config.gossip.identity() else {
        return Ok(Agent::solo(cluster, replica, &facts, gossip_metrics)?);
    };
    let identity = Identity::load(cluster, replica, &files)?;
    hops::join(cluster, identity.authorities());
    let gossip = config.gossip_config(facts);
    let handover: Arc<Hosted<dyn Plane>> = Hosted::new(HandoverPlane::new(Arc::clone(caches)));
    let extra = match config.kv_events.enabled {
        true => vec![handover],
        false => Vec::new(),
    };
    let network = Arc::new(SystemNetwork);
    Ok(Agent::start_with(network, gossip, identity, damp, gossip_metrics, extra).await?)
}
