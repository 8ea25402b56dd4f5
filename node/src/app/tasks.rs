//! Starts what stands beside requests: the configuration that is read again, the word of leaving, the operators' ports.

use std::sync::Arc;

use anyhow::Context;
use grapevine_gossip::Agent;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::base::Base;
use super::cluster::Followed;
use super::discovery::Discovered;
use super::front::Opened;
use super::limits::Limits;
use crate::admin::{self, Admin, Gate, Port};
use crate::config::Layers;
#[cfg(debug_assertions)]
use crate::fault_injection;
use crate::left_out::LeftOut;
use crate::listener::Door;
use crate::reload::{Reload, Wish};
use crate::shutdown::Phase;
use crate::upstream::Connector;

/// Wishes for a reading of the configuration that wait.
const WISHES_MAX: usize = 8;

/// Reads the configuration again at each hang-up and when operators wish it, and notifies the other replicas when this one leaves.
///
/// # Errors
/// Signals cannot be received.
pub(super) fn start_tasks(
    base: Base<'_>,
    origin: Layers,
    connector: &Arc<Connector>,
) -> anyhow::Result<mpsc::Sender<Wish>> {
    let reload = Reload {
        layers: origin,
        current: base.config.clone(),
        agent: Arc::clone(base.agent),
        connector: Arc::clone(connector),
        metrics: base.metrics.operators.clone(),
        left_out: LeftOut::default(),
    };
    let (wishes, wished) = mpsc::channel(WISHES_MAX);
    let hangups = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    base.tasks()
        .spawn(reload.run(hangups, wished, base.phase()));
    let leaving = announce_leaving(Arc::clone(base.agent), base.phase());
    base.tasks().spawn(leaving);
    #[cfg(debug_assertions)]
    base.tasks().spawn(fault_injection::trip_gossip(
        Arc::clone(base.agent),
        base.phase(),
    ));
    Ok(wishes)
}

/// What operators reach.
pub(super) struct ForOperators {
    /// The admin port.
    pub(super) admin: TcpListener,
    /// The port of metrics, where there is one.
    pub(super) metrics: Option<TcpListener>,
    /// Wishes for a reading of the configuration.
    pub(super) reload: mpsc::Sender<Wish>,
}

/// Opens the admin port, and that of metrics where there is one.
pub(super) fn start_admin(
    base: Base<'_>,
    followed: Followed,
    discovered: Discovered,
    limits: Limits,
    opened: Opened,
    connector: Arc<Connector>,
    operators: ForOperators,
) {
    let config = base.config;
    let admin = Arc::new(Admin {
        replica: base.replica.to_owned(),
        cluster: followed.cluster,
        agent: Arc::clone(base.agent),
        metrics: Arc::clone(base.metrics),
        admission: limits.admission,
        phase: base.phase(),
        readiness: opened.readiness,
        caches: followed.caches,
        warm_ups: followed.warm_ups,
        quarantine: limits.quarantine,
        board: discovered.board,
        leases: discovered.leases,
        transfer: base.config.transfer.clone(),
        credentials: discovered.credentials,
        connector,
        reload: operators.reload,
        token: config.admin.token.clone(),
        admin_gate: Gate::new(config.admin.host, config.admin.allowed_hosts.clone()),
        metrics_gate: Gate::new(config.metrics.host, config.admin.allowed_hosts.clone()),
    });
    let serve = |socket, port| {
        let seats = admin::seats(port, &admin.metrics);
        let door = Door::new(socket, seats, admin.metrics.refusals.clone());
        admin::run(door, port, Arc::clone(&admin), base.tasks().clone())
    };
    base.tasks().spawn(serve(operators.admin, Port::Admin));
    if let Some(socket) = operators.metrics {
        base.tasks().spawn(serve(socket, Port::Metrics));
    }
}

/// Tells the other replicas at once that this one is leaving.
async fn announce_leaving(agent: Arc<Agent>, phase: Phase) {
    phase.leaving().await;
    agent.set_leaving();
}
