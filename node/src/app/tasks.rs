//! Starts what stands beside requests: the configuration that is read again, the word of leaving, the operators' ports.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use grapevine_gossip::Agent;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, watch};

use super::base::Base;
use super::cluster::Followed;
use super::discovery::Discovered;
use super::front::Opened;
use super::limits::Limits;
use crate::admin::{self, Admin, Configured, Gate, Pages, Port, Turns};
use crate::config::{Config, Layers};
#[cfg(debug_assertions)]
use crate::fault_injection;
use crate::left_out::LeftOut;
use crate::listener::Door;
use crate::log_limit::LogLimit;
use crate::metrics::export::Exporter;
use crate::page::sampler::{Recorder, Sampler, SamplerParts};
use crate::reload::{Apply, Readings, Reload, Wish};
use crate::shutdown::Phase;
use crate::upstream::Connector;
use crate::warmup::WarmUps;

/// Wishes for a reading of the configuration that wait.
const WISHES_MAX: usize = 8;

/// Wishes for a reading of the configuration, and where they are heard.
pub(super) fn wishes() -> (mpsc::Sender<Wish>, mpsc::Receiver<Wish>) {
    mpsc::channel(WISHES_MAX)
}

/// What a reading of the configuration needs.
pub(super) struct ReloadParts {
    /// Where it came from.
    pub(super) layers: Layers,
    /// How workers are reached.
    pub(super) connector: Arc<Connector>,
    /// Hands settings to the parts that use them.
    pub(super) apply: Apply,
    /// Warms workers that join.
    pub(super) warm_ups: Arc<WarmUps>,
    /// Hang-ups of this process.
    pub(super) hangups: Signal,
    /// Wishes of operators.
    pub(super) wished: mpsc::Receiver<Wish>,
    /// Where it is noted what readings show.
    pub(super) readings: Arc<Readings>,
    /// Is told when the labels of configured workers were written.
    pub(super) labelled: watch::Sender<bool>,
}

/// Reads the configuration again at each hang-up and when operators wish it, and notifies the other replicas when this one leaves.
pub(super) fn start_tasks(base: Base<'_>, parts: ReloadParts) {
    let (agent, phase) = (base.agent, base.phase());
    let reload = Reload {
        layers: parts.layers,
        current: base.config.clone(),
        agent: Arc::clone(agent),
        connector: parts.connector,
        apply: parts.apply,
        warm_ups: parts.warm_ups,
        metrics: base.metrics.operators.clone(),
        left_out: LeftOut::default(),
        said_to_differ: BTreeSet::new(),
        readings: parts.readings,
        said_unlabelled: BTreeSet::new(),
        labelled: parts.labelled,
    };
    base.run(
        "reload",
        reload.run(parts.hangups, parts.wished, phase.clone()),
    );
    base.run("leave", announce_leaving(Arc::clone(agent), phase.clone()));
    #[cfg(debug_assertions)]
    base.run(
        "fault_injection",
        fault_injection::trip(Arc::clone(agent), phase),
    );
}

/// What operators reach.
pub(super) struct ForOperators {
    /// Where the data port is open.
    pub(super) data: SocketAddr,
    /// The admin port.
    pub(super) admin: TcpListener,
    /// The port of metrics, where there is one.
    pub(super) metrics: Option<TcpListener>,
    /// Sends metrics to a collector, where that is wanted.
    pub(super) exporter: Option<Exporter>,
    /// Wishes for a reading of the configuration.
    pub(super) reload: mpsc::Sender<Wish>,
    /// What readings of the configuration have shown.
    pub(super) readings: Arc<Readings>,
}

/// Opens the admin port, and that of metrics where there is one, and sends metrics to a collector where that is wanted.
pub(super) fn start_admin(
    base: Base<'_>,
    followed: Followed,
    discovered: Discovered,
    limits: Limits,
    opened: Opened,
    connector: Arc<Connector>,
    operators: ForOperators,
) {
    let recorder = start_sampler(base, &followed);
    let admin = Arc::new(Admin {
        replica: base.replica.to_owned(),
        cluster: followed.cluster,
        agent: Arc::clone(base.agent),
        metrics: Arc::clone(base.metrics),
        reading: Mutex::default(),
        scrapes: Default::default(),
        admission: limits.admission,
        phase: base.phase(),
        readiness: opened.readiness,
        caches: followed.caches,
        warm_ups: followed.warm_ups,
        quarantine: limits.quarantine,
        board: discovered.board,
        leases: discovered.leases,
        settings: base.live(Config::fingerprint),
        configured: base.live(move |config| Configured::of(config, operators.data)),
        memory: opened.memory,
        transfer: base.live(|config| config.transfer.clone()),
        credentials: discovered.credentials,
        connector,
        reload: operators.reload,
        readings: operators.readings,
        token: base.live(|config| config.admin.token.clone()),
        uninvited: LogLimit::default(),
        admin_gate: base
            .live(|config| Gate::new(config.admin.host, config.admin.allowed_hosts.clone())),
        metrics_gate: base
            .live(|config| Gate::new(config.metrics.host, config.admin.allowed_hosts.clone())),
        keys: limits.keys,
        limits: base.live(|config| config.limits.clone()),
        recorder,
        turns: Turns::default(),
        pages: Pages::default(),
        tasks: base.standing.tracker().clone(),
        lost_tasks: base.standing.lost().clone(),
    });
    let serve = |socket, port| {
        let seats = admin::seats(port, &admin.metrics);
        let door = Door::new(socket, seats, admin.metrics.refusals.clone());
        let connections = base.standing.tracker().clone();
        admin::run(door, port, Arc::clone(&admin), connections)
    };
    base.run("admin", serve(operators.admin, Port::Admin));
    if let Some(socket) = operators.metrics {
        base.run("metrics", serve(socket, Port::Metrics));
    }
    if let Some(exporter) = operators.exporter {
        let exporting = exporter.run(move || admin.exposition(), base.phase());
        base.run("metrics_export", exporting);
    }
}

/// Keeps the last hour for the page.
fn start_sampler(base: Base<'_>, followed: &Followed) -> Arc<Recorder> {
    let recorder = Arc::new(Recorder::default());
    let sampler = Sampler::new(SamplerParts {
        recorder: Arc::clone(&recorder),
        cluster: Arc::clone(&followed.cluster),
        agent: Arc::clone(base.agent),
        metrics: Arc::clone(base.metrics),
        settings: base.live(Config::fingerprint),
        phase: base.phase(),
    });
    base.run("history", sampler.run());
    recorder
}

/// Tells the other replicas at once that this one is leaving.
async fn announce_leaving(agent: Arc<Agent>, phase: Phase) {
    phase.leaving().await;
    agent.set_leaving();
}
