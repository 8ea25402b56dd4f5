//! The fake worker's engine and the virtual one are one model: same jobs, same hits, same times.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::engine::{CacheSize, Done, Engine, Job};
use crate::fake_worker::EngineConfig;
use crate::fake_worker::engine::{Engine as Fake, Sequence};

const BLOCK: u32 = 64;
const BLOCKS: u32 = 2_000;

/// First and last token in µs, and the cached tokens, of a request.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    first_us: u64,
    last_us: u64,
    cached: u32,
}

struct Arrival {
    at_us: u64,
    blocks: Vec<u64>,
    in_tokens: u32,
    out_tokens: u32,
}

/// Conversations of unequal length that share openings, at a rate at which queues form and go.
fn arrivals(seed: u64) -> Vec<Arrival> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut at_us = 0;
    let arrival = |number: u64| {
        at_us += random.random_range(0..300_000);
        let (group, shared) = (random.random_range(0..20u64), random.random_range(1..60));
        let own = random.random_range(0..80u64);
        let blocks: Vec<u64> = (0..shared)
            .map(|at| group << 32 | at)
            .chain((0..own).map(|at| (1_000 + number) << 32 | at))
            .collect();
        Arrival {
            at_us,
            in_tokens: blocks.len() as u32 * BLOCK - random.random_range(0..BLOCK),
            out_tokens: random.random_range(1..300),
            blocks,
        }
    };
    (0..400).map(arrival).collect()
}

fn virtually(arrivals: &[Arrival]) -> Vec<Times> {
    let mut engine = Engine::new(
        BLOCK,
        CacheSize {
            device_tokens: BLOCKS * BLOCK,
            host_tokens: 0,
        },
    );
    let mut times = vec![Times::default(); arrivals.len()];
    let (mut next, mut done) = (None, Vec::new());
    let mut waiting = arrivals.iter().enumerate().peekable();
    loop {
        let arrives = waiting.peek().map(|(_, arrival)| arrival.at_us);
        match (arrives, next) {
            (None, None) => return times,
            (Some(at_us), step) if step.is_none_or(|step| at_us < step) => {
                let (request, arrival) = waiting.next().expect("it was peeked at");
                let job = Job {
                    request,
                    blocks: arrival.blocks.clone(),
                    in_tokens: arrival.in_tokens,
                    out_tokens: arrival.out_tokens,
                };
                next = engine.submit(at_us, job).or(next);
            }
            (_, None) => unreachable!("one of the arms above"),
            (_, Some(now_us)) => {
                next = engine.advance(now_us, &mut done);
                for done in done.drain(..) {
                    match done {
                        Done::First { request, cached } => {
                            times[request].first_us = now_us;
                            times[request].cached = cached;
                        }
                        Done::Last { request } => times[request].last_us = now_us,
                    }
                }
            }
        }
    }
}

fn faked(arrivals: &[Arrival]) -> Vec<Times> {
    let mut engine = Fake::new(EngineConfig {
        block_tokens: BLOCK,
        blocks: BLOCKS,
        ..EngineConfig::llama_8b_h100()
    });
    let mut times: BTreeMap<u64, Times> = BTreeMap::new();
    let mut waiting = arrivals.iter().enumerate().peekable();
    let mut now_us = 0;
    loop {
        while let Some((id, arrival)) = waiting.next_if(|(_, arrival)| arrival.at_us <= now_us) {
            // The answer's blocks have no content here: the trace does not say what was answered.
            let sequence = Sequence {
                id: id as u64,
                chain: arrival.blocks.clone(),
                prompt_tokens: arrival.in_tokens,
                answer_tokens: arrival.out_tokens,
            };
            engine.submit(sequence).expect("no limit");
        }
        let Some(step) = engine.step() else {
            match waiting.peek() {
                Some((_, arrival)) => now_us = arrival.at_us,
                None => return times.into_values().collect(),
            }
            continue;
        };
        now_us += step.cost.as_micros() as u64;
        for (id, progress) in step.progress {
            let times = times.entry(id).or_default();
            if progress.produced == 1 {
                times.first_us = now_us;
                times.cached = progress.cached_tokens;
            }
            if progress.done {
                times.last_us = now_us;
            }
        }
    }
}

#[test]
fn both_engines_are_one_model() {
    for seed in 1..=5 {
        let arrivals = arrivals(seed);
        let (virtual_, faked) = (virtually(&arrivals), faked(&arrivals));
        let sum = |times: &[Times], of: fn(&Times) -> u64| times.iter().map(of).sum::<u64>() as f64;
        let wait = |times: &[Times], of: fn(&Times) -> u64| {
            sum(times, of) - arrivals.iter().map(|a| a.at_us).sum::<u64>() as f64
        };
        // A prompt that is admitted one step earlier or later moves all behind it: sums are compared.
        for (what, a, b) in [
            (
                "cached tokens",
                sum(&virtual_, |t| t.cached.into()),
                sum(&faked, |t| t.cached.into()),
            ),
            (
                "first tokens",
                wait(&virtual_, |t| t.first_us),
                wait(&faked, |t| t.first_us),
            ),
            (
                "last tokens",
                wait(&virtual_, |t| t.last_us),
                wait(&faked, |t| t.last_us),
            ),
        ] {
            assert!(
                (a / b - 1.0).abs() < 0.02,
                "seed {seed}, {what}: virtual {a}, fake {b}"
            );
        }
    }
}
