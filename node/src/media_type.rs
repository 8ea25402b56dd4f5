//! Media types of bodies (RFC 9110, section 8.3.1).

use http::{HeaderMap, HeaderValue, header};

/// That of JSON.
pub const JSON: &str = "application/json";
/// That of a stream of events.
pub const EVENT_STREAM: &str = "text/event-stream";

/// Whether a body is of this media type, whatever its parameters; the case of its letters does not count.
pub fn is_of_type(headers: &HeaderMap, wanted: &str) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let kind = kind.and_then(|kind| kind.split(|byte| *byte == b';').next());
    kind.is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()))
}
