//! How an agent's parts are put together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bootstrap::Bootstrap;
use super::{Agent, Parts};
use crate::config::{EvidenceConfig, Facts, GossipConfig, LOAD_BATCH};
use crate::driver::{Driver, Hosted, Net};
use crate::error::StartError;
use crate::facts::{FactMap, fact};
use crate::identity::{self, Identity};
use crate::load::LoadBoard;
use crate::membership::{Membership, next_generation};
use crate::metrics::Metrics;
use crate::plane::{Context, Plane};
use crate::planes::{
    DryRunPlane, EvidencePlane, LoadMessages, Own, PeerStatePlane, PendingHandle, RegistryPlane,
    Shown, TwinPlane,
};
use crate::transport::{Network, SystemNetwork, Transport, system_ms};

/// A plane from outside this crate, which the agent drives beside its own.
pub type ExtraPlane = Arc<Hosted<dyn Plane>>;

impl Agent {
    /// Binds the socket and starts gossiping; returns at once, before any peer was met.
    ///
    /// `damping` gives the weight, 0 to 1, of other replicas' load counts of a given age.
    /// Errors: [`StartError`]: a setting out of range, or an address that cannot be bound or resolved.
    pub async fn start(
        config: GossipConfig,
        identity: Identity,
        damping: fn(Duration) -> f64,
        metrics: Metrics,
    ) -> Result<Self, StartError> {
        Self::start_on(Arc::new(SystemNetwork), config, identity, damping, metrics).await
    }

    /// [`Agent::start`] with another network and wall clock than the operating system's, for simulations.
    /// Errors: as [`Agent::start`].
    pub async fn start_on(
        network: Arc<dyn Network>,
        config: GossipConfig,
        identity: Identity,
        damping: fn(Duration) -> f64,
        metrics: Metrics,
    ) -> Result<Self, StartError> {
        Self::start_with(network, config, identity, damping, metrics, Vec::new()).await
    }

    /// [`Agent::start_on`] with planes of the caller beside those of this crate. Their kinds have numbers that no kind of
    /// [`KINDS`](crate::wire::KINDS) has or will have: 128 and above.
    /// Errors: as [`Agent::start`].
    pub async fn start_with(
        network: Arc<dyn Network>,
        config: GossipConfig,
        identity: Identity,
        damping: fn(Duration) -> f64,
        metrics: Metrics,
        extra: Vec<ExtraPlane>,
    ) -> Result<Self, StartError> {
        config.check()?;
        metrics.expires(identity.expires());
        let generation = next_generation(0, network.unix_ms());
        let (replica, cluster) = (identity.replica().clone(), identity.cluster().clone());
        let kinds = extra.iter().flat_map(|plane| plane.kinds()).collect();
        let transport = Transport::open(
            &config,
            identity,
            network,
            generation,
            kinds,
            metrics.clone(),
        );
        let transport = transport.await?;
        let stop = CancellationToken::new();
        let facts = fact_map(&config.facts);
        let membership = Membership::start(
            &cluster,
            &replica,
            generation,
            facts.clone(),
            &transport,
            &metrics,
            &stop,
        );
        let own = Own {
            replica,
            generation,
            address: transport.address(),
            facts,
        };
        let net = Net {
            transport: transport.clone(),
            membership,
            has_seeds: !config.seeds.is_empty(),
        };
        let board = LoadBoard::default();
        let load = LoadMessages::new(
            board.into(),
            damping,
            config.load_batch,
            metrics.clone(),
            now(),
        );
        let agent = Self::of(own, Some(net), load, &config.evidence, metrics, extra, stop);
        let Parts {
            driver,
            registry,
            evidence,
            ..
        } = &*agent.0;
        driver.start(&config.seeds);
        let bootstrap = Bootstrap {
            driver: driver.clone(),
            registry: registry.clone(),
            evidence: evidence.clone(),
            asked: Arc::default(),
            is_newcomer: Arc::default(),
            has_evidence: Arc::default(),
        };
        transport.spawn(bootstrap.run());
        Ok(agent)
    }

    /// A cluster of one: ready at once, no socket, no certificate.
    /// Errors: [`StartError::Identity`] if a name is not a DNS label: it must be usable when peers come.
    pub fn solo(
        cluster: &str,
        replica: &str,
        facts: &Facts,
        metrics: Metrics,
    ) -> Result<Self, StartError> {
        identity::check_label("cluster id", cluster)?;
        let own = Own {
            replica: identity::replica_id(replica)?,
            generation: next_generation(0, system_ms()),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            facts: fact_map(facts),
        };
        let board = LoadBoard::default();
        let load = LoadMessages::new(board.into(), |_| 1.0, LOAD_BATCH, metrics.clone(), now());
        let evidence = EvidenceConfig::default();
        let stop = CancellationToken::new();
        Ok(Self::of(
            own,
            None,
            load,
            &evidence,
            metrics,
            Vec::new(),
            stop,
        ))
    }

    fn of(
        own: Own,
        net: Option<Net>,
        load: LoadMessages,
        config: &EvidenceConfig,
        metrics: Metrics,
        extra: Vec<ExtraPlane>,
        stop: CancellationToken,
    ) -> Self {
        let (now, is_solo, replica) = (now(), net.is_none(), own.replica.clone());
        let board = load.plane.board().clone();
        let load = Hosted::new(load);
        let its_load = load.clone();
        let mut registry = RegistryPlane::new(
            own,
            Arc::new(move || its_load.lock().plane.snapshot()),
            is_solo,
            metrics.clone(),
            now,
        );
        let pending = PendingHandle::new(metrics.clone());
        let said = pending.clone();
        let evidence = EvidencePlane::new(replica.clone(), config, said, metrics.clone(), now);
        let shown = Shown::default();
        let unix_ms = net
            .as_ref()
            .map_or_else(system_ms, |net| net.transport.unix_ms());
        let view = registry.view(&Context::at(now, unix_ms));
        let registry = Hosted::new(registry);
        let evidence = Hosted::new(evidence);
        let peer_state = Hosted::new(PeerStatePlane::new(shown.clone(), metrics.clone()));
        let dry_runs = Hosted::new(DryRunPlane::new(board.clone(), metrics.clone()));
        let twins = Hosted::new(TwinPlane::new(replica.clone(), metrics.clone()));
        let mut planes: Vec<Arc<Hosted<dyn Plane>>> = vec![
            registry.clone(),
            load.clone(),
            evidence.clone(),
            peer_state.clone(),
            dry_runs.clone(),
            twins.clone(),
        ];
        planes.extend(extra);
        Self(Arc::new(Parts {
            replica,
            driver: Driver::new(net, planes, view, metrics),
            registry,
            load,
            evidence,
            peer_state,
            dry_runs,
            twins,
            board,
            pending,
            shown,
            pushes: Arc::default(),
            keeps_time: AtomicBool::new(!is_solo),
            stop,
        }))
    }
}

fn fact_map(facts: &Facts) -> FactMap {
    FactMap::from([
        (fact::HTTP, facts.http.clone()),
        (fact::ADMIN, facts.admin.clone()),
        (fact::VERSION, facts.version.clone()),
        (fact::SETTINGS, facts.settings.clone()),
        (fact::READY, "0".to_owned()),
    ])
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}
