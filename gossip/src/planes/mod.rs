//! The machines behind the subjects of gossip: each a [`Plane`](crate::plane::Plane) made of its subject's types and state
//! (`evidence/`, `load/`, `registry/`, ...) and of the messages that carry them (`wire/`). They know no socket and no lock; the
//! driver (`driver/`) calls them.

mod dry_run;
mod evidence;
mod load;
mod peer_state;
mod registry;
#[cfg(test)]
mod tests;
mod twin;

pub use dry_run::DryRunHandler;
pub(crate) use dry_run::{DryRunPlane, decision};
pub use evidence::EvidenceSource;
#[cfg(test)]
pub(crate) use evidence::Outbox;
pub(crate) use evidence::{EvidencePlane, PendingHandle};
pub(crate) use load::LoadMessages;
#[cfg(test)]
pub(crate) use peer_state::Publisher;
pub(crate) use peer_state::{PeerStatePlane, Shown};
pub(crate) use registry::{Own, RegistryPlane};
pub(crate) use twin::TwinPlane;
