//! One worker, as long as it is registered at one address: connections, load, health.
//!
//! A changed weight or state makes a new fleet around the same `Worker`; a changed address makes a new one.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::ArcSwap;
use grapevine_gossip::load::LoadCell;
use grapevine_gossip::worker::{WorkerId, WorkerSpec};
use http::{HeaderValue, Uri};

use super::health::Health;
use super::pool::IdlePool;

/// Where a worker is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// `host:port` to connect to.
    pub authority: String,
    /// Value of `Host`.
    pub host: HeaderValue,
    /// Path in front of every request's, without a trailing slash; mostly empty.
    base: String,
    /// Data-parallel rank, for workers that share an address.
    pub rank: Option<u32>,
}

/// A worker whose address this release cannot dial.
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
    /// `https` workers: TLS to workers is not served yet.
    pub fn of(spec: &WorkerSpec) -> Result<Self, AddressError> {
        let error = |problem| AddressError {
            worker: spec.url().base().to_owned(),
            problem,
        };
        let uri: Uri = spec
            .url()
            .base()
            .parse()
            .map_err(|_| error("its URL is not a URI"))?;
        if uri.scheme_str() != Some("http") {
            return Err(error(
                "only http:// workers are served; end TLS in front of the worker",
            ));
        }
        let authority = uri
            .authority()
            .ok_or_else(|| error("its URL has no host"))?
            .to_string();
        Ok(Self {
            host: HeaderValue::from_str(&authority).map_err(|_| error("its host is not ASCII"))?,
            authority,
            base: uri.path().trim_end_matches('/').to_owned(),
            rank: spec.url().rank(),
        })
    }

    /// The target of a request at this worker.
    pub fn target(&self, path_and_query: &Uri) -> Uri {
        if self.base.is_empty() {
            return path_and_query.clone();
        }
        format!("{}{path_and_query}", self.base)
            .parse()
            .unwrap_or_else(|_| path_and_query.clone())
    }

    /// URL of a path at this worker, for the control path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{}{path}", self.authority, self.base)
    }
}

/// A registered worker.
#[derive(Debug)]
pub struct Worker {
    /// Its id in the registry.
    pub id: WorkerId,
    /// The id as a metric label.
    pub label: Arc<str>,
    /// Where it is.
    pub address: Address,
    /// In flight, from this replica and from the others.
    pub load: Arc<LoadCell>,
    /// Connections at rest.
    pub idle: IdlePool,
    /// Whether to pass it over.
    pub health: Health,
    /// Models it serves, by the registry; empty until somebody has asked it.
    pub models: ArcSwap<Vec<String>>,
    /// Restart counter in the registry: the second at which it started, as far as it tells.
    pub epoch: AtomicU64,
    /// Tokens that its cache holds, as it says; 0 until it has said.
    pub cache_tokens: AtomicU64,
}

impl Worker {
    /// A worker that nothing is known of yet.
    pub fn new(
        id: WorkerId,
        address: Address,
        load: Arc<LoadCell>,
        idle_max: Duration,
        health: Health,
    ) -> Self {
        /// Most connections at rest; more are closed after use.
        const IDLE_CONNECTIONS_MAX: usize = 256;
        Self {
            label: id.as_str().into(),
            id,
            address,
            load,
            idle: IdlePool::new(idle_max, IDLE_CONNECTIONS_MAX),
            health,
            models: ArcSwap::default(),
            epoch: AtomicU64::new(0),
            cache_tokens: AtomicU64::new(0),
        }
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
        assert_eq!(plain.authority, "host:8000");
        assert_eq!(plain.rank, Some(3));
        let path: Uri = "/v1/models?x=1".parse().expect("uri");
        assert_eq!(plain.target(&path), path);
        assert_eq!(plain.url("/health"), "http://host:8000/health");
        let below = address("http://host:8000/engine").expect("address");
        assert_eq!(below.target(&path), "/engine/v1/models?x=1");
        assert!(address("https://host:8000").is_err());
    }
}
