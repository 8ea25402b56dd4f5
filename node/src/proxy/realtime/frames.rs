//! Where in the frames of one direction a session is (RFC 6455, section 5.2).
//!
//! Nothing is changed or held back. It is known only whether a frame of our own may be put in (a control frame between
//! two frames, a message between two messages), and whether the sender has said that it closes.

/// Longest head of a frame: two bytes, a length of eight, a mask of four.
const HEAD_BYTES_MAX: usize = 14;
const CLOSE: u8 = 8;

/// Why the router ends a session, as its client reads it (RFC 6455, section 7.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum CloseCode {
    /// This replica ends, or the session was silent for too long.
    GoingAway = 1001,
    /// What the client sends is no frame that it may send.
    Protocol = 1002,
    /// What the client sends may not pass.
    Policy = 1008,
    /// More bytes than a session may have.
    TooLong = 1009,
    /// The worker broke off.
    WorkerBroke = 1011,
}

impl CloseCode {
    /// A whole frame, as servers write it.
    pub(super) fn frame(self) -> [u8; 4] {
        let [high, low] = (self as u16).to_be_bytes();
        [0x80 | CLOSE, 2, high, low]
    }
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opcode {
    /// More of a message.
    Continuation,
    /// The beginning of one, text or binary.
    Message,
    Control,
}

/// A frame's head, while it comes.
#[derive(Debug, Default)]
pub(super) struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    /// Bytes of it that have come.
    have: usize,
}

impl Head {
    /// Takes what belongs to it: how many bytes that was, and whether it is whole.
    pub(super) fn read(&mut self, bytes: &[u8]) -> (usize, bool) {
        for (taken, byte) in (1..).zip(bytes) {
            self.bytes[self.have] = *byte;
            self.have += 1;
            if content_of(self.bytes()).is_some() {
                return (taken, true);
            }
        }
        (bytes.len(), false)
    }

    /// As it came.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.have]
    }

    /// Bytes of the content of a whole head's frame.
    pub(super) fn length(&self) -> u64 {
        content_of(self.bytes()).unwrap_or(0)
    }

    /// None for one that the standard does not have.
    pub(super) fn opcode(&self) -> Option<Opcode> {
        match self.bytes[0] & 0x0f {
            0 => Some(Opcode::Continuation),
            1 | 2 => Some(Opcode::Message),
            8..=10 => Some(Opcode::Control),
            _ => None,
        }
    }

    /// No other frame of its message follows.
    pub(super) fn is_last(&self) -> bool {
        self.bytes[0] & 0x80 != 0
    }

    /// An extension has a say in it.
    pub(super) fn is_extended(&self) -> bool {
        self.bytes[0] & 0x70 != 0
    }

    /// What the content is masked with, as all of a client's is.
    pub(super) fn mask(&self) -> Option<[u8; 4]> {
        let is_masked = self.bytes[1] & 0x80 != 0;
        let mask = self.bytes().last_chunk().copied();
        mask.filter(|_| is_masked)
    }
}

/// Writes the head of a whole text message; `masked`: 0x80 where a mask follows.
pub(super) fn text_head(length: usize, masked: u8, out: &mut Vec<u8>) {
    out.push(0x81);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..126), _) => out.push(masked | short),
        (_, Ok(middle)) => {
            out.push(masked | 126);
            out.extend_from_slice(&middle.to_be_bytes());
        }
        _ => {
            out.push(masked | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Frames {
    head: Head,
    /// Bytes of the frame's content that have not come.
    rest: u64,
    /// Other frames of the message follow.
    in_message: bool,
    has_closed: bool,
}

impl Frames {
    /// Bytes pass.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.rest > 0 {
                let content = usize::try_from(self.rest)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                self.rest -= content as u64;
                bytes = &bytes[content..];
                continue;
            }
            let (taken, is_whole) = self.head.read(bytes);
            bytes = &bytes[taken..];
            if is_whole {
                let head = std::mem::take(&mut self.head);
                self.has_closed |= head.bytes[0] & 0x0f == CLOSE;
                if head.opcode() != Some(Opcode::Control) {
                    self.in_message = !head.is_last();
                }
                self.rest = head.length();
            }
        }
    }

    /// May a control frame be put in here?
    pub(super) fn is_between(&self) -> bool {
        self.head.have == 0 && self.rest == 0
    }

    /// May a message be put in here?
    pub(super) fn is_between_messages(&self) -> bool {
        self.is_between() && !self.in_message
    }

    /// The sender has said that it closes; it says nothing after that.
    pub(super) fn has_closed(&self) -> bool {
        self.has_closed
    }
}

/// The length of a frame's content, if its head is whole.
fn content_of(head: &[u8]) -> Option<u64> {
    let short = head.get(1)? & 0x7f;
    let mask = if head[1] & 0x80 == 0 { 0 } else { 4 };
    let length = match short {
        126 => head.get(2..4)?,
        127 => head.get(2..10)?,
        _ => &[],
    };
    if head.len() < 2 + length.len() + mask {
        return None;
    }
    Some(match length {
        [] => short.into(),
        bytes => bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(opcode: u8, masked: bool, length: usize) -> Vec<u8> {
        let mut bytes = vec![0x80 | opcode];
        let mask = if masked { 0x80 } else { 0 };
        match length {
            0..126 => bytes.push(mask | length as u8),
            126..65_536 => {
                bytes.push(mask | 126);
                bytes.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                bytes.push(mask | 127);
                bytes.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        bytes.extend(vec![0xff; if masked { 4 } else { 0 } + length]);
        bytes
    }

    proptest! {
        #[test]
        fn ends_of_frames_are_found_whatever_the_pieces(
            frames in proptest::collection::vec((0..3_u8, any::<bool>(), 0..70_000_usize), 1..6),
            piece in 1..5_000_usize,
        ) {
            let mut read = Frames::default();
            for (opcode, masked, length) in frames {
                let bytes = frame(opcode, masked, length);
                for piece in bytes[..bytes.len() - 1].chunks(piece) {
                    read.pass(piece);
                    prop_assert!(!read.is_between());
                }
                read.pass(&bytes[bytes.len() - 1..]);
                prop_assert!(read.is_between() && !read.has_closed());
            }
            prop_assert!(read.is_between_messages());
            read.pass(&[0x01, 0]);
            prop_assert!(read.is_between() && !read.is_between_messages());
            read.pass(&[0x89, 0]);
            prop_assert!(!read.is_between_messages());
            read.pass(&[0x80, 0]);
            prop_assert!(read.is_between_messages());
            read.pass(&CloseCode::GoingAway.frame());
            prop_assert!(read.is_between() && read.has_closed());
        }

        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut read = Frames::default();
            read.pass(&bytes);
        }
    }

    #[test]
    fn close_frames_are_those_of_the_standard() {
        assert_eq!(CloseCode::GoingAway.frame(), [0x88, 2, 0x03, 0xe9]);
        assert_eq!(CloseCode::WorkerBroke.frame(), [0x88, 2, 0x03, 0xf3]);
    }
}
