//! Messages of vLLM 0.32 as they were captured, of earlier releases as their code encodes them, and block hashes that Python
//! computed. In `golden/`: captures in JSON lines with the payload and what `msgspec` makes of it; `hashes_python.jsonl`
//! from `hashlib`, `pickle` and `cbor2`.

use std::collections::BTreeMap;

use grapevine_kv_events::batch::{Batch, Event, Limits, Lora};
use grapevine_kv_events::hash::{Algorithm, Digest, ExtraKey, Hasher, default_seed};
use grapevine_kv_events::{BlockHash, Tier};
use serde_json::Value;

fn lines(file: &str) -> Vec<Value> {
    let path = format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("a golden file");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex"))
        .collect()
}

fn read(payload: &[u8]) -> Batch {
    Batch::read(payload, &Limits::default()).expect("a batch")
}

/// As captures write a hash.
fn block(hash: &Value) -> BlockHash {
    match hash {
        Value::String(text) => {
            let bytes = unhex(text.strip_prefix("hex:").expect("hex"));
            BlockHash::of_bytes(&bytes).expect("8 bytes")
        }
        number => BlockHash(number.as_u64().expect("a number")),
    }
}

fn blocks(hashes: &Value) -> Vec<BlockHash> {
    let hashes = hashes.as_array().expect("an array");
    hashes.iter().map(block).collect()
}

fn assert_is(event: &Event, decoded: &Value) {
    match (event, decoded["type"].as_str().expect("a type")) {
        (Event::Stored(event), "BlockStored") => {
            assert_eq!(event.hashes, blocks(&decoded["block_hashes"]));
            let parent = &decoded["parent_block_hash"];
            assert_eq!(event.parent, (!parent.is_null()).then(|| block(parent)));
            let tokens: Vec<u32> =
                serde_json::from_value(decoded["token_ids"].clone()).expect("tokens");
            assert_eq!(event.tokens, tokens);
            assert_eq!(u64::from(event.block_tokens), decoded["block_size"]);
            assert_eq!((event.tier, event.lora.as_ref()), (Tier::Gpu, None));
            assert_eq!((event.group, event.is_full_attention), (0, true));
        }
        (Event::Removed(event), "BlockRemoved") => {
            assert_eq!(event.hashes, blocks(&decoded["block_hashes"]));
            assert_eq!((event.tier, event.group), (Tier::Gpu, 0));
        }
        (Event::Cleared, "AllBlocksCleared") => {}
        (event, decoded) => panic!("{event:?} is no {decoded}"),
    }
}

#[test]
fn captured_batches_are_read_as_msgspec_reads_them() {
    let mut events = 0;
    for file in [
        "A_sha256cbor_int.jsonl",
        "A_sha256pickle_bytes.jsonl",
        "B_sha256cbor_int.jsonl",
        "B_sha256cbor_seed42.jsonl",
        "A_replay_from2.jsonl",
    ] {
        for line in lines(file) {
            let decoded = &line["decoded"];
            let payload = unhex(line["payload_hex"].as_str().expect("hex"));
            if decoded.is_null() {
                assert_eq!((payload.len(), &line["seq"]), (0, &Value::from(-1)));
                continue;
            }
            let batch = read(&payload);
            assert_eq!(Value::from(batch.time), decoded[0]);
            assert_eq!(batch.rank, Some(0));
            let expected = decoded[1].as_array().expect("events");
            assert_eq!(batch.events.len(), expected.len());
            for (event, expected) in batch.events.iter().zip(expected) {
                assert_is(event, expected);
                events += 1;
            }
        }
    }
    assert_eq!(events, 18);
}

#[test]
fn events_in_arrays_are_read_up_to_vllm_0_22() {
    // vLLM 0.22's types, encoded by msgspec: stored with two blocks of two tokens, removed, cleared; rank 3.
    let batch = read(&unhex(concat!(
        "93cb41d954fc40200000939aab426c6f636b53746f7265649201cf8000000000000005c0940102030402",
        "03a3475055a261649291a26164c00194ac426c6f636b52656d6f7665649101a3435055c091b0416c6c42",
        "6c6f636b73436c656172656403"
    )));
    assert_eq!((batch.time, batch.rank), (1_700_000_000.5, Some(3)));
    let [
        Event::Stored(stored),
        Event::Removed(removed),
        Event::Cleared,
    ] = &batch.events[..]
    else {
        panic!("{batch:?}");
    };
    assert_eq!(
        stored.hashes,
        [BlockHash(1), BlockHash(0x8000_0000_0000_0005)]
    );
    assert_eq!(stored.tokens, [1, 2, 3, 4]);
    assert_eq!(
        (stored.block_tokens, stored.tier, stored.group),
        (2, Tier::Gpu, 1)
    );
    assert_eq!(stored.lora, Some(Lora::Name("ad".into())));
    assert_eq!(
        (&removed.hashes[..], removed.tier),
        (&[BlockHash(1)][..], Tier::Host)
    );
}

#[test]
fn events_of_vllm_0_11_have_fewer_fields_and_hashes_with_a_sign() {
    let batch = read(&unhex(concat!(
        "93cb41d954fc401000009297ab426c6f636b53746f72656492f7080792ce00011170000104c093ac426c",
        "6f636b52656d6f76656491f7c0c0"
    )));
    assert_eq!(batch.rank, None);
    let [Event::Stored(stored), Event::Removed(removed)] = &batch.events[..] else {
        panic!("{batch:?}");
    };
    let negative = BlockHash((-9_i64).cast_unsigned());
    assert_eq!(stored.hashes, [negative, BlockHash(8)]);
    assert_eq!(stored.parent, Some(BlockHash(7)));
    assert_eq!(stored.tokens, [70_000, 0]);
    assert_eq!(stored.lora, Some(Lora::Number(4)));
    assert_eq!(
        (&removed.hashes[..], removed.tier),
        (&[negative][..], Tier::Gpu)
    );
}

#[test]
fn captured_block_hashes_are_recomputed_from_their_tokens() {
    let mut recomputed = 0;
    for (file, algorithm, seed) in [
        ("A_sha256cbor_int.jsonl", Algorithm::Sha256Cbor, None),
        ("B_sha256cbor_int.jsonl", Algorithm::Sha256Cbor, None),
        ("A_sha256pickle_bytes.jsonl", Algorithm::Sha256, None),
        (
            "B_sha256cbor_seed42.jsonl",
            Algorithm::Sha256Cbor,
            Some("42"),
        ),
    ] {
        let seed = seed.or_else(|| default_seed(algorithm, (0, 32)));
        let hasher = Hasher::new(algorithm, seed.expect("a seed"));
        // An event names the parent by the end of its hash; the whole is needed.
        let mut known: BTreeMap<BlockHash, Digest> = BTreeMap::new();
        for line in lines(file) {
            for event in line["decoded"][1].as_array().expect("events") {
                if event["type"] != "BlockStored" {
                    continue;
                }
                let mut parent = match &event["parent_block_hash"] {
                    Value::Null => hasher.root(),
                    parent => known[&block(parent)],
                };
                let tokens: Vec<u32> =
                    serde_json::from_value(event["token_ids"].clone()).expect("tokens");
                let size = event["block_size"].as_u64().expect("a size") as usize;
                for (at, hash) in blocks(&event["block_hashes"]).into_iter().enumerate() {
                    let salt = event["extra_keys"][at][0].as_str();
                    let extra: Vec<_> = salt.map(ExtraKey::CacheSalt).into_iter().collect();
                    parent = hasher.block(&parent, &tokens[at * size..][..size], &extra);
                    assert_eq!(parent.block(), hash, "{file}");
                    if let Some(whole) = event["block_hashes"][at].as_str() {
                        assert_eq!(
                            Some(parent.as_bytes()),
                            whole.strip_prefix("hex:").map(unhex).as_deref()
                        );
                    }
                    known.insert(hash, parent);
                    recomputed += 1;
                }
            }
        }
    }
    assert_eq!(recomputed, 80);
}

#[test]
fn hashes_are_those_that_python_computes() {
    let cases = lines("hashes_python.jsonl");
    for case in &cases {
        let name = case["algorithm"].as_str();
        let algorithm = Algorithm::ALL
            .into_iter()
            .find(|a| Some(a.as_str()) == name);
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let hasher = Hasher::new(algorithm.expect("known"), &text(&case["seed"]));
        assert_eq!(hasher.root().as_bytes(), unhex(&text(&case["root"])));
        let tokens: Vec<u32> = serde_json::from_value(case["tokens"].clone()).expect("tokens");
        let keys: Vec<Vec<String>> = serde_json::from_value(case["extra"].clone()).expect("keys");
        let (mut lora, mut salt) = (None, None);
        for key in &keys {
            match &key[..] {
                [_, name, path] => lora = Some(ExtraKey::Lora { name, path }),
                [_, value] => salt = Some(ExtraKey::CacheSalt(value)),
                _ => panic!("{key:?}"),
            }
        }
        let chain = hasher.chain(&tokens, tokens.len(), lora, salt);
        let whole = unhex(&text(&case["hash"]));
        assert_eq!(
            chain,
            [BlockHash::of_bytes(&whole).expect("32 bytes")],
            "{case}"
        );
    }
    assert_eq!(cases.len(), 30);
}

#[test]
fn a_seed_is_known_by_release_and_algorithm() {
    for (algorithm, release, seed) in [
        (Algorithm::Sha256, (0, 30), Some("vllm-none-hash")),
        (Algorithm::Sha256Cbor, (1, 0), Some("vllm-none-hash")),
        (Algorithm::Sha256, (0, 28), None),
        (Algorithm::Xxhash, (0, 33), None),
        (Algorithm::XxhashCbor, (0, 33), None),
    ] {
        assert_eq!(
            default_seed(algorithm, release),
            seed,
            "{algorithm:?} {release:?}"
        );
    }
}

#[test]
fn xxhash_of_pickle_and_cbor_has_16_bytes_and_differs() {
    let of = |algorithm| Hasher::new(algorithm, "a").root();
    let [pickle, cbor] = [Algorithm::Xxhash, Algorithm::XxhashCbor].map(of);
    assert_eq!((pickle.as_bytes().len(), cbor.as_bytes().len()), (16, 16));
    assert_ne!(pickle, cbor);
    // XXH3-128 of CBOR's text "a" (61 61), in the order in which `xxh3_128_digest` gives bytes.
    assert_eq!(
        cbor.as_bytes(),
        xxhash_rust::xxh3::xxh3_128(b"aa").to_be_bytes()
    );
}
