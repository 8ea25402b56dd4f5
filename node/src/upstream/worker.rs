//! One worker, as long as it is registered at one address: connections, load, health.
//!
//! A changed weight or state makes a new fleet around the same `Worker`; a changed address makes a new one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use grapevine_gossip::load::LoadCell;
use grapevine_gossip::worker::{WorkerId, WorkerSpec, WorkerUrl};
use http::uri::Scheme;
use http::{HeaderValue, Uri};
use rustls::pki_types::ServerName;
use tokio::time::Instant;

use super::health::Health;
use super::moment::Moment;
use super::pool::IdlePool;
use super::reach::Reach;
use crate::api::cards::Card;
use crate::series::WorkerSeries;

/// The label that workers share which have no series of their own (`metrics.worker_series`).
pub const OTHER_WORKERS: &str = "other";

/// Where a worker is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Its URL, and its rank if it shares that with others.
    pub url: WorkerUrl,
    /// Value of `Host`.
    pub host: HeaderValue,
    /// What an https worker's certificate must name.
    pub server_name: Option<ServerName<'static>>,
}

/// A worker whose address cannot be dialled.
#[derive(Debug, thiserror::Error)]
#[error("worker {worker}: {problem}")]
pub struct AddressError {
    worker: String,
    problem: &'static str,
}

impl Address {
    /// From a checked specification.
    ///
    /// # Errors
    /// The URL's host or path cannot stand in a request, or in a certificate.
    pub fn of(spec: &WorkerSpec) -> Result<Self, AddressError> {
        let url = spec.url().clone();
        let error = |problem| AddressError {
            worker: url.base().to_owned(),
            problem,
        };
        url.base()
            .parse::<Uri>()
            .map_err(|_| error("its URL is not a URI"))?;
        let server_name = url
            .is_tls()
            .then(|| ServerName::try_from(url.host().to_owned()))
            .transpose()
            .map_err(|_| error("its host is neither a DNS name nor an address"))?;
        Ok(Self {
            host: HeaderValue::from_str(url.authority())
                .map_err(|_| error("its host is not ASCII"))?,
            server_name,
            url,
        })
    }

    /// The scheme of requests to it.
    pub fn scheme(&self) -> Scheme {
        match self.server_name {
            None => Scheme::HTTP,
            Some(_) => Scheme::HTTPS,
        }
    }

    /// Data-parallel rank, for workers that share an address.
    pub fn rank(&self) -> Option<u32> {
        self.url.rank()
    }

    /// The target of a request at this worker.
    pub fn target(&self, path_and_query: &Uri) -> Uri {
        let base = self.url.path();
        if base.is_empty() {
            return path_and_query.clone();
        }
        format!("{base}{path_and_query}")
            .parse()
            .unwrap_or_else(|_| path_and_query.clone())
    }

    /// URL of a path at this worker, for the control path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url.base())
    }
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
    pub reach: Arc<Reach>,
    /// In flight, from this replica and from the others.
    pub load: Arc<LoadCell>,
    /// Connections at rest.
    pub idle: IdlePool,
    /// Whether to pass it over.
    pub health: Health,
    /// Models it serves, by the registry; empty until somebody has asked it.
    pub models: ArcSwap<Vec<String>>,
    /// What it said of each of its models when this replica asked it last.
    pub cards: ArcSwap<Vec<Card>>,
    /// Restart counter in the registry: the second at which it started, as far as it tells.
    pub epoch: AtomicU64,
    /// Tokens that its cache holds, as it says; 0 until it has said.
    pub cache_tokens: AtomicU64,
    born: Instant,
    /// Milliseconds from `born` to its latest metrics; 0: none yet.
    scraped_ms: AtomicU64,
    /// What its engine's counters were then, as one number; 0: they were not among them.
    activity: AtomicU64,
    /// What requests count for it.
    pub series: WorkerSeries,
    /// Until then it asked not to be sent anything (`Retry-After`).
    pub paused_until: Moment,
    /// Since then nobody has listened on its port.
    pub refuses_since: Moment,
    /// Since then it has said that its engine is dead, and answered nothing.
    pub engine_dead_since: Moment,
}

impl Worker {
    /// A worker that nothing is known of yet.
    pub fn new(
        id: WorkerId,
        address: Address,
        reach: Arc<Reach>,
        load: Arc<LoadCell>,
        idle_max: Duration,
        health: Health,
        has_series: bool,
    ) -> Self {
        /// Most connections at rest; more are closed after use.
        const IDLE_CONNECTIONS_MAX: usize = 256;
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
            reach,
            load,
            idle: IdlePool::new(idle_max, IDLE_CONNECTIONS_MAX),
            health,
            models: ArcSwap::default(),
            cards: ArcSwap::default(),
            epoch: AtomicU64::new(0),
            cache_tokens: AtomicU64::new(0),
            born: Instant::now(),
            scraped_ms: AtomicU64::new(0),
            activity: AtomicU64::new(0),
            series: WorkerSeries::default(),
            paused_until: Moment::default(),
            refuses_since: Moment::default(),
            engine_dead_since: Moment::default(),
        }
    }

    /// Whether it has series of its own in the metrics.
    pub fn has_series(&self) -> bool {
        Arc::ptr_eq(&self.label, &self.series_label)
    }

    /// How much longer it wants to be left alone.
    pub fn pause(&self) -> Option<Duration> {
        let left = self
            .paused_until
            .get()?
            .checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }

    /// Tells what became of a connection to it. A port that refuses says that the process is gone or is
    /// leaving: vLLM told to stop closes its port first and then leaves open streams without a byte or an end.
    pub fn connected<T>(&self, result: &io::Result<T>) {
        match result {
            Ok(_) => self.refuses_since.clear(),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.refuses_since.begin(Instant::now());
            }
            Err(_) => {}
        }
    }

    /// Whether nobody listens on its port, as far as connections and probes have shown.
    pub fn refuses(&self) -> bool {
        self.refuses_since.get().is_some()
    }

    /// When an answer ends without a sign of it since `heard`: `patience` after its worker began to
    /// refuse connections. `None` while it accepts them.
    pub fn given_up_at(&self, heard: Instant, patience: Duration) -> Option<Instant> {
        let since = self.refuses_since.get()?;
        Some(since.max(heard) + patience)
    }

    /// It has told its metrics, asked `now`; `activity` as in [`EngineFacts`](super::engine::EngineFacts). Another one
    /// than before says that its engine has worked since it was asked before.
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

#[cfg(test)]
mod tests {
    use super::*;
    use grapevine_gossip::worker::RawWorker;

    fn address(url: &str) -> Result<Address, AddressError> {
        Address::of(&WorkerSpec::new(RawWorker::at(url)).expect("valid worker"))
    }

    #[test]
    fn targets() {
        let plain = address("http://Host:8000@3").expect("address");
        assert_eq!(plain.host, "host:8000");
        assert_eq!((plain.rank(), plain.server_name.as_ref()), (Some(3), None));
        let path: Uri = "/v1/models?x=1".parse().expect("uri");
        assert_eq!(plain.target(&path), path);
        assert_eq!(plain.url("/health"), "http://host:8000/health");
        let below = address("http://host:8000/engine").expect("address");
        assert_eq!(below.target(&path), "/engine/v1/models?x=1");
        assert_eq!(below.url("/health"), "http://host:8000/engine/health");
    }

    #[test]
    fn https_workers_have_a_name_to_prove() {
        for (url, name) in [
            ("https://Host", "host"),
            ("https://10.0.0.5:8443", "10.0.0.5"),
            ("https://[::1]:8443/base@2", "::1"),
        ] {
            let address = address(url).expect("address");
            let proven = address.server_name.expect("a name");
            assert_eq!(proven.to_str(), name, "{url}");
        }
    }
}
