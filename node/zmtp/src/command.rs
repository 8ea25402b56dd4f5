//! Commands: a name, and for READY properties by name.

use bytes::{BufMut, BytesMut};

use crate::Violation;

/// Greatest length of a command that we read; READY has a handful of short properties.
pub(crate) const COMMAND_BYTES_MAX: usize = 2048;
/// Greatest length of what a heartbeat wants back.
const CONTEXT_BYTES_MAX: usize = 16;

/// A command of a peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    /// The end of the handshake, with the peer's type of socket.
    Ready { socket_type: &'a [u8] },
    /// A heartbeat that wants its context back.
    Ping { context: &'a [u8] },
    /// One that means nothing to us, or nothing any more.
    Other,
}

impl<'a> Command<'a> {
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, Violation> {
        let (name, rest) = short_text(body)?;
        match name {
            b"READY" => Ok(Self::Ready {
                socket_type: socket_type(rest)?,
            }),
            // A time to live in two bytes, then the context.
            b"PING" => {
                let context = rest.get(2..).ok_or(Violation::Command)?;
                if context.len() > CONTEXT_BYTES_MAX {
                    return Err(Violation::Command);
                }
                Ok(Self::Ping { context })
            }
            // The peer refuses us.
            b"ERROR" => Err(Violation::Command),
            _ => Ok(Self::Other),
        }
    }
}

/// A text behind its length in one byte, and what follows.
fn short_text(bytes: &[u8]) -> Result<(&[u8], &[u8]), Violation> {
    let (length, rest) = bytes.split_first().ok_or(Violation::Command)?;
    rest.split_at_checked(usize::from(*length))
        .ok_or(Violation::Command)
}

/// The property `Socket-Type` among all; names of properties are in any case of letters.
fn socket_type(mut properties: &[u8]) -> Result<&[u8], Violation> {
    let mut found = None;
    while !properties.is_empty() {
        let (name, rest) = short_text(properties)?;
        let (length, rest) = rest.split_first_chunk().ok_or(Violation::Command)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let (value, rest) = rest.split_at_checked(length).ok_or(Violation::Command)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            found = Some(value);
        }
        properties = rest;
    }
    found.ok_or(Violation::Command)
}

/// READY of a socket of this type, without an identity.
pub(crate) fn ready(socket_type: &str) -> BytesMut {
    let mut body = BytesMut::with_capacity(64);
    put_short_text(&mut body, b"READY");
    for (name, value) in [("Socket-Type", socket_type), ("Identity", "")] {
        put_short_text(&mut body, name.as_bytes());
        body.put_u32(u32::try_from(value.len()).expect("names are short"));
        body.put_slice(value.as_bytes());
    }
    body
}

/// The answer to a heartbeat.
pub(crate) fn pong(context: &[u8]) -> BytesMut {
    let mut body = BytesMut::with_capacity(5 + context.len());
    put_short_text(&mut body, b"PONG");
    body.put_slice(context);
    body
}

fn put_short_text(out: &mut BytesMut, text: &[u8]) {
    out.put_u8(u8::try_from(text.len()).expect("names are short"));
    out.put_slice(text);
}
