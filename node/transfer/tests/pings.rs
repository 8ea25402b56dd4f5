//! Pings as vLLM's engines pack them (`msgpack` 1.2.4 of Python), and anything else.

use grapevine_transfer::ping::{BadPing, PING_BYTES_MAX, Ping, Side};
use grapevine_transfer::{Connector, Half, Mode};
use proptest::prelude::*;
use serde_json::{Value, json};

/// What engines send; made from the maps that their sources build.
const P2P_NCCL: &str = "83a474797065a150ac687474705f61646472657373ad31302e302e302e313a38303030ab7a6d715f61646472657373ae31302e302e302e313a3231303031";
const MORIIO: &str = "87a474797065a144ac687474705f61646472657373ad31302e302e302e323a38303030ab7a6d715f61646472657373d929686f73743a31302e302e302e322c68616e647368616b653a363330312c6e6f746966793a3631303035a764705f73697a6502a774705f73697a6504ad7472616e736665725f6d6f6465a55752495445aa6e6f64655f686f73747392a831302e302e302e32a831302e302e302e33";
const MORIIO_EARLIER: &str = "89a474797065a87265676973746572a4726f6c65a150a5696e646578a137af726571756573745f61646472657373d923687474703a2f2f31302e302e302e333a383030302f76312f636f6d706c6574696f6e73ae68616e647368616b655f706f7274cd189dab6e6f746966795f706f7274a53631303035a764705f73697a6501a774705f73697a6508ad7472616e736665725f6d6f6465a452454144";

fn bytes(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn read(ping: &Value) -> Result<Ping, BadPing> {
    Ping::read(&rmp_serde::to_vec(ping).expect("MessagePack"))
}

fn labels(ping: &Ping) -> Vec<(&str, &str)> {
    ping.labels
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect()
}

#[test]
fn pings_of_each_connector_are_read() {
    let ping = Ping::read(&bytes(P2P_NCCL)).expect("a ping");
    assert_eq!(
        (ping.side, &*ping.url),
        (Side::Prefill, "http://10.0.0.1:8000")
    );
    assert_eq!(
        labels(&ping),
        [
            ("kv.connector", "p2p_nccl"),
            ("kv.address", "10.0.0.1:21001")
        ]
    );

    let ping = Ping::read(&bytes(MORIIO)).expect("a ping");
    assert_eq!(
        (ping.side, &*ping.url),
        (Side::Decode, "http://10.0.0.2:8000")
    );
    let address = "host:10.0.0.2,handshake:6301,notify:61005";
    assert_eq!(
        labels(&ping),
        [
            ("kv.connector", "moriio"),
            ("kv.address", address),
            ("kv.mode", "write"),
            ("kv.tp_size", "4"),
            ("kv.dp_size", "2"),
        ]
    );

    let ping = Ping::read(&bytes(MORIIO_EARLIER)).expect("a ping");
    assert_eq!(
        (ping.side, &*ping.url),
        (Side::Prefill, "http://10.0.0.3:8000")
    );
    let address = "host:10.0.0.3,handshake:6301,notify:61005";
    assert!(labels(&ping).contains(&("kv.address", address)));
    assert!(labels(&ping).contains(&("kv.mode", "read")));
}

#[test]
fn the_labels_of_a_ping_make_a_half() {
    let ping = Ping::read(&bytes(MORIIO)).expect("a ping");
    let find = |name: &str| {
        ping.labels
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, v)| &**v)
    };
    let half = Half::read("10.0.0.2", 8000, None, Connector::Nixl, find).expect("labels that fit");
    assert_eq!(
        (half.connector(), half.mode()),
        (Connector::MoriIo, Some(Mode::Write))
    );
}

#[test]
fn a_rank_and_a_scheme_stay_in_the_url() {
    let url = |address: &str| {
        read(&json!({"type": "P", "http_address": address, "zmq_address": "a:1"}))
            .map(|ping| ping.url)
    };
    assert_eq!(url("h:8000@3").as_deref(), Ok("http://h:8000@3"));
    assert_eq!(url("https://h:8000/").as_deref(), Ok("https://h:8000"));
    assert_eq!(
        url("[fe80::1]:8000").as_deref(),
        Ok("http://[fe80::1]:8000")
    );
    for bad in [
        "",
        "h",
        ":8000",
        "h:",
        "h h:1",
        "h:1\r\nX: y",
        "h?a:1",
        &"h".repeat(201),
    ] {
        assert_eq!(url(bad), Err(BadPing::Field("http_address")), "{bad}");
    }
}

#[test]
fn what_is_no_ping_is_named() {
    let base = json!({"type": "P", "http_address": "h:1", "zmq_address": "z:1"});
    let with = |name: &str, value: Value| {
        let mut ping = base.clone();
        ping[name] = value;
        read(&ping)
    };
    read(&base).expect("a ping");
    assert_eq!(with("type", json!("X")), Err(BadPing::UnknownType));
    assert_eq!(with("type", json!(null)), Err(BadPing::UnknownType));
    assert_eq!(with("type", json!("register")), Err(BadPing::UnknownType));
    assert_eq!(read(&json!({"type": "HELLO"})), Err(BadPing::UnknownType));
    assert_eq!(with("type", json!(7)), Err(BadPing::Malformed));
    assert_eq!(
        with("zmq_address", json!(null)),
        Err(BadPing::Field("zmq_address"))
    );
    // It would be read as two addresses in a request id.
    let steering = json!("a:1___decode_addr_b:2");
    assert_eq!(
        with("zmq_address", steering),
        Err(BadPing::Field("zmq_address"))
    );
    assert_eq!(
        with("transfer_mode", json!("PULL")),
        Err(BadPing::Field("transfer_mode"))
    );
    assert_eq!(with("tp_size", json!(0)), Err(BadPing::Field("tp_size")));
    assert_eq!(with("dp_size", json!(1025)), Err(BadPing::Field("dp_size")));
    assert_eq!(with("dp_size", json!(-1)), Err(BadPing::Malformed));
    assert_eq!(
        with("later", json!({"a": [1, {"b": null}]})).map(|ping| ping.side),
        Ok(Side::Prefill)
    );
    assert_eq!(
        read(&json!(["P", null, "h:1", null, "z:1"])),
        Err(BadPing::Malformed)
    );
    assert_eq!(
        with("later", json!("x".repeat(PING_BYTES_MAX))),
        Err(BadPing::Malformed)
    );
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    assert_eq!(with("later", deep), Err(BadPing::Malformed));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Ping::read(&bytes);
    }

    #[test]
    fn a_broken_ping_does_not_panic_and_what_is_read_fits_labels(at in any::<prop::sample::Index>(), byte: u8,
                                                                which in 0..3_usize) {
        let mut payload = bytes([P2P_NCCL, MORIIO, MORIIO_EARLIER][which]);
        let at = at.index(payload.len());
        payload[at] = byte;
        if let Ok(ping) = Ping::read(&payload) {
            for (_, value) in &ping.labels {
                prop_assert!((1..=200).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_graphic()));
                prop_assert!(!value.contains("__"));
            }
        }
    }

    #[test]
    fn a_header_that_promises_more_than_there_is_is_refused(marker in prop::sample::select(&[0xc6_u8, 0xdb, 0xdd, 0xdf, 0xc9][..])) {
        let mut payload = bytes(P2P_NCCL);
        payload[0] = 0x84;
        payload.extend_from_slice(b"\xa1x");
        payload.extend_from_slice(&[marker, 0xff, 0xff, 0xff, 0xff]);
        prop_assert_eq!(Ping::read(&payload), Err(BadPing::Malformed));
    }
}
