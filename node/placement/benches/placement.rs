//! Means of the parts of a decision: `cargo bench -p grapevine-placement`.
//!
//! Percentiles of a whole decision: `cargo run --profile dist -p grapevine-placement --example decision_latency`.

use std::{hint::black_box, time::Duration};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use grapevine_placement::key::MARKS_MAX;
use grapevine_placement::{
    Candidate, HashAlgorithm, KeyBuilder, KeySettings, Link, Load, Member, Policy, PolicySettings,
    PrefixIndex, PrefixIndexSettings, Ring, RingSettings, Slot, Weight, decide,
};

const SIZES: [usize; 4] = [16, 240, 1_000, 5_000];

fn ring(workers: usize) -> Ring {
    let members = (0..workers).map(|index| Member {
        id: format!("http://10.0.0.1:{index}"),
        weight: Weight::ONE,
    });
    Ring::build(&RingSettings::default(), members).expect("distinct ids")
}

/// A system message, a question and a history, of so many bytes in all.
fn conversation(bytes: usize) -> [(&'static str, String); 4] {
    let part = |share: usize| {
        "the quick brown fox ".repeat(bytes / 20 + 1)[..bytes * share / 8].to_owned()
    };
    [
        ("system", part(2)),
        ("user", part(3)),
        ("assistant", part(2)),
        ("user", part(1)),
    ]
}

fn key(bencher: &mut Criterion) {
    let mut group = bencher.benchmark_group("key");
    for tokens in [2_048_usize, 8_192, 16_384] {
        let messages = conversation(tokens * 4);
        group.throughput(Throughput::Bytes(tokens as u64 * 4));
        for hash in HashAlgorithm::ALL {
            let settings = KeySettings {
                hash,
                ..KeySettings::default()
            };
            let mut links = Vec::new();
            group.bench_function(
                BenchmarkId::new(hash.as_str(), format!("{tokens} tokens")),
                |bencher| {
                    bencher.iter(|| {
                        let scratch = std::mem::take(&mut links);
                        let mut builder =
                            KeyBuilder::reusing(scratch, &settings, "llama-3-8b", b"tenant");
                        for (role, text) in &messages {
                            builder.begin_message(role);
                            builder.text(black_box(text));
                            builder.end_message();
                        }
                        let key = builder.finish();
                        let home = key.home();
                        links = key.into_links();
                        home
                    });
                },
            );
        }
    }
    group.finish();
}

fn lookup(bencher: &mut Criterion) {
    let mut group = bencher.benchmark_group("ring_lookup");
    for workers in SIZES {
        let ring = ring(workers);
        let mut hash = 1_u64;
        group.bench_function(BenchmarkId::from_parameter(workers), |bencher| {
            bencher.iter(|| {
                hash = hash.wrapping_mul(0xd129_0d3b_36ea_8d6b).wrapping_add(1);
                ring.successor(black_box(hash))
            });
        });
    }
    group.finish();
}

fn build(bencher: &mut Criterion) {
    let mut group = bencher.benchmark_group("ring_build");
    group.sample_size(10);
    for workers in SIZES {
        group.bench_function(BenchmarkId::from_parameter(workers), |bencher| {
            bencher.iter(|| ring(workers))
        });
    }
    group.finish();
}

fn decision(bencher: &mut Criterion) {
    let mut group = bencher.benchmark_group("decide");
    let mut builder = KeyBuilder::new(&KeySettings::default(), "llama-3-8b", b"tenant");
    builder.text(conversation(32_768)[1].1.as_str());
    let key = builder.finish();
    for workers in SIZES {
        let ring = ring(workers);
        let settings = PolicySettings::default();
        let mut candidates = vec![Candidate::default(); workers];
        group.bench_function(BenchmarkId::new("home", workers), |bencher| {
            bencher.iter(|| decide(&settings, &ring, black_box(&key), &candidates, &[], 0));
        });
        let home = ring.successor(key.marks()[0].hash).expect("a worker");
        let load = Load {
            requests: 40.0,
            prefill_tokens: 1e6,
            context_tokens: 1e6,
        };
        candidates[home] = Candidate {
            load,
            ..Candidate::default()
        };
        // The worst case: everybody else ties, so all are scored.
        group.bench_function(BenchmarkId::new("spill", workers), |bencher| {
            bencher.iter(|| decide(&settings, &ring, black_box(&key), &candidates, &[], 0));
        });
        let settings = PolicySettings {
            policy: Policy::LeastKv,
            ..settings
        };
        group.bench_function(BenchmarkId::new("least_kv", workers), |bencher| {
            bencher.iter(|| decide(&settings, &ring, black_box(&key), &candidates, &[], 0));
        });
    }
    group.finish();
}

/// The marks of a prompt of 512 tokens each, as long as one can be.
fn marks(prompt: u64) -> Vec<Link> {
    const TOKENS: u32 = 512;
    let links = (0..MARKS_MAX as u64).zip(1..);
    let link = |(at, count): (u64, u32)| Link {
        hash: (prompt << 32 | at << 8 | u64::from(TOKENS / 16)).wrapping_mul(0x1_0000_0001),
        tokens: TOKENS * count,
    };
    links.map(link).collect()
}

/// Placements and records at a prefix index that is full, as that of a busy cluster is.
fn evidence(bencher: &mut Criterion) {
    const NOW: Duration = Duration::from_secs(60);
    let mut group = bencher.benchmark_group("evidence");
    for workers in SIZES {
        let mut index = PrefixIndex::new(PrefixIndexSettings {
            cache_tokens: u64::MAX,
            ..PrefixIndexSettings::default()
        });
        let slots: Vec<Slot> = (0..workers)
            .map(|worker| index.slot(&format!("http://10.0.0.1:{worker}"), 1))
            .collect();
        let mut prompt = 0_u64;
        let mut turn = move || {
            prompt += 1;
            (slots[prompt as usize % slots.len()], marks(prompt))
        };
        while index.counters().crowded_out == 0 {
            let (slot, marks) = turn();
            index.record(slot, &marks, NOW);
        }
        group.throughput(Throughput::Elements(MARKS_MAX as u64));
        group.bench_function(BenchmarkId::new("new_prompt", workers), |bencher| {
            bencher.iter_batched(
                &mut turn,
                |(slot, marks)| index.record(slot, black_box(&marks), NOW),
                BatchSize::SmallInput,
            );
        });
        // Short enough to stay: with many workers the longest lists are shorter than a whole prompt.
        let (slot, mut known) = turn();
        known.truncate(MARKS_MAX / 8);
        index.record(slot, &known, NOW);
        group.throughput(Throughput::Elements(known.len() as u64));
        group.bench_function(BenchmarkId::new("known_prompt", workers), |bencher| {
            bencher.iter(|| index.record(slot, black_box(&known), NOW));
        });
    }
    // A system prompt that every worker holds, and a conversation behind it, as another replica tells of it.
    for workers in SIZES {
        let mut index = PrefixIndex::new(PrefixIndexSettings {
            cache_tokens: u64::MAX,
            ..PrefixIndexSettings::default()
        });
        let shared: Vec<u64> = marks(0)[..16].iter().map(|mark| mark.hash).collect();
        let names: Vec<String> = (0..workers)
            .map(|worker| format!("http://10.0.0.1:{worker}"))
            .collect();
        for name in &names {
            index.slot(name, 1);
            index.learn(name, 1, &shared, NOW);
        }
        let mut turn = 0_u64;
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("behind_shared", workers), |bencher| {
            bencher.iter(|| {
                turn += 1;
                let name = &names[turn as usize % names.len()];
                let told = [shared[15], turn << 8 | 1];
                index.learn(name, 1, black_box(&told), NOW);
            });
        });
    }
    // Of a flood: each asks for all of a long chain, in turns of as many chains as find room.
    let mut index = PrefixIndex::new(PrefixIndexSettings {
        cache_tokens: u64::MAX,
        ..PrefixIndexSettings::default()
    });
    let slot = index.slot("a", 1);
    let chains = PrefixIndexSettings::default().entries_max as usize / MARKS_MAX;
    let ends = (0..chains as u64).map(|prompt| {
        let chain = marks(prompt);
        index.record(slot, &chain, NOW);
        chain[MARKS_MAX - 1].hash
    });
    let ends: Vec<u64> = ends.collect();
    let mut turns = ends.iter().cycle();
    group.throughput(Throughput::Elements(1));
    group.bench_function("short_record", |bencher| {
        bencher.iter(|| {
            let end = turns.next().expect("there are chains");
            index.learn("a", 1, black_box(&[*end]), NOW);
        });
    });
    group.finish();
}

criterion_group!(benches, key, lookup, build, decision, evidence);
criterion_main!(benches);
