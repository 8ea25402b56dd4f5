//! The body of an answer: which of the bytes that have come are its own, and where it ends.
//!
//! Pure: bytes in, frames out. A frame is a part of the buffer that the socket was read into, not a copy.

use std::mem::take;

use bytes::{Bytes, BytesMut};
use http_body::Frame;

use super::chunked::Chunked;
use super::front::front_of;
use crate::upstream::connection::broken::Broken;
use crate::upstream::connection::length::BodyLength;

/// What is still to come of a body.
#[derive(Debug)]
pub struct AnswerBody {
    rest: Rest,
}

#[derive(Debug)]
enum Rest {
    Fixed(u64),
    Chunked(Chunked),
    UntilClose,
    Nothing,
}

impl AnswerBody {
    pub(super) fn of(length: BodyLength) -> Self {
        let rest = match length {
            BodyLength::Fixed(0) => Rest::Nothing,
            BodyLength::Fixed(bytes) => Rest::Fixed(bytes),
            BodyLength::Chunked => Rest::Chunked(Chunked::default()),
            BodyLength::Open => Rest::UntilClose,
        };
        Self { rest }
    }

    /// Takes what has come of the body off the front of `buf`; none where more must come first, or where it has ended.
    /// Errors: what came is no body.
    pub fn take(&mut self, buf: &mut BytesMut) -> Result<Option<Frame<Bytes>>, Broken> {
        match &mut self.rest {
            Rest::Fixed(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(buf.len());
                *left -= length as u64;
                if *left == 0 {
                    self.rest = Rest::Nothing;
                }
                Ok((length > 0).then(|| Frame::data(front_of(buf, length, length))))
            }
            Rest::Chunked(chunks) => {
                let frame = chunks.take(buf)?;
                if chunks.has_ended() {
                    self.rest = Rest::Nothing;
                }
                Ok(frame)
            }
            Rest::UntilClose if buf.is_empty() => Ok(None),
            Rest::UntilClose => Ok(Some(Frame::data(take(buf).freeze()))),
            Rest::Nothing => Ok(None),
        }
    }

    /// The connection ended, and all that had come was taken.
    /// Errors: before the body did.
    pub fn close(&mut self) -> Result<(), Broken> {
        match self.rest {
            Rest::UntilClose | Rest::Nothing => self.rest = Rest::Nothing,
            Rest::Fixed(_) | Rest::Chunked(_) => return Err(Broken::Cut),
        }
        Ok(())
    }

    /// Nothing is still to come.
    pub fn has_ended(&self) -> bool {
        matches!(self.rest, Rest::Nothing)
    }

    /// It ends with its connection.
    pub fn is_until_close(&self) -> bool {
        matches!(self.rest, Rest::UntilClose)
    }

    /// Bytes that are still to come, where that is known.
    pub fn length(&self) -> Option<u64> {
        match self.rest {
            Rest::Fixed(left) => Some(left),
            Rest::Nothing => Some(0),
            Rest::Chunked(_) | Rest::UntilClose => None,
        }
    }
}
