//! The two halves of a WebSocket handshake (RFC 6455, section 4), pure: what a client must say, and what makes a
//! worker's 101 a valid answer to it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Version, response};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use super::syntax::{has_item, items};
use crate::api::ApiError;
use crate::api::error::ErrorKind;

/// A peer that hashes it with the key has read the standard.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// What a client's handshake says.
#[derive(Debug)]
pub(crate) struct Handshake {
    /// Its random key.
    pub(crate) key: String,
    /// What the answer to that key is.
    pub(crate) accept: HeaderValue,
}

/// Reads a client's handshake.
///
/// # Errors
/// 426 for another version, 400 for anything else, over HTTP/2 too: it has another way (RFC 8441), which is not offered.
pub(crate) fn read(head: &Parts) -> Result<Handshake, ApiError> {
    let refused = |what| Err(ApiError::new(ErrorKind::InvalidRequest, what));
    let headers = &head.headers;
    let is_upgrade = head.version == Version::HTTP_11
        && has_item(headers, &header::CONNECTION, "upgrade")
        && has_item(headers, &header::UPGRADE, "websocket");
    if !is_upgrade {
        return refused("this path takes WebSocket handshakes over HTTP/1.1");
    }
    if headers
        .get(header::SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version != "13")
    {
        let message = "Sec-WebSocket-Version must be 13";
        return Err(ApiError::new(ErrorKind::UpgradeRequired, message));
    }
    let has_body = headers
        .get(header::CONTENT_LENGTH)
        .is_some_and(|length| length != "0")
        || headers.contains_key(header::TRANSFER_ENCODING);
    if has_body {
        return refused("a WebSocket handshake has no body");
    }
    let mut keys = headers.get_all(header::SEC_WEBSOCKET_KEY).iter();
    let (Some(key), None) = (keys.next(), keys.next()) else {
        return refused("a WebSocket handshake has one Sec-WebSocket-Key");
    };
    let key = key.to_str().unwrap_or_default();
    if STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16) {
        Ok(Handshake {
            accept: accept_of(key),
            key: key.to_owned(),
        })
    } else {
        refused("Sec-WebSocket-Key must be 16 bytes in base64")
    }
}

/// Is this the valid answer to the handshake whose accept value this is?
pub(crate) fn is_accepted(answer: &response::Parts, accept: &HeaderValue) -> bool {
    let headers = &answer.headers;
    let mut said = headers.get_all(header::SEC_WEBSOCKET_ACCEPT).iter();
    answer.status == http::StatusCode::SWITCHING_PROTOCOLS
        && has_item(headers, &header::CONNECTION, "upgrade")
        && has_item(headers, &header::UPGRADE, "websocket")
        && said.next() == Some(accept)
        && said.next().is_none()
}

/// Whether a client's handshake offers this subprotocol. Names of subprotocols are the same in one case only.
pub(crate) fn offers(headers: &HeaderMap, protocol: &str) -> bool {
    let lists = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    lists
        .flat_map(|list| items(list.as_bytes()))
        .any(|offered| offered == protocol.as_bytes())
}

/// Makes a head one that asks for, or agrees to, the change of protocols.
pub(crate) fn switch(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
}

fn accept_of(key: &str) -> HeaderValue {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, [key, GUID].concat().as_bytes());
    let text = STANDARD.encode(hash.as_ref());
    HeaderValue::from_str(&text).expect("base64 is ASCII")
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};

    use super::*;

    /// The standard's own example.
    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
    const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

    fn client(pairs: &[(&str, &str)]) -> Result<Handshake, ApiError> {
        let mut request = Request::builder().uri("/v1/realtime");
        for (name, value) in pairs {
            request = request.header(*name, *value);
        }
        read(&request.body(()).expect("a request").into_parts().0)
    }

    const GOOD: [(&str, &str); 4] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", KEY),
    ];

    #[test]
    fn a_handshake_is_read_whole_or_refused() {
        let read = client(&GOOD).expect("good");
        assert_eq!(
            (read.key.as_str(), read.accept),
            (KEY, HeaderValue::from_static(ACCEPT))
        );
        for (missing, (name, _)) in GOOD.iter().enumerate() {
            let mut pairs = GOOD.to_vec();
            pairs.remove(missing);
            let error = client(&pairs).expect_err(name);
            let expected = match *name {
                "sec-websocket-version" => ErrorKind::UpgradeRequired,
                _ => ErrorKind::InvalidRequest,
            };
            assert_eq!(error.kind, expected, "{name}");
        }
        for (name, value) in [
            ("connection", "keep-alive"),
            ("upgrade", "h2c"),
            ("sec-websocket-version", "8"),
            ("sec-websocket-key", "c2hvcnQ="),
            ("sec-websocket-key", "not base64 not base64 =="),
        ] {
            let mut pairs = GOOD.to_vec();
            pairs.retain(|(known, _)| *known != name);
            pairs.push((name, value));
            assert!(client(&pairs).is_err(), "{name}: {value}");
        }
        for more in [
            ("sec-websocket-key", KEY),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
        ] {
            let pairs = [&GOOD[..], &[more]].concat();
            assert!(client(&pairs).is_err(), "{more:?}");
        }
    }

    #[test]
    fn what_a_client_offers_is_found_in_its_list() {
        let mut headers = HeaderMap::new();
        let name = header::SEC_WEBSOCKET_PROTOCOL;
        headers.append(&name, HeaderValue::from_static("a, realtime ,b"));
        headers.append(&name, HeaderValue::from_static("c"));
        for (protocol, expected) in [("realtime", true), ("c", true), ("Realtime", false)] {
            assert_eq!(offers(&headers, protocol), expected, "{protocol}");
        }
    }

    #[test]
    fn only_the_answer_to_the_key_is_valid() {
        let answer = |status: u16, pairs: &[(&str, &str)]| {
            let mut response = Response::builder().status(status);
            for (name, value) in pairs {
                response = response.header(*name, *value);
            }
            let parts = response.body(()).expect("a response").into_parts().0;
            is_accepted(&parts, &HeaderValue::from_static(ACCEPT))
        };
        let good = [
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-accept", ACCEPT),
        ];
        assert!(answer(101, &good));
        assert!(!answer(200, &good));
        for missing in 0..good.len() {
            let mut pairs = good.to_vec();
            pairs.remove(missing);
            assert!(!answer(101, &pairs), "without {}", good[missing].0);
        }
        let wrong = [good[0], good[1], ("sec-websocket-accept", "AAAA")];
        assert!(!answer(101, &wrong));
        assert!(!answer(101, &[&good[..], &[good[2]]].concat()));
    }
}
