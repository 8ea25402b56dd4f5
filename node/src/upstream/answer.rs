//! An answer of a worker that may be shown: all of it, or its beginning and where the rest comes from.

use std::future::poll_fn;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http::response::Parts;
use tokio::time::Instant;

use super::connection::{AnswerBody, Connection, Switched};
use super::failure::Failure;
use super::worker::Worker;
use crate::media_type::is_of_type;

/// An answer that may be shown to the client.
#[derive(Debug)]
pub enum Answer {
    /// All of it.
    Whole(Parts, Bytes),
    /// Its beginning; the rest is still to come.
    Begun(Box<Begun>),
    /// The head of a 101; the connection is a tunnel from now on.
    Switched(Parts, Box<Switched>),
}

impl Answer {
    /// What has come of its body.
    pub fn beginning(&self) -> &[u8] {
        match self {
            Self::Whole(_, bytes) => bytes,
            Self::Begun(begun) => &begun.held,
            Self::Switched(..) => &[],
        }
    }

    /// All of it, of at most so many bytes. Its connection to this worker stays, if it may.
    /// Errors: it broke off, is longer, or is none that can be read to an end.
    pub async fn whole(self, worker: &Worker, bytes_max: usize) -> Result<(Parts, Bytes), Failure> {
        let begun = match self {
            Self::Whole(parts, bytes) => return Ok((parts, bytes)),
            Self::Begun(begun) => *begun,
            Self::Switched(..) => return Err(Failure::Malformed("it is a tunnel".into())),
        };
        let Begun {
            parts,
            held,
            mut body,
            mut connection,
            ..
        } = begun;
        let mut all = BytesMut::from(&held[..]);
        while let Some(frame) = poll_fn(|cx| connection.poll_frame(&mut body, cx)).await {
            if let Ok(data) = frame.map_err(Failure::of_broken)?.into_data() {
                all.extend_from_slice(&data);
            }
            if all.len() > bytes_max {
                let why = format!("an answer of more than {bytes_max} bytes");
                return Err(Failure::Malformed(why.into()));
            }
        }
        rest(worker, connection, &body);
        Ok((parts, all.freeze()))
    }

    /// What the client will see.
    pub fn status(&self) -> StatusCode {
        self.head().status
    }

    /// A page for people, which no engine sends: of a proxy before it, mostly, that wants a log-in.
    pub fn is_web_page(&self) -> bool {
        is_of_type(&self.head().headers, "text/html")
    }

    fn head(&self) -> &Parts {
        match self {
            Self::Whole(parts, _) | Self::Switched(parts, _) => parts,
            Self::Begun(begun) => &begun.parts,
        }
    }
}

/// An answer that may be shown from its beginning on.
#[derive(Debug)]
pub struct Begun {
    /// Status and headers.
    pub parts: Parts,
    /// What has been read of the body.
    pub held: Bytes,
    /// Where the rest comes from.
    pub body: AnswerBody,
    /// The connection that it comes on.
    pub connection: Connection,
    /// It is a stream of events.
    pub events: bool,
    /// What has been read shows that it is an answer; otherwise its first event will.
    pub judged: bool,
    /// It ends with its connection, and so does a stream whose worker dies.
    pub until_close: bool,
}

impl Begun {
    /// It is a stream of events that begins well.
    pub fn is_good_stream(&self) -> bool {
        self.events && self.parts.status == StatusCode::OK
    }
}

/// Puts a connection back if its response has been read to the end.
pub(super) fn rest(worker: &Worker, mut connection: Connection, body: &AnswerBody) {
    if body.is_end_stream() && connection.may_rest() {
        worker.idle.put(connection, Instant::now());
    }
}
