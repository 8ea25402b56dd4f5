//! What the index costs: `cargo bench -p grapevine-kv-events`.
//!
//! 240 holders and a million blocks: chains of 1,000 blocks, each at one holder, at a few, or at all. Prints percentiles
//! of look-ups, since a mean hides what a request may meet, and memory a block; criterion measures the means.
//!
//! `text to holders` is what a decision adds where workers publish: the names of a prompt of 8,192 tokens, from its end on,
//! to the text that is known, to its blocks, to who holds how many of them. A next turn is known but for its last message;
//! of a new prompt every name is looked up in vain.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use grapevine_kv_events::batch::{Batch, Limits as BatchLimits};
use grapevine_kv_events::index::{Holder, Index, Limits, Search};
use grapevine_kv_events::publisher::Publisher;
use grapevine_kv_events::texts::{Limits as TextLimits, Speaker, TextName, Texts};
use grapevine_kv_events::{BlockHash, Tier};

const HOLDERS: usize = 240;
const CHAIN: usize = 1_000;
const CHAINS: usize = 1_000;

/// A block's name, as even as a hash.
fn block(number: usize) -> BlockHash {
    let mut x = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    BlockHash(x ^ (x >> 31))
}

fn chain(number: usize) -> Vec<BlockHash> {
    (0..CHAIN).map(|at| block(number * CHAIN + at)).collect()
}

/// Of so many blocks at the beginning of a chain each holder has everything; the rest is at `holders` of them.
fn filled(shared: usize, holders: usize) -> (Index, Vec<Holder>) {
    let limits = Limits {
        bytes: 1 << 30,
        ..Limits::default()
    };
    let mut index = Index::new(limits, 0x5eed);
    let all: Vec<_> = (0..HOLDERS).map(|_| index.open().expect("room")).collect();
    for number in 0..CHAINS {
        for (at, block) in chain(number).into_iter().enumerate() {
            let few = (0..holders).map(|more| (number + more * 7) % HOLDERS);
            if at < shared {
                all.iter()
                    .for_each(|holder| _ = index.store(*holder, Tier::Gpu, block));
            } else {
                few.for_each(|holder| _ = index.store(all[holder], Tier::Gpu, block));
            }
        }
    }
    (index, all)
}

/// Middle and 99th percentile of 20,000 rounds.
#[allow(clippy::disallowed_methods, reason = "percentiles need a clock")]
fn percentiles<T>(mut look: impl FnMut(usize) -> T) -> (Duration, Duration) {
    let timed = |round| {
        let begin = Instant::now();
        black_box(look(black_box(round)));
        begin.elapsed()
    };
    let mut times: Vec<_> = (0..20_000).map(timed).collect();
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn search(bencher: &mut Criterion) {
    let mut group = bencher.benchmark_group("search_1000_blocks");
    group.throughput(Throughput::Elements(CHAIN as u64));
    for (name, shared, holders) in [
        ("one holder", 0, 1),
        ("100 at all, then one", 100, 1),
        ("five holders", 0, 5),
        ("all holders", CHAIN, 1),
    ] {
        let (index, _) = filled(shared, holders);
        let chains: Vec<_> = (0..CHAINS).map(chain).collect();
        let (mut buffer, mut next) = (Search::default(), 0);
        let (p50, p99) = percentiles(|round| {
            let chain = &chains[(round * 367) % CHAINS];
            index.search(black_box(chain), &mut buffer).len()
        });
        println!(
            "{name}: p50 {p50:?}, p99 {p99:?}; {} blocks, {:.1} bytes a block",
            index.blocks(),
            index.bytes() as f64 / index.blocks() as f64,
        );
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                next = (next + 367) % CHAINS;
                index.search(black_box(&chains[next]), &mut buffer).len()
            });
        });
    }
    group.finish();
}

/// Blocks of a prompt of 8,192 tokens.
const PROMPT: usize = 512;
/// Names that are looked up for it, 64 tokens each, with the marks before them.
const NAMES: usize = 128 + 32;

fn text_to_holders(bencher: &mut Criterion) {
    let (index, _) = filled(100, 1);
    let mut texts = Texts::new(TextLimits {
        blocks: CHAINS * CHAIN,
        names: 200_000,
    });
    let speaker = Speaker {
        engine: 0,
        may_teach: true,
    };
    let name = |chain: usize| block(1 << 40 | chain).0 >> 8;
    for number in 0..CHAINS {
        let text = TextName {
            whole: name(number),
            common: None,
        };
        texts.learn(speaker, Some(text), None, &chain(number)[..PROMPT]);
    }
    let mut group = bencher.benchmark_group("text_to_holders");
    for (case, misses) in [("next turn", 4), ("new prompt", NAMES)] {
        let (mut blocks, mut buffer) = (Vec::new(), Search::default());
        let mut look = |round: usize| {
            let number = (round * 367) % CHAINS;
            let unknown = (0..misses).map(|at| block(1 << 50 | round << 8 | at).0 >> 8);
            let known = (misses < NAMES).then(|| name(number));
            let Some((_, found)) = texts.find(unknown.chain(known)) else {
                return 0;
            };
            texts.chain(&found, &mut blocks);
            index.search(&blocks, &mut buffer).len()
        };
        let (p50, p99) = percentiles(&mut look);
        println!("{case}: p50 {p50:?}, p99 {p99:?}");
        let mut round = 0;
        group.bench_function(case, |bencher| {
            bencher.iter(|| {
                round += 1;
                look(round)
            });
        });
    }
    group.finish();
}

/// A captured batch, from bytes to the index.
fn events(bencher: &mut Criterion) {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/A_sha256cbor_int.jsonl"
    );
    let text = std::fs::read_to_string(path).expect("a golden file");
    let line: serde_json::Value =
        serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    let hex = line["payload_hex"].as_str().expect("hex");
    let payload: Vec<_> = (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex"))
        .collect();
    let mut group = bencher.benchmark_group("events");
    // Twelve blocks with 384 tokens.
    group.throughput(Throughput::Elements(12));
    group.bench_function("read a batch of 12 blocks", |bencher| {
        bencher.iter(|| Batch::read(black_box(&payload), &BatchLimits::default()));
    });
    let (mut index, _) = filled(0, 1);
    let mut publisher = Publisher::default();
    group.bench_function("read and apply it, and forget it", |bencher| {
        bencher.iter(|| {
            let batch = Batch::read(black_box(&payload), &BatchLimits::default());
            publisher.apply(&batch.expect("a batch"), &mut index);
            publisher.forget(&mut index);
            index.sweep(4);
        });
    });
    let holder = index.open().expect("room");
    group.throughput(Throughput::Elements(1));
    let mut next = 0;
    group.bench_function("store and remove a block among a million", |bencher| {
        bencher.iter(|| {
            next = (next + 7_919) % (CHAINS * CHAIN * 2);
            index.store(holder, Tier::Gpu, block(next));
            index.remove(holder, Tier::Gpu, block(next));
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30);
    targets = search, text_to_holders, events
}
criterion_main!(benches);
