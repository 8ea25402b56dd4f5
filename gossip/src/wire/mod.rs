//! What replicas send to each other on our own planes, in core types.
//!
//! Pure. [`encode`] and [`decode`] turn a [`Message`] into a frame and back. The table of all kinds is in `kinds.rs`;
//! the types that travel are in the files of their planes and stay there, so that core types can change without
//! changing the wire.
//!
//! A receiver refuses what is damaged or cannot be understood as a whole ([`FrameError`]), skips a
//! kind that it does not know (`message` is `None`), and leaves out single registry entries that
//! break a limit (`refused`): a poisonous entry must neither be merged nor stop the others.
//!
//! What a later release may do, and this one can read: new kinds; new fields behind the others of a
//! body; new sources, roles and states of registry entries, which are carried by their numbers. It
//! must not change a field, nor the version of frames. `tests/releases` holds what earlier ones wrote.

mod body;
mod dry_run;
mod entry;
mod evidence;
mod handshake;
mod kinds;
mod load;
mod peer_state;
mod registry;
#[cfg(test)]
pub(crate) mod tests;

use crate::frame::{self, FrameError, Header};

pub use handshake::{HINTS_MAX, Hello, HelloAck, PeerHint};
pub(crate) use kinds::REGISTRY_ANSWER_FRAMES;
pub use kinds::{Extra, KINDS, Kind, Message, Queue, Rate, Role};
pub use registry::{Snapshot, SyncRequest, SyncResponse, chunks};

/// A frame taken apart.
#[derive(Clone, Debug)]
pub struct Received {
    /// Generation and sequence number of the sender, and the kind.
    pub header: Header,
    /// The message; `None` = a kind of a later release.
    pub message: Option<Message>,
    /// Registry entries left out because they break a limit.
    pub refused: usize,
    /// Bytes at the end of the body that only a later release can read.
    pub unread: usize,
}

/// Appends `message` as one frame to `out`.
/// Errors: `TooLong`, for more entries or slots than fit one frame; then `out` is as before.
pub fn encode(
    out: &mut Vec<u8>,
    generation: u64,
    seq: u64,
    message: &Message,
) -> Result<(), FrameError> {
    message.seal(out, generation, seq)
}

/// Takes one whole frame apart.
/// Errors: the frame is damaged, of another version, or does not decode; nothing of it may be used.
pub fn decode(bytes: &[u8]) -> Result<Received, FrameError> {
    decode_with(bytes, &[])
}

/// [`decode`], with kinds of planes from outside this crate; one whose code is in [`KINDS`] is never met.
/// Errors: as [`decode`].
pub fn decode_with(bytes: &[u8], extra: &[&'static Kind]) -> Result<Received, FrameError> {
    let (header, body) = frame::open(bytes)?;
    let kinds::Read {
        message,
        refused,
        unread,
    } = kinds::read(header.kind, body, extra)?;
    Ok(Received {
        header,
        message,
        refused,
        unread,
    })
}
