//! What engines call their ZMQ side. It goes into headers and request ids, whose other readers must not be misled by it.

/// Greatest length of an address in bytes: that of a label's value.
const BYTES_MAX: usize = 200;

/// What addresses look like, for messages.
pub const ZMQ_FORMS: &str =
    "host:port, such as 10.0.0.5:14579; of MoRI-IO host:10.0.0.5,handshake:7301,notify:7302";

/// Whether an engine that speaks P2P NCCL (`host:port`) or MoRI-IO (`host:...,handshake:...,notify:...`) could be meant.
pub fn is_zmq_address(text: &str) -> bool {
    let is_pair = |part: &str| {
        let pair = part.split_once(':');
        pair.is_some_and(|(name, value)| !name.is_empty() && !value.is_empty())
    };
    let has_port = || {
        let (host, port) = text.rsplit_once(':').unwrap_or_default();
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    let is_named = text.contains(',');
    is_plain(text)
        && if is_named {
            text.split(',').all(is_pair)
        } else {
            has_port()
        }
}

/// Whether a text can be part of a header and of a request id: what addresses, names and ports are made of. Two
/// underscores in a row stand between the addresses there.
pub(crate) fn is_plain(text: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b"._-:,@[]/%".contains(&b);
    (1..=BYTES_MAX).contains(&text.len()) && text.bytes().all(is_part) && !text.contains("__")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_that_an_engine_could_have() {
        for good in [
            "10.0.0.5:14579",
            "w-1.pods:14579",
            "[fd00::1]:14579",
            "host:10.0.0.1,handshake:7001,notify:7002",
            "host:fd00::1,handshake:7001,notify:7002",
        ] {
            assert!(is_zmq_address(good), "{good}");
        }
        for bad in [
            "",
            "foo",
            "10.0.0.5",
            ":14579",
            "10.0.0.5:0",
            "10.0.0.5:70000",
            "a b:1",
            "a__b:1",
            "a:1,b",
            "a:1,",
            "host:,notify:1",
        ] {
            assert!(!is_zmq_address(bad), "{bad}");
        }
    }
}
