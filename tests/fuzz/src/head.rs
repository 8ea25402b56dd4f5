//! The head of a client's request, and the part of it that a worker gets.

use grapevine::http::headers::{INTERNAL_PREFIX, check_head, clean_request};
use grapevine::listener::framing::{Framing, HeadLimits};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

const HEADERS_MAX: usize = 100;

/// Headers for one hop (RFC 9110, section 7.6.1), or headers that each hop writes anew.
const NEVER_PASSED: [&str; 12] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "content-length",
    "host",
];

const LIMITS: HeadLimits = HeadLimits {
    bytes: 64 * 1024,
    lines: HEADERS_MAX,
};

/// The first byte chooses in which pieces the rest arrives: the bytes of a connection, an HTTP/1 head first, as
/// hyper's own parser takes it apart.
///
/// # Panics A header that is not for a worker gets through, an ambiguous head is accepted, or the verdict depends
/// on the pieces.
pub fn head(data: &[u8]) {
    let Some((&step, data)) = data.split_first() else {
        return;
    };
    let accepted = is_accepted(data, data.len().max(1));
    assert_eq!(accepted, is_accepted(data, usize::from(step) + 1));
    if !accepted {
        return;
    }
    let mut parsed = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut parsed);
    if !matches!(request.parse(data), Ok(httparse::Status::Complete(_))) {
        return;
    }
    let mut headers = HeaderMap::new();
    for line in request.headers.iter() {
        let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(line.name.as_bytes()),
            HeaderValue::from_bytes(line.value),
        ) else {
            return;
        };
        headers.append(name, value);
    }
    if check_head(&headers, &[]).is_err() {
        return;
    }
    let count = |name| headers.get_all(name).iter().count();
    assert!(count(header::AUTHORIZATION) <= 1, "two Authorizations");
    assert!(count(header::HOST) <= 1, "two Hosts");
    assert!(
        count(header::TRANSFER_ENCODING) <= 1,
        "two Transfer-Encodings"
    );
    let framings = count(header::TRANSFER_ENCODING).min(1) + count(header::CONTENT_LENGTH).min(1);
    assert!(framings <= 1, "two framings");
    let named = named_by_connection(&headers);
    clean_request(&mut headers);
    for name in NEVER_PASSED {
        assert!(!headers.contains_key(name), "{name} got through");
    }
    for name in headers.keys() {
        assert!(
            !name.as_str().starts_with(INTERNAL_PREFIX),
            "{name} got through"
        );
        assert!(
            !named.contains(name),
            "{name} is named by Connection and got through"
        );
    }
}

/// Whether the bytes, read in pieces of this size, may go on to hyper.
fn is_accepted(data: &[u8], step: usize) -> bool {
    let mut framing = Framing::new(LIMITS);
    data.chunks(step).all(|piece| framing.feed(piece).is_ok())
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|token| token.trim().parse().ok())
        .collect()
}
