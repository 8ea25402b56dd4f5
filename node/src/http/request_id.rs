//! Request ids: read, validated, made when missing; sent to the worker and returned.

use http::{HeaderMap, HeaderName, HeaderValue};
use rand::Rng;

/// Longest id that is taken from a client, in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// The first valid id among `names`, else a new one of 32 hexadecimal digits.
///
/// Valid: 1 to 128 letters, digits and `._-:/=+@~`. Anything else would let a client write into logs, so it is
/// replaced, not repaired.
pub fn of(headers: &HeaderMap, names: &[HeaderName]) -> HeaderValue {
    names
        .iter()
        .filter_map(|name| headers.get(name))
        .find(|value| is_valid(value.as_bytes()))
        // It stays until the answer ends, and may lie in one piece with all that was read with its head.
        .and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok())
        .unwrap_or_else(new)
}

fn is_valid(id: &[u8]) -> bool {
    (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
        && id
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-:/=+@~".contains(byte))
}

/// The id of a request that warms a worker up: recognisable in workers' logs.
pub fn of_warm_up() -> HeaderValue {
    marked(b"warm-up-")
}

/// The id of a request that asks a stalled worker for a token.
pub fn of_token_probe() -> HeaderValue {
    marked(b"token-probe-")
}

fn marked(mark: &'static [u8]) -> HeaderValue {
    let id = [mark, new().as_bytes()].concat();
    HeaderValue::from_bytes(&id).expect("letters and digits are a valid header value")
}

/// One of 32 hexadecimal digits, for what has no valid one.
pub fn new() -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bits: u128 = rand::rng().random();
    let text: [u8; 32] = std::array::from_fn(|i| DIGITS[(bits >> (124 - 4 * i)) as usize & 15]);
    HeaderValue::from_bytes(&text).expect("hexadecimal digits are a valid header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_came_with_is_let_go() {
        let read = bytes::Bytes::from([&b"client-1"[..], &[b'x'; 16_000]].concat());
        let value = HeaderValue::from_maybe_shared(read.slice(..8)).expect("a value");
        let name = HeaderName::from_static("x-request-id");
        let headers = HeaderMap::from_iter([(name.clone(), value)]);
        let id = of(&headers, &[name]);
        drop(headers);
        assert!(read.is_unique(), "the id holds all that was read");
        assert_eq!(id, "client-1");
    }

    #[test]
    fn first_valid_header_wins() {
        let names = [
            HeaderName::from_static("x-request-id"),
            HeaderName::from_static("x-correlation-id"),
        ];
        let mut headers = HeaderMap::new();
        headers.insert("x-correlation-id", HeaderValue::from_static("abc-1"));
        assert_eq!(of(&headers, &names), "abc-1");
        headers.insert("x-request-id", HeaderValue::from_static("r.1"));
        assert_eq!(of(&headers, &names), "r.1");
        for id in [
            "Root=1-67891233-abcdef012345678912345678",
            "svc:a/b+c==@d~e",
        ] {
            headers.insert("x-request-id", HeaderValue::from_static(id));
            assert_eq!(of(&headers, &names), id);
        }
    }

    #[test]
    fn bad_ids_are_replaced() {
        let names = [HeaderName::from_static("x-request-id")];
        let long = "a".repeat(129);
        for bad in ["", "a b", "a\"b", "é", "{}", "a;b", "a\\b", &long] {
            let mut headers = HeaderMap::new();
            headers.insert(
                "x-request-id",
                HeaderValue::from_bytes(bad.as_bytes()).expect("header bytes"),
            );
            let id = of(&headers, &names);
            assert_eq!(id.len(), 32, "{bad:?}");
            assert!(is_valid(id.as_bytes()));
        }
        assert_ne!(of(&HeaderMap::new(), &names), of(&HeaderMap::new(), &names));
    }
}
