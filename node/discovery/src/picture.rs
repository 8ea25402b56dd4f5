//! What a source sees: all workers of it, at one moment.

use std::collections::BTreeMap;

use grapevine_gossip::worker::{Labels, Role, State, WorkerError, WorkerId, WorkerSpec};

/// Greatest number of workers of one source.
pub const WORKERS_MAX: usize = 5_000;

/// One worker as a source sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    spec: WorkerSpec,
    labels: Labels,
}

impl Found {
    /// A worker that is ready for requests, or that is known and not ready: starting, failing its readiness, or on its
    /// way out. One that is not ready keeps its place on the ring, if it has one, and takes no new prompts.
    /// Errors: none that a checked `spec` could cause; they are those of [`WorkerSpec::new`].
    pub fn new(spec: &WorkerSpec, is_ready: bool) -> Result<Self, WorkerError> {
        let mut raw = spec.to_raw();
        raw.state = if is_ready {
            State::Active
        } else {
            State::Draining
        };
        let spec = WorkerSpec::new(raw)?;
        let labels = Labels::default();
        Ok(Self { spec, labels })
    }

    /// The same worker with what the source declares of it beyond its description.
    #[must_use]
    pub fn labelled(self, labels: Labels) -> Self {
        Self { labels, ..self }
    }

    /// The same worker in another role.
    /// Errors: none that a role could cause; they are those of [`WorkerSpec::new`].
    pub fn in_role(&self, role: Role) -> Result<Self, WorkerError> {
        let mut raw = self.spec.to_raw();
        raw.role = role;
        let spec = WorkerSpec::new(raw)?;
        let labels = self.labels.clone();
        Ok(Self { spec, labels })
    }

    /// The description that goes into the registry.
    pub fn spec(&self) -> &WorkerSpec {
        &self.spec
    }

    /// What the source declares of it beyond that; it stands beside what others declare and what is learned.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Whether it takes new prompts.
    pub fn is_ready(&self) -> bool {
        self.spec.state() == State::Active
    }
}

/// All workers that a source sees at one moment; at most [`WORKERS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture(BTreeMap<WorkerId, Found>);

/// Why a list of workers is no picture. The source keeps what it reported before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PictureError {
    /// More than [`WORKERS_MAX`].
    #[error("{0} workers are more than {WORKERS_MAX}; split them into several clusters")]
    TooMany(usize),
    /// Two descriptions that differ have one id.
    #[error("worker {0} is there twice, with different descriptions")]
    Twice(WorkerId),
}

impl Picture {
    /// The picture of these workers. A worker that stands there twice with the same description counts once.
    /// Errors: [`PictureError`].
    pub fn new(workers: impl IntoIterator<Item = (WorkerId, Found)>) -> Result<Self, PictureError> {
        let mut all: BTreeMap<WorkerId, Found> = BTreeMap::new();
        for (id, found) in workers {
            if all.get(&id).is_some_and(|known| *known != found) {
                return Err(PictureError::Twice(id));
            }
            all.insert(id, found);
        }
        if all.len() > WORKERS_MAX {
            return Err(PictureError::TooMany(all.len()));
        }
        Ok(Self(all))
    }

    /// The worker with this id.
    pub fn get(&self, id: &WorkerId) -> Option<&Found> {
        self.0.get(id)
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&WorkerId, &Found)> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the source sees no worker at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
