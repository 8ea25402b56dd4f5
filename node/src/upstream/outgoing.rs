//! A request as it goes to workers, and what of it differs from worker to worker.

use http::{HeaderMap, HeaderValue, Method, Uri, header};

use super::connection::WorkerRequest;
use super::worker::Worker;
use crate::http::headers::RANK;
use crate::http::worker_body::WorkerBody;

/// What a worker may do to the bytes of an answer that is read here: nothing, whatever its client takes. The error in a
/// compressed event would pass for a token, and a stream that was refused would not be tried elsewhere.
pub const PLAIN: HeaderValue = HeaderValue::from_static("identity");

/// A request as every worker gets it.
#[derive(Debug)]
pub struct Outgoing {
    /// The client's method.
    pub method: Method,
    /// Path and query, as the client wrote them.
    pub target: Uri,
    /// Headers for a worker; those that differ from worker to worker take the place of any here.
    pub headers: HeaderMap,
    /// The client's body, unchanged but for an alias.
    pub body: WorkerBody,
    /// The client asked for a stream.
    pub stream: bool,
    /// The request is a WebSocket handshake; what accepts it.
    pub upgrade: Option<HeaderValue>,
    /// May a worker see it twice? A completion costs compute and no more; an unknown path may store something.
    pub repeatable: bool,
    /// The client's key stays with this replica, which has asked for it: a worker's 401 speaks of this replica's key.
    pub keeps_key: bool,
    /// An answer in JSON is one value that an engine computes: nobody reads it before its end.
    pub one_value: bool,
}

impl Outgoing {
    /// It, as this worker gets it.
    pub(super) fn to(&self, worker: &Worker) -> WorkerRequest<'_> {
        let (address, body) = (&worker.address, &self.body);
        let key = worker.connector.authorization(&address.url);
        let length = body.len();
        WorkerRequest {
            method: &self.method,
            target: address.target(&self.target),
            headers: &self.headers,
            own: [
                Some((header::HOST, address.host.clone())),
                key.map(|key| (header::AUTHORIZATION, key)),
                address.rank().map(|rank| (RANK, rank.into())),
                says_length(&self.method, length).then(|| (header::CONTENT_LENGTH, length.into())),
                self.stream.then_some((header::ACCEPT_ENCODING, PLAIN)),
            ],
            body,
        }
    }
}

/// Of a request without a body only where its method means one (RFC 9110, section 8.6): servers refuse it as 411 else.
fn says_length(method: &Method, length: u64) -> bool {
    length > 0 || matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}
