//! Body of every response of the data port, whichever way its answer came.

mod ahead;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};

pub use self::ahead::Ahead;
pub(super) use self::ahead::Patient;
use super::outcome::Outcome;
use super::realtime::tunnel::Tunnel;
use super::record::Record;
use super::relay::{Relay, RelayError};
use super::replay::Replay;
use crate::cache::Answer;

/// What is sent behind a head.
#[derive(Debug)]
pub enum ResponseBody {
    /// Known bytes; `None` once they are given. What is still to be written of the request goes with its answer.
    Full(Option<Bytes>, Option<Box<Record>>),
    /// An answer on its way.
    Relay(Box<Relay>),
    /// A kept answer on its way.
    Replay(Box<Replay>),
    /// An answer that is still to come, behind a head that is out.
    Ahead(Box<Ahead>),
    /// None: the connection is a tunnel once the head is out, and the server of the tunnel takes this.
    Tunnel(Option<Box<Tunnel>>),
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self::Full(Some(bytes).filter(|b| !b.is_empty()), None)
    }
}

impl ResponseBody {
    /// All of the answer to a request that has ended.
    pub(super) fn of_request(bytes: Bytes, record: Box<Record>) -> Self {
        Self::Full(Some(bytes).filter(|b| !b.is_empty()), Some(record))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        match &mut *self {
            Self::Full(bytes, _) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Relay(relay) => relay.poll_guarded(cx),
            Self::Replay(replay) => Poll::Ready(replay.next().map(|piece| Ok(Frame::data(piece)))),
            Self::Ahead(ahead) => ahead.poll_next(cx),
            Self::Tunnel(_) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes, _) => bytes.is_none(),
            Self::Relay(_) | Self::Replay(_) => false,
            Self::Ahead(ahead) => ahead.is_over(),
            Self::Tunnel(_) => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes, _) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Self::Relay(_) | Self::Replay(_) | Self::Ahead(_) => SizeHint::default(),
            Self::Tunnel(_) => SizeHint::with_exact(0),
        }
    }
}

/// Answers a request with a kept answer. Its tokens are not counted: no worker computed them.
pub(super) fn kept(answer: Arc<Answer>, mut record: Box<Record>) -> Response<ResponseBody> {
    // Nothing scarce is held for a reader that may be slow.
    record.admission = None;
    record.status = Some(StatusCode::OK);
    let headers = answer.headers().clone();
    let age = HeaderValue::from(answer.age().as_secs());
    let mut response = Response::new(if answer.is_stream() {
        ResponseBody::Replay(Box::new(Replay::new(answer, record)))
    } else {
        let body = answer.body();
        record.passes(&body);
        record.finish(Outcome::Success);
        ResponseBody::of_request(body, record)
    });
    *response.headers_mut() = headers;
    response.headers_mut().insert(header::AGE, age);
    response
}
