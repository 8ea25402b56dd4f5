//! The laws of merging, over entries that often collide.

use proptest::prelude::*;

use super::*;

/// Entries from a space so small that keys, stamps and writers often collide.
fn any_entry() -> impl Strategy<Value = Entry> {
    (
        0..3u8,
        0..6u8,
        0..4u64,
        0..2u8,
        prop::option::of(1..3u32),
        0..3u64,
    )
        .prop_map(|(worker, source, stamp, writer, weight, unused_ms)| Entry {
            id: id(&format!("w{worker}")),
            source: match source {
                0 => Source::Admin,
                1 => Source::Config,
                2 => provider("dns"),
                3 => Source::Learned,
                4 => Source::Labels,
                _ => Source::Drain,
            },
            stamp: Stamp::from_bits(stamp),
            writer: Some(format!("r{writer}").parse().expect("valid")),
            spec: weight.map(|weight| Arc::new(spec(weight))),
            unused_ms,
        })
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    prop::collection::vec(any_entry(), 0..20)
}

fn merged(batches: &[&[Entry]]) -> Registry {
    let mut one = registry("r");
    for batch in batches {
        one.merge(batch.to_vec(), NOW).expect("no drift");
    }
    one
}

/// The contents of a map, byte for byte, and the ages of its entries.
fn contents(registry: &Registry) -> Vec<(Vec<u8>, u64)> {
    let bytes = |entry: &Entry| {
        let mut out = Vec::new();
        entry.write_canonical(&mut out);
        (out, entry.unused_ms)
    };
    registry.entries().map(bytes).collect()
}

/// The contents of a map. Ages come together only when entries travel.
fn said(registry: &Registry) -> Vec<Vec<u8>> {
    contents(registry)
        .into_iter()
        .map(|(bytes, _)| bytes)
        .collect()
}

proptest! {
    #[test]
    fn merge_is_commutative(a in entries(), b in entries()) {
        prop_assert_eq!(contents(&merged(&[&a, &b])), contents(&merged(&[&b, &a])));
    }

    #[test]
    fn merge_is_associative(a in entries(), b in entries(), c in entries()) {
        let bc = everything(&merged(&[&b, &c]));
        let ab = everything(&merged(&[&a, &b]));
        prop_assert_eq!(contents(&merged(&[&ab, &c])), contents(&merged(&[&a, &bc])));
    }

    #[test]
    fn merge_is_idempotent(a in entries(), b in entries()) {
        let mut one = merged(&[&a, &b]);
        let before = contents(&one);
        prop_assert_eq!(one.merge(a, NOW).expect("no drift").changed, 0);
        prop_assert_eq!(contents(&one), before);
    }

    #[test]
    fn equal_digests_mean_equal_maps(a in entries(), b in entries()) {
        let (a, b) = (merged(&[&a]), merged(&[&b]));
        prop_assert_eq!(a.digest() == b.digest(), said(&a) == said(&b));
        prop_assert_eq!(a.summary() == b.summary(), said(&a) == said(&b));
    }

    #[test]
    fn one_sync_makes_two_maps_equal(a in entries(), b in entries()) {
        let (mut one, mut two) = (merged(&[&a]), merged(&[&b]));
        sync(&mut one, &mut two);
        prop_assert_eq!(said(&one), said(&two));
        prop_assert_eq!(said(&one), said(&merged(&[&a, &b])));
    }

    /// Whatever was merged before, a local change is the last one until another is received.
    #[test]
    fn a_local_word_counts(heard in entries(), worker in 0..3u8, now_ms in 0..10u64) {
        let mut one = merged(&[&heard]);
        let worker = id(&format!("w{worker}"));
        one.put(worker.clone(), Source::Admin, spec(7), now_ms).expect("room");
        prop_assert!(one.is_worker(&worker));
        one.merge(heard.clone(), NOW).expect("no drift");
        prop_assert!(one.is_worker(&worker));
        one.remove(&worker, Source::Admin, now_ms).expect("known");
        one.merge(heard, NOW).expect("no drift");
        prop_assert!(!one.is_worker(&worker));
    }
}
