//! What goes to a worker of what a client sent.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Uri};

use crate::http::worker_body::WorkerBody;
use crate::http::{headers, hops};
use crate::tenants::KEY_HEADERS;
use crate::upstream::outgoing::Outgoing;

/// Headers as every worker gets them, but for the way that they came.
pub(super) fn headers_of(mut headers: HeaderMap, id: &HeaderValue, has_key: bool) -> HeaderMap {
    headers::clean_request(&mut headers);
    if has_key {
        for name in KEY_HEADERS {
            headers.remove(name);
        }
    }
    headers.insert(headers::REQUEST_ID, id.clone());
    headers
}

/// The request as every worker gets it; a client's key, where there are keys, is for this replica only.
pub(super) fn outgoing(
    head: Box<Parts>,
    body: WorkerBody,
    id: &HeaderValue,
    has_key: bool,
) -> Outgoing {
    let head = *head;
    let mut headers = headers_of(head.headers, id, has_key);
    hops::sign(&mut headers, head.version);
    Outgoing {
        method: head.method,
        // A client may send an absolute URI; workers get its path.
        target: head
            .uri
            .into_parts()
            .path_and_query
            .map_or_else(Uri::default, Uri::from),
        headers,
        body,
        stream: false,
        upgrade: None,
        repeatable: false,
        keeps_key: has_key,
        one_value: false,
    }
}
