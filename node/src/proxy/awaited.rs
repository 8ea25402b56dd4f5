//! What a request and a head that may go out ahead of its answer know of each other (`response/ahead.rs`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use crate::admission;
use crate::api::error::{Dialect, sse_event_of};
use crate::api::{ApiError, Endpoint};
use crate::http::headers;
use crate::tenants::bucket::Quotas;

/// WHATWG HTML, section 9.2.6: a line that begins with a colon is passed over by every reader.
const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// Requests whose stream may begin with comments.
pub(super) fn may_be_awaited(endpoint: Endpoint) -> bool {
    matches!(
        endpoint,
        Endpoint::Chat | Endpoint::Completions | Endpoint::Responses | Endpoint::Messages
    )
}

/// The form of the events that a client reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventForm {
    pub(super) dialect: Dialect,
    /// They have names.
    pub(super) named: bool,
}

impl EventForm {
    pub(super) fn of(endpoint: Endpoint, dialect: Dialect) -> Self {
        Self {
            dialect,
            named: endpoint == Endpoint::Responses,
        }
    }

    /// The last event of a stream that ends with this error.
    pub(super) fn event_of(self, error: &ApiError) -> Bytes {
        error.sse_event(false, self.named, self.dialect)
    }

    /// The same of a worker's own words about a refusal; none where they are not of this form.
    pub(super) fn event_of_body(self, body: &[u8]) -> Option<Bytes> {
        sse_event_of(body, self.named, self.dialect)
    }
}

/// What a request and the head that may go out ahead of its answer know of each other.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// What is to be said in that head besides; there once the request is known to be a stream.
    headers: OnceLock<HeaderMap>,
    /// Bytes of comments that went out; none before the head did.
    bytes: AtomicU64,
}

impl Awaited {
    /// What is to be said in the head; none before the request is known to be a stream.
    pub(super) fn headers(&self) -> Option<&HeaderMap> {
        self.headers.get()
    }

    /// The request asks for a stream; these headers are known of its answer.
    pub(super) fn is_stream(&self, headers: HeaderMap) {
        // It is said once.
        let _ = self.headers.set(headers);
    }

    /// Bytes of the body that the client has got, if its head is out.
    pub(super) fn sent(&self) -> Option<u64> {
        Some(self.bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// A comment that goes out now.
    pub(super) fn comment(&self) -> Bytes {
        let bytes = COMMENT;
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        bytes
    }
}

/// Says what is known of a request whatever its answer is.
pub(super) fn tell_of_request(
    quotas: &Quotas,
    cached: Option<&'static str>,
    headers: &mut HeaderMap,
) {
    admission::tell(quotas, headers);
    if let Some(word) = cached {
        headers.insert(headers::CACHE, HeaderValue::from_static(word));
    }
}
