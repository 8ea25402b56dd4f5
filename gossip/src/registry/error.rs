//! Why a change of the worker set is refused; every message names what to do.

use std::time::Duration;

use super::ENTRIES_MAX;
use crate::worker::{WorkerError, WorkerId};

/// Why a registry operation was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// No source declares that this worker exists. The caller's fault.
    #[error("no worker {0}")]
    UnknownWorker(WorkerId),
    /// The map is full; remove workers, or wait until tombstones are dropped.
    #[error("the registry is full with {ENTRIES_MAX} entries")]
    Full,
    /// The worker would have more labels than it may.
    #[error("worker {0}: {1}")]
    Labels(WorkerId, #[source] WorkerError),
    /// The worker claims to have started in the future; check its clock.
    #[error("epoch {0} is more than a day ahead of this replica's clock")]
    Epoch(u64),
    /// A batch holds a stamp too far in the future; its sender is not to be listened to until the
    /// clocks come nearer.
    #[error("a stamp of worker {id} is {lead:?} ahead of this replica's clock")]
    Quarantine {
        /// The worker the stamp is on.
        id: WorkerId,
        /// How far ahead it is.
        lead: Duration,
    },
}

/// Why a change of the worker set was not made.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ChangeError(#[from] RegistryError);

impl ChangeError {
    /// True if the same change may succeed later; false if it names a worker that does not exist, a time in the
    /// future, or more labels than a worker may have.
    pub fn is_temporary(&self) -> bool {
        !matches!(
            self.0,
            RegistryError::UnknownWorker(_) | RegistryError::Epoch(_) | RegistryError::Labels(..)
        )
    }
}
