//! Which headers go on to a worker, and which come back to the client.
//!
//! Hop-by-hop headers (RFC 9110, section 7.6.1) and everything that `Connection` names stay here; framing is
//! rebuilt by hyper; internal headers never leave or enter from outside.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

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

/// Refuses a head whose framing or target two HTTP readers could understand differently.
///
/// hyper already refuses conflicting `Content-Length`s and unknown transfer codings; this catches what it
/// lets through (measured with 38 vectors): both framings, a repeated `Transfer-Encoding`, codings before
/// `chunked`, no `Host` or two.
///
/// # Errors
/// What is wrong, for a 400 that also closes the connection.
pub fn check_head(version: http::Version, headers: &HeaderMap) -> Result<(), &'static str> {
    // Which of two a worker believes is anybody's guess.
    if headers.get_all(header::AUTHORIZATION).iter().count() > 1 {
        return Err("a request has one Authorization header at most");
    }
    if version >= http::Version::HTTP_2 {
        return Ok(());
    }
    let mut transfer = headers.get_all(header::TRANSFER_ENCODING).iter();
    if let Some(coding) = transfer.next() {
        if transfer.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            return Err("the only transfer coding served is one `chunked`");
        }
        if headers.contains_key(header::CONTENT_LENGTH) {
            return Err("Content-Length and Transfer-Encoding exclude each other");
        }
    }
    let hosts = headers.get_all(header::HOST).iter().count();
    if hosts > 1 || (hosts == 0 && version == http::Version::HTTP_11) {
        return Err("a request needs exactly one Host header");
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
    fn ambiguous_heads_are_refused() {
        let refused: &[&[(&str, &str)]] = &[
            &[
                ("host", "a"),
                ("content-length", "3"),
                ("transfer-encoding", "chunked"),
            ],
            &[
                ("host", "a"),
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "chunked"),
            ],
            &[("host", "a"), ("transfer-encoding", "gzip, chunked")],
            &[("host", "a"), ("host", "b")],
            &[("accept", "*/*")],
        ];
        for head in refused {
            assert!(
                check_head(http::Version::HTTP_11, &map(head)).is_err(),
                "{head:?}"
            );
        }
        let fine = map(&[("host", "a"), ("transfer-encoding", "Chunked")]);
        assert!(check_head(http::Version::HTTP_11, &fine).is_ok());
        assert!(check_head(http::Version::HTTP_2, &HeaderMap::new()).is_ok());
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
