//! Frames: one byte of flags, a length of one byte or eight, and so many bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::Violation;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a peer may send at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a frame, and of all frames of one message together.
    pub message_bytes: usize,
    /// Frames of a message.
    pub frames: usize,
}

/// A frame of a peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) is_command: bool,
    /// Another frame of the same message follows.
    pub(crate) has_more: bool,
    pub(crate) body: Bytes,
}

/// Takes a frame from the front; none while it is not all there. A frame of a message beyond `message_max` bytes, or a
/// command beyond `command_max`, is refused by its length, before any of it is waited for.
pub(crate) fn read(
    bytes: &mut BytesMut,
    message_max: usize,
    command_max: usize,
) -> Result<Option<Frame>, Violation> {
    let Some(&flags) = bytes.first() else {
        return Ok(None);
    };
    let is_command = flags & COMMAND != 0;
    let has_more = flags & MORE != 0;
    if flags & !(MORE | LONG | COMMAND) != 0 || (is_command && has_more) {
        return Err(Violation::Flags);
    }
    let (header, length) = if flags & LONG == 0 {
        (2, bytes.get(1).map(|length| u64::from(*length)))
    } else {
        let length = bytes.get(1..9).and_then(|l| l.try_into().ok());
        (9, length.map(u64::from_be_bytes))
    };
    let Some(length) = length else {
        return Ok(None);
    };
    let body_max = if is_command { command_max } else { message_max };
    let length = usize::try_from(length).ok().filter(|l| *l <= body_max);
    let length = length.ok_or(Violation::TooLarge)?;
    if bytes.len() < header + length {
        return Ok(None);
    }
    bytes.advance(header);
    Ok(Some(Frame {
        is_command,
        has_more,
        body: bytes.split_to(length).freeze(),
    }))
}

/// Writes a message of one frame or more behind `out`; nothing for none.
pub fn encode_message(frames: &[Bytes], out: &mut BytesMut) {
    for (at, frame) in frames.iter().enumerate() {
        let more = if at + 1 < frames.len() { MORE } else { 0 };
        write(more, frame, out);
    }
}

pub(crate) fn write_command(body: &[u8], out: &mut BytesMut) {
    write(COMMAND, body, out);
}

fn write(flags: u8, body: &[u8], out: &mut BytesMut) {
    match u8::try_from(body.len()) {
        Ok(length) => out.put_slice(&[flags, length]),
        Err(_) => {
            out.put_u8(flags | LONG);
            out.put_u64(body.len() as u64);
        }
    }
    out.put_slice(body);
}
