//! Where in the frames of one direction a session is (RFC 6455, section 5.2).
//!
//! Nothing is changed or held back. It is known only whether a frame of our own may be put in, which it may between
//! two frames and nowhere else, and whether the sender has said that it closes.

/// Longest head of a frame: two bytes, a length of eight, a mask of four.
const HEAD_BYTES_MAX: usize = 14;
const CLOSE: u8 = 8;

/// Why the router ends a session, as its client reads it (RFC 6455, section 7.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum CloseCode {
    /// This replica ends, or the session was silent for too long.
    GoingAway = 1001,
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

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Frames {
    head: [u8; HEAD_BYTES_MAX],
    /// Bytes of the head that have come.
    have: usize,
    /// Bytes of the frame's content that have not.
    rest: u64,
    has_closed: bool,
}

impl Frames {
    /// Bytes pass.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while let Some((first, others)) = bytes.split_first() {
            if self.rest > 0 {
                let content = usize::try_from(self.rest)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                self.rest -= content as u64;
                bytes = &bytes[content..];
                continue;
            }
            self.head[self.have] = *first;
            self.have += 1;
            bytes = others;
            if let Some(length) = content_of(&self.head[..self.have]) {
                self.has_closed |= self.head[0] & 0x0f == CLOSE;
                self.rest = length;
                self.have = 0;
            }
        }
    }

    /// May a frame be put in here?
    pub(super) fn is_between(&self) -> bool {
        self.have == 0 && self.rest == 0
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
