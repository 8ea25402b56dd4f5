//! `GET /about`: what a replica alone knows of itself and of the machine that it runs on. `grapevine doctor` reads it.
//!
//! Nothing in it is secret: no key, no token, no prompt. Settings are those that all replicas must agree on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::StatusCode;
use serde::Serialize;

use super::Admin;
use super::answer::{Answer, json};
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::config::{Config, ModelConfig};
use crate::descriptors::fitting;
use crate::machine::{Machine, own_files_max};

/// What a configuration says of a replica, for operators.
#[derive(Debug, Clone, Serialize)]
pub struct Configured {
    /// Settings that all replicas must agree on, by name, as in the file.
    settings: BTreeMap<String, String>,
    /// Addresses of the ports, as configured but for the data port; port 0: one that was free.
    listen: Listen,
    /// Threads that serve clients; null: one for each usable processor.
    threads: Option<u32>,
    /// Most connections of clients, as configured.
    connections_max: u32,
    /// Most bytes of bodies that are held at once.
    body_bytes_max: u64,
    /// Seeds, as configured.
    seeds: Vec<String>,
    /// Whether it listens to what workers say of their caches.
    kv_events: bool,
    /// Where others reach the metrics port, as configured; none where it has none, or takes a free one.
    #[serde(skip)]
    pub(super) metrics_at: Option<String>,
    /// The `[[model]]` sections: part of `GET /cluster`.
    #[serde(skip)]
    pub(super) models: Vec<ModelView>,
}

/// A `[[model]]` section, as far as it says what clients may ask for.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ModelView {
    name: String,
    /// Where its requests go; empty: it is no alias.
    targets: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Listen {
    /// As it is open: a service manager may have bound it, elsewhere than the configuration says.
    data: SocketAddr,
    admin: SocketAddr,
    /// Null: no port of its own.
    metrics: Option<SocketAddr>,
    /// Null: no port of its own, as with `metrics`.
    pings: Option<SocketAddr>,
    /// UDP; null: it does not gossip.
    gossip: Option<SocketAddr>,
    /// Clients of the data port need a key.
    keys: bool,
    /// The data port has TLS.
    tls: bool,
    /// The admin port wants a token.
    admin_token: bool,
}

impl Configured {
    /// As a configuration says, of a replica whose data port is open here.
    pub fn of(config: &Config, data: SocketAddr) -> Self {
        let (metrics, gossip) = (&config.metrics, &config.gossip);
        Self {
            settings: config.must_agree(),
            listen: Listen {
                data,
                admin: SocketAddr::new(config.admin.host, config.admin.port),
                metrics: metrics
                    .enabled
                    .then(|| SocketAddr::new(metrics.host, metrics.port)),
                pings: config.pings.listen,
                gossip: gossip
                    .identity()
                    .map(|_| SocketAddr::new(gossip.host, gossip.port)),
                keys: config.keys.file.is_some(),
                tls: config.tls.cert.is_some(),
                admin_token: config.admin.token.is_some(),
            },
            threads: config.listen.threads,
            connections_max: config.limits.connections,
            body_bytes_max: config.limits.body_bytes_total.0,
            seeds: config
                .gossip
                .seeds
                .iter()
                .map(ToString::to_string)
                .collect(),
            kv_events: config.kv_events.enabled,
            metrics_at: config.metrics_at(),
            models: config.model.iter().map(ModelView::of).collect(),
        }
    }
}

impl ModelView {
    fn of(model: &ModelConfig) -> Self {
        let targets = model.targets.iter().flatten();
        Self {
            name: model.name.clone(),
            targets: targets.map(|target| target.model.clone()).collect(),
        }
    }
}

/// `GET /about`.
#[derive(Debug, Serialize)]
pub(super) struct AboutView {
    replica: String,
    version: &'static str,
    /// The commit of this build, or `unknown`.
    revision: &'static str,
    /// Milliseconds since 1970 by this machine's clock, when it answered.
    now_ms: u64,
    #[serde(flatten)]
    configured: Configured,
    /// Fingerprint of `settings`.
    fingerprint: String,
    /// How many of `connections_max` fit into the limit of open files.
    connections_fit: u32,
    machine: Machine,
    memory: Option<MemoryView>,
    /// The open connections to other replicas that this one dialled.
    paths: Vec<PathView>,
}

/// Memory that this replica may use.
#[derive(Debug, Serialize)]
struct MemoryView {
    limit: u64,
    /// What counts against it; null where the system does not say.
    used: Option<u64>,
}

/// What the path to a peer carries.
#[derive(Debug, Serialize)]
struct PathView {
    replica: String,
    /// Bytes of the largest UDP payload that passes.
    mtu: u16,
    /// Times that large packets ceased to pass.
    black_holes: u64,
    packets_sent: u64,
    packets_lost: u64,
}

impl Admin {
    /// What the kernel says is read from files.
    pub(super) async fn show_about(self: &Arc<Self>) -> Result<Answer, ApiError> {
        let admin = Arc::clone(self);
        let about = tokio::task::spawn_blocking(move || admin.describe_about()).await;
        let about = about
            .map_err(|_| ApiError::new(ErrorKind::Internal, "the machine was not looked at"))?;
        Ok(json(StatusCode::OK, &about))
    }

    fn describe_about(&self) -> AboutView {
        let links = self.agent.links().into_iter();
        let paths = links.filter_map(|(replica, link)| {
            let path = link.path?;
            Some(PathView {
                replica: replica.to_string(),
                mtu: path.mtu,
                black_holes: path.black_holes,
                packets_sent: path.sent,
                packets_lost: path.lost,
            })
        });
        let configured = self.configured.now();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_millis();
        AboutView {
            replica: self.replica.clone(),
            version: env!("CARGO_PKG_VERSION"),
            revision: env!("GRAPEVINE_REVISION"),
            now_ms: u64::try_from(now).unwrap_or(u64::MAX),
            connections_fit: fitting(configured.connections_max, own_files_max()),
            configured: (*configured).clone(),
            fingerprint: self.settings.now().to_string(),
            machine: Machine::look(self.agent.local_addr(), &self.recorder.held_up),
            memory: self
                .memory
                .limit()
                .map(|(limit, used)| MemoryView { limit, used }),
            paths: paths.collect(),
        }
    }
}
