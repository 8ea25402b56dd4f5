//! Configuration: defaults, file, environment, flags, each over the one before; checked here, once.
//!
//! A part of the program receives the small struct of its own section, never the whole [`Config`].
//! Rows of settings are in `front`, `cluster` and `upstream`; `table` makes structs and help of
//! them; `raw` lays the layers; `value` reads single values; `convert` makes the settings of gossip and
//! placement; `print` writes the documented file.
//!
//! To add a setting, add its row: flag, variable, check, help and printed line follow.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

mod admission;
mod agreed;
pub mod allow;
mod cache;
mod check;
mod cluster;
mod convert;
mod cors;
mod discovery;
mod error;
mod failover;
mod front;
mod kv_events;
mod layers;
#[cfg(test)]
mod model_tests;
mod notes;
mod print;
mod raw;
mod realtime;
mod section_values;
mod selector;
mod setting;
mod table;
#[cfg(test)]
mod tests;
mod tls;
mod trace;
mod transfer;
mod types;
mod upstream;
mod value;
mod warmup;

pub(crate) use admission::check_tenant;
pub use admission::{
    AdmissionConfig, Expiry, KeyConfig, KeyHash, KeysConfig, NoRoomStatus, parse_keys, read_keys,
};
pub use cache::CacheConfig;
pub use check::short_lease_secret;
pub use cluster::{ClusterConfig, GossipSettings, ModelConfig};
pub use cors::{CorsConfig, Origin as WebOrigin, Wild};
pub use discovery::{
    DiscoveryConfig, DnsConfig, FilesConfig, KubernetesConfig, LeaseConfig, PingConfig,
};
pub use error::{ConfigError, Origin, Problem, in_order_of_place};
pub use failover::FailoverConfig;
pub use front::{
    AdminConfig, LANES_MAX, LimitConfig, ListenConfig, LogConfig, MetricsConfig, ReplicaConfig,
    TimeoutConfig,
};
pub use kv_events::KvEventsConfig;
pub use layers::Layers;
pub use print::documented_defaults;
pub use realtime::RealtimeConfig;
pub use tls::TlsConfig;
pub use trace::{MetricsExportConfig, TraceConfig};
pub use transfer::{DecodeAlone, TransferConfig};
pub use types::{
    AllowedHost, ByteSize, Coding, Collector, HostPort, Name, OtlpProtocol, PriceRule, Secret,
};
pub use upstream::{
    BreakerConfig, HealthConfig, RetryConfig, WorkerConfig, WorkerHttp2, WorkersConfig,
};
pub use warmup::WarmupConfig;

pub(crate) use raw::{rows, variable};
pub(crate) use table::{Flag, FlagKind};

use raw::Raw;
use table::{Row, Section};

/// Declares [`Config`], a row for each section that is there once: what it is for, its field, its struct. The rows are in the
/// order of the printed file.
macro_rules! sections {
    ($($(#[doc = $about:literal])* $section:ident: $Type:ident,)*) => {
        /// A checked configuration: every value is in range and the sections fit together.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Config {
            $($(#[doc = $about])* pub $section: $Type,)*
            /// Models with settings of their own, and aliases: the `[[model]]` sections, in their order.
            pub model: Vec<ModelConfig>,
            /// The workers of `[[worker]]` and of `workers.urls` together; no address twice.
            pub worker: Vec<WorkerConfig>,
        }

        impl Config {
            fn from_raw(raw: &mut Raw) -> Self {
                let workers: WorkersConfig = raw.read();
                let mut worker = raw.read_workers();
                worker.extend(workers.listed());
                Self {
                    $($section: sections!(@read raw workers $section),)*
                    model: raw.read_models(),
                    worker,
                }
            }

            /// Takes over of each section what may change while the replica runs.
            fn follow_sections(&mut self, new: &Self, followed: &mut Followed) {
                $({
                    let name = |key: &str| format!("{}.{key}", stringify!($section));
                    let (own, other) = (&mut self.$section, &new.$section);
                    followed.changed.extend(own.follow(other).into_iter().map(name));
                    followed.waiting.extend(own.differing(other).into_iter().map(name));
                })*
            }
        }

        /// Name, documentation and rows of every section, in the order of the printed file.
        fn sections() -> impl Iterator<Item = (&'static str, &'static [&'static str], &'static [Row])> {
            [$(($Type::NAME, $Type::ABOUT, $Type::ROWS)),*].into_iter()
        }
    };
    (@read $raw:ident $read:ident workers) => { $read };
    (@read $raw:ident $read:ident $section:ident) => { $raw.read() };
}

sections! {
    /// Identity of this replica.
    replica: ReplicaConfig,
    /// The data port.
    listen: ListenConfig,
    /// TLS on the data port.
    tls: TlsConfig,
    /// Web pages on the data port.
    cors: CorsConfig,
    /// The admin port.
    admin: AdminConfig,
    /// The Prometheus port.
    metrics: MetricsConfig,
    /// Gossip between replicas.
    gossip: GossipSettings,
    /// What all replicas must agree on.
    cluster: ClusterConfig,
    /// What holds for all workers.
    workers: WorkersConfig,
    /// When discovered workers are believed.
    discovery: DiscoveryConfig,
    /// Workers from files.
    files: FilesConfig,
    /// Workers by DNS.
    dns: DnsConfig,
    /// Workers from Kubernetes.
    kubernetes: KubernetesConfig,
    /// Workers that register themselves.
    leases: LeaseConfig,
    /// Workers that register by ZeroMQ.
    pings: PingConfig,
    /// Retries.
    retry: RetryConfig,
    /// Circuit breakers.
    breaker: BreakerConfig,
    /// Active health checks.
    health: HealthConfig,
    /// Mid-stream failover.
    failover: FailoverConfig,
    /// Requests that are divided between prefill and decode workers.
    transfer: TransferConfig,
    /// What workers say of their caches.
    kv_events: KvEventsConfig,
    /// Warm-up of joining workers.
    warmup: WarmupConfig,
    /// WebSocket sessions.
    realtime: RealtimeConfig,
    /// Response cache.
    cache: CacheConfig,
    /// Which requests wait when there is no room.
    admission: AdmissionConfig,
    /// Clients' keys.
    keys: KeysConfig,
    /// How long each step may take.
    timeouts: TimeoutConfig,
    /// Sizes and counts.
    limits: LimitConfig,
    /// OpenTelemetry traces.
    trace: TraceConfig,
    /// Metrics for a collector.
    metrics_export: MetricsExportConfig,
    /// Logging.
    log: LogConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self::from_raw(&mut Raw::new())
    }
}

impl Config {
    /// Lays the layers over each other and checks the result.
    /// Errors: [`ConfigError::Invalid`] with every mistake that was found, each with its place.
    pub fn from_layers(layers: Layers) -> Result<Self, ConfigError> {
        let (config, problems) = Self::examine(&layers);
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError::Invalid(problems))
        }
    }

    /// Where others reach a port of this replica: a wildcard address means nothing to them, so the host that gossip
    /// advertises stands in for it.
    pub fn reached_at(&self, bound: SocketAddr) -> String {
        let advertised = self.gossip.advertise.as_ref().map(ToString::to_string);
        let host = advertised
            .as_deref()
            .filter(|_| bound.ip().is_unspecified())
            .and_then(|advertised| advertised.rsplit_once(':'))
            .map(|(host, _)| host);
        host.map_or_else(
            || bound.to_string(),
            |host| format!("{host}:{}", bound.port()),
        )
    }

    /// Where others reach the metrics port; none where it has none, or takes a free one.
    pub fn metrics_at(&self) -> Option<String> {
        let metrics = &self.metrics;
        let is_fixed = metrics.enabled && metrics.port != 0;
        is_fixed.then(|| self.reached_at(SocketAddr::new(metrics.host, metrics.port)))
    }

    /// The settings as far as they could be read, and every mistake in them, each with its place. A value that could not
    /// be read has its default.
    pub fn examine(layers: &Layers) -> (Self, Vec<Problem>) {
        let mut raw = layers.raw();
        let config = Self::from_raw(&mut raw);
        let mut problems = std::mem::take(&mut raw.problems);
        // A default that stands in for a bad value need not fit the settings beside it.
        let fits_others = |problem: &Problem| problems.iter().all(|bad| !bad.spoils(problem));
        let together = check::problems(&config, &raw);
        let together: Vec<Problem> = together.into_iter().filter(fits_others).collect();
        problems.extend(together);
        problems.extend(check::of_models(&config, &raw));
        (config, in_order_of_place(problems))
    }

    /// Takes over from a configuration that was read again what may change while the replica runs: the rows that are
    /// `live`, and the workers. Everything else stays as it was at the start.
    #[must_use]
    pub fn follow(&mut self, new: &Self) -> Followed {
        let mut followed = Followed::default();
        self.follow_sections(new, &mut followed);
        if self.model != new.model {
            followed.waiting.push(ModelConfig::NAME.to_owned());
        }
        followed
            .changed
            .extend(changed_of_workers(&self.worker, &new.worker));
        self.worker.clone_from(&new.worker);
        followed
            .waiting
            .retain(|key| !WORKER_LISTS.contains(&key.as_str()));
        self.workers.list_as(&new.workers);
        followed
    }

    /// What does not fit together in settings of which some were read again, and others are as they were at the start.
    /// Errors: [`ConfigError::Invalid`] with each of them.
    pub fn is_whole(&self) -> Result<(), ConfigError> {
        let problems = check::of_live(self);
        match problems.is_empty() {
            true => Ok(()),
            false => Err(ConfigError::Invalid(problems)),
        }
    }

    /// What an operator who starts with these settings should know, such as that there is no worker
    /// yet; nothing of it is wrong.
    pub fn notes(&self) -> Vec<String> {
        notes::of(self)
    }
}

/// What became of the settings that a configuration which was read again has otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Followed {
    /// Taken over, such as `limits.requests`.
    pub changed: Vec<String>,
    /// As they were, until a restart.
    pub waiting: Vec<String>,
}

/// Settings that changed of workers that were there before, beside what counts as a worker that is described anew.
fn changed_of_workers(before: &[WorkerConfig], now: &[WorkerConfig]) -> BTreeSet<String> {
    let before: BTreeMap<_, _> = before.iter().map(|worker| (&worker.url, worker)).collect();
    let changed = now.iter().filter_map(|worker| {
        let known = before.get(&worker.url)?;
        Some(worker.changed_beside(known))
    });
    let name = |key| format!("{}.{key}", WorkerConfig::NAME);
    changed.flatten().map(name).collect()
}

/// Settings that say which workers there are.
const WORKER_LISTS: [&str; 4] = [
    "workers.urls",
    "workers.prefill_urls",
    "workers.decode_urls",
    "workers.data_parallel_size",
];
