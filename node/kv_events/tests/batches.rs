//! Whatever a payload holds: no panic, no more than the limits, and what was written is read.

use grapevine_kv_events::batch::{BadBatch, Batch, Event, Limits, Lora, Removed, Stored};
use grapevine_kv_events::{BlockHash, Tier};
use proptest::prelude::*;

const SMALL: Limits = Limits {
    payload_bytes: 2_048,
    events: 8,
    hashes: 16,
    tokens: 64,
    text_bytes: 16,
};

/// What a batch allocates, in items.
fn sizes(batch: &Batch) -> (usize, usize, usize) {
    let (mut hashes, mut tokens) = (0, 0);
    for event in &batch.events {
        match event {
            Event::Stored(event) => {
                hashes += event.hashes.capacity();
                tokens += event.tokens.capacity();
            }
            Event::Removed(event) => hashes += event.hashes.capacity(),
            Event::Cleared => {}
        }
    }
    (batch.events.capacity(), hashes, tokens)
}

fn check(payload: &[u8]) {
    if let Ok(batch) = Batch::read(payload, &SMALL) {
        let (events, hashes, tokens) = sizes(&batch);
        assert!(events <= SMALL.events && hashes <= SMALL.hashes && tokens <= SMALL.tokens);
    }
}

/// MessagePack, written by hand: maps or arrays.
fn write(batch: &Batch, as_maps: bool) -> Vec<u8> {
    let mut out = vec![0x93, 0xcb];
    out.extend_from_slice(&batch.time.to_be_bytes());
    array(&mut out, batch.events.len());
    for event in &batch.events {
        let (kind, fields) = fields(event);
        if as_maps {
            map(&mut out, fields.len() + 2);
            text(&mut out, "type");
            text(&mut out, kind);
            // One that is not known, with something in it.
            text(&mut out, "added_later");
            out.extend_from_slice(&[0x92, 0x81, 0xa1, b'a', 0xc0, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0]);
        } else {
            array(&mut out, fields.len() + 1);
            text(&mut out, kind);
        }
        for (name, value) in fields {
            if as_maps {
                text(&mut out, name);
            }
            out.extend_from_slice(&value);
        }
    }
    match batch.rank {
        Some(rank) => number(&mut out, u64::from(rank)),
        None => out.push(0xc0),
    }
    out
}

fn fields(event: &Event) -> (&'static str, Vec<(&'static str, Vec<u8>)>) {
    let value = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        out
    };
    let hashes = |hashes: &[BlockHash]| {
        value(&|out| {
            array(out, hashes.len());
            hashes.iter().for_each(|hash| number(out, hash.0));
        })
    };
    let medium = |tier| {
        value(&|out| match tier {
            Tier::Gpu => text(out, "GPU"),
            Tier::Host => text(out, "CPU"),
            Tier::Storage => text(out, "STORAGE"),
        })
    };
    let nil = || vec![0xc0];
    match event {
        Event::Cleared => ("AllBlocksCleared", Vec::new()),
        Event::Removed(event) => (
            "BlockRemoved",
            vec![
                ("block_hashes", hashes(&event.hashes)),
                ("medium", medium(event.tier)),
                (
                    "group_idx",
                    value(&|out| number(out, u64::from(event.group))),
                ),
            ],
        ),
        Event::Stored(event) => {
            let tokens = value(&|out| {
                array(out, event.tokens.len());
                event
                    .tokens
                    .iter()
                    .for_each(|token| number(out, u64::from(*token)));
            });
            let name = match &event.lora {
                Some(Lora::Name(name)) => value(&|out| text(out, name)),
                _ => nil(),
            };
            let id = match &event.lora {
                Some(Lora::Number(id)) => value(&|out| number(out, *id)),
                _ => nil(),
            };
            let parent = event
                .parent
                .map_or_else(nil, |hash| value(&|out| number(out, hash.0)));
            let kind = if event.is_full_attention {
                "full_attention"
            } else {
                "mamba"
            };
            let fields = vec![
                ("block_hashes", hashes(&event.hashes)),
                ("parent_block_hash", parent),
                ("token_ids", tokens),
                (
                    "block_size",
                    value(&|out| number(out, u64::from(event.block_tokens))),
                ),
                ("lora_id", id),
                ("medium", medium(event.tier)),
                ("lora_name", name),
                ("extra_keys", nil()),
                (
                    "group_idx",
                    value(&|out| number(out, u64::from(event.group))),
                ),
                ("kv_cache_spec_kind", value(&|out| text(out, kind))),
            ];
            ("BlockStored", fields)
        }
    }
}

fn array(out: &mut Vec<u8>, length: usize) {
    out.push(0xdd);
    out.extend_from_slice(&(length as u32).to_be_bytes());
}

fn map(out: &mut Vec<u8>, length: usize) {
    out.push(0xde);
    out.extend_from_slice(&(length as u16).to_be_bytes());
}

fn number(out: &mut Vec<u8>, number: u64) {
    out.push(0xcf);
    out.extend_from_slice(&number.to_be_bytes());
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&[0xd9, text.len() as u8]);
    out.extend_from_slice(text.as_bytes());
}

fn tier() -> impl Strategy<Value = Tier> {
    prop::sample::select(Tier::ALL.to_vec())
}

fn event() -> impl Strategy<Value = Event> {
    let hashes = || prop::collection::vec(any::<u64>().prop_map(BlockHash), 0..5);
    let lora = prop_oneof![
        Just(None),
        "[a-z]{1,16}".prop_map(|name| Some(Lora::Name(name))),
        any::<u64>().prop_map(|id| Some(Lora::Number(id))),
    ];
    let stored = (
        hashes(),
        prop::option::of(any::<u64>().prop_map(BlockHash)),
        prop::collection::vec(any::<u32>(), 0..9),
        any::<u32>(),
        (tier(), lora, 0..4_u32, any::<bool>()),
    )
        .prop_map(
            |(hashes, parent, tokens, block_tokens, (tier, lora, group, full))| {
                Event::Stored(Stored {
                    text: None,
                    hashes,
                    parent,
                    tokens,
                    block_tokens,
                    tier,
                    lora,
                    group,
                    is_full_attention: full,
                })
            },
        );
    let removed = (hashes(), tier(), 0..4_u32).prop_map(|(hashes, tier, group)| {
        Event::Removed(Removed {
            hashes,
            tier,
            group,
        })
    });
    prop_oneof![stored, removed, Just(Event::Cleared)]
}

fn batch() -> impl Strategy<Value = Batch> {
    (
        0.0..2e9_f64,
        prop::collection::vec(event(), 0..5),
        prop::option::of(0..64_u32),
    )
        .prop_map(|(time, events, rank)| Batch {
            time,
            events,
            rank,
            unknown_events: 0,
        })
}

proptest! {
    #[test]
    fn any_bytes_are_read_within_the_limits_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        check(&bytes);
    }

    #[test]
    fn a_batch_with_some_bytes_changed_or_cut_is_read_within_the_limits_or_refused(
        batch in batch(), maps in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = write(&batch, maps);
        check(&bytes[..cut.index(bytes.len())]);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        check(&bytes);
    }

    #[test]
    fn what_was_written_is_read_in_both_shapes(batch in batch(), maps in any::<bool>()) {
        prop_assert_eq!(Batch::read(&write(&batch, maps), &Limits::default()), Ok(batch));
    }

    #[test]
    fn a_cut_batch_is_never_taken_for_a_whole_one(batch in batch(), maps in any::<bool>(), cut in any::<prop::sample::Index>()) {
        let bytes = write(&batch, maps);
        let cut = cut.index(bytes.len());
        prop_assert_eq!(Batch::read(&bytes[..cut], &Limits::default()), Err(BadBatch::Malformed));
    }
}

#[test]
fn each_limit_is_kept() {
    let stored = |hashes: usize, tokens: usize, lora: &str| {
        Event::Stored(Stored {
            text: None,
            hashes: vec![BlockHash(1); hashes],
            parent: None,
            tokens: vec![7; tokens],
            block_tokens: 4,
            tier: Tier::Gpu,
            lora: Some(Lora::Name(lora.into())),
            group: 0,
            is_full_attention: true,
        })
    };
    let of = |events: Vec<Event>| {
        let batch = Batch {
            time: 1.0,
            events,
            rank: None,
            unknown_events: 0,
        };
        Batch::read(&write(&batch, true), &SMALL).map(|_| ())
    };
    assert_eq!(of(vec![stored(8, 32, "a"), stored(8, 32, "a")]), Ok(()));
    for (events, what) in [
        (vec![Event::Cleared; 9], "events"),
        (vec![stored(8, 1, "a"), stored(9, 1, "a")], "hashes"),
        (vec![stored(1, 60, "a"), stored(1, 5, "a")], "tokens"),
        (vec![stored(1, 1, "aaaaaaaaaaaaaaaaa")], "bytes of a text"),
    ] {
        assert_eq!(of(events), Err(BadBatch::TooMany(what)));
    }
    let long = Batch::read(&[0xc0; 2_049], &SMALL);
    assert_eq!(long, Err(BadBatch::TooMany("bytes")));
}

#[test]
fn what_claims_more_than_it_has_is_refused_before_anything_is_allocated() {
    let huge = [0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(
        Batch::read(&huge, &Limits::default()),
        Err(BadBatch::Malformed)
    );
    // Nested as deep as there are bytes, in a field that is passed over.
    let mut deep = vec![0x92, 0x01, 0x91, 0x82, 0xa1, b'x'];
    deep.extend(std::iter::repeat_n(0x91, 1 << 20));
    assert_eq!(
        Batch::read(&deep, &Limits::default()),
        Err(BadBatch::Malformed)
    );
    deep.push(0xc0);
    deep.extend_from_slice(b"\xa4type\xaaSomeOthers");
    let batch = Batch::read(&deep, &Limits::default()).expect("an event of an unknown type");
    assert_eq!((batch.events.len(), batch.unknown_events), (0, 1));
}

#[test]
fn a_field_that_comes_twice_is_refused() {
    let twice =
        b"\x92\x01\x91\x83\xa4type\xacBlockRemoved\xacblock_hashes\x91\x01\xacblock_hashes\x91\x02";
    assert_eq!(Batch::read(twice, &SMALL), Err(BadBatch::Malformed));
}
