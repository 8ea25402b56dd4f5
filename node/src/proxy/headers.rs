//! Which headers go on to a worker, and which come back to the client.
//!
//! Hop-by-hop headers (RFC 9110, section 7.6.1) and everything that `Connection` names stay here; framing is
//! rebuilt by hyper; internal headers never leave or enter from outside.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::api::error::{ApiError, ErrorKind};

/// Prefix of the router's own headers.
pub const INTERNAL_PREFIX: &str = "x-grapevine-";
/// Asks for the headers that explain a placement.
pub const EXPLAIN: HeaderName = HeaderName::from_static("x-grapevine-explain");
/// The worker that answered.
pub const WORKER: HeaderName = HeaderName::from_static("x-grapevine-worker");
/// The replica that was asked.
pub const REPLICA: HeaderName = HeaderName::from_static("x-grapevine-replica");
/// Why that worker.
pub const REASON: HeaderName = HeaderName::from_static("x-grapevine-reason");
/// Estimated tokens of the prompt that were expected in the worker's cache.
pub const EXPECTED_TOKENS: HeaderName = HeaderName::from_static("x-grapevine-expected-tokens");
/// What the response cache had: `hit`, `miss` or `bypass`.
pub const CACHE: HeaderName = HeaderName::from_static("x-grapevine-cache");
/// Ring digest of the replica.
pub const DIGEST: HeaderName = HeaderName::from_static("x-grapevine-digest");
/// From a client: `on` or `off`, whether a stream whose worker fails goes on from another one.
pub const FAILOVER: HeaderName = HeaderName::from_static("x-grapevine-failover");
/// To a worker: this request continues an answer that another worker began; how many broke off before.
pub const CONTINUATION: HeaderName = HeaderName::from_static("x-grapevine-continuation");
/// The request's id, in and out.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Meant for one hop, in either direction.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::TRANSFER_ENCODING,
    header::TRAILER,
    header::UPGRADE,
    HeaderName::from_static("http2-settings"),
];

/// Drops from a client's head what a worker must not see. `Host` and framing are set by the caller.
pub fn clean_request(headers: &mut HeaderMap) {
    remove_named_by_connection(headers);
    let internal: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with(INTERNAL_PREFIX))
        .cloned()
        .collect();
    for name in internal {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    for name in [
        header::TE,
        header::PROXY_AUTHORIZATION,
        header::HOST,
        header::CONTENT_LENGTH,
        // `100-continue` has been answered by this hop.
        header::EXPECT,
    ] {
        headers.remove(name);
    }
}

/// Drops from a worker's head what must not reach the client.
pub fn clean_response(headers: &mut HeaderMap) {
    // Most answers hold none of them, and a look at a few names is cheaper than eight look-ups.
    if !headers.keys().any(|name| HOP_BY_HOP.contains(name)) {
        return;
    }
    remove_named_by_connection(headers);
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// `Connection` names further headers that are meant for one hop.
fn remove_named_by_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|token| token.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// Refuses a head that this hop or the next could understand wrongly, whatever the HTTP version.
///
/// # Errors
/// 400 for two credentials, of which a worker would believe either; 415 for a compressed body, which would have to be
/// inflated to be placed, and whose size inflated nobody knows.
pub fn check_head(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.get_all(header::AUTHORIZATION).iter().count() > 1 {
        let message = "a request has one Authorization header at most";
        return Err(ApiError::new(ErrorKind::InvalidRequest, message));
    }
    let is_plain = |coding: &HeaderValue| {
        let coding = coding.as_bytes();
        coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
    };
    if !headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .all(is_plain)
    {
        let message =
            "compressed request bodies are not taken; send the body without Content-Encoding";
        return Err(ApiError::new(ErrorKind::UnsupportedEncoding, message));
    }
    Ok(())
}

/// A header value from text that is known to be plain ASCII; anything else becomes `-`.
pub fn value_of(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(
                name.parse::<HeaderName>().expect("name"),
                value.parse::<HeaderValue>().expect("value"),
            );
        }
        map
    }

    #[test]
    fn hop_by_hop_and_internal_headers_stay_here() {
        let mut headers = map(&[
            ("host", "router"),
            ("connection", "close, X-Secret-Hop"),
            ("x-secret-hop", "1"),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("x-grapevine-worker", "w1"),
            ("authorization", "Bearer k"),
            ("x-session-id", "s"),
        ]);
        clean_request(&mut headers);
        let mut names: Vec<_> = headers.keys().map(|n| n.as_str().to_owned()).collect();
        names.sort();
        assert_eq!(names, ["authorization", "x-session-id"]);
    }

    #[test]
    fn two_credentials_and_compressed_bodies_are_refused() {
        let status = |pairs: &[(&str, &str)]| {
            let refused = check_head(&map(pairs)).err();
            refused.map(|error| error.kind.status().as_u16())
        };
        let credential = ("authorization", "Bearer a");
        assert_eq!(status(&[credential]), None);
        assert_eq!(status(&[credential, credential]), Some(400));
        for (coding, expected) in [
            ("", None),
            ("Identity", None),
            ("gzip", Some(415)),
            ("zstd", Some(415)),
            ("identity, br", Some(415)),
            ("x-unknown", Some(415)),
        ] {
            assert_eq!(
                status(&[("content-encoding", coding)]),
                expected,
                "{coding}"
            );
        }
        let twice = [
            ("content-encoding", "identity"),
            ("content-encoding", "gzip"),
        ];
        assert_eq!(status(&twice), Some(415));
    }

    #[test]
    fn response_loses_what_one_hop_said() {
        let mut headers = map(&[
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("content-type", "text/plain"),
        ]);
        clean_response(&mut headers);
        assert_eq!(headers.len(), 1);
    }
}
