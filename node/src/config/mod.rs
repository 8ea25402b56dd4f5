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
use std::path::{Path, PathBuf};

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
#[cfg(test)]
mod model_tests;
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
use section_values::SectionValues;
use table::{Row, Section};

/// A checked configuration: every value is in range and the sections fit together.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Identity of this replica.
    pub replica: ReplicaConfig,
    /// The data port.
    pub listen: ListenConfig,
    /// TLS on the data port.
    pub tls: TlsConfig,
    /// Web pages on the data port.
    pub cors: CorsConfig,
    /// The admin port.
    pub admin: AdminConfig,
    /// The Prometheus port.
    pub metrics: MetricsConfig,
    /// Gossip between replicas.
    pub gossip: GossipSettings,
    /// What all replicas must agree on.
    pub cluster: ClusterConfig,
    /// Models with settings of their own, and aliases: the `[[model]]` sections, in their order.
    pub model: Vec<ModelConfig>,
    /// What holds for all workers.
    pub workers: WorkersConfig,
    /// The workers of `[[worker]]` and of `workers.urls` together; no address twice.
    pub worker: Vec<WorkerConfig>,
    /// When discovered workers are believed.
    pub discovery: DiscoveryConfig,
    /// Workers from files.
    pub files: FilesConfig,
    /// Workers by DNS.
    pub dns: DnsConfig,
    /// Workers from Kubernetes.
    pub kubernetes: KubernetesConfig,
    /// Workers that register themselves.
    pub leases: LeaseConfig,
    /// Workers that register by ZeroMQ.
    pub pings: PingConfig,
    /// Retries.
    pub retry: RetryConfig,
    /// Circuit breakers.
    pub breaker: BreakerConfig,
    /// Active health checks.
    pub health: HealthConfig,
    /// Mid-stream failover.
    pub failover: FailoverConfig,
    /// Requests that are divided between prefill and decode workers.
    pub transfer: TransferConfig,
    /// What workers say of their caches.
    pub kv_events: KvEventsConfig,
    /// Warm-up of joining workers.
    pub warmup: WarmupConfig,
    /// WebSocket sessions.
    pub realtime: RealtimeConfig,
    /// Response cache.
    pub cache: CacheConfig,
    /// Which requests wait when there is no room.
    pub admission: AdmissionConfig,
    /// Clients' keys.
    pub keys: KeysConfig,
    /// How long each step may take.
    pub timeouts: TimeoutConfig,
    /// Sizes and counts.
    pub limits: LimitConfig,
    /// OpenTelemetry traces.
    pub trace: TraceConfig,
    /// Metrics for a collector.
    pub metrics_export: MetricsExportConfig,
    /// Logging.
    pub log: LogConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self::from_raw(&mut Raw::new())
    }
}

/// What lies over the defaults, lowest first.
#[derive(Default, Clone)]
pub struct Layers {
    /// The file, with its name for messages.
    pub file: Option<(PathBuf, String)>,
    /// The environment; variables that are not ours are passed over.
    pub environment: Vec<(String, String)>,
    /// Flags of the command line.
    pub(crate) flags: Vec<(Flag, Vec<String>)>,
}

/// Keys may stand in any of them.
impl std::fmt::Debug for Layers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Layers").finish_non_exhaustive()
    }
}

/// Why a file without anything in it is not taken over.
const EMPTIED: &str = "it is empty, and was not before: many programs empty a file before they write it. A comment in it \
                       means that it is to have no settings";

impl Layers {
    /// Reads the file.
    /// Errors: [`ConfigError::Unreadable`].
    pub fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|cause| ConfigError::Unreadable {
            path: path.to_owned(),
            cause,
        })?;
        self.file = Some((path.to_owned(), text));
        Ok(())
    }

    /// A variable of the environment, also one that is not ours.
    pub fn variable(&self, name: &str) -> Option<String> {
        let mut named = self.environment.iter().filter(|(own, _)| own == name);
        named.next().map(|(_, value)| value.clone())
    }

    /// Where a setting was written, for messages about it.
    pub fn origin_of(&self, section: &str, key: &str) -> Origin {
        self.raw().origin_of(section, key)
    }

    /// The same for a setting of the `[[worker]]` section with this index, from 0.
    pub fn origin_of_worker(&self, index: usize, key: &str) -> Origin {
        let raw = self.raw();
        let origin = |section: &SectionValues| section.origin_of(key).cloned();
        raw.workers
            .get(index)
            .and_then(origin)
            .unwrap_or(Origin::Whole)
    }

    fn raw(&self) -> Raw {
        let mut raw = Raw::new();
        if let Some((path, text)) = &self.file {
            raw.add_file(path, text);
        }
        raw.add_environment(self.environment.iter().cloned());
        for (flag, words) in &self.flags {
            raw.add_flag(*flag, words.clone());
        }
        raw
    }

    /// The layers and the configuration as they are now: the file is read anew, environment and flags are those of the start.
    /// Errors: as [`Layers::read_file`] and [`Config::from_layers`]; a file that has nothing in it any more is
    /// unreadable, since all its workers would leave the cluster.
    pub fn again(mut self) -> Result<(Self, Config), ConfigError> {
        let is_blank = |text: &str| text.trim().is_empty();
        if let Some((path, before)) = self.file.take() {
            self.read_file(&path)?;
            let now = self.file.as_ref().map(|(_, text)| &**text);
            if !is_blank(&before) && now.is_some_and(is_blank) {
                let cause = std::io::Error::other(EMPTIED);
                return Err(ConfigError::Unreadable { path, cause });
            }
        }
        let config = Config::from_layers(self.clone())?;
        Ok((self, config))
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
        macro_rules! sections {
            ($($section:ident)*; repeated: $($repeated:ident)*; workers: $workers:ident) => {
                // All of them: a new section does not compile before it is here.
                let Self { $($section,)* $($repeated,)* $workers } = self;
                $(
                    let name = |key: &str| format!("{}.{key}", stringify!($section));
                    followed.changed.extend($section.follow(&new.$section).into_iter().map(name));
                    followed.waiting.extend($section.differing(&new.$section).into_iter().map(name));
                )*
                $(if *$repeated != new.$repeated {
                    followed.waiting.push(stringify!($repeated).to_owned());
                })*
                followed.changed.extend(changed_of_workers($workers, &new.$workers));
                $workers.clone_from(&new.$workers);
            };
        }
        sections!(
            replica listen tls cors admin metrics gossip cluster workers discovery files dns kubernetes leases pings retry
            breaker health failover transfer kv_events warmup realtime cache admission keys timeouts limits trace
            metrics_export log;
            repeated: model;
            workers: worker
        );
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
        check::notes(self)
    }

    fn from_raw(raw: &mut Raw) -> Self {
        let workers: WorkersConfig = raw.read();
        let mut worker = raw.read_workers();
        worker.extend(workers.listed());
        Self {
            replica: raw.read(),
            listen: raw.read(),
            tls: raw.read(),
            cors: raw.read(),
            admin: raw.read(),
            metrics: raw.read(),
            gossip: raw.read(),
            cluster: raw.read(),
            model: raw.read_models(),
            workers,
            worker,
            discovery: raw.read(),
            files: raw.read(),
            dns: raw.read(),
            kubernetes: raw.read(),
            leases: raw.read(),
            pings: raw.read(),
            retry: raw.read(),
            breaker: raw.read(),
            health: raw.read(),
            failover: raw.read(),
            transfer: raw.read(),
            kv_events: raw.read(),
            warmup: raw.read(),
            realtime: raw.read(),
            cache: raw.read(),
            admission: raw.read(),
            keys: raw.read(),
            timeouts: raw.read(),
            limits: raw.read(),
            trace: raw.read(),
            metrics_export: raw.read(),
            log: raw.read(),
        }
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

/// Name, documentation and rows of every section, in the order of the printed file.
fn sections() -> impl Iterator<Item = (&'static str, &'static [&'static str], &'static [Row])> {
    fn of<S: Section>() -> (&'static str, &'static [&'static str], &'static [Row]) {
        (S::NAME, S::ABOUT, S::ROWS)
    }
    [
        of::<ReplicaConfig>(),
        of::<ListenConfig>(),
        of::<TlsConfig>(),
        of::<CorsConfig>(),
        of::<AdminConfig>(),
        of::<MetricsConfig>(),
        of::<GossipSettings>(),
        of::<ClusterConfig>(),
        of::<WorkersConfig>(),
        of::<DiscoveryConfig>(),
        of::<FilesConfig>(),
        of::<DnsConfig>(),
        of::<KubernetesConfig>(),
        of::<LeaseConfig>(),
        of::<PingConfig>(),
        of::<RetryConfig>(),
        of::<BreakerConfig>(),
        of::<HealthConfig>(),
        of::<FailoverConfig>(),
        of::<TransferConfig>(),
        of::<KvEventsConfig>(),
        of::<WarmupConfig>(),
        of::<RealtimeConfig>(),
        of::<CacheConfig>(),
        of::<AdmissionConfig>(),
        of::<KeysConfig>(),
        of::<TimeoutConfig>(),
        of::<LimitConfig>(),
        of::<TraceConfig>(),
        of::<MetricsExportConfig>(),
        of::<LogConfig>(),
    ]
    .into_iter()
}
