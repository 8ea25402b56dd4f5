//! What a replica knows at one moment: workers, replicas, and the sums by which views are compared.
//!
//! Pure. Immutable and shared by `Arc`; a new one is made for every change. Load is not part of it:
//! it changes with every request, so it lives on the [`LoadBoard`](crate::load::LoadBoard).

use std::net::SocketAddr;
use std::sync::Arc;

use crate::registry::{Digest, Registry, Worker};
use crate::replica::ReplicaId;
use crate::worker::{WorkerId, write_text};

/// One replica as this one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// Its name.
    pub id: ReplicaId,
    /// Rises with each of its starts.
    pub generation: u64,
    /// Where it gossips.
    pub gossip_addr: SocketAddr,
    /// `HOST:PORT` of its data listener, as it reports.
    pub http: String,
    /// `HOST:PORT` of its admin listener, as it reports.
    pub admin: String,
    /// Its release, as it reports.
    pub version: String,
    /// Whether it takes requests, as it reports.
    pub ready: bool,
    /// Whether it is about to end, as it reports: it takes nothing new, and ends when its requests have ended.
    pub leaving: bool,
    /// Whether this replica sees it as alive: a local opinion.
    pub live: bool,
    /// Digest of its registry, as it reports (see [`Digest`]).
    pub registry: String,
    /// Fingerprint of its cluster-wide settings, as it reports.
    pub settings: String,
    /// Digest of its ring, as it reports.
    pub ring: String,
}

/// What a replica knows at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    workers: Arc<[Worker]>,
    workers_digest: u32,
    registry: Digest,
    replicas: Vec<ReplicaInfo>,
}

impl View {
    /// The view of a registry and of the known replicas, in any order; warm-ups as their writers declared them.
    pub fn new(registry: &Registry, replicas: Vec<ReplicaInfo>) -> Self {
        Self::of(registry.workers(), registry.digest(), replicas)
    }

    /// The view of workers, sorted by id, that a registry with this digest holds.
    pub(crate) fn of(
        workers: Vec<Worker>,
        registry: Digest,
        mut replicas: Vec<ReplicaInfo>,
    ) -> Self {
        replicas.sort_by(|a, b| a.id.cmp(&b.id));
        Self {
            workers_digest: digest_of_ids(&workers),
            registry,
            workers: workers.into(),
            replicas,
        }
    }

    /// The same view, in which this replica reports another ring.
    pub(crate) fn with_ring(&self, replica: &ReplicaId, digest: &str) -> Self {
        let mut view = self.clone();
        if let Some(info) = view.replicas.iter_mut().find(|info| info.id == *replica) {
            digest.clone_into(&mut info.ring);
        }
        view
    }

    /// The worker set, sorted by id. The ring is a function of it alone.
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// The worker with this id.
    pub fn worker(&self, id: &WorkerId) -> Option<&Worker> {
        let at = self
            .workers
            .binary_search_by(|worker| worker.id.cmp(id))
            .ok()?;
        self.workers.get(at)
    }

    /// crc32 over the sorted worker ids: load frames of replicas with the same value mean the same
    /// workers by the same slots.
    pub fn workers_digest(&self) -> u32 {
        self.workers_digest
    }

    /// Digest of the registry that the workers come from.
    pub fn registry(&self) -> Digest {
        self.registry
    }

    /// Whether this replica is seen as alive.
    pub(crate) fn is_live(&self, replica: &ReplicaId) -> bool {
        let at = self
            .replicas
            .binary_search_by(|known| known.id.cmp(replica));
        at.is_ok_and(|at| self.replicas[at].live)
    }

    /// All known replicas, this one included, sorted by id.
    pub fn replicas(&self) -> &[ReplicaInfo] {
        &self.replicas
    }
}

fn digest_of_ids(workers: &[Worker]) -> u32 {
    let mut bytes = Vec::new();
    workers
        .iter()
        .for_each(|worker| write_text(&mut bytes, worker.id.as_str()));
    crc32fast::hash(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{RawWorker, Source, WorkerSpec};

    fn view(workers: &[&str], replicas: &[&str]) -> View {
        let mut registry = Registry::new("r1".parse().expect("valid"));
        for name in workers {
            let spec = WorkerSpec::new(RawWorker::at("http://w:8000")).expect("valid");
            let id = name.parse().expect("valid");
            registry.put(id, Source::Admin, spec, 1).expect("room");
        }
        let info = |id: &&str| ReplicaInfo {
            id: id.parse().expect("valid"),
            generation: 1,
            gossip_addr: "127.0.0.1:1".parse().expect("address"),
            http: String::new(),
            admin: String::new(),
            version: String::new(),
            ready: true,
            leaving: false,
            live: true,
            registry: String::new(),
            settings: String::new(),
            ring: String::new(),
        };
        View::new(&registry, replicas.iter().map(info).collect())
    }

    #[test]
    fn order_of_arrival_is_irrelevant() {
        let (one, two) = (
            view(&["b", "a"], &["r2", "r1"]),
            view(&["a", "b"], &["r1", "r2"]),
        );
        assert_eq!(
            (one.workers(), one.workers_digest()),
            (two.workers(), two.workers_digest())
        );
        assert_eq!(one.replicas(), two.replicas());
        assert_eq!(
            one.worker(&"b".parse().expect("valid")),
            Some(&one.workers()[1])
        );
        assert_eq!(one.worker(&"c".parse().expect("valid")), None);
    }

    #[test]
    fn the_digest_of_workers_tells_lists_of_ids_apart() {
        let digests = [&[][..], &["a"], &["a", "b"], &["ab"], &["b"]]
            .map(|ids| view(ids, &[]).workers_digest());
        for (at, digest) in digests.iter().enumerate() {
            assert!(!digests[..at].contains(digest), "{at}");
        }
    }
}
