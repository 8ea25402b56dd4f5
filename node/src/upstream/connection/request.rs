//! A request as one worker gets it: what all get alike is borrowed, so that an attempt copies no header.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};

use crate::http::worker_body::WorkerBody;

/// A request to one worker.
#[derive(Debug)]
pub struct WorkerRequest<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Path and query, at this worker.
    pub target: Uri,
    /// Headers that any worker gets.
    pub headers: &'a HeaderMap,
    /// Headers of this worker's alone, in place of any above: `Host` first, then a key, a rank, the body's length,
    /// and the codings that its answer may have where they are not the client's to choose.
    pub own: [Option<(HeaderName, HeaderValue)>; 5],
    /// Its body.
    pub body: &'a WorkerBody,
}

impl WorkerRequest<'_> {
    /// All headers, in the order in which they are sent.
    pub(super) fn lines(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        let own = || self.own.iter().flatten().map(|(name, value)| (name, value));
        let is_replaced = move |name| own().any(|(own, _)| own == name);
        let shared = self.headers.iter();
        shared
            .filter(move |(name, _)| !is_replaced(*name))
            .chain(own())
    }
}
