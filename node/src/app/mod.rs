//! Composition root: builds every part once, binds, spawns, and runs the replica to its end.
//!
//! The only constructor of long-lived parts, and the only place that knows them all. No decisions here. Each file
//! builds one part of the replica, from a [`Base`] and from what was built before it.

mod base;
mod certificates;
mod changes;
mod cluster;
mod collectors;
mod discovery;
mod front;
mod gossip;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod limits;
mod listeners;
mod tasks;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use self::base::Base;
pub(crate) use self::certificates::reach_parts;
use self::certificates::start_certificates;
use self::changes::Changes;
use self::cluster::{Heard, start_cluster};
use self::collectors::Collectors;
use self::discovery::start_discovery;
use self::front::{ForClients, start_front};
use self::gossip::{Gossip, start_gossip};
use self::limits::start_limits;
use self::listeners::{Listeners, announcement, bind};
use self::tasks::{ForOperators, ReloadParts, start_admin, start_tasks, wishes};
use crate::all_metrics::AllMetrics;
use crate::config::{Config, Layers};
use crate::logging;
use crate::reload::Readings;
use crate::service_manager::ServiceManager;
use crate::shutdown::{Shutdown, ShutdownLimits, Signal};
use crate::standing::Standing;

/// Runs a replica until it is asked to end, and returns how it ended.
///
/// Prints one line of JSON to standard output once every port is open and nothing of the start can fail any more.
/// `origin` is where the configuration came from; `manager` is what started this process, and may have bound the data
/// port.
/// Errors: a port cannot be bound, a certificate or the headers for a collector cannot be used, or a setting does not
/// fit this machine; nothing is left running.
pub async fn run(
    config: Config,
    origin: Layers,
    mut manager: ServiceManager,
) -> anyhow::Result<ExitCode> {
    // First: as the first process of a container this one would not hear a signal that it does not wait for.
    let shutdown = Shutdown::new();
    let mut signals = shutdown.signals().context("cannot listen for signals")?;
    let listeners = bind(&config, manager.take_data_port())?;
    let replica = config.replica_id().to_string();
    let metrics = AllMetrics::new();
    let collectors = Collectors::of(&config, &origin, &replica, &metrics)?;
    // It may wait for a name server.
    let gossip = tokio::select! {
        Some(signal) = signals.recv() => {
            tracing::info!(%signal, "ended before it had started");
            return Ok(ExitCode::SUCCESS);
        }
        gossip = start_gossip(&config, &replica, &listeners, metrics) => gossip?,
    };
    let agent = Arc::clone(&gossip.agent);
    let until = (shutdown, signals);
    let ended = run_known(
        config, origin, manager, listeners, collectors, gossip, until,
    )
    .await;
    if ended.is_err() {
        // Without a word, they would take it for one that died.
        agent.shutdown().await;
    }
    ended
}

/// The same from where other replicas know of this one on.
async fn run_known(
    config: Config,
    origin: Layers,
    manager: ServiceManager,
    listeners: Listeners,
    mut collectors: Collectors,
    gossip: Gossip,
    (shutdown, signals): (Shutdown, mpsc::Receiver<Signal>),
) -> anyhow::Result<ExitCode> {
    let replica = config.replica_id().to_string();
    let standing = Standing::new(shutdown.background().clone());
    let hangups = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    let changes = Changes::default();
    let base = Base {
        config: &config,
        replica: &replica,
        agent: &gossip.agent,
        metrics: &gossip.metrics,
        shutdown: &shutdown,
        standing: &standing,
        changes: &changes,
    };

    let ways = start_certificates(base, gossip.identity)?;
    let (labelled, is_labelled) = watch::channel(false);
    let heard = Heard {
        evidence: gossip.heard,
        is_labelled,
    };
    let followed = start_cluster(base, &ways.connector, heard, gossip.caches)?;
    let (reload, wished) = wishes();
    let readings = Arc::<Readings>::default();
    let announcement = announcement(&replica, &listeners, gossip.agent.local_addr())?;
    let discovered = start_discovery(base, &followed, &ways.connector, listeners.pings);
    let data = listeners.data.local_addr()?;
    let limits = start_limits(base, &followed.cluster, &discovered.board, &readings)?;
    let tracing = collectors.start_traces(base);
    let clients = ForClients {
        tls: ways.tls,
        socket: listeners.data,
        tracing,
    };
    let opened = start_front(base, &followed, &limits, clients)?;
    // From here on nothing can fail.
    let lanes = Arc::clone(&opened.lanes);
    let readiness = Arc::clone(&opened.readiness);
    let reporting = manager.run(readiness, lanes.pulses(), base.phase());
    let operators = ForOperators {
        data,
        admin: listeners.admin,
        metrics: listeners.metrics,
        exporter: collectors.exporter,
        reload,
        readings: Arc::clone(&readings),
    };
    let connector = Arc::clone(&ways.connector);
    let warm_ups = Arc::clone(&followed.warm_ups);
    start_admin(
        base, followed, discovered, limits, opened, connector, operators,
    );
    changes.on(|config| logging::follow(&config.log));
    let limits = base.live(|config| ShutdownLimits {
        settle: config.timeouts.settle,
        drain: config.timeouts.drain,
    });
    // Last: by now every part has said what it follows.
    let reloading = ReloadParts {
        layers: origin,
        connector: ways.connector,
        apply: changes.take(),
        warm_ups,
        hangups,
        wished,
        readings,
        labelled,
    };
    start_tasks(base, reloading);
    print(&announcement);
    base.run("service_manager", reporting);

    let ending = shutdown.run(limits, signals, gossip.agent.shutdown()).await;
    // What clients' connections left behind is not waited for.
    drop(lanes);
    Ok(ending.exit_code())
}

/// Whoever started this process may not read it.
fn print(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
