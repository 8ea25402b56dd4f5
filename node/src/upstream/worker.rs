//! One worker, as long as it is registered at one address: connections, load, health.
//!
//! A changed weight or state makes a new fleet around the same `Worker`; a changed address makes a new one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use grapevine_gossip::load::LoadCell;
use grapevine_gossip::worker::{Labels, Role, WorkerId};
use grapevine_transfer::label;
use http::StatusCode;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::address::Address;
use super::atomic_instant::AtomicInstant;
use super::clock::ClockOffset;
use super::connection::Connection;
use super::connector::Connector;
use super::glance::Glance;
use super::health::Health;
use super::kv_engine::KvEngine;
use super::metric_cache::WorkerMetricCache;
use super::pace::Pace;
use super::pool::IdlePool;
use super::silent_forms::SilentForms;
use crate::api::cards::Card;
use crate::config::WorkerHttp2;
use crate::live::Live;
use crate::shown::KEY_REFUSED;

/// The label that workers share which have no series of their own (`metrics.worker_series`).
pub const OTHER_WORKERS: &str = "other";

/// What the registry has of a worker that decides with whom it can pair.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Which half of a request it takes.
    pub role: Role,
    /// What is known of it beyond its description.
    pub labels: Arc<Labels>,
    /// Data-parallel ranks of its engine: as the engine reports them, else as they were declared; `None` = not known.
    pub ranks: Option<u32>,
    /// Nobody declared its models: they are those that it lists.
    pub models_are_learned: bool,
}

/// What labels say that an engine does in place of computing; none of one that is awake.
pub fn sleep_in(labels: &Labels) -> Option<&str> {
    labels
        .get(label::SLEEP_STATE)
        .filter(|state| *state != label::AWAKE)
}

/// A registered worker.
#[derive(Debug)]
pub struct Worker {
    /// Its id in the registry.
    pub id: WorkerId,
    /// The id as text, for logs and answers.
    pub label: Arc<str>,
    /// The label of its series: the id, or [`OTHER_WORKERS`].
    pub series_label: Arc<str>,
    /// Where it is.
    pub address: Address,
    /// How to get there.
    pub connector: Arc<Connector>,
    /// In flight, from this replica and from the others.
    pub load: Arc<LoadCell>,
    /// What every decision reads of it besides.
    pub glance: Arc<Glance>,
    /// Requests that are under way at it, those without weight, too: its load is that of all processes that were
    /// registered under its id.
    pub open: AtomicUsize,
    /// How fast it answers.
    pub pace: Pace,
    /// Connections at rest.
    pub idle: IdlePool,
    /// Whether to pass it over.
    pub health: Health,
    /// Models it serves, by the registry; empty until it was asked.
    pub models: ArcSwap<Vec<String>>,
    /// Its role and its labels, by the registry.
    pub about: ArcSwap<About>,
    /// Wakes the one that asks the worker about itself: a request found that what is known is wrong.
    pub doubted: Notify,
    /// What it said of each of its models when this replica asked it last.
    pub cards: ArcSwap<Vec<Card>>,
    /// The status with which it refused this replica, for want of a key that it knows; 0: it did not, the last time.
    pub key_refused: AtomicU16,
    /// What is amiss with its latest list of them.
    pub list_amiss: ArcSwapOption<String>,
    /// Restart counter in the registry: the second at which it started, as far as it reports that.
    pub epoch: AtomicU64,
    /// Its engine says whether it sleeps, and it may be asked that by itself.
    pub tells_sleep: AtomicBool,
    /// How far its clock is from this replica's.
    pub clock: ClockOffset,
    /// Tokens that its cache holds, as it says; 0 until it has said.
    pub cache_tokens: AtomicU64,
    /// The start, in Unix seconds, of the process that said so, or its epoch where that is later; 0: neither is known.
    pub cache_tokens_since: AtomicU64,
    born: Instant,
    /// Milliseconds from `born` to its latest metrics; 0: none yet.
    scraped_ms: AtomicU64,
    /// What its engine's counters were then, as one number; 0: they were not among them.
    activity: AtomicU64,
    /// What requests count for it.
    pub series: WorkerMetricCache,
    /// Since when no process listens on its port.
    pub refuses_since: AtomicInstant,
    /// Since then it has said that its engine is dead, and answered nothing.
    pub engine_dead_since: AtomicInstant,
    /// Its engines that publish what their caches hold; empty where it publishes nothing.
    pub kv_engines: ArcSwap<Vec<Arc<KvEngine>>>,
    /// When a prompt's KV was handed over to it, or by it, the last time that this replica knows of.
    pub transferred: AtomicInstant,
    /// It started again, or a transfer from it failed: its engine may be another one than is known, until an answer says
    /// that it is the known one.
    pub is_other_engine: AtomicBool,
    /// Requests of which its prefill answers do not say where the KV is; forgotten when it is started anew.
    pub silent_forms: SilentForms,
}

impl Worker {
    /// A worker that nothing is known of yet.
    pub fn new(
        id: WorkerId,
        address: Address,
        connector: Arc<Connector>,
        load: Arc<LoadCell>,
        idle_max: Live<Duration>,
        health: Health,
        has_series: bool,
    ) -> Self {
        /// Most connections at rest; more are closed after use, by this side, whose ports then wait for a minute. As many
        /// as an engine runs requests at once (vLLM's `max_num_seqs` is 1,024 at most by default), so that a wave of them
        /// finds the connections of the one before.
        const IDLE_CONNECTIONS_MAX: usize = 1_024;
        let label: Arc<str> = id.as_str().into();
        let series_label = match has_series {
            true => Arc::clone(&label),
            false => OTHER_WORKERS.into(),
        };
        Self {
            label,
            series_label,
            id,
            address,
            connector,
            load,
            open: AtomicUsize::new(0),
            pace: Pace::default(),
            idle: IdlePool::new(idle_max, IDLE_CONNECTIONS_MAX),
            glance: health.glance(),
            health,
            models: ArcSwap::default(),
            about: ArcSwap::default(),
            doubted: Notify::new(),
            cards: ArcSwap::default(),
            key_refused: AtomicU16::new(0),
            list_amiss: ArcSwapOption::default(),
            epoch: AtomicU64::new(0),
            tells_sleep: AtomicBool::new(false),
            clock: ClockOffset::default(),
            cache_tokens: AtomicU64::new(0),
            cache_tokens_since: AtomicU64::new(0),
            born: Instant::now(),
            scraped_ms: AtomicU64::new(0),
            activity: AtomicU64::new(0),
            series: WorkerMetricCache::default(),
            refuses_since: AtomicInstant::default(),
            engine_dead_since: AtomicInstant::default(),
            kv_engines: ArcSwap::default(),
            transferred: AtomicInstant::default(),
            is_other_engine: AtomicBool::new(false),
            silent_forms: SilentForms::default(),
        }
    }

    /// What its engine does in place of computing, by the registry; none of one that is awake.
    pub fn asleep(&self) -> Option<String> {
        sleep_in(&self.about.load().labels).map(str::to_owned)
    }

    /// Whether it has series of its own in the metrics.
    pub fn has_series(&self) -> bool {
        Arc::ptr_eq(&self.label, &self.series_label)
    }

    /// What is amiss with what it says of its models, where a person has to mend that.
    pub fn models_amiss(&self) -> Option<String> {
        match self.refuses_key_with() {
            None => self.list_amiss.load().as_deref().cloned(),
            Some(status) => Some(format!("{KEY_REFUSED}: it answered {status}")),
        }
    }

    /// The status with which it refuses this replica's key, or wants one.
    pub fn refuses_key_with(&self) -> Option<u16> {
        Some(self.key_refused.load(Ordering::Relaxed)).filter(|status| *status != 0)
    }

    /// Notes that it refuses the key that this replica has for it, or that there is none; says it once.
    pub(super) fn refused_key(&self, status: StatusCode) {
        let before = self.key_refused.swap(status.as_u16(), Ordering::Relaxed);
        if before == 0 {
            tracing::warn!(
                worker = &*self.label,
                status = status.as_u16(),
                "a worker refuses the key with which this replica asks it, or wants one: look at its api_key or \
                 api_key_file, or at that of [workers]"
            );
        }
    }

    /// How much longer it wants to be left alone.
    pub fn pause(&self) -> Option<Duration> {
        self.glance.pause()
    }

    /// Notes what became of a connection to it. A port that refuses shows that the process is gone or is leaving: a
    /// vLLM that stops closes its port first and then leaves open streams without a byte or an end.
    pub fn connected<T>(&self, result: &io::Result<T>) {
        match result {
            Ok(_) => self.refuses_since.clear(),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.refuses_since.begin(Instant::now());
            }
            Err(_) => {}
        }
    }

    /// Whether no process listens on its port, as far as connections and probes have shown.
    pub fn refuses(&self) -> bool {
        self.refuses_since.get().is_some()
    }

    /// When an answer ends without a sign of it since `heard`: `patience` after its worker began to
    /// refuse connections. `None` while it accepts them.
    pub fn given_up_at(&self, heard: Instant, patience: Duration) -> Option<Instant> {
        let since = self.refuses_since.get()?;
        Some(since.max(heard) + patience)
    }

    /// It answered with its metrics, asked `now`; `activity` as in
    /// [`EngineMetrics`](super::engine_metrics::EngineMetrics). Another one than before shows that its engine has
    /// worked since it was asked before.
    pub fn scraped(&self, now: Instant, activity: Option<u64>) {
        let activity = activity.map_or(0, |activity| activity.max(1));
        let before = self.activity.swap(activity, Ordering::Relaxed);
        if let Some(ago) = self.scraped_ago(now)
            && ![0, activity].contains(&before)
            && activity != 0
        {
            self.health.moved(now - ago);
        }
        let ms = now.saturating_duration_since(self.born).as_millis();
        let ms = u64::try_from(ms).unwrap_or(u64::MAX).max(1);
        self.scraped_ms.store(ms, Ordering::Relaxed);
    }

    /// Age of what its metrics said; `None` before the first time.
    pub fn scraped_ago(&self, now: Instant) -> Option<Duration> {
        let ms = self.scraped_ms.load(Ordering::Relaxed);
        let at = self.born + Duration::from_millis(ms);
        (ms > 0).then(|| now.saturating_duration_since(at))
    }

    /// Connects, in the version of HTTP that `workers.http2` and the worker choose.
    /// Errors: see [`Connection::open`].
    pub async fn connect(&self, within: Duration) -> io::Result<Connection> {
        self.connect_as(within, self.connector.http2()).await
    }

    /// Connects in HTTP/1.1, which alone knows a change of protocols.
    /// Errors: see [`Connection::open`].
    pub async fn connect_http1(&self, within: Duration) -> io::Result<Connection> {
        self.connect_as(within, WorkerHttp2::Off).await
    }

    async fn connect_as(&self, within: Duration, http2: WorkerHttp2) -> io::Result<Connection> {
        Connection::open(&self.connector, &self.address, &self.label, within, http2).await
    }

    /// Whether no process listens at its address; see [`Connector::is_gone`].
    pub async fn is_gone(&self, within: Duration) -> bool {
        self.connector.is_gone(&self.address, within).await
    }

    /// A transfer of KV from it, or to it, was good.
    pub fn has_transferred(&self, now: Instant) {
        self.transferred.extend(now);
    }

    /// Its process started again.
    pub fn restarted(&self) {
        self.health.restarted();
        self.pace.forget();
        self.engine_dead_since.clear();
        self.silent_forms.forget();
        self.doubt_engine();
    }

    /// What is known of its engine is asked for again: a transfer of KV from it failed, or its process is another one.
    pub fn doubt_engine(&self) {
        self.is_other_engine.store(true, Ordering::Relaxed);
        self.doubted.notify_one();
    }

    /// It does not know what it was asked for: it is asked what it has, unless somebody declared that.
    pub fn doubt_models(&self) {
        if self.about.load().models_are_learned {
            self.doubted.notify_one();
        }
    }

    /// It is not at this address any more: what rests here is closed, and nothing more comes to rest.
    pub fn retire(&self) {
        self.idle.close();
    }

    /// It refused or dropped a connection: nothing is sent to it until a probe passes.
    pub fn unreachable(&self) {
        self.health.unreachable();
        self.idle.clear();
    }
}
