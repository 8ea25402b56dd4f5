//! Every kind of message: one row each. What differs between kinds, except for their bodies, is derived from the table:
//! number, plane, role, answers, queue, share at the receiver, limit, and how a body is found.
//!
//! A row is only ever added, never changed: replicas of neighbouring releases run together.
//! `docs/adding-a-message.md` describes how.

use std::sync::Arc;

use super::body::{Body, Frame};
use super::handshake::{Hello, HelloAck};
use super::registry::{Snapshot, SyncRequest, SyncResponse};
use crate::dry_run::{DryRun, Reply};
use crate::evidence::{
    Batch, EvidenceSnapshot, Gap, HeatReport, Mark, PULL_BATCHES_MAX, SNAPSHOT_FRAMES_MAX,
};
use crate::frame::{BODY_BYTES_MAX, FrameError, Raw};
use crate::load::LoadFrame;
use crate::peer_state::{
    HealthClaim, Heard, PART_BYTES_MAX, Pace, Quarantined, Sighting, TenantUse,
};
use crate::registry::Entry;

/// A row of the table: what is common to all messages of one kind.
#[derive(Debug)]
pub struct Kind {
    /// Its name in the table.
    pub name: &'static str,
    /// The numbers under which it travels; several if it has several forms. Never reused.
    pub codes: &'static [u8],
    /// The plane that it belongs to; the label of its counters.
    pub plane: &'static str,
    /// When it is sent, by which side, and what comes back.
    pub role: Role,
    /// The share of a peer's frames that it counts against, where it arrives without being asked for.
    pub rate: Rate,
    /// Greatest length of a body in bytes; a longer one is refused unread.
    pub body_max: usize,
}

/// What a message is for its sender and its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Opens or ends a connection; the transport's own.
    Link,
    /// Sent without being asked for, and not answered; waits in this queue.
    Push(Queue),
    /// Opens a stream, on which it is answered, or not.
    Question {
        /// Codes of the kinds that may answer it.
        by: &'static [u8],
        /// Most frames of an honest answer. What comes behind them is not read.
        frames: usize,
    },
    /// Answers, and is nothing else.
    Answer,
}

/// Where a push waits for one peer. Each queue is sent in order, beside the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Not at all, if it fits a datagram; else it is urgent.
    Datagram,
    /// Small and seldom.
    Urgent,
    /// The most of the bytes. The plane waits until there is room ([`Link::room`]).
    Bulk,
    /// Replaced by the next of its kind: what finds the queue full is not sent.
    Latest,
}

/// Which share of what one peer may send a message counts against. The limits are in the table of
/// `docs/gossip-protocol.md`, "What one peer can do".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// None but that of all bytes: its plane has a limit of its own.
    Own,
    /// Frames of load.
    Load,
    /// Frames of evidence and heat.
    Evidence,
    /// Questions and pushes of the registry; their answers have a share, too.
    Registry,
}

/// A message of a kind from outside this crate: its body stays in bytes, for its plane to read.
#[derive(Clone, Debug)]
pub struct Extra {
    /// Its row.
    pub kind: &'static Kind,
    /// Its body as it travels.
    pub body: Vec<u8>,
}

macro_rules! kinds {
    ($(
        $(#[$doc:meta])*
        $name:ident $( ($body:ident: $type:ty) )? = $codes:tt, $plane:literal, $role:expr, $rate:ident, $max:expr;
    )*) => {
        /// One message of our own planes.
        #[derive(Clone, Debug)]
        pub enum Message {
            $( $(#[$doc])* $name $( ($type) )?, )*
            /// Of a plane that is not of this crate.
            Extra(Extra),
        }

        /// Every kind of this crate.
        pub static KINDS: &[Kind] = &[$(
            Kind {
                name: stringify!($name),
                codes: &$codes,
                plane: $plane,
                role: $role,
                rate: Rate::$rate,
                body_max: $max,
            },
        )*];

        /// Positions in [`KINDS`].
        enum Position { $( $name, )* }

        impl Message {
            /// The row of its kind.
            pub fn kind(&self) -> &'static Kind {
                match self {
                    $( Self::$name { .. } => &KINDS[Position::$name as usize], )*
                    Self::Extra(extra) => extra.kind,
                }
            }

            /// Appends it to `out` as one frame.
            pub(super) fn seal(
                &self,
                out: &mut Vec<u8>,
                generation: u64,
                seq: u64,
            ) -> Result<(), FrameError> {
                let frame = Frame { out, codes: self.kind().codes, generation, seq };
                match self {
                    $( Self::$name $( ($body) )? => kinds!(@seal frame $( $body )?), )*
                    Self::Extra(extra) => frame.put(extra.kind.codes[0], &Raw(&extra.body)),
                }
            }

            fn read(
                at: usize,
                code: u8,
                body: &mut &[u8],
                refused: &mut usize,
            ) -> Result<Self, FrameError> {
                $( if at == Position::$name as usize {
                    return kinds!(@read $name code body refused $( $type )?);
                } )*
                unreachable!("the caller found the position in the table")
            }
        }
    };
    (@seal $frame:ident) => { ().seal($frame) };
    (@seal $frame:ident $body:ident) => { $body.seal($frame) };
    (@read $name:ident $code:ident $body:ident $refused:ident) => {
        <() as Body>::read($code, $body, $refused).map(|()| Self::$name)
    };
    (@read $name:ident $code:ident $body:ident $refused:ident $type:ty) => {
        <$type as Body>::read($code, $body, $refused).map(Self::$name)
    };
}

/// Most bodies are only bounded by their frame.
const FRAME: usize = BODY_BYTES_MAX;
/// Most frames of an answer of the registry: at its limit of entries that are as long as they may be. A frame of it is full
/// with 128 KiB, and what other replicas write at the limit comes on top: so an answer beyond it is no lie, but it is not
/// read.
pub(crate) const REGISTRY_ANSWER_FRAMES: usize = 1024;

// Replicas that know only the codes below 16 skip the others. The next free one: 32.
kinds! {
    /// First on every connection, from the side that dialled.
    Hello(hello: Hello) = [1], "handshake", Role::Link, Own, FRAME;
    /// The answer to `Hello`; only then is the connection of use.
    HelloAck(ack: HelloAck) = [2], "handshake", Role::Link, Own, FRAME;
    /// The sender leaves on purpose: its load counts no more, its worker entries stay.
    Leave = [12], "handshake", Role::Link, Own, FRAME;

    /// Registry entries that the sender has just written, or that a sync found missing. At most
    /// [`chunks`](super::chunks) of them.
    RegistryPush(entries: Vec<Entry>) = [3], "registry", Role::Question { by: &[4], frames: 1 }, Registry, FRAME;
    /// The push with this sequence number was merged.
    PushAck(seq: u64) = [4], "registry", Role::Answer, Registry, FRAME;
    /// Question of anti-entropy.
    SyncRequest(request: SyncRequest) = [5], "registry", Role::Question { by: &[6], frames: REGISTRY_ANSWER_FRAMES }, Registry, FRAME;
    /// Answer of anti-entropy, in one or more frames.
    SyncResponse(response: SyncResponse) = [6], "registry", Role::Answer, Registry, FRAME;
    /// A starting replica asks for everything.
    SnapshotRequest = [10], "registry", Role::Question { by: &[11], frames: REGISTRY_ANSWER_FRAMES }, Registry, FRAME;
    /// Everything, in one or more frames.
    Snapshot(snapshot: Snapshot) = [11], "registry", Role::Answer, Registry, FRAME;

    /// Load of the sender: changes, all of it listed, or all of it by position, whichever is shortest.
    Load(frame: LoadFrame) = [7, 8, 9], "load", Role::Push(Queue::Datagram), Load, FRAME;

    /// Evidence of the sender.
    Evidence(batch: Arc<Batch>) = [16], "evidence", Role::Push(Queue::Bulk), Evidence, FRAME;
    /// Where the sender's batches stand; also the first frame of the answer to a pull.
    EvidenceMark(mark: Mark) = [17], "evidence", Role::Push(Queue::Bulk), Evidence, FRAME;
    /// Asks for batches again that did not arrive.
    EvidencePull(gaps: Vec<Gap>) = [18], "evidence", Role::Question { by: &[16, 17], frames: 1 + PULL_BATCHES_MAX }, Own, FRAME;
    /// A starting replica asks for what the other believes.
    EvidenceSnapshotRequest = [19], "evidence", Role::Question { by: &[20], frames: SNAPSHOT_FRAMES_MAX }, Own, FRAME;
    /// What it believes, in one or more frames.
    EvidenceSnapshot(snapshot: EvidenceSnapshot) = [20], "evidence", Role::Answer, Own, FRAME;
    /// A starting replica asks how much the other believes.
    EvidenceSizeRequest = [24], "evidence", Role::Question { by: &[25], frames: 1 }, Own, FRAME;
    /// So many links.
    EvidenceSize(links: u64) = [25], "evidence", Role::Answer, Own, FRAME;
    /// How hot prefixes are at the sender.
    Heat(report: Arc<HeatReport>) = [21], "heat", Role::Push(Queue::Bulk), Evidence, FRAME;

    /// Asks what the receiver would decide.
    DryRunRequest(question: Arc<DryRun>) = [22], "dry_run", Role::Question { by: &[23], frames: 1 }, Own, FRAME;
    /// What it would decide, or why it does not answer.
    DryRunAnswer(reply: Box<Reply>) = [23], "dry_run", Role::Answer, Own, FRAME;

    /// What the sender found out about workers: one part of its peer state.
    Health(claims: Arc<Vec<HealthClaim>>) = [26], "bulletin", Role::Push(Queue::Latest), Own, PART_BYTES_MAX;
    /// What the sender has in hand for tenants: another part.
    Usage(usage: Arc<Vec<TenantUse>>) = [27], "bulletin", Role::Push(Queue::Latest), Own, PART_BYTES_MAX;
    /// Requests that no worker is to get: the third part.
    Quarantine(entries: Arc<Vec<Quarantined>>) = [28], "bulletin", Role::Push(Queue::Latest), Own, PART_BYTES_MAX;
    /// How fast workers answer the sender: the fourth part.
    Paces(paces: Arc<Vec<Pace>>) = [29], "bulletin", Role::Push(Queue::Latest), Own, PART_BYTES_MAX;
    /// What the sender sees of sources of workers: the fifth part.
    Sightings(sightings: Arc<Vec<Sighting>>) = [30], "bulletin", Role::Push(Queue::Latest), Own, PART_BYTES_MAX;
    /// Which replicas the sender hears: the sixth part.
    Heard(heard: Arc<Vec<Heard>>) = [31], "bulletin", Role::Push(Queue::Latest), Own, PART_BYTES_MAX;
}

impl Kind {
    /// Whether it asks for an answer on its stream.
    pub(crate) fn is_question(&self) -> bool {
        matches!(self.role, Role::Question { .. })
    }

    /// Most frames of an honest answer to it: none where it asks for nothing.
    pub(crate) fn answer_frames(&self) -> usize {
        match self.role {
            Role::Question { frames, .. } => frames,
            Role::Link | Role::Push(_) | Role::Answer => 0,
        }
    }

    /// Whether an honest peer may give a frame of this kind in answer to one of the other.
    pub(crate) fn answers(&self, question: &Self) -> bool {
        matches!(question.role, Role::Question { by, .. } if by.contains(&self.codes[0]))
    }
}

impl Message {
    /// How many registry entries it carries.
    pub(crate) fn entries(&self) -> usize {
        match self {
            Self::RegistryPush(entries) => entries.len(),
            Self::SyncResponse(response) => response.entries.len(),
            Self::Snapshot(snapshot) => snapshot.entries.len(),
            _ => 0,
        }
    }
}

/// What a body holds.
pub(super) struct Read {
    pub(super) message: Option<Message>,
    /// Entries left out.
    pub(super) refused: usize,
    /// Bytes behind what this release knows of the kind.
    pub(super) unread: usize,
}

/// The message of a body; none of a kind that is neither in the table nor in `extra`.
pub(super) fn read(code: u8, body: &[u8], extra: &[&'static Kind]) -> Result<Read, FrameError> {
    let is_its = |kind: &Kind| kind.codes.contains(&code);
    let bounded = |kind: &Kind| match body.len() <= kind.body_max {
        true => Ok(()),
        false => Err(FrameError::Value("length of a body")),
    };
    let (mut rest, mut refused) = (body, 0);
    let message = if let Some(at) = KINDS.iter().position(is_its) {
        bounded(&KINDS[at])?;
        Some(Message::read(at, code, &mut rest, &mut refused)?)
    } else if let Some(kind) = extra.iter().find(|kind| is_its(kind)) {
        bounded(kind)?;
        let body = std::mem::take(&mut rest).to_vec();
        Some(Message::Extra(Extra { kind, body }))
    } else {
        rest = &[];
        None
    };
    Ok(Read {
        message,
        refused,
        unread: rest.len(),
    })
}
