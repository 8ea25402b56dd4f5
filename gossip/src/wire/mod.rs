//! What replicas say to each other on our own planes, in core types.
//!
//! Pure. [`encode`] and [`decode`] turn a [`Message`] into a frame and back; the types that travel
//! are in `body`, `bulletin`, `dry_run`, `entry`, `evidence` and `load` and stay there, so that core types can change without changing the wire.
//!
//! A receiver refuses what is damaged or cannot be understood as a whole ([`FrameError`]), skips a
//! kind that it does not know (`message` is `None`), and leaves out single registry entries that
//! break a limit (`refused`): a poisonous entry must neither be merged nor stop the others.
//!
//! What a later release may do, and this one can read: new kinds; new fields behind the others of a
//! body; new sources, roles and states of registry entries, which are carried by their numbers. It
//! must not change a field, nor the version of frames. `tests/releases` holds what earlier ones wrote.

mod body;
mod bulletin;
mod dry_run;
mod entry;
mod evidence;
mod load;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::bulletin::{HealthClaim, Quarantined, TenantUse};
use crate::dry_run::{DryRun, Reply};
use crate::evidence::{Batch, EvidenceSnapshot, Gap, HeatReport, Mark};
use crate::frame::{self, FrameError, Header};
use crate::load::LoadFrame;
use crate::registry::{Entry, Summary};
use crate::replica::ReplicaId;

/// Greatest number of dial hints in a [`HelloAck`].
pub const HINTS_MAX: usize = 256;
/// Greatest length of the texts of a [`Hello`] in bytes.
pub const HELLO_TEXT_BYTES_MAX: usize = 64;

/// One message of our own planes.
#[derive(Clone, Debug)]
pub enum Message {
    /// First on every connection, from the side that dialled.
    Hello(Hello),
    /// The answer to `Hello`; only then is the connection of use.
    HelloAck(HelloAck),
    /// Registry entries that the sender has just written, or that a sync found missing. At most
    /// [`chunks`] of them.
    RegistryPush(Vec<Entry>),
    /// The push with this sequence number was merged.
    PushAck {
        /// Sequence number of the push.
        seq: u64,
    },
    /// Question of anti-entropy.
    SyncRequest(SyncRequest),
    /// Answer of anti-entropy, in one or more frames.
    SyncResponse(SyncResponse),
    /// Load of the sender.
    Load(LoadFrame),
    /// A starting replica asks for everything.
    SnapshotRequest,
    /// Everything, in one or more frames.
    Snapshot(Snapshot),
    /// The sender leaves on purpose: its load counts no more, its worker entries stay.
    Leave,
    /// Evidence of the sender.
    Evidence(Batch),
    /// Where the sender's batches stand; also the first frame of the answer to a pull.
    EvidenceMark(Mark),
    /// Asks for batches again that did not arrive.
    EvidencePull(Vec<Gap>),
    /// A starting replica asks for what the other believes.
    EvidenceSnapshotRequest,
    /// What it believes, in one or more frames.
    EvidenceSnapshot(EvidenceSnapshot),
    /// A starting replica asks how much the other believes.
    EvidenceSizeRequest,
    /// So many links.
    EvidenceSize(u64),
    /// How hot prefixes are at the sender.
    Heat(Arc<HeatReport>),
    /// Asks what the receiver would decide.
    DryRunRequest(Arc<DryRun>),
    /// What it would decide, or why it does not say.
    DryRunAnswer(Box<Reply>),
    /// What the sender found out about workers: the one part of its bulletin.
    Health(Arc<Vec<HealthClaim>>),
    /// What the sender has in hand for tenants: another part.
    Usage(Arc<Vec<TenantUse>>),
    /// Requests that no worker is to get: the third part.
    Quarantine(Arc<Vec<Quarantined>>),
}

impl Message {
    /// Whether it asks for an answer on its stream.
    pub(crate) fn is_request(&self) -> bool {
        matches!(
            self,
            Self::RegistryPush(_)
                | Self::SyncRequest(_)
                | Self::SnapshotRequest
                | Self::EvidencePull(_)
                | Self::EvidenceSnapshotRequest
                | Self::EvidenceSizeRequest
                | Self::DryRunRequest(_)
        )
    }

    /// Whether an honest peer may give this frame in answer to this request.
    pub(crate) fn is_answered_by(&self, answer: &Self) -> bool {
        match self {
            Self::RegistryPush(_) => matches!(answer, Self::PushAck { .. }),
            Self::SyncRequest(_) => matches!(answer, Self::SyncResponse(_)),
            Self::SnapshotRequest => matches!(answer, Self::Snapshot(_)),
            Self::EvidencePull(_) => matches!(answer, Self::EvidenceMark(_) | Self::Evidence(_)),
            Self::EvidenceSnapshotRequest => matches!(answer, Self::EvidenceSnapshot(_)),
            Self::EvidenceSizeRequest => matches!(answer, Self::EvidenceSize(_)),
            Self::DryRunRequest(_) => matches!(answer, Self::DryRunAnswer(_)),
            _ => false,
        }
    }

    /// Name of the plane that it belongs to, for counters.
    pub(crate) fn plane(&self) -> &'static str {
        match self {
            Self::Hello(_) | Self::HelloAck(_) | Self::Leave => "handshake",
            Self::RegistryPush(_)
            | Self::PushAck { .. }
            | Self::SyncRequest(_)
            | Self::SyncResponse(_)
            | Self::SnapshotRequest
            | Self::Snapshot(_) => "registry",
            Self::Load(_) => "load",
            Self::Evidence(_)
            | Self::EvidenceMark(_)
            | Self::EvidencePull(_)
            | Self::EvidenceSnapshotRequest
            | Self::EvidenceSnapshot(_)
            | Self::EvidenceSizeRequest
            | Self::EvidenceSize(_) => "evidence",
            Self::Heat(_) => "heat",
            Self::DryRunRequest(_) | Self::DryRunAnswer(_) => "dry_run",
            Self::Health(_) | Self::Usage(_) | Self::Quarantine(_) => "bulletin",
        }
    }
}

/// Who dials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its id, to be compared with its certificate.
    pub replica: ReplicaId,
    /// Its cluster, up to 64 visible ASCII characters.
    pub cluster: String,
    /// Where it can be dialled.
    pub gossip_addr: SocketAddr,
    /// Its release, up to 64 visible ASCII characters.
    pub version: String,
}

/// Who answers, and what a newcomer needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloAck {
    /// The id of the answering replica, to be compared with its certificate.
    pub replica: ReplicaId,
    /// Highest generation seen of the dialling replica's id; 0 = none. A replica must start with
    /// a higher one.
    pub generation_seen: u64,
    /// Replicas that the answering one knows: whom to dial, not whom to trust.
    pub hints: Vec<PeerHint>,
}

/// Where a replica is said to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerHint {
    /// Its id.
    pub replica: ReplicaId,
    /// Where it can be dialled.
    pub gossip_addr: SocketAddr,
}

/// Question of anti-entropy (see [`Registry::differing`](crate::registry::Registry::differing)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// Sums of the asking registry.
    pub summary: Summary,
    /// For how long the asking replica was alone (see [`Reunion`](crate::registry::Reunion)).
    pub alone: Duration,
}

/// One frame of the answer of anti-entropy.
#[derive(Clone, Debug)]
pub struct SyncResponse {
    /// Sums of the answering registry.
    pub summary: Summary,
    /// For how long the answering replica was alone.
    pub alone: Duration,
    /// Its entries in the parts that differ.
    pub entries: Vec<Entry>,
    /// Whether this is the last frame of the answer.
    pub last: bool,
}

/// One frame of everything that a starting replica takes from a peer.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Registry entries.
    pub entries: Vec<Entry>,
    /// Load of the answering replica, in the last frame.
    pub load: Option<LoadFrame>,
    /// Whether this is the last frame.
    pub last: bool,
}

/// A frame taken apart.
#[derive(Clone, Debug)]
pub struct Received {
    /// Generation and sequence number of the sender, and the kind.
    pub header: Header,
    /// What it says; `None` = a kind of a later release.
    pub message: Option<Message>,
    /// Registry entries left out because they break a limit.
    pub refused: usize,
    /// Bytes at the end of the body that only a later release can read.
    pub unread: usize,
}

/// Appends `message` as one frame to `out`.
///
/// # Errors
/// `TooLong`, for more entries or slots than fit one frame; then `out` is as before.
pub fn encode(
    out: &mut Vec<u8>,
    generation: u64,
    seq: u64,
    message: &Message,
) -> Result<(), FrameError> {
    body::seal(out, generation, seq, message)
}

/// Takes one whole frame apart.
///
/// # Errors
/// The frame is damaged, of another version, or does not decode; nothing of it may be used.
pub fn decode(bytes: &[u8]) -> Result<Received, FrameError> {
    let (header, body) = frame::open(bytes)?;
    let body::Read {
        message,
        refused,
        unread,
    } = body::read(header.kind, body)?;
    Ok(Received {
        header,
        message,
        refused,
        unread,
    })
}

/// Greatest number of registry entries in one frame.
pub(crate) const CHUNK_ENTRIES_MAX: usize = 512;

/// Cuts entries into pieces that fit one frame each; one empty piece if there are none.
pub fn chunks(entries: Vec<Entry>) -> Vec<Vec<Entry>> {
    const CHUNK_BYTES_MAX: usize = 128 * 1024;
    let mut chunks = vec![Vec::new()];
    let mut bytes = 0;
    for entry in entries {
        let len = entry::entry_len(&entry);
        let current = chunks.last().map_or(0, Vec::len);
        if current == CHUNK_ENTRIES_MAX || (current > 0 && bytes + len > CHUNK_BYTES_MAX) {
            chunks.push(Vec::new());
            bytes = 0;
        }
        bytes += len;
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(entry);
        }
    }
    chunks
}
