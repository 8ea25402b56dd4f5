//! What replicas state to each other about a source: where their picture differs from the worker set.

use std::collections::BTreeMap;

use grapevine_gossip::ReplicaId;
use grapevine_gossip::worker::{WorkerId, WorkerSpec};
use xxhash_rust::xxh3::xxh3_64;

/// What one replica sees otherwise than it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// It does not see a worker that is registered.
    Missing,
    /// It sees a worker that was removed.
    Removed,
    /// It sees a worker otherwise described; a hash of its description.
    Differs(u32),
}

/// An objection to what is registered of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objection {
    /// [`worker_hash`] of its id.
    pub worker: u64,
    /// What is seen instead.
    pub what: What,
}

impl Objection {
    pub(super) fn new(id: &WorkerId, what: What) -> Self {
        Self {
            worker: worker_hash(id),
            what,
        }
    }
}

/// What a replica states about one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// Whether it sees the source now; if not, it states nothing else.
    pub is_seeing: bool,
    /// Rising by worker, one for each.
    pub objections: Vec<Objection>,
}

impl Statement {
    pub(super) fn seeing(mut objections: Vec<Objection>) -> Self {
        objections.sort_by_key(|objection| (objection.worker, objection.what));
        objections.dedup_by_key(|objection| objection.worker);
        Self {
            is_seeing: true,
            objections,
        }
    }

    /// What it states about one worker.
    pub fn on(&self, worker: u64) -> Option<What> {
        let objections = &self.objections;
        let at = objections.binary_search_by_key(&worker, |objection| objection.worker);
        Some(objections[at.ok()?].what)
    }
}

/// The statement of another live replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatement {
    /// The replica that made it.
    pub replica: ReplicaId,
    /// What it states.
    pub statement: Statement,
}

/// The statements that count: those of replicas that see the source.
pub(super) struct Votes<'a>(Vec<&'a PeerStatement>);

impl<'a> Votes<'a> {
    pub(super) fn new(peers: &'a [PeerStatement]) -> Self {
        let peers = peers.iter();
        Self(peers.filter(|peer| peer.statement.is_seeing).collect())
    }

    /// The replicas that see the source, but for this one.
    pub(super) fn seeing(&self) -> impl Iterator<Item = &ReplicaId> {
        self.0.iter().map(|peer| &peer.replica)
    }

    /// How many of them object to what is registered of the worker in a way that is meant, and how many do not.
    ///
    /// An objection that found no room in a message counts as none, which keeps a worker rather than removes it.
    pub(super) fn on(&self, id: &WorkerId, is_meant: impl Fn(What) -> bool) -> (usize, usize) {
        let worker = worker_hash(id);
        let objects = |peer: &&&PeerStatement| peer.statement.on(worker).is_some_and(&is_meant);
        let with = self.0.iter().filter(objects).count();
        (with, self.0.len() - with)
    }
}

/// What stands for a worker between replicas.
pub fn worker_hash(id: &WorkerId) -> u64 {
    xxh3_64(id.as_str().as_bytes())
}

/// What stands for a source between replicas, by its name.
pub fn source_hash(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// What stands for a description; the same on all replicas for the same one.
pub(super) fn spec_hash(spec: &WorkerSpec) -> u32 {
    let mut bytes = Vec::new();
    spec.write_canonical(&mut bytes);
    xxh3_64(&bytes) as u32
}

/// Statements of all replicas by source, as they travel: a source is named by a hash of its name.
#[derive(Clone, Debug, Default)]
pub struct Believed(BTreeMap<u64, Vec<PeerStatement>>);

impl Believed {
    /// Adds what a replica states about the source with this hash.
    pub fn add(&mut self, source: u64, statement: PeerStatement) {
        self.0.entry(source).or_default().push(statement);
    }

    /// Statements about the source with this name.
    pub fn about(&self, source: &str) -> &[PeerStatement] {
        self.0.get(&source_hash(source)).map_or(&[], Vec::as_slice)
    }
}
