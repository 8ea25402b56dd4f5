//! A kept answer on its way: no worker, no placement, and the same pieces as the first time.
//!
//! A stream is given again as a stream, each piece when the client can take it: hyper asks for the next one then.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::record::{Outcome, Record};
use super::relay::ResponseBody;
use crate::cache::Answer;

/// A kept stream on its way. Dropped before its end, its client left.
#[derive(Debug)]
pub struct Replay {
    answer: Arc<Answer>,
    next: usize,
    record: Record,
}

impl Replay {
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

/// Answers a request with it. Its tokens are not counted: no worker computed them.
pub(super) fn response(answer: Arc<Answer>, mut record: Record) -> Response<ResponseBody> {
    // Nothing scarce is held for a reader who may be slow.
    record.admission = None;
    record.status = Some(StatusCode::OK);
    let headers = answer.headers().clone();
    let age = HeaderValue::from(answer.age().as_secs());
    let mut response = Response::new(if answer.is_stream() {
        ResponseBody::Replay(Box::new(Replay {
            answer,
            next: 0,
            record,
        }))
    } else {
        let body = answer.body();
        record.passes(&body);
        record.finish(Outcome::Success);
        ResponseBody::from(body)
    });
    *response.headers_mut() = headers;
    response.headers_mut().insert(header::AGE, age);
    response
}
