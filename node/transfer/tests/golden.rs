//! Both legs of each connector, byte for byte.
//!
//! NIXL pull is as captured from vLLM 0.32.0; the others are as vllm-project/router 0.1.17 sends them, or, where it has
//! no such connector, SGLang's gateway. Where we differ, the test says so.

use grapevine_transfer::body::{self, Form};
use grapevine_transfer::{
    BadAnswer, Begin, Connector, Half, Ids, Leg, Missing, PairRules, begin, decode_leg, learned,
    pair,
};

const RANDOM: u128 = 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210;
const UUID: &str = "01234567-89ab-4def-bedc-ba9876543210";
const IDS: Ids<'static> = Ids {
    request_id: "req-1",
    random: RANDOM,
};
const NIXL_KEEP: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

fn half(host: &str, rank: Option<u32>, connector: Connector, labels: &[(&str, &str)]) -> Half {
    let find = |name: &str| labels.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
    Half::read(host, 8000, rank, connector, find).expect("labels that fit")
}

fn first(begin: Result<Begin, Missing>) -> Leg {
    match begin.expect("nothing is missing") {
        Begin::PrefillFirst(leg) => leg,
        Begin::Together { .. } => panic!("prefill goes first"),
    }
}

fn together(begin: Result<Begin, Missing>) -> (Leg, Leg) {
    match begin.expect("nothing is missing") {
        Begin::PrefillFirst(_) => panic!("both go at once"),
        Begin::Together { prefill, decode } => (prefill, decode),
    }
}

fn field<'l>(leg: &'l Leg, name: &str) -> Option<&'l str> {
    let found = leg.fields.iter().find(|(n, _)| *n == name);
    found.map(|(_, json)| json.get())
}

fn params(leg: &Leg) -> &str {
    field(leg, "kv_transfer_params").expect("parameters")
}

/// The answer of a vLLM 0.32.0 prefill worker, as captured; the object in it goes on byte for byte.
const PULL_PARAMS: &str = r#"{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1, 2, 3]], "remote_engine_id": "d16eca8c-8032-4f61-8d84-f843d8ae8db1", "remote_request_id": "chatcmpl-r-bac62a45", "remote_host": "127.0.0.1", "remote_port": 28671, "tp_size": 1, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": 497, "remote_blocks_expiry_time": null, "transfer_mode": "pull", "remote_prefill_cached_tokens": 0}"#;

fn answer(params: &str) -> Vec<u8> {
    format!(r#"{{"id":"chatcmpl-r","choices":[],"kv_transfer_params": {params} }}"#).into_bytes()
}

#[test]
fn nixl_pull_repeats_the_prefills_answer() {
    let (p, d) = (
        half("p", Some(2), Connector::Nixl, &[]),
        half("d", Some(3), Connector::Nixl, &[]),
    );
    let leg = first(begin(&p, &d, &IDS));
    assert_eq!(params(&leg), NIXL_KEEP);
    assert_eq!(
        (leg.request_id, leg.rank, leg.one_token),
        (None, Some(2), true)
    );
    let leg = decode_leg(&p, &d, &IDS, &answer(PULL_PARAMS)).expect("a good answer");
    assert_eq!(params(&leg), PULL_PARAMS);
    assert_eq!(
        (leg.request_id, leg.rank, leg.one_token),
        (None, Some(3), false)
    );
}

#[test]
fn a_pull_answer_teaches_mode_and_sizes_once() {
    let p = half("p", None, Connector::Nixl, &[]);
    let taught = learned(&p, &answer(PULL_PARAMS));
    let taught: Vec<_> = taught.iter().map(|(n, v)| (&**n, &**v)).collect();
    let all = [
        ("kv.mode", "pull"),
        ("kv.tp_size", "1"),
        ("kv.pp_size", "1"),
        ("kv.dcp_size", "1"),
    ];
    assert_eq!(taught, all);
    let p = half("p", None, Connector::Nixl, &all);
    assert_eq!(learned(&p, &answer(PULL_PARAMS)), []);
}

const PUSH_PARAMS: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[7]],"remote_engine_id":"eng-1","remote_request_id":"chatcmpl-x","remote_host":"10.0.0.1","remote_port":5600,"tp_size":2,"transfer_mode":"push"}"#;

#[test]
fn nixl_push_is_learned_from_the_first_answer_and_concurrent_from_then_on() {
    let d = half("d", None, Connector::Nixl, &[]);
    // Nothing is known: as pull, and the same request id for both legs.
    let p = half("p", None, Connector::Nixl, &[]);
    let leg = first(begin(&p, &d, &IDS));
    assert_eq!((params(&leg), &leg.request_id), (NIXL_KEEP, &None));
    let second = decode_leg(&p, &d, &IDS, &answer(PUSH_PARAMS)).expect("a good answer");
    assert_eq!((params(&second), &second.request_id), (PUSH_PARAMS, &None));
    // What it taught makes the next one concurrent.
    let taught = learned(&p, &answer(PUSH_PARAMS));
    let labels: Vec<_> = taught.iter().map(|(n, v)| (&**n, &**v)).collect();
    let p = half("p", None, Connector::Nixl, &labels);
    assert_eq!(learned(&p, &answer(PUSH_PARAMS)), []);
    let (prefill, decode) = together(begin(&p, &d, &IDS));
    let keep = NIXL_KEEP.strip_suffix('}').expect("an object");
    assert_eq!(
        params(&prefill),
        format!(r#"{keep},"transfer_id":"xfer-{UUID}"}}"#)
    );
    // vllm-project/router has no transfer_id, without which vLLM pairs by request id and warns; ours has both, and an
    // id that no client chose.
    assert_eq!(
        params(&decode),
        format!(
            r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"eng-1","remote_host":"10.0.0.1","remote_port":5600,"tp_size":2,"remote_request_id":"req-1-{0}","transfer_id":"xfer-{UUID}"}}"#,
            UUID.replace('-', "")
        )
    );
    assert_eq!(prefill.request_id, decode.request_id);
    assert_eq!(
        prefill.request_id,
        Some(format!("req-1-{}", UUID.replace('-', "")))
    );
}

#[test]
fn a_declared_push_without_identity_goes_first_and_is_paired_by_its_transfer_id() {
    let (p, d) = (
        half(
            "p",
            None,
            Connector::Nixl,
            &[("kv.connector", "NixlPushConnector")],
        ),
        half("d", None, Connector::Nixl, &[]),
    );
    let leg = first(begin(&p, &d, &IDS));
    assert!(params(&leg).ends_with(&format!(r#""transfer_id":"xfer-{UUID}"}}"#)));
    let next = decode_leg(&p, &d, &IDS, &answer(PUSH_PARAMS)).expect("a good answer");
    assert_eq!(
        params(&next),
        PUSH_PARAMS.replace(
            r#""push"}"#,
            &format!(r#""push","transfer_id":"xfer-{UUID}"}}"#)
        )
    );
    assert_eq!(leg.request_id, next.request_id);
}

#[test]
fn the_identity_of_a_rank_is_learned_for_that_rank() {
    let p = half("p", Some(1), Connector::Nixl, &[]);
    let taught = learned(&p, &answer(PUSH_PARAMS));
    let labels: Vec<_> = taught.iter().map(|(n, v)| (&**n, &**v)).collect();
    assert!(labels.contains(&("kv.engine_id.1", "eng-1")));
    assert!(labels.contains(&("kv.port.1", "5600")));
    let d = half("d", None, Connector::Nixl, &[]);
    let same_rank = half("p", Some(1), Connector::Nixl, &labels);
    together(begin(&same_rank, &d, &IDS));
    let other_rank = half("p", Some(0), Connector::Nixl, &labels);
    first(begin(&other_rank, &d, &IDS));
}

/// Each rank is an engine with an id of its own, and which of them answers changes from request to request.
#[test]
fn a_worker_of_several_ranks_behind_one_address_teaches_no_identity() {
    let p = half("p", None, Connector::Nixl, &[("kv.dp_size", "2")]);
    let taught = learned(&p, &answer(PUSH_PARAMS));
    let taught: Vec<_> = taught.iter().map(|(n, v)| (&**n, &**v)).collect();
    assert_eq!(taught, [("kv.mode", "push"), ("kv.tp_size", "2")]);
    let known = [
        ("kv.dp_size", "2"),
        ("kv.mode", "push"),
        ("kv.tp_size", "2"),
    ];
    let p = half("p", None, Connector::Nixl, &known);
    let other_rank = PUSH_PARAMS.replace("eng-1", "eng-1_dp1");
    for params in [PUSH_PARAMS, &other_rank] {
        assert_eq!(learned(&p, &answer(params)), []);
    }
    let d = half("d", None, Connector::Nixl, &[]);
    first(begin(&p, &d, &IDS));
}

#[test]
fn a_restarted_engine_is_told_by_its_next_answer() {
    let old = [
        ("kv.mode", "push"),
        ("kv.engine_id", "eng-0"),
        ("kv.host", "10.0.0.1"),
        ("kv.port", "5600"),
        ("kv.tp_size", "2"),
    ];
    let p = half("p", None, Connector::Nixl, &old);
    let taught = learned(&p, &answer(PUSH_PARAMS));
    assert_eq!(taught, [("kv.engine_id".to_owned(), "eng-1".to_owned())]);
}

#[test]
fn nixl_answers_without_blocks_are_no_ground_for_a_decode() {
    let (p, d) = (
        half("p", None, Connector::Nixl, &[]),
        half("d", None, Connector::Nixl, &[]),
    );
    let leg = |answer: &[u8]| decode_leg(&p, &d, &IDS, answer).expect_err("a bad answer");
    assert_eq!(leg(b"no JSON"), BadAnswer::NotAnObject);
    assert_eq!(leg(b"{}"), BadAnswer::NoParams);
    assert_eq!(leg(&answer("null")), BadAnswer::NoParams);
    assert_eq!(leg(&answer("[]")), BadAnswer::NoParams);
    let without = PULL_PARAMS.replace(r#""127.0.0.1""#, "null");
    assert_eq!(leg(&answer(&without)), BadAnswer::Lacks("remote_host"));
}

#[test]
fn mooncake_names_transfer_engine_and_bootstrap_server() {
    let labels = [("kv.engine_id", "eng"), ("kv.bootstrap_port", "9000")];
    let (p, d) = (
        half("10.0.0.1", None, Connector::Mooncake, &labels),
        half("d", None, Connector::Mooncake, &[]),
    );
    let leg = first(begin(&p, &d, &IDS));
    assert_eq!(
        params(&leg),
        format!(
            r#"{{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-{UUID}"}}"#
        )
    );
    let leg = decode_leg(&p, &d, &IDS, b"{}").expect("needs no answer");
    assert_eq!(
        params(&leg),
        format!(
            r#"{{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"xfer-{UUID}","remote_bootstrap_addr":"http://10.0.0.1:9000","remote_engine_id":"eng"}}"#
        )
    );
}

#[test]
fn mooncake_finds_the_engine_of_the_rank_or_says_what_is_missing() {
    let d = half("d", None, Connector::Mooncake, &[]);
    let engine = |rank, labels: &[(&str, &str)]| {
        let p = half("::1", rank, Connector::Mooncake, labels);
        begin(&p, &d, &IDS)?;
        let leg = decode_leg(&p, &d, &IDS, b"{}").expect("the label is known");
        assert!(params(&leg).contains(r#""remote_bootstrap_addr":"http://[::1]:8998""#));
        let (_, id) = params(&leg).rsplit_once(':').expect("an id");
        Ok::<_, Missing>(id.trim_matches(['"', '}']).to_owned())
    };
    // As `/query` of the bootstrap server tells them.
    let queried = [
        ("kv.engine_id.0", "e_dp0"),
        ("kv.engine_id.1", "e_dp1"),
        ("kv.dp_size", "2"),
    ];
    assert_eq!(engine(Some(1), &queried).as_deref(), Ok("e_dp1"));
    // One rank of two is not known, and which one computes neither.
    assert_eq!(
        engine(None, &queried).expect_err("no rank").to_string(),
        "the prefill worker's label `kv.engine_id` is not known"
    );
    assert_eq!(engine(None, &queried[..1]).as_deref(), Ok("e_dp0"));
    // As a person declares it; vLLM puts the rank behind it.
    assert_eq!(
        engine(Some(3), &[("kv.engine_id", "e")]).as_deref(),
        Ok("e_dp3")
    );
    assert_eq!(engine(None, &[("kv.engine_id", "e")]).as_deref(), Ok("e"));
    engine(None, &[]).expect_err("nothing is known");
}

fn moriio(host: &str, labels: &[(&str, &str)]) -> Half {
    half(host, None, Connector::MoriIo, labels)
}

#[test]
fn moriio_read_repeats_the_answer_with_the_prefills_ranks() {
    let address = ("kv.address", "host:10.0.0.1,handshake:7001,notify:7002");
    let (p, d) = (
        moriio("10.0.0.1", &[address, ("kv.mode", "READ")]),
        moriio("10.0.0.2", &[("kv.mode", "read")]),
    );
    let leg = first(begin(&p, &d, &IDS));
    let hex = UUID.replace('-', "");
    assert_eq!(
        params(&leg),
        format!(
            r#"{{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"tx-{hex}","remote_dp_size":1}}"#
        )
    );
    let id = format!(
        "___prefill_addr_host:10.0.0.1,handshake:7001,notify:7002___decode_addr_host:10.0.0.2,handshake:6301,notify:61005_{hex}"
    );
    assert_eq!(leg.request_id.as_ref(), Some(&id));
    let told =
        r#"{"do_remote_prefill":true,"remote_engine_id":"e","remote_block_ids":[4,5],"tp_size":8}"#;
    let leg = decode_leg(&p, &d, &IDS, &answer(told)).expect("a good answer");
    assert_eq!(
        params(&leg),
        told.replace(
            "8}",
            &format!(r#"8,"transfer_id":"tx-{hex}","remote_dp_size":1}}"#)
        )
    );
    assert_eq!(leg.request_id, Some(id));
    let foreign = told.replace("8}", r#"8,"transfer_id":"tx-other"}"#);
    let error = decode_leg(&p, &d, &IDS, &answer(&foreign)).expect_err("another's");
    assert_eq!(error, BadAnswer::AnotherTransfer);
}

#[test]
fn moriio_write_sends_both_legs_to_one_rank() {
    let labels = |tp| {
        [
            ("kv.mode", "write"),
            ("kv.tp_size", tp),
            ("kv.dp_size", "4"),
        ]
    };
    let (p, d) = (moriio("p", &labels("2")), moriio("d", &labels("1")));
    let (prefill, decode) = together(begin(&p, &d, &IDS));
    let hex = UUID.replace('-', "");
    assert_eq!(
        params(&prefill),
        format!(
            r#"{{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"tx-{hex}","remote_dp_size":4,"remote_tp_size":1,"remote_dp_rank":0}}"#
        )
    );
    assert_eq!(
        params(&decode),
        format!(
            r#"{{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"tx-{hex}","remote_dp_size":4,"remote_tp_size":2,"remote_dp_rank":0}}"#
        )
    );
    assert_eq!((prefill.rank, decode.rank), (Some(0), Some(0)));
    assert_eq!(prefill.request_id, decode.request_id);
    let other = Ids {
        random: RANDOM + 3,
        ..IDS
    };
    let (prefill, decode) = together(begin(&p, &d, &other));
    assert_eq!((prefill.rank, decode.rank), (Some(3), Some(3)));
}

#[test]
fn moriio_sends_nothing_before_the_mode_is_known() {
    let (p, d) = (moriio("p", &[]), moriio("d", &[]));
    let missing = begin(&p, &d, &IDS).expect_err("no mode");
    assert_eq!(missing.name, "kv.mode");
}

#[test]
fn p2p_nccl_speaks_by_the_request_id() {
    let (p, d) = (
        half(
            "p",
            None,
            Connector::P2pNccl,
            &[("kv.address", "10.0.0.1:21001")],
        ),
        half("d", None, Connector::P2pNccl, &[]),
    );
    let leg = first(begin(&p, &d, &IDS));
    let hex = UUID.replace('-', "");
    // The HTTP address stands in for a ZMQ address that is not known, as in vllm-project/router.
    let id = format!("___prefill_addr_10.0.0.1:21001___decode_addr_d:8000_{hex}");
    assert_eq!(
        (leg.request_id.as_ref(), params(&leg)),
        (Some(&id), NIXL_KEEP)
    );
    let leg = decode_leg(&p, &d, &IDS, &answer("null")).expect("a good answer");
    assert_eq!((leg.request_id, leg.fields.len()), (Some(id), 0));
    let told = decode_leg(&p, &d, &IDS, &answer(PULL_PARAMS)).expect("a good answer");
    assert_eq!(params(&told), PULL_PARAMS);
}

#[test]
fn a_shared_store_is_told_nothing() {
    let (p, d) = (
        half("p", None, Connector::Store, &[]),
        half("d", None, Connector::Store, &[]),
    );
    let leg = first(begin(&p, &d, &IDS));
    assert_eq!((leg.fields.len(), leg.one_token), (0, true));
    let leg = decode_leg(&p, &d, &IDS, b"whatever").expect("needs no answer");
    assert_eq!((leg.fields.len(), leg.one_token), (0, false));
}

#[test]
fn sglang_meets_in_a_room_and_keeps_the_clients_limits() {
    let labels = [("kv.bootstrap_port", "8997"), ("kv.dp_size", "8")];
    let d = half("d", None, Connector::Sglang, &[]);
    let room = RANDOM as u64 >> 1;
    let p = half("fe80::1", None, Connector::Sglang, &labels);
    let (prefill, decode) = together(begin(&p, &d, &IDS));
    let client = br#"{"model":"m","max_tokens":9,"stream":true,"bootstrap_room":1}"#;
    let expected = format!(
        r#"{{"model":"m","max_tokens":9,"stream":true,"bootstrap_host":"[fe80::1]","bootstrap_port":8997,"bootstrap_room":{room}}}"#
    );
    let bodies = [
        body::prefill(Form::Completions, client, &prefill),
        body::decode(client, &decode),
    ];
    for body in bodies {
        assert_eq!(
            String::from_utf8(body.expect("an object")).expect("text"),
            expected
        );
    }
    let plain = half("p", None, Connector::Sglang, &[]);
    let (prefill, _) = together(begin(&plain, &d, &IDS));
    assert_eq!(field(&prefill, "bootstrap_port"), Some("null"));
    // With a rank, a room that SGLang's prefill puts there.
    for rank in 0..8 {
        let p = half("p", Some(rank), Connector::Sglang, &labels);
        for random in [0, 1, RANDOM, u128::MAX] {
            let (prefill, _) = together(begin(&p, &d, &Ids { random, ..IDS }));
            let room: u64 = field(&prefill, "bootstrap_room")
                .expect("a room")
                .parse()
                .expect("a number");
            assert!(room % 8 == u64::from(rank) && room <= i64::MAX as u64);
        }
    }
}

#[test]
fn only_those_pair_that_agree_and_the_first_difference_is_named() {
    let base = [
        ("kv.mode", "pull"),
        ("engine.version", "0.32.0"),
        ("kv.block_size", "32"),
        ("kv.tp_size", "2"),
    ];
    let p = half("p", None, Connector::Nixl, &base);
    let strict = PairRules::default();
    assert_eq!(
        pair(&p, &half("d", None, Connector::Nixl, &[]), &strict),
        Ok(())
    );
    assert_eq!(
        pair(&p, &half("d", None, Connector::Nixl, &base), &strict),
        Ok(())
    );
    let cases = [
        (
            ("kv.mode", "push"),
            "KV transfer mode differs: prefill pull, decode push",
        ),
        (
            ("engine.version", "0.31.0"),
            "engine version differs: prefill 0.32.0, decode 0.31.0",
        ),
        (
            ("kv.block_size", "16"),
            "block size differs: prefill 32, decode 16",
        ),
        (
            ("kv.tp_size", "4"),
            "tensor-parallel size differs: prefill 2, decode 4",
        ),
    ];
    for (label, words) in cases {
        let d = half("d", None, Connector::Nixl, &[label]);
        assert_eq!(
            pair(&p, &d, &strict).expect_err("they differ").to_string(),
            words
        );
    }
    let mixed = PairRules {
        mixed_tensor_parallel: true,
    };
    let d = half("d", None, Connector::Nixl, &[("kv.tp_size", "4")]);
    assert_eq!(pair(&p, &d, &mixed), Ok(()));
    let d = half("d", None, Connector::Mooncake, &[]);
    assert_eq!(
        pair(&p, &d, &mixed).expect_err("they differ").to_string(),
        "KV connector differs: prefill nixl, decode mooncake"
    );
    // Ranks of MoRI-IO have to agree, those of others need not.
    let two = [("kv.dp_size", "2")];
    pair(&moriio("p", &two), &moriio("d", &[]), &mixed).expect_err("they differ");
    let (p, d) = (
        half("p", None, Connector::Nixl, &two),
        half("d", None, Connector::Nixl, &[]),
    );
    assert_eq!(pair(&p, &d, &mixed), Ok(()));
}

#[test]
fn labels_that_do_not_fit_are_named() {
    let read = |name: &'static str, value: &'static str| {
        let find = move |asked: &str| (asked == name).then_some(value);
        Half::read("h", 1, None, Connector::Nixl, find)
            .expect_err("does not fit")
            .to_string()
    };
    assert_eq!(
        read("kv.bootstrap_port", "0"),
        "label `kv.bootstrap_port` is `0`: a port is 1 to 65535"
    );
    assert_eq!(
        read("kv.tp_size", "-1"),
        "label `kv.tp_size` is `-1`: a size is 1 or more"
    );
    assert_eq!(
        read("kv.mode", "write"),
        "label `kv.mode` is `write`: nixl has no such mode"
    );
    assert!(read("kv.connector", "carrier pigeon").contains("no known KV connector"));
}
