//! The envelope of everything on our own planes: its sender, its kind, and whether it arrived whole.
//!
//! Pure, and the only module that knows the codec (bincode). All numbers little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 2 | magic `GV` |
//! | 1 | version, [`VERSION`] |
//! | 1 | kind (see `wire`); unknown kinds are skipped and counted, not errors |
//! | 8 | generation of the sender: rises with each of its starts |
//! | 8 | sequence number within the generation |
//! | 4 | length of the body |
//! | n | body, bincode with variable-length integers |
//! | 4 | crc32 over all before |
//!
//! The header can be read alone, so that a reader of a stream knows how much to read and can refuse
//! before it does. Datagrams carry one whole frame. The crc finds accidents, not attackers: everyone that
//! sends was authenticated by the connection, and a decoder never trusts a length.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
pub(crate) use bincode::{Decode, Encode};

/// Version of header and bodies. A receiver skips others; a release that needs new fields puts them
/// behind the others of a body, or adds a kind, which older replicas skip.
pub const VERSION: u8 = 1;
/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 24;
/// Greatest length of a body in bytes: long contents are sent as several frames.
pub const BODY_BYTES_MAX: usize = 256 * 1024;
/// Greatest length of a whole frame in bytes.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + BODY_BYTES_MAX + CRC_BYTES;
/// Greatest number of bytes that decoding one body may allocate; a body of empty texts is some
/// ten times smaller than what it becomes.
pub const DECODE_BYTES_MAX: usize = 4 * 1024 * 1024;

const MAGIC: [u8; 2] = *b"GV";
const CRC_BYTES: usize = 4;

/// What stands before every body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the body is; may be unknown to this release.
    pub kind: u8,
    /// Rises with each start of the sender.
    pub generation: u64,
    /// Rises with each frame of the sender, within one generation.
    pub seq: u64,
    body_len: u32,
}

/// Why bytes are not a frame. The sender's fault, except [`FrameError::TooLong`] on encoding.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than the header needs, or its length field gives.
    #[error("frame is cut off")]
    Short,
    /// More bytes than the frame.
    #[error("bytes after the end of the frame")]
    Trailing,
    /// Not a frame at all.
    #[error("not a frame: wrong magic")]
    Magic,
    /// From a release that speaks another version.
    #[error("frame of version {0}, this release speaks {VERSION}")]
    Version(u8),
    /// The body is longer than [`BODY_BYTES_MAX`].
    #[error("frame body of {0} bytes is longer than {BODY_BYTES_MAX}")]
    TooLong(usize),
    /// Damaged on the way.
    #[error("frame checksum does not match")]
    Crc,
    /// The body is not one of its kind, or would need more than [`DECODE_BYTES_MAX`].
    #[error("frame body does not decode")]
    Body(#[source] bincode::error::DecodeError),
    /// The body decodes, but a value in it is out of its range.
    #[error("frame body holds a bad {0}")]
    Value(&'static str),
}

impl Header {
    /// Reads a header from the first [`HEADER_BYTES`] of `bytes`; the rest may be missing yet.
    /// Errors: `Short`, `Magic`, `Version`, `TooLong`.
    pub fn read(bytes: &[u8]) -> Result<Self, FrameError> {
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(FrameError::Short)?;
        if header[..2] != MAGIC {
            return Err(FrameError::Magic);
        }
        if header[2] != VERSION {
            return Err(FrameError::Version(header[2]));
        }
        let body_len = u32::from_le_bytes(array(&header[20..]));
        if body_len as usize > BODY_BYTES_MAX {
            return Err(FrameError::TooLong(body_len as usize));
        }
        Ok(Self {
            kind: header[3],
            generation: u64::from_le_bytes(array(&header[4..])),
            seq: u64::from_le_bytes(array(&header[12..])),
            body_len,
        })
    }

    /// How many bytes follow the header: body and checksum.
    pub fn rest_len(&self) -> usize {
        self.body_len as usize + CRC_BYTES
    }
}

/// Appends one frame to `out`.
/// Errors: `TooLong`; then `out` is as before.
pub(crate) fn seal(
    out: &mut Vec<u8>,
    kind: u8,
    generation: u64,
    seq: u64,
    body: &impl Encode,
) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, kind]);
    out.extend_from_slice(&generation.to_le_bytes());
    out.extend_from_slice(&seq.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let body_len = bincode::encode_into_std_write(body, out, codec())
        .expect("our bodies encode, and a vector takes every byte");
    if body_len > BODY_BYTES_MAX {
        out.truncate(start);
        return Err(FrameError::TooLong(body_len));
    }
    let length_at = start + HEADER_BYTES - 4;
    out[length_at..start + HEADER_BYTES].copy_from_slice(&(body_len as u32).to_le_bytes());
    let crc = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// A body that is bytes already.
pub(crate) struct Raw<'a>(pub(crate) &'a [u8]);

impl Encode for Raw<'_> {
    fn encode<E: bincode::enc::Encoder>(
        &self,
        encoder: &mut E,
    ) -> Result<(), bincode::error::EncodeError> {
        bincode::enc::write::Writer::write(encoder.writer(), self.0)
    }
}

/// Takes exactly one frame apart: its header and its undamaged body.
/// Errors: every error but `Body` and `Value`.
pub(crate) fn open(bytes: &[u8]) -> Result<(Header, &[u8]), FrameError> {
    let header = Header::read(bytes)?;
    let body_end = HEADER_BYTES + header.body_len as usize;
    match bytes.len() {
        len if len < body_end + CRC_BYTES => return Err(FrameError::Short),
        len if len > body_end + CRC_BYTES => return Err(FrameError::Trailing),
        _ => {}
    }
    let crc = u32::from_le_bytes(array(&bytes[body_end..]));
    if crc32fast::hash(&bytes[..body_end]) != crc {
        return Err(FrameError::Crc);
    }
    Ok((header, &bytes[HEADER_BYTES..body_end]))
}

/// Decodes what this release knows of a body, and leaves what a later one put behind it.
/// Errors: `Body`; then `body` is as before.
pub(crate) fn decode<T: Decode<()>>(body: &mut &[u8]) -> Result<T, FrameError> {
    let (value, used) = bincode::decode_from_slice(body, codec()).map_err(FrameError::Body)?;
    *body = &body[used..];
    Ok(value)
}

fn codec() -> Configuration<LittleEndian, Varint, Limit<DECODE_BYTES_MAX>> {
    // Without the limit nine bytes that claim a huge vector abort the process.
    bincode::config::standard().with_limit()
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("the caller checked the length")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sealed(body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        seal(&mut out, 7, 11, 13, &body.to_vec()).expect("short enough");
        out
    }

    #[test]
    fn what_is_sealed_opens() {
        let bytes = sealed(b"abc");
        let (header, mut body) = open(&bytes).expect("whole");
        assert_eq!((header.kind, header.generation, header.seq), (7, 11, 13));
        assert_eq!(HEADER_BYTES + header.rest_len(), bytes.len());
        assert_eq!(decode::<Vec<u8>>(&mut body).expect("decodes"), b"abc");
        assert_eq!(body, b"");
    }

    #[test]
    fn seal_appends_and_leaves_the_buffer_alone_on_failure() {
        let mut out = b"before".to_vec();
        let error = seal(&mut out, 0, 0, 0, &vec![0u8; BODY_BYTES_MAX]).expect_err("too long");
        assert!(matches!(error, FrameError::TooLong(_)));
        assert_eq!(out, b"before");
        seal(&mut out, 7, 11, 13, &b"abc".to_vec()).expect("short enough");
        assert_eq!(out[6..], sealed(b"abc"));
    }

    #[test]
    fn cut_and_longer_frames_are_refused() {
        let mut bytes = sealed(b"abc");
        for len in 0..bytes.len() {
            assert!(
                matches!(open(&bytes[..len]), Err(FrameError::Short)),
                "{len}"
            );
        }
        bytes.push(0);
        assert!(matches!(open(&bytes), Err(FrameError::Trailing)));
    }

    #[test]
    fn what_a_later_release_put_behind_a_body_is_left() {
        let bytes = sealed(b"abc");
        let (_, mut body) = open(&bytes).expect("whole");
        assert_eq!(decode::<u8>(&mut body).expect("decodes"), 3);
        assert_eq!(body, b"abc");
    }

    #[test]
    fn claimed_lengths_allocate_nothing() {
        // A vector that claims 2^64 - 1 elements in nine bytes.
        let claim = [253, 255, 255, 255, 255, 255, 255, 255, 255];
        assert!(matches!(
            decode::<Vec<u64>>(&mut &claim[..]),
            Err(FrameError::Body(_))
        ));
        let over = (DECODE_BYTES_MAX as u32 / 8 + 1).to_le_bytes();
        let claim = [&[252], &over[..]].concat();
        assert!(matches!(
            decode::<Vec<u64>>(&mut &claim[..]),
            Err(FrameError::Body(_))
        ));
    }

    proptest! {
        #[test]
        fn any_bit_flip_is_refused(
            body in prop::collection::vec(any::<u8>(), 0..300),
            at in any::<prop::sample::Index>(),
        ) {
            let mut bytes = sealed(&body);
            let bit = at.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(open(&bytes).is_err());
        }

        #[test]
        fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(open(&bytes).is_err());
        }
    }
}
