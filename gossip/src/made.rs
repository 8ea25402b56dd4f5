//! What unit tests of several parts begin with.

use std::time::Instant;

use crate::registry::Registry;
use crate::replica::ReplicaId;
use crate::worker::{RawWorker, WorkerId, WorkerSpec};

pub(crate) fn start() -> Instant {
    tokio::time::Instant::now().into_std()
}

pub(crate) fn replica(name: &str) -> ReplicaId {
    name.parse().expect("valid")
}

pub(crate) fn worker(name: &str) -> WorkerId {
    name.parse().expect("valid")
}

/// The worker of who needs only one.
pub(crate) fn w() -> WorkerId {
    worker("w")
}

pub(crate) fn spec_with(change: impl FnOnce(&mut RawWorker)) -> WorkerSpec {
    let mut raw = RawWorker::at("http://w:8000");
    change(&mut raw);
    WorkerSpec::new(raw).expect("valid")
}

/// The registry of a replica that knows no worker.
pub(crate) fn registry(name: &str) -> Registry {
    Registry::new(replica(name))
}

/// Gives each the entries of the other; then they are equal.
pub(crate) fn sync(a: &mut Registry, b: &mut Registry, now_ms: u64) {
    let [of_a, of_b] = [&*a, &*b].map(|one| one.entries().cloned().collect::<Vec<_>>());
    a.merge(of_b, now_ms).expect("no drift");
    b.merge(of_a, now_ms).expect("no drift");
    assert_eq!(a.digest(), b.digest());
}
