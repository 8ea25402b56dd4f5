//! The key of a client that can set no headers. A browser opens a WebSocket with a list of subprotocols and nothing else, so
//! OpenAI's clients offer the key as one of them. Here it becomes the header that all others send; whose key it is, and
//! that no worker gets it, is the business of those who look at that.

use http::{HeaderMap, HeaderValue, header};

/// What stands before the key in the subprotocol's name.
const BEFORE_KEY: &[u8] = b"openai-insecure-api-key.";

/// Takes each key out of the subprotocols that a handshake offers, and makes it an `Authorization`, beside one that is
/// there already. The other subprotocols stay, in their order.
pub(crate) fn take_offered_keys(headers: &mut HeaderMap) {
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let names = offered.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let names = names
        .map(<[u8]>::trim_ascii)
        .filter(|name| !name.is_empty());
    let (keys, others): (Vec<&[u8]>, Vec<&[u8]>) =
        names.partition(|name| name.starts_with(BEFORE_KEY));
    if keys.is_empty() {
        return;
    }
    let keys: Vec<HeaderValue> = keys
        .into_iter()
        .map(|name| {
            let mut bearer = value_of(&[b"Bearer ", &name[BEFORE_KEY.len()..]].concat());
            bearer.set_sensitive(true);
            bearer
        })
        .collect();
    let others = (!others.is_empty()).then(|| value_of(&others.join(b", ".as_slice())));
    headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
    if let Some(others) = others {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, others);
    }
    for key in keys {
        headers.append(header::AUTHORIZATION, key);
    }
}

fn value_of(bytes: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(bytes).expect("pieces of values are values")
}
