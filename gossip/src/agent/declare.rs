//! What sources declare of workers: descriptions, and labels beside them.
//!
//! Both are one change where both are given. A worker's role and the labels that say how its kind of engine hands over a
//! prefill are read together by whoever divides a request; a view with the one and without the other would divide it in a
//! way that the engine refuses.

use super::{Ack, Agent};
use crate::registry::{ChangeError, Entry, Registry};
use crate::worker::{Labels, Source, WorkerId, WorkerSpec};

/// What became of a declaration.
#[derive(Debug)]
pub struct Declared {
    /// How far it went.
    pub ack: Ack,
    /// Labels that were not taken over, and why: the worker would have too many, is not in the set, or the registry is full.
    pub unlabelled: Vec<(WorkerId, ChangeError)>,
}

impl Agent {
    /// Adds or changes a worker in the name of `source`.
    ///
    /// In state `Warming` this replica is the one that warms it: until [`Agent::finish_warming`], or
    /// the given time ([`Agent::hybrid_ms`] plus at most 10 minutes) at which every replica takes it
    /// for active by itself. An epoch that is known stays if the given one is lower.
    ///
    /// Waits for the first exchange with a peer (at most until 3 s after the start), then for the
    /// first peer's confirmation (at most 1 s).
    /// Errors: [`ChangeError`] if the registry is full.
    pub async fn put_worker(
        &self,
        id: WorkerId,
        source: Source,
        spec: WorkerSpec,
    ) -> Result<Ack, ChangeError> {
        self.put_workers(source, vec![(id, spec)]).await
    }

    /// [`Agent::put_worker`] of many, as one change: all or none, confirmed together.
    /// Errors: [`ChangeError`] if the registry has no room for all of them.
    pub async fn put_workers(
        &self,
        source: Source,
        workers: Vec<(WorkerId, WorkerSpec)>,
    ) -> Result<Ack, ChangeError> {
        let declared = self.declare(source, workers, Vec::new()).await?;
        Ok(declared.ack)
    }

    /// [`Agent::put_workers`] and [`Agent::label_worker`] of many as one change: no view has the workers without the labels.
    /// Either list may be empty.
    /// Errors: [`ChangeError`] if the registry has no room for all of the workers; then nothing is labelled either.
    pub async fn declare(
        &self,
        source: Source,
        workers: Vec<(WorkerId, WorkerSpec)>,
        labels: Vec<(WorkerId, Labels)>,
    ) -> Result<Declared, ChangeError> {
        let mut unlabelled = Vec::new();
        let write = |registry: &mut Registry, now| {
            let mut written = registry.put_all(&source, workers, now)?;
            unlabelled = label_all(registry, &mut written, labels, now);
            Ok(written)
        };
        let ack = self.change(write).await?;
        Ok(Declared { ack, unlabelled })
    }

    /// [`Agent::declare`] of one that this replica answers for from now on: it becomes the writer of the entry, also
    /// where another replica wrote the same.
    /// Errors: [`ChangeError`] if the registry is full.
    pub async fn hold_worker(
        &self,
        id: WorkerId,
        source: Source,
        spec: WorkerSpec,
        labels: Option<Labels>,
    ) -> Result<Declared, ChangeError> {
        let mut unlabelled = Vec::new();
        let write = |registry: &mut Registry, now| {
            let mut written = registry.hold(id.clone(), source, spec, now)?;
            let labels = labels.map(|labels| (id, labels));
            unlabelled = label_all(registry, &mut written, labels, now);
            Ok(written)
        };
        let ack = self.change(write).await?;
        Ok(Declared { ack, unlabelled })
    }
}

/// Lays labels over those of the workers, and adds the entries to those that were `written`. Returns what was refused.
fn label_all(
    registry: &mut Registry,
    written: &mut Vec<Entry>,
    labels: impl IntoIterator<Item = (WorkerId, Labels)>,
    now_ms: u64,
) -> Vec<(WorkerId, ChangeError)> {
    let mut refused = Vec::new();
    for (id, labels) in labels {
        match registry.label(&id, &labels, now_ms) {
            Ok(entry) => written.extend(entry),
            Err(error) => refused.push((id, error.into())),
        }
    }
    refused
}
