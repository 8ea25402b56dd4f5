//! One connection: greeting, handshake, then messages.

use bytes::{Bytes, BytesMut};

use crate::command::{self, COMMAND_BYTES_MAX, Command};
use crate::frame::{self, Frame, Limits};
use crate::{Violation, greeting};

/// A type of socket that we can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketType {
    /// Hears many that ask or tell.
    Router,
    /// Asks or tells, and waits for no answer before the next.
    Dealer,
    /// Hears what others publish; a message that begins with 1 subscribes to the topic behind it.
    Sub,
}

impl SocketType {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Router => "ROUTER",
            Self::Dealer => "DEALER",
            Self::Sub => "SUB",
        }
    }

    /// Whether it talks with a peer of this type.
    fn talks_with(self, peer: &[u8]) -> bool {
        let peers: &[&[u8]] = match self {
            Self::Router => &[b"DEALER", b"REQ", b"ROUTER"],
            Self::Dealer => &[b"ROUTER", b"DEALER", b"REP"],
            Self::Sub => &[b"PUB", b"XPUB"],
        };
        peers.contains(&peer)
    }
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Greeting,
    Ready,
    Messages,
}

/// One connection with one peer.
///
/// ```text
/// bytes from the peer ──▶ next(&mut bytes) ──▶ messages
///                          take_output()   ──▶ bytes to the peer, after each call of next, and before the first
/// ```
#[derive(Debug)]
pub struct Session {
    socket_type: SocketType,
    limits: Limits,
    step: Step,
    /// Frames of a message that is not all there.
    parts: Vec<Bytes>,
    parts_bytes: usize,
    output: BytesMut,
}

impl Session {
    /// A connection that has just been opened, by either side. It has its greeting to send.
    pub fn new(socket_type: SocketType, limits: Limits) -> Self {
        Self {
            socket_type,
            limits,
            step: Step::Greeting,
            parts: Vec::new(),
            parts_bytes: 0,
            output: BytesMut::from(&greeting::own()[..]),
        }
    }

    /// Bytes to send to the peer; empty if there are none.
    pub fn take_output(&mut self) -> BytesMut {
        std::mem::take(&mut self.output)
    }

    /// Whether the handshake is over: messages come, and may be sent.
    pub fn is_ready(&self) -> bool {
        self.step == Step::Messages
    }

    /// The next message in `bytes`, which it takes from the front; none while there is no whole one. What is left then
    /// has at most [`Limits::message_bytes`] or 2,048 bytes, whichever is more, and the nine of a header.
    /// Errors: [`Violation`]: the connection is to be closed; nothing more can be read from it.
    pub fn next(&mut self, bytes: &mut BytesMut) -> Result<Option<Vec<Bytes>>, Violation> {
        loop {
            match self.step {
                Step::Greeting => {
                    if !greeting::read(bytes)? {
                        return Ok(None);
                    }
                    let ready = command::ready(self.socket_type.as_str());
                    frame::write_command(&ready, &mut self.output);
                    self.step = Step::Ready;
                }
                Step::Ready => match frame::read(bytes, 0, COMMAND_BYTES_MAX)? {
                    None => return Ok(None),
                    Some(frame) => self.shake_hands(&frame)?,
                },
                Step::Messages => {
                    let body_max = self.limits.message_bytes - self.parts_bytes;
                    // A command may come between the frames of a message and has a limit of its own.
                    let Some(frame) = frame::read(bytes, body_max, COMMAND_BYTES_MAX)? else {
                        return Ok(None);
                    };
                    if let Some(message) = self.take(frame)? {
                        return Ok(Some(message));
                    }
                }
            }
        }
    }

    fn shake_hands(&mut self, frame: &Frame) -> Result<(), Violation> {
        match Command::read(&frame.body)? {
            Command::Ready { socket_type } if frame.is_command => {
                if !self.socket_type.talks_with(socket_type) {
                    return Err(Violation::SocketType);
                }
                self.step = Step::Messages;
                Ok(())
            }
            _ => Err(Violation::Command),
        }
    }

    /// A message, if this frame is its last one.
    fn take(&mut self, frame: Frame) -> Result<Option<Vec<Bytes>>, Violation> {
        if frame.is_command {
            match Command::read(&frame.body)? {
                Command::Ping { context } => {
                    frame::write_command(&command::pong(context), &mut self.output);
                }
                Command::Ready { .. } => return Err(Violation::Command),
                Command::Other => {}
            }
            return Ok(None);
        }
        if self.parts.len() == self.limits.frames {
            return Err(Violation::TooLarge);
        }
        self.parts_bytes += frame.body.len();
        self.parts.push(frame.body);
        if frame.has_more {
            return Ok(None);
        }
        self.parts_bytes = 0;
        Ok(Some(std::mem::take(&mut self.parts)))
    }
}
