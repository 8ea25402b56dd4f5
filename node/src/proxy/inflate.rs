//! Inflates a request's body as it arrives, where `listen.request_codings` takes such bodies.
//!
//! What comes out is what counts: it is held to the limit of a body and taken from the budget piece by piece, while it
//! is made. So a bomb costs what its bytes may cost and no more, whatever they claim to become. Workers get the
//! plain body. Not `deflate`: its readers do not agree on what it is, and the library takes one without its end for
//! whole. One coding, no list of them: two would multiply.

use std::io::{self, Write};
use std::mem::take;

use flate2::write::MultiGzDecoder;
use zstd::stream::raw;
use zstd::stream::zio;
use zstd::zstd_safe::DParameter;

use crate::admission::byte_budget::Reserved;
use crate::config::Coding;

/// Largest window of a zstd frame, as a power of two: what RFC 8878 asks every reader to support, 8 MiB.
const WINDOW_LOG_MAX: u32 = 23;
/// Bytes that are read at once. A few bytes become many: other requests of the thread have their turn between.
pub(super) const SLICE_BYTES: usize = 1024;

/// Why a body cannot be inflated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It becomes longer than a body may be.
    TooLong,
    /// The budget of all bodies has no room for it.
    NoRoom,
    /// It is not in the coding that it claims, or it breaks off.
    Malformed,
}

/// A body that is being inflated.
pub(super) struct Inflater {
    decoder: Decoder,
}

enum Decoder {
    Gzip(MultiGzDecoder<Plain>),
    Zstd(zio::Writer<Plain, raw::Decoder<'static>>),
}

/// What has come out so far.
struct Plain {
    bytes: Vec<u8>,
    bytes_max: u64,
    reserved: Reserved,
    fault: Option<Fault>,
}

impl Inflater {
    /// What comes out is at most `bytes_max` long, and is taken from the budget of `reserved`.
    pub(super) fn new(coding: Coding, bytes_max: u64, reserved: Reserved) -> Result<Self, Fault> {
        let plain = Plain {
            bytes: Vec::new(),
            bytes_max,
            reserved,
            fault: None,
        };
        let decoder = match coding {
            Coding::Gzip => Decoder::Gzip(MultiGzDecoder::new(plain)),
            Coding::Zstd => {
                let mut zstd = raw::Decoder::new().map_err(|_| Fault::NoRoom)?;
                zstd.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX))
                    .map_err(|_| Fault::Malformed)?;
                Decoder::Zstd(zio::Writer::new(plain, zstd))
            }
        };
        Ok(Self { decoder })
    }

    /// Takes the next bytes as they came.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let result = match &mut self.decoder {
            Decoder::Gzip(decoder) => decoder.write_all(bytes),
            Decoder::Zstd(decoder) => decoder.write_all(bytes),
        };
        result.map_err(|_| self.fault())
    }

    /// All has come: the plain body, and its part of the budget.
    pub(super) fn finish(mut self) -> Result<(Vec<u8>, Reserved), Fault> {
        let result = match &mut self.decoder {
            Decoder::Gzip(decoder) => decoder.try_finish(),
            Decoder::Zstd(decoder) => decoder.finish(),
        };
        result.map_err(|_| self.fault())?;
        let plain = match self.decoder {
            Decoder::Gzip(decoder) => decoder.finish(),
            Decoder::Zstd(decoder) => Ok(decoder.into_inner().0),
        };
        let mut plain = plain.map_err(|_| Fault::Malformed)?;
        Ok((take(&mut plain.bytes), plain.reserved))
    }

    fn fault(&self) -> Fault {
        let plain = match &self.decoder {
            Decoder::Gzip(decoder) => decoder.get_ref(),
            Decoder::Zstd(decoder) => decoder.writer(),
        };
        plain.fault.unwrap_or(Fault::Malformed)
    }
}

impl Write for Plain {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let length = self.bytes.len() as u64 + piece.len() as u64;
        let fault = if length > self.bytes_max {
            Some(Fault::TooLong)
        } else if !self.reserved.grow(piece.len() as u64) {
            Some(Fault::NoRoom)
        } else {
            None
        };
        if fault.is_some() {
            self.fault = fault;
            return Err(io::Error::other("no room for what comes out"));
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;
    use crate::admission::byte_budget::ByteBudget;

    const ALL: [Coding; 2] = Coding::ALL;

    fn packed(coding: Coding, plain: &[u8]) -> Vec<u8> {
        let finished = match coding {
            Coding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
                encoder.write_all(plain).and_then(|()| encoder.finish())
            }
            Coding::Zstd => zstd::encode_all(plain, 19),
        };
        finished.expect("memory takes everything")
    }

    /// What comes out of bytes that come in pieces.
    fn inflated(
        coding: Coding,
        bytes: &[u8],
        pieces: usize,
        bytes_max: u64,
        budget: &Arc<ByteBudget>,
    ) -> Result<Vec<u8>, Fault> {
        let mut inflater = Inflater::new(coding, bytes_max, budget.reserve())?;
        for piece in bytes.chunks(pieces) {
            inflater.feed(piece)?;
        }
        inflater.finish().map(|(plain, _reserved)| plain)
    }

    #[test]
    fn bodies_come_out_as_they_went_in() {
        let budget = Arc::new(ByteBudget::new(1 << 20));
        let plain: Vec<u8> = (0..100_000_u32)
            .flat_map(|n| (n % 251).to_le_bytes())
            .collect();
        for coding in ALL {
            let bytes = packed(coding, &plain);
            for pieces in [1, 7, SLICE_BYTES, usize::MAX] {
                let out = inflated(coding, &bytes, pieces, 1 << 20, &budget);
                assert!(out.expect("good") == plain, "{coding:?} in {pieces}");
            }
            assert_eq!(
                inflated(coding, &packed(coding, b""), 5, 0, &budget),
                Ok(Vec::new())
            );
            let exact = plain.len() as u64;
            assert!(inflated(coding, &bytes, 999, exact, &budget).is_ok());
            assert_eq!(
                inflated(coding, &bytes, 999, exact - 1, &budget),
                Err(Fault::TooLong)
            );
            assert!(budget.is_unused(), "{coding:?} kept some of the budget");
        }
        // Members and frames in a row are one body.
        for coding in ALL {
            let two = [packed(coding, b"one "), packed(coding, b"two")].concat();
            assert_eq!(
                inflated(coding, &two, 3, 100, &budget),
                Ok(b"one two".to_vec())
            );
        }
    }

    #[test]
    fn a_bomb_costs_no_more_than_a_body_may() {
        let bomb = vec![0; 64 << 20];
        for coding in ALL {
            let bytes = packed(coding, &bomb);
            assert!(bytes.len() < 70_000, "{coding:?}: {}", bytes.len());
            let cap = 1 << 20;
            let budget = Arc::new(ByteBudget::new(cap));
            assert_eq!(
                inflated(coding, &bytes, 1024, cap, &budget),
                Err(Fault::TooLong)
            );
            assert_eq!(
                inflated(coding, &bytes, 1024, u64::MAX, &budget),
                Err(Fault::NoRoom)
            );
            assert!(budget.is_unused());
        }
    }

    #[test]
    fn what_is_broken_or_something_else_is_refused() {
        let budget = Arc::new(ByteBudget::new(1 << 20));
        for coding in ALL {
            let good = packed(coding, &[7; 5_000]);
            let refused = |bytes: &[u8]| {
                let out = inflated(coding, bytes, 100, 1 << 20, &budget);
                assert_eq!(out, Err(Fault::Malformed), "{coding:?}: {bytes:?}");
            };
            refused(&good[..good.len() - 1]);
            refused(&good[..4]);
            refused(b"{\"model\":\"m\"}");
            refused(&[&good[..], b"trailing"].concat());
        }
        // A frame with a window of 128 MiB.
        let wide = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x88, 0x01, 0x00, 0x00];
        let out = inflated(Coding::Zstd, &wide, 100, 1 << 30, &budget);
        assert_eq!(out, Err(Fault::Malformed));
    }
}
