//! Starts the sources of workers: each watches by itself, and a task for each writes what the replicas agree on.

use std::sync::Arc;
use std::time::Duration;

use grapevine_discovery::dns::{self, DnsSettings, Scheme};
use grapevine_discovery::file::{self, FileSettings};
use grapevine_discovery::{Settings, Watcher, feed};
use grapevine_gossip::worker::WorkerId;
use tokio::net::TcpListener;

use super::base::Base;
use super::cluster::Followed;
#[cfg(feature = "kubernetes")]
use super::kubernetes;
use crate::cluster::Cluster;
use crate::config::LeaseConfig;
use crate::discovery::{
    Board, Credentials, Follow, FollowParts, LEASE_SOURCE, LeaseParts, LeaseRegistrar, Leases,
    PING_SOURCE, Pings, name_unwatched,
};
use crate::live::Live;
use crate::upstream::Connector;
use crate::upstream::health::Answers;

/// Files are read in full twice in that time, however rarely they change.
const FILES_STALE_AFTER: Duration = Duration::from_secs(60);
/// Longer than any answer stands, with some that fail.
const DNS_STALE_AFTER: Duration = Duration::from_secs(150);

/// Sources of workers.
pub(super) struct Discovered {
    /// What they show.
    pub(super) board: Arc<Board>,
    /// Workers that register themselves.
    pub(super) leases: Arc<Leases>,
    /// Who may do so, where there is a secret.
    pub(super) credentials: Live<Option<Credentials>>,
}

/// Starts every source that is configured, and the look-out for leases; `pings` is where ZeroMQ's are heard, if they are.
pub(super) fn start_discovery(
    base: Base<'_>,
    followed: &Followed,
    connector: &Arc<Connector>,
    pings: Option<TcpListener>,
) -> Discovered {
    let config = base.config;
    let board = Arc::new(Board::default());
    let start_leases = |source, config: Live<LeaseConfig>| {
        let leases = Arc::new(Leases::new(LeaseParts {
            source,
            agent: Arc::clone(base.agent),
            is_good: is_good(&followed.cluster),
            warm_ups: Arc::clone(&followed.warm_ups),
            board: Arc::clone(&board),
            metrics: base.metrics.discovery.clone(),
            config,
            phase: base.phase(),
        }));
        base.run("leases", Arc::clone(&leases).run());
        leases
    };
    let leases = start_leases(LEASE_SOURCE, base.live(|config| config.leases.clone()));
    // Also where no pings are heard: another replica may hear them, and this one then answers for its workers once it is
    // gone.
    let pinging = base.live(|config| LeaseConfig {
        ttl: config.pings.ttl,
        grace: config.pings.grace,
        secret: None,
    });
    let pinging = start_leases(PING_SOURCE, pinging);
    if let Some(socket) = pings {
        let registrar = LeaseRegistrar {
            leases: pinging,
            connector: Arc::clone(connector),
        };
        let metrics = base.metrics.pings.clone();
        let connections_max = config.pings.connections as usize;
        let pings = Pings::new(registrar, metrics, connections_max);
        base.run("pings", pings.run(socket, base.phase()));
    }
    let parts = FollowParts {
        agent: Arc::clone(base.agent),
        connector: Arc::clone(connector),
        warm_ups: Arc::clone(&followed.warm_ups),
        board: Arc::clone(&board),
        metrics: base.metrics.discovery.clone(),
        settings: base.live(|config| Settings {
            hold: config.discovery.hold,
            empty_hold: config.discovery.empty_hold,
            contest: config.discovery.contest,
        }),
        phase: base.phase(),
    };
    let watchers = start_sources(base);
    let watched = watchers.iter().map(|watcher| watcher.name().to_owned());
    let unwatched = name_unwatched(Arc::clone(base.agent), watched.collect(), base.phase());
    base.run("unwatched_sources", unwatched);
    for watcher in watchers {
        base.run("sources", Follow::new(parts.clone(), watcher).run());
    }
    Discovered {
        board,
        leases,
        credentials: base.live(|config| config.leases.secret.as_ref().map(Credentials::new)),
    }
}

/// Whether a worker is known, and answers its checks.
fn is_good(cluster: &Arc<Cluster>) -> Box<dyn Fn(&WorkerId) -> bool + Send + Sync> {
    let cluster = Arc::clone(cluster);
    Box::new(move |id| {
        let fleet = cluster.fleet();
        let worker = fleet.workers().find(|worker| worker.id == *id);
        worker.is_some_and(|worker| worker.health.answers() == Answers::Yes)
    })
}

/// Starts what watches, and returns the ends at which pictures are read.
fn start_sources(base: Base<'_>) -> Vec<Watcher> {
    let mut watchers = Vec::new();
    watchers.extend(files(base));
    watchers.extend(dns(base));
    // A configuration that asks for pods is refused by a build without them.
    #[cfg(feature = "kubernetes")]
    watchers.extend(kubernetes::start(base));
    watchers
}

/// Looks at the configured files. A picture that was not confirmed for several readings is not acted on.
fn files(base: Base<'_>) -> Option<Watcher> {
    let config = &base.config.files;
    if config.paths.is_empty() {
        return None;
    }
    let mut settings = FileSettings::new(config.paths.clone());
    settings.interval = config.every;
    let (feed, watcher) = feed("files", FILES_STALE_AFTER.max(config.every * 4));
    base.run("files", file::run(settings, feed));
    Some(watcher)
}

/// Asks for the configured names.
fn dns(base: Base<'_>) -> Option<Watcher> {
    let config = &base.config.dns;
    if !config.has_names() {
        return None;
    }
    let settings = DnsSettings {
        scheme: if config.https {
            Scheme::Https
        } else {
            Scheme::Http
        },
        nameservers: config.servers.clone(),
        timeout: config.timeout,
        prefill_names: config.prefill_names.clone(),
        decode_names: config.decode_names.clone(),
        ..DnsSettings::new(config.names.clone())
    };
    let (feed, watcher) = feed("dns", DNS_STALE_AFTER);
    base.run("dns", dns::run(settings, feed));
    Some(watcher)
}
