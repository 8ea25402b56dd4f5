//! The admin port, and the Prometheus port, which serves `/metrics` alone.
//!
//! | method, path | what |
//! |---|---|
//! | `GET /healthz` | the process runs |
//! | `GET /readyz` | the replica takes traffic; else what is missing |
//! | `GET /metrics` | OpenMetrics or Prometheus' protobuf for clients that name them, else text format 0.0.4 |
//! | `GET /cluster` | replicas as this one sees them, registry, ring digest |
//! | `GET /about` | what this replica alone knows of itself and of its machine; for `grapevine doctor` |
//! | `GET /events` | faults, repairs and changes of the last hour, as this replica saw them, oldest first |
//! | `GET /history?worker=`, `?replica=` | the last hour in figures: of the cluster, of one worker, of one replica |
//! | `GET /links` | which replica hears which |
//! | `GET /ring` | digest of every ring, and its first workers |
//! | `GET /workers?limit=&after=` | list, 1,000 at a time in order of ids; `next` is the `after` of the next page |
//! | `POST /workers?warmup=` | add one, or a list, all or none; `warmup=false`: active at once |
//! | `GET`, `PATCH`, `DELETE /workers/{id}` | one worker; the id percent-encoded |
//! | `POST /workers/{id}/drain` | nothing new for it: no new prefixes, and sessions move with their next request |
//! | `PATCH /workers/{id}` with `{"state":"active"}` | undoes a drain |
//! | `POST /add_worker?url=&warmup=`, `POST /remove_worker?url=`, `GET /list_workers?limit=&after=` | as in vllm-router; the list in pages, as `GET /workers` |
//! | `GET /cache?limit=` | what workers that publish KV events hold: the prefixes that take most room, and each worker |
//! | `GET /quarantine` | hashes of the requests that no worker gets, with their age and what is left |
//! | `DELETE /quarantine/{hash}`, `DELETE /quarantine` | lifts one mark, or all, on every replica |
//! | `POST /config/reload` | reads the configuration again, as SIGHUP does, and tells what became of it |
//! | `GET /discovery` | sources of workers, as this replica sees them |
//! | `PUT`, `DELETE /leases/{id}` | a worker registers itself or renews its lease; takes itself out. Its own credential is enough |
//! | `POST /explain?path=&tenant=&load=` | where the request in the body would go, and why |
//! | `GET /`, `/page/...` | the page, for people: `pages/` |
//!
//! A parameter that an endpoint does not have is a 400 that names those that it has; `/metrics` and leases ignore it.
//!
//! Never on the data port. Beyond loopback it needs a token. Web pages are kept out by `gate.rs`.

mod about;
mod answer;
mod body;
mod caches;
mod describe;
mod explain;
mod gate;
mod history;
mod leases;
mod links;
mod methods;
mod page;
mod pages;
mod quarantine;
mod query;
mod replica;
mod routes;
mod scrape;
mod serve;
mod shared;
mod since;
mod taken_away;
mod token;
mod turns;
mod wanted;
mod workers;

use std::sync::Arc;

use grapevine_gossip::Agent;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use self::answer::Answer;
use crate::admission::Admission;
use crate::all_metrics::AllMetrics;
use crate::cluster::Cluster;
use crate::cluster::quarantine::Quarantine;
use crate::config::{LimitConfig, Secret, TransferConfig};
use crate::descriptors;
use crate::discovery::{Board, Credentials, Leases};
use crate::kv_events::Caches;
use crate::live::Live;
use crate::log_limit::LogLimit;
use crate::memory::Memory;
use crate::page::sampler::Recorder;
use crate::readiness::Readiness;
use crate::reload::{Readings, Wish};
use crate::seats::{Counts, SeatLimits, Seats};
use crate::shutdown::Phase;
use crate::standing::LostTasks;
use crate::tenants::Keys;
use crate::upstream::Connector;
use crate::warmup::WarmUps;

pub use about::Configured;
pub use body::BODY_BYTES_MAX;
pub use gate::Gate;
pub use pages::Pages;
pub use scrape::Scrapes;
pub use serve::run;
pub use turns::Turns;

/// What the admin API shows and changes.
pub struct Admin {
    /// This replica's name.
    pub replica: String,
    /// Fleet and placement.
    pub cluster: Arc<Cluster>,
    /// The replicated view.
    pub agent: Arc<Agent>,
    /// All metrics.
    pub metrics: Arc<AllMetrics>,
    /// One reader of them at a time.
    pub reading: Mutex<()>,
    /// Expositions that several scrapers get.
    pub scrapes: Scrapes,
    /// Admission to the data port.
    pub admission: Arc<Admission>,
    /// Where this replica is between start and end.
    pub phase: Phase,
    /// Whether it takes traffic.
    pub readiness: Arc<Readiness>,
    /// What is known of workers' caches.
    pub caches: Arc<Caches>,
    /// Warm-ups of workers that join.
    pub warm_ups: Arc<WarmUps>,
    /// Requests that no worker gets.
    pub quarantine: Arc<Quarantine>,
    /// What sources of workers show.
    pub board: Arc<Board>,
    /// Workers that register themselves.
    pub leases: Arc<Leases>,
    /// Credentials of these; none: the token registers them.
    pub credentials: Live<Option<Credentials>>,
    /// Where workers may be.
    pub connector: Arc<Connector>,
    /// Wishes for a reading of the configuration.
    pub reload: mpsc::Sender<Wish>,
    /// What readings have shown.
    pub readings: Arc<Readings>,
    /// Fingerprint of the settings that must be equal on all replicas.
    pub settings: Live<String>,
    /// What the configuration says of this replica.
    pub configured: Live<Configured>,
    /// Memory against its limit.
    pub memory: Arc<Memory>,
    /// How requests are divided.
    pub transfer: Live<TransferConfig>,
    /// Clients must send it.
    pub token: Live<Option<Secret>>,
    /// At most one line a second of callers without it.
    pub uninvited: LogLimit,
    /// Which requests the admin port accepts.
    pub admin_gate: Live<Gate>,
    /// Which requests the Prometheus port accepts.
    pub metrics_gate: Live<Gate>,
    /// The clients' keys.
    pub keys: Arc<Keys>,
    /// What clients may take.
    pub limits: Live<LimitConfig>,
    /// The last hour.
    pub recorder: Arc<Recorder>,
    /// Changes of one worker come one after the other.
    pub turns: Turns,
    /// What the page keeps.
    pub pages: Pages,
    /// Tasks that end with the replica.
    pub tasks: TaskTracker,
    /// Those that a panic ended.
    pub lost_tasks: LostTasks,
}

/// Which of the two ports a listener is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Everything.
    Admin,
    /// `/metrics` alone, without a token.
    Metrics,
}

/// The places of one of the two ports: operators come from few addresses, so each may have half of them.
pub fn seats(port: Port, metrics: &AllMetrics) -> Arc<Seats> {
    let capacity = descriptors::connections_of_operators();
    let limits = SeatLimits {
        capacity,
        share_percent: 50,
        per_address: Some(capacity.div_ceil(2)),
        proxies: Vec::new(),
    };
    let (port, limit) = match port {
        Port::Admin => ("admin", "admin_connections"),
        Port::Metrics => ("metrics", "metrics_connections"),
    };
    let (refusals, traffic) = (&metrics.refusals, &metrics.traffic);
    Seats::new(limits, Counts::of(refusals, traffic, port, limit))
}
