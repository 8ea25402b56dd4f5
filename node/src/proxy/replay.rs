//! A kept answer on its way: no worker, no placement, and the same pieces as the first time.
//!
//! A stream is given again as a stream, each piece when the client can take it: hyper asks for the next one then.

use std::sync::Arc;

use bytes::Bytes;

use super::outcome::Outcome;
use super::record::Record;
use crate::cache::Answer;

/// A kept stream on its way. Dropped before its end, its client left.
#[derive(Debug)]
pub struct Replay {
    answer: Arc<Answer>,
    next: usize,
    record: Box<Record>,
}

impl Replay {
    /// Of a kept stream, from its beginning.
    pub(super) fn new(answer: Arc<Answer>, record: Box<Record>) -> Self {
        Self {
            answer,
            next: 0,
            record,
        }
    }

    /// The next piece; none at the end.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        let piece = self.answer.piece(self.next);
        match &piece {
            Some(piece) => {
                self.next += 1;
                self.record.passes(piece);
            }
            None => self.record.finish(Outcome::Success),
        }
        piece
    }
}
