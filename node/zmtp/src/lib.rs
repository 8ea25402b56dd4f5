//! ZMTP, the wire protocol of ZeroMQ, version 3: one connection without its socket. Pure: no IO, no clock.
//!
//! A [`Session`] is given the bytes that came from a peer, and gives messages and the bytes that go back: greeting, the
//! handshake of the mechanism NULL (no encryption, no passwords), and answers to heartbeats. The socket, the time that a
//! peer may take, and what becomes of a message are the caller's.
//!
//! Own code rather than the crate `zeromq` (0.7): there a frame's length, the number of frames and the number of
//! connections have no limit, so that a header of nine bytes makes a replica ask for any amount of memory.
//!
//! ZMTP 3.0: <https://rfc.zeromq.org/spec/23/>, 3.1: <https://rfc.zeromq.org/spec/37/>.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod command;
mod frame;
mod greeting;
mod session;

pub use frame::{Limits, encode_message};
pub use session::{Session, SocketType};

/// What a peer did that ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It does not begin as ZMTP 3 begins.
    #[error("no greeting of ZMTP 3")]
    Greeting,
    /// It wants another mechanism than NULL.
    #[error("another security mechanism than NULL")]
    Mechanism,
    /// A frame has bits that no frame has.
    #[error("a frame with unknown flags")]
    Flags,
    /// A frame or a message is greater than [`Limits`] allow.
    #[error("a frame or message beyond the limits")]
    TooLarge,
    /// A command that cannot be read, or not at this time.
    #[error("a command that is not to be expected")]
    Command,
    /// Sockets of its type do not talk to those of ours.
    #[error("a socket of another type")]
    SocketType,
}
