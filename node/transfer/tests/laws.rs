//! Laws of bodies: whatever the client wrote, what a leg does not set is there as it was, and nothing panics.

use std::collections::BTreeMap;

use grapevine_transfer::body::{self, Form};
use grapevine_transfer::{Begin, Connector, Half, Ids, begin, decode_leg, learned, names_peers};
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter("JSON has finite numbers", |x| x.is_finite())
            .prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Names that mean something, and others.
fn name() -> impl Strategy<Value = String> {
    const KNOWN: [&str; 13] = [
        "max_tokens",
        "min_tokens",
        "max_completion_tokens",
        "stream",
        "stream_options",
        "n",
        "prompt",
        "kv_transfer_params",
        "sampling_params",
        "store",
        "max_output_tokens",
        "messages",
        "bootstrap_room",
    ];
    prop_oneof![
        prop::sample::select(&KNOWN[..]).prop_map(str::to_owned),
        any::<String>()
    ]
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map(name(), value(), 0..12).prop_map(|map| map.into_iter().collect())
}

fn form() -> impl Strategy<Value = Form> {
    prop::sample::select(
        &[
            Form::Completions,
            Form::Responses,
            Form::Generate,
            Form::Messages,
        ][..],
    )
}

fn half(connector: Connector) -> Half {
    let label = |name: &str| match name {
        "kv.engine_id" => Some("e"),
        "kv.mode" if connector == Connector::MoriIo => Some("write"),
        _ => None,
    };
    Half::read("10.0.0.1", 8000, None, connector, label).expect("labels that fit")
}

/// Names that a leg of any kind may set.
fn is_set(form: Form, name: &str) -> bool {
    let own = match form {
        Form::Completions => &["max_tokens", "min_tokens", "max_completion_tokens"][..],
        Form::Responses => &["max_output_tokens", "store"],
        Form::Generate => &["sampling_params"],
        Form::Messages => &["max_tokens"],
    };
    own.contains(&name)
        || ["stream", "stream_options", "kv_transfer_params"].contains(&name)
        || name.starts_with("bootstrap_")
}

proptest! {
    #[test]
    fn legs_keep_every_other_field(client in object(), form in form(), random: u128,
                                   connector in prop::sample::select(&Connector::ALL[..])) {
        let half = half(connector);
        let ids = Ids { request_id: "r", random };
        let text = serde_json::to_vec(&client).expect("JSON");
        let (first, second) = match begin(&half, &half, &ids).expect("nothing is missing") {
            Begin::PrefillFirst(leg) => {
                let answer = json!({"kv_transfer_params": {"remote_engine_id": "e", "remote_host": "h",
                    "remote_port": 1, "remote_block_ids": [1]}});
                let answer = serde_json::to_vec(&answer).expect("JSON");
                (leg, decode_leg(&half, &half, &ids, &answer).expect("a good answer"))
            }
            Begin::Together { prefill, decode } => (prefill, decode),
        };
        let legs = [body::prefill(form, &text, &first), body::decode(&text, &second)];
        for (leg, fields) in legs.into_iter().zip([&first.fields, &second.fields]) {
            let leg = leg.expect("an object");
            let leg: Map<String, Value> = serde_json::from_slice(&leg).expect("JSON");
            for (name, value) in client.iter().filter(|(name, _)| !is_set(form, name)) {
                prop_assert_eq!(leg.get(name), Some(value));
            }
            for (name, json) in fields {
                let sent: Value = serde_json::from_str(json.get()).expect("JSON");
                prop_assert_eq!(leg.get(*name), Some(&sent));
            }
            for name in leg.keys().filter(|name| !client.contains_key(*name)) {
                prop_assert!(is_set(form, name), "{name} came from nowhere");
            }
        }
    }

    #[test]
    fn a_decode_leg_without_fields_is_the_clients_body(client in object()) {
        let half = half(Connector::Store);
        let ids = Ids { request_id: "r", random: 0 };
        let leg = decode_leg(&half, &half, &ids, b"").expect("needs no answer");
        let text = serde_json::to_vec(&client).expect("JSON");
        prop_assert_eq!(body::decode(&text, &leg).expect("an object"), text);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), form in form()) {
        let half = half(Connector::Nixl);
        let ids = Ids { request_id: "r", random: 1 };
        let Ok(Begin::PrefillFirst(leg)) = begin(&half, &half, &ids) else {
            panic!("prefill goes first")
        };
        let _ = body::prefill(form, &bytes, &leg);
        let _ = body::decode(&bytes, &leg);
        let _ = body::indivisible(form, &bytes);
        let _ = body::carries_transfer(&bytes);
        let _ = learned(&half, &bytes);
        let _ = decode_leg(&half, &half, &ids, &bytes);
    }

    #[test]
    fn broken_json_does_not_panic(client in object(), cut in any::<prop::sample::Index>(), byte: u8, form in form()) {
        let mut text = serde_json::to_vec(&client).expect("JSON");
        let at = cut.index(text.len());
        text[at] = byte;
        let half = half(Connector::MoriIo);
        let ids = Ids { request_id: "r", random: 1 };
        if let Ok(Begin::Together { prefill, .. }) = begin(&half, &half, &ids)
            && let Ok(leg) = body::prefill(form, &text, &prefill)
        {
            // Numbers may be out of every range, as the client wrote them.
            serde_json::from_slice::<BTreeMap<String, &RawValue>>(&leg).expect("a leg is an object");
        }
        let _ = body::indivisible(form, &text);
        let _ = body::carries_transfer(&text);
    }

    #[test]
    fn ids_of_two_tries_differ_and_no_plain_id_names_peers(a: u128, b: u128, id in "[a-z0-9-]{1,40}") {
        prop_assert!(!names_peers(&id));
        let half = half(Connector::P2pNccl);
        let request_id = |random| match begin(&half, &half, &Ids { request_id: &id, random }) {
            Ok(Begin::PrefillFirst(leg)) => leg.request_id.expect("an id"),
            _ => panic!("prefill goes first"),
        };
        prop_assert!(names_peers(&request_id(a)));
        // Six of the bits say which kind of UUID it is.
        let drawn = |random: u128| random & !(0xf << 76) & !(0x3 << 62);
        prop_assert_eq!(drawn(a) == drawn(b), request_id(a) == request_id(b));
    }
}
