//! Percentiles of one decision, key hashing included: 8k-token prompts, 240 workers or as many as are asked for, 100,000 entries of evidence,
//! and system messages so hot that all workers share them. Evidence is what routers record: marks that heat alone does not tell.
//!
//! `cargo run --profile dist -p grapevine-placement --example decision_latency [decisions] [workers]`
//! Candidates are filled anew for each decision, as the caller has to.

#![allow(
    clippy::disallowed_methods,
    reason = "it measures time, placement itself has no clock"
)]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use grapevine_placement::{
    Candidate, HeatCounter, HotSet, Key, KeyBuilder, KeySettings, Load, Member, Policy,
    PolicySettings, PrefixIndex, PrefixIndexSettings, Price, Ring, RingSettings, Slot, Slots,
    Standing, View, Weight, decide,
};
use hdrhistogram::Histogram;

/// Unless another number is given.
const WORKERS: usize = 240;
const PROMPT_BYTES: usize = 8_192 * 4;
const SECOND: u64 = 1_000_000_000;
/// Texts to go round, so that one prompt does not stay in the first-level cache.
const PROMPTS: usize = 64;
/// Entries of evidence.
const EVIDENCE: usize = 100_000;
const NOW: Duration = Duration::from_secs(60);

fn main() {
    let decisions = std::env::args().nth(1).map_or(200_000, |count| {
        count.parse().expect("a number of decisions")
    });
    let workers = std::env::args()
        .nth(2)
        .map_or(WORKERS, |count| count.parse().expect("a number of workers"));
    let member = |index| Member {
        id: format!("http://10.0.0.1:{index}"),
        weight: Weight::ONE,
    };
    let ring =
        Ring::build(&RingSettings::default(), (0..workers).map(member)).expect("distinct ids");
    let prompts: Vec<String> = (0..PROMPTS).map(prompt).collect();
    let hot = heat(&prompts);
    let (prefix_index, slots) = evidence(&ring, &hot, &prompts);
    let view = View {
        ring: &ring,
        hot: &hot,
    };
    let mut numbers = 1_u64;
    let mut next = move || {
        numbers = numbers
            .wrapping_mul(0xd129_0d3b_36ea_8d6b)
            .wrapping_add(0x9e37_79b9);
        numbers >> 16
    };
    println!(
        "{workers} workers, {PROMPT_BYTES} bytes of prompt, {decisions} decisions, key included, {} entries of evidence; nanoseconds",
        prefix_index.len()
    );
    println!(
        "{:<22} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "policy", "mean", "p50", "p99", "p99.9", "max"
    );
    for (policy, price) in [
        (Policy::Prefix, Price::ADDITIVE),
        (Policy::Prefix, Price::MULTIPLICATIVE),
        (Policy::LeastRequest, Price::ADDITIVE),
        (Policy::LeastKv, Price::ADDITIVE),
    ] {
        let settings = PolicySettings {
            policy,
            price,
            ..PolicySettings::default()
        };
        let mut histogram = Histogram::<u64>::new_with_bounds(1, SECOND, 3).expect("valid bounds");
        let (mut links, mut candidates) = (Vec::new(), Vec::with_capacity(workers));
        for turn in 0..decisions {
            let loads: [u64; 4] = std::array::from_fn(|_| next());
            let start = Instant::now();
            let mut builder =
                KeyBuilder::reusing(links, &KeySettings::default(), "llama-3-8b", b"tenant");
            for (role, text) in split(&prompts[turn % PROMPTS]) {
                builder.begin_message(role);
                builder.text(text);
            }
            let key = builder.finish();
            candidates.clear();
            candidates
                .extend((0..workers).map(|index| candidate(loads[index % 4] >> (index % 16))));
            prefix_index.fill(&key, &slots, NOW, &mut candidates);
            if policy.looks_at_caches() {
                prefix_index.fill_caches(&slots, &mut candidates);
            }
            let decision = decide(&settings, view, &key, &candidates, &[], loads[0]);
            let elapsed = start.elapsed();
            assert!(black_box(decision).is_ok());
            links = key.into_links();
            histogram.saturating_record(u64::try_from(elapsed.as_nanos()).unwrap_or(SECOND));
        }
        print_row(&format!("{policy}, {}", price.as_str()), &histogram);
    }
}

fn print_row(name: &str, histogram: &Histogram<u64>) {
    let at = |quantile| histogram.value_at_quantile(quantile);
    println!(
        "{name:<22} {:>8.0} {:>8} {:>8} {:>8} {:>8}",
        histogram.mean(),
        at(0.5),
        at(0.99),
        at(0.999),
        histogram.max()
    );
}

/// The first quarter, the system message, is the same for all.
fn prompt(number: usize) -> String {
    let fill = |line: String, bytes: usize| line.repeat(bytes / line.len() + 1)[..bytes].to_owned();
    let system = fill(
        "the quick brown fox jumps over the lazy dog\n".to_owned(),
        PROMPT_BYTES / 4,
    );
    system
        + &fill(
            format!("prompt {number}: the lazy dog sleeps\n"),
            PROMPT_BYTES / 4 * 3,
        )
}

fn key(prompt: &str) -> Key {
    let mut builder = KeyBuilder::new(&KeySettings::default(), "llama-3-8b", b"tenant");
    for (role, text) in split(prompt) {
        builder.begin_message(role);
        builder.text(text);
    }
    builder.finish()
}

/// The prompts on three workers each, and other prompts until the prefix index is as full as asked for.
fn evidence(ring: &Ring, hot: &HotSet, prompts: &[String]) -> (PrefixIndex, Slots) {
    let mut prefix_index = PrefixIndex::new(PrefixIndexSettings::default());
    let slots: Vec<Slot> = ring
        .members()
        .iter()
        .map(|member| prefix_index.slot(&member.id, 1))
        .collect();
    let settings = PolicySettings::default();
    let idle = vec![Candidate::default(); slots.len()];
    let mut place = |worker: usize, key: &Key| {
        let view = View { ring, hot };
        let decision = decide(&settings, view, key, &idle, &[], 0).expect("all are usable");
        prefix_index.record(slots[worker % slots.len()], decision.marks(key), NOW);
        prefix_index.len()
    };
    for (turn, prompt) in prompts.iter().enumerate() {
        for worker in 0..3 {
            place(turn * 3 + worker, &key(prompt));
        }
    }
    for number in PROMPTS.. {
        if place(number, &key(&prompt(number))) >= EVIDENCE {
            break;
        }
    }
    (prefix_index, slots.into_iter().collect())
}

fn heat(prompts: &[String]) -> HotSet {
    let mut counter = HeatCounter::new(&PolicySettings::default().heat);
    for prompt in prompts.iter().cycle().take(PROMPTS * 10) {
        counter.count(&key(prompt));
    }
    HotSet::sum([counter.report(NOW)])
}

fn split(prompt: &str) -> [(&'static str, &str); 4] {
    let (system, rest) = prompt.split_at(PROMPT_BYTES / 4);
    let (first, rest) = rest.split_at(PROMPT_BYTES / 4);
    let (answer, last) = rest.split_at(PROMPT_BYTES / 4);
    [
        ("system", system),
        ("user", first),
        ("assistant", answer),
        ("user", last),
    ]
}

fn candidate(bits: u64) -> Candidate {
    let load = Load {
        requests: (bits % 32) as f64,
        prefill_tokens: (bits % 16_384) as f64,
        context_tokens: (bits % 262_144) as f64,
    };
    Candidate {
        load,
        exact_requests: 0.0,
        surge_requests: 0.0,
        standing: Standing::Usable,
        ..Candidate::default()
    }
}
