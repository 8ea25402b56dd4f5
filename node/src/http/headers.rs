//! Which headers go on to a worker, and which come back to the client.
//!
//! Hop-by-hop headers (RFC 9110, section 7.6.1) and everything that `Connection` names stay here; framing is
//! built anew; internal headers never leave or enter from outside.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::api::error::{ApiError, ErrorKind};
use crate::config::Coding;

/// Prefix of the router's own headers.
pub const INTERNAL_PREFIX: &str = "x-grapevine-";
/// Of the headers of answers that say which web pages may read them.
const CORS_PREFIX: &str = "access-control-";
/// Asks for the headers that explain a placement.
pub const EXPLAIN: HeaderName = HeaderName::from_static("x-grapevine-explain");
/// The worker that answered.
pub const WORKER: HeaderName = HeaderName::from_static("x-grapevine-worker");
/// The worker that computed the prompt, where another one answered.
pub const PREFILL: HeaderName = HeaderName::from_static("x-grapevine-prefill");
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
/// SMG's clients name a worker by it.
pub const TARGET_WORKER: HeaderName = HeaderName::from_static("x-smg-target-worker");
/// The request's id, in and out.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// SageMaker's name of an adapter. At `/invocations` vLLM takes its value for the body's `model`, whatever stands there.
pub const ADAPTER: HeaderName = HeaderName::from_static("x-amzn-sagemaker-adapter-identifier");
/// The header, as vLLM reads it.
pub const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// How urgent a request is in the engine, an integer, lower first. vLLM takes its value for the body's `priority`.
pub const ENGINE_PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");

/// From a browser, which no page can write: whether the page that asks is of this origin, this site or another one.
pub const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// `X-Forwarded-For`, `-Host`, `-Proto`, `-Port`, `-Prefix`, ...
const FORWARDED_PREFIX: &str = "x-forwarded-";

/// Meant for one hop, in either direction. Names that the library knows are compared as numbers.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        *name,
        header::CONNECTION
            | header::PROXY_AUTHENTICATE
            | header::TRANSFER_ENCODING
            | header::TRAILER
            | header::UPGRADE
    ) || matches!(
        name.as_str(),
        "keep-alive" | "proxy-connection" | "http2-settings"
    )
}

/// Of a request alone; `Host` and the length are set anew, and `Expect: 100-continue` has been answered by this hop. What
/// sums up the body's bytes would be wrong where another model's name is written into it, or it is sent without its coding.
fn is_of_this_hop(name: &HeaderName) -> bool {
    matches!(
        *name,
        header::TE
            | header::PROXY_AUTHORIZATION
            | header::HOST
            | header::CONTENT_LENGTH
            | header::EXPECT
    ) || matches!(
        name.as_str(),
        "content-digest" | "repr-digest" | "digest" | "content-md5"
    )
}

/// Would have a server take another path, method or model than those that were judged here.
static OTHER_TARGET: [HeaderName; 15] = [
    ADAPTER,
    HeaderName::from_static("x-amzn-sagemaker-adapter-alias"),
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-original-uri"),
    HeaderName::from_static("x-original-path"),
    HeaderName::from_static("x-original-method"),
    HeaderName::from_static("x-rewrite-url"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
    HeaderName::from_static("x-forwarded-method"),
    HeaderName::from_static("x-forwarded-path"),
    HeaderName::from_static("x-forwarded-prefix"),
    HeaderName::from_static("x-forwarded-uri"),
    HeaderName::from_static("x-envoy-original-path"),
];

/// Whether a header says where a request comes from.
pub(super) fn says_origin(name: &HeaderName) -> bool {
    *name == header::FORWARDED || *name == REAL_IP || name.as_str().starts_with(FORWARDED_PREFIX)
}

/// Drops from a client's head what a worker must not see. `Host` and framing are set by the caller.
///
/// Where the request comes from is this replica's own word by now (`http::forwarded`), which no client can take back by
/// naming it in `Connection`.
pub fn clean_request(headers: &mut HeaderMap) {
    remove_named_by_connection(headers, |name| !says_origin(name));
    remove_all(headers, |name| {
        let text = name.as_str();
        let is_own_or_misleads =
            || text.starts_with(INTERNAL_PREFIX) || OTHER_TARGET.contains(name);
        is_hop_by_hop(name)
            || is_of_this_hop(name)
            || text.starts_with("x-") && is_own_or_misleads()
    });
    if headers.len() > headers.keys_len() {
        join_cookies(headers);
    }
}

/// Over HTTP/2 a client may send a cookie in a field of its own, over HTTP/1.1 all stand in one (RFC 9113, section
/// 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&HeaderValue> = headers.get_all(header::COOKIE).iter().collect();
    if cookies.len() < 2 {
        return;
    }
    let bytes: Vec<&[u8]> = cookies.iter().map(|cookie| cookie.as_bytes()).collect();
    let is_sensitive = cookies.iter().any(|cookie| cookie.is_sensitive());
    let mut joined = HeaderValue::from_bytes(&bytes.join(&b"; "[..])).expect("made of values");
    joined.set_sensitive(is_sensitive);
    headers.insert(header::COOKIE, joined);
}

/// Drops from a worker's head what must not reach the client. Which pages may read an answer is said by `cors` alone.
pub fn clean_response(headers: &mut HeaderMap) {
    remove_named_by_connection(headers, |_| true);
    remove_all(headers, |name| {
        let text = name.as_str();
        // Those that start with ours speak of a choice of this replica; a worker may be a router, too.
        is_hop_by_hop(name) || text.starts_with(CORS_PREFIX) || text.starts_with(INTERNAL_PREFIX)
    });
}

/// Removes from a worker's trailers what may not pass in its head either, and what would speak of framing, content or
/// caches behind them (RFC 9110, section 6.5.1): a length among them ends a stream of HTTP/2 with an error.
pub fn clean_trailers(trailers: &mut HeaderMap) {
    clean_response(trailers);
    remove_all(trailers, |name| {
        let of_heads = [header::HOST, header::SET_COOKIE, header::CACHE_CONTROL];
        name.as_str().starts_with("content-") || of_heads.contains(name)
    });
}

/// Looks at the names that are there: few of those that are looked for ever are.
fn remove_all(headers: &mut HeaderMap, which: impl Fn(&HeaderName) -> bool) {
    let names: Vec<HeaderName> = headers.keys().filter(|n| which(n)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// `Connection` names further headers that are meant for one hop; `which` of them to drop.
fn remove_named_by_connection(headers: &mut HeaderMap, which: impl Fn(&HeaderName) -> bool) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|token| token.trim().parse().ok())
        .filter(|name| which(name))
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// Refuses a head that this hop or the next could understand wrongly, whatever the HTTP version.
///
/// # Errors
/// 400 for two credentials, of which a worker would believe either, and for a worker's number in a list that only one
/// replica of another router has; 415 for a body in a coding that is not `taken`, or in several: it would have to be
/// inflated to be placed.
pub fn check_head(headers: &HeaderMap, taken: &[Coding]) -> Result<(), ApiError> {
    if headers.get_all(header::AUTHORIZATION).iter().count() > 1 {
        let message = "a request has one Authorization header at most";
        return Err(ApiError::new(ErrorKind::InvalidRequest, message));
    }
    if headers.contains_key(TARGET_WORKER) {
        let message = "x-smg-target-worker is a place in the list of one replica, which means nothing here; name a \
             session by x-session-id, and its requests stay on one worker";
        return Err(ApiError::new(ErrorKind::InvalidRequest, message));
    }
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    let mut coded = codings.by_ref().filter(|coding| !is_plain(coding));
    let is_taken = match (coded.next(), coded.next()) {
        (None, _) => true,
        (Some(coding), None) => Coding::of(coding.as_bytes()).is_some_and(|c| taken.contains(&c)),
        (Some(_), Some(_)) => false,
    };
    if !is_taken {
        let message = match taken {
            [] => {
                "compressed request bodies are not accepted; send the body without Content-Encoding"
            }
            _ => {
                "this Content-Encoding is not accepted; Accept-Encoding of this answer names those that are"
            }
        };
        return Err(ApiError::new(ErrorKind::UnsupportedEncoding, message));
    }
    Ok(())
}

fn is_plain(coding: &HeaderValue) -> bool {
    let coding = coding.as_bytes();
    coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
}

/// How the body of a request is compressed that [`check_head`] has let pass. Its worker gets the plain body, so nothing
/// of it is left in the head.
pub fn take_coding(headers: &mut HeaderMap) -> Option<Coding> {
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    let coding = codings.find_map(|coding| Coding::of(coding.as_bytes()))?;
    headers.remove(header::CONTENT_ENCODING);
    Some(coding)
}

/// Says with a refusal for a coding which ones are taken (RFC 9110, section 12.5.3).
pub fn say_codings(headers: &mut HeaderMap, taken: &[Coding]) {
    if let Some(accepted) = headers.get_mut(header::ACCEPT_ENCODING) {
        let names = taken.iter().map(|coding| coding.as_str());
        *accepted = value_of(&names.chain(["identity"]).collect::<Vec<_>>().join(", "));
    }
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
    fn hop_by_hop_internal_and_overriding_headers_stay_here() {
        let mut headers = map(&[
            ("host", "router"),
            ("connection", "close, X-Secret-Hop"),
            ("x-secret-hop", "1"),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("x-grapevine-worker", "w1"),
            ("x-original-url", "/sleep"),
            ("x-rewrite-url", "/sleep"),
            ("x-http-method-override", "DELETE"),
            ("x-amzn-sagemaker-adapter-identifier", "another"),
            ("x-amzn-sagemaker-adapter-alias", "another"),
            ("authorization", "Bearer k"),
            ("x-session-id", "s"),
        ]);
        clean_request(&mut headers);
        let mut names: Vec<_> = headers.keys().map(|n| n.as_str().to_owned()).collect();
        names.sort();
        assert_eq!(names, ["authorization", "x-session-id"]);
    }

    #[test]
    fn cookies_go_on_in_one_line() {
        for (sent, expected) in [
            (&[][..], &[][..]),
            (
                &[("cookie", "a=1; b=2"), ("accept", "x"), ("accept", "y")],
                &["a=1; b=2"],
            ),
            (
                &[
                    ("cookie", "a=1"),
                    ("x", "y"),
                    ("cookie", "b=2"),
                    ("cookie", "c=3"),
                ],
                &["a=1; b=2; c=3"],
            ),
        ] {
            let mut headers = map(sent);
            clean_request(&mut headers);
            let cookies: Vec<_> = headers.get_all("cookie").iter().collect();
            assert_eq!(cookies, expected);
        }
    }

    #[test]
    fn a_client_cannot_take_back_where_it_comes_from() {
        let mut headers = map(&[
            ("connection", "X-Forwarded-For, forwarded, x-real-ip"),
            ("connection", "x-forwarded-proto, x-hop"),
            ("x-forwarded-for", "192.0.2.7"),
            ("forwarded", "for=192.0.2.7"),
            ("x-real-ip", "192.0.2.7"),
            ("x-forwarded-proto", "https"),
            ("x-hop", "1"),
        ]);
        clean_request(&mut headers);
        assert_eq!(headers.len(), 4, "{headers:?}");
        assert!(!headers.contains_key("x-hop"));
    }

    #[test]
    fn two_credentials_and_compressed_bodies_are_refused() {
        let status = |pairs: &[(&str, &str)]| {
            let refused = check_head(&map(pairs), &[]).err();
            refused.map(|error| error.kind.status().as_u16())
        };
        let credential = ("authorization", "Bearer a");
        assert_eq!(status(&[credential]), None);
        assert_eq!(status(&[credential, credential]), Some(400));
        assert_eq!(status(&[("x-smg-target-worker", "0")]), Some(400));
        assert_eq!(status(&[("x-smg-routing-key", "k")]), None);
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
    fn one_coding_that_is_taken_passes() {
        let taken = [Coding::Gzip, Coding::Zstd];
        for (codings, expected) in [
            (&["gzip"][..], Some(Coding::Gzip)),
            (&["x-gzip"], Some(Coding::Gzip)),
            (&["identity", "ZSTD"], Some(Coding::Zstd)),
            (&["identity"], None),
        ] {
            let mut headers = HeaderMap::new();
            for coding in codings {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
            }
            assert!(check_head(&headers, &taken).is_ok(), "{codings:?}");
            assert_eq!(take_coding(&mut headers), expected, "{codings:?}");
        }
        for codings in [
            &["deflate"][..],
            &["gzip", "gzip"],
            &["gzip, zstd"],
            &["br"],
        ] {
            let pairs: Vec<_> = codings
                .iter()
                .map(|coding| ("content-encoding", *coding))
                .collect();
            let error = check_head(&map(&pairs), &taken).expect_err("refused");
            assert_eq!(error.kind, ErrorKind::UnsupportedEncoding, "{codings:?}");
        }
        let mut refusal = ApiError::new(ErrorKind::UnsupportedEncoding, "no").response();
        say_codings(refusal.headers_mut(), &taken);
        assert_eq!(refusal.headers()["accept-encoding"], "gzip, zstd, identity");
    }

    #[test]
    fn response_loses_what_one_hop_said() {
        let mut headers = map(&[
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("x-grapevine-cache", "hit"),
            ("content-type", "text/plain"),
        ]);
        clean_response(&mut headers);
        assert_eq!(headers.len(), 1);
    }
}
