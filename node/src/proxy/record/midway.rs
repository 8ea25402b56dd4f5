//! The record of a request whose head goes out ahead of its answer: its status is 200 then, whatever comes.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::Record;
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::proxy::awaited::{Awaited, EventForm, tell_of_request};
use crate::proxy::outcome::Outcome;

/// Why a stream whose head is out ends before it has begun.
#[derive(Debug)]
pub(in crate::proxy) struct Midway<'a> {
    /// The router's own error; none where a worker's words are passed on.
    pub(in crate::proxy) error: Option<&'a ApiError>,
    /// The status that its client would have got.
    pub(in crate::proxy) status: StatusCode,
    /// The limit for whole requests is the reason.
    pub(in crate::proxy) is_out_of_time: bool,
}

impl Record {
    /// The form of the events that its client reads.
    pub(in crate::proxy) fn event_form(&self) -> EventForm {
        EventForm::of(self.endpoint, self.dialect)
    }

    /// It asks for a stream, and nothing of its answer is there.
    pub(in crate::proxy) fn is_stream(&self) {
        if let Some(awaited) = &self.awaited {
            let mut headers = HeaderMap::new();
            tell_of_request(&self.quotas, self.cache, &mut headers);
            awaited.is_stream(headers);
        }
    }

    /// Its client has a head, and comments.
    pub(in crate::proxy) fn is_head_out(&self) -> bool {
        self.sent_ahead().is_some()
    }

    /// Bytes of the body that went out ahead of its answer; none where its head did not.
    pub(super) fn sent_ahead(&self) -> Option<u64> {
        self.awaited.as_deref().and_then(Awaited::sent)
    }

    /// Nothing can be shown to a client that has a head: this event ends its stream. What would have been a 5xx is a stream
    /// that failed.
    pub(in crate::proxy) fn refused_midway(&mut self, why: &Midway<'_>, event: &Bytes) {
        let outcome = match why.error.map(|error| error.kind) {
            Some(ErrorKind::ShuttingDown) => Outcome::ShutDown,
            _ if why.is_out_of_time => Outcome::OutOfTime,
            _ if why.status.is_server_error() => Outcome::WorkerError,
            _ => Outcome::Error,
        };
        match why.error.map(|error| error.kind) {
            // Their outcome counts them.
            Some(kind) if matches!(outcome, Outcome::ShutDown | Outcome::OutOfTime) => {
                self.error = Some(kind);
            }
            Some(kind) => self.count_error(kind),
            None => self.metrics.refusals.worker_error(why.status),
        }
        self.bytes_out += event.len() as u64;
        // As without a head: what was refused uses no tokens.
        self.charge = None;
        self.finish(outcome);
    }
}
