//! The fake worker's engine and the virtual one are one model: same jobs, same hits, same times.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::engine::{CacheSize, Done, Engine, Job};
use crate::fake_worker::EngineConfig;
use crate::fake_worker::engine::{Engine as Fake, Sequence};

const BLOCK: u32 = 64;
const BLOCKS: u32 = 6_000;

/// First and last token in µs, and the cached tokens, of a request.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    first_us: u64,
    last_us: u64,
    cached: u32,
}

#[derive(Clone)]
struct Arrival {
    at_us: u64,
    blocks: Vec<u64>,
    /// Blocks of the answer, behind the whole ones of the prompt.
    answer: Vec<u64>,
    in_tokens: u32,
    out_tokens: u32,
    /// Whole blocks of the prompt of the turn before; none, if it is the first.
    former: Option<usize>,
}

impl Arrival {
    /// A prompt of these blocks, the last one cut, with an answer of ids of its own.
    fn new(at_us: u64, number: u64, blocks: Vec<u64>, random: &mut StdRng) -> Self {
        let in_tokens = blocks.len() as u32 * BLOCK - random.random_range(0..BLOCK);
        let out_tokens = random.random_range(1..300);
        let filled = (in_tokens + out_tokens - 1) / BLOCK - in_tokens / BLOCK;
        Self {
            at_us,
            answer: (0..u64::from(filled))
                .map(|at| (1_000_000 + number) << 32 | at)
                .collect(),
            blocks,
            in_tokens,
            out_tokens,
            former: None,
        }
    }

    fn whole(&self) -> usize {
        (self.in_tokens / BLOCK) as usize
    }

    /// Whole blocks of prompt and answer.
    fn all(&self) -> Vec<u64> {
        [&self.blocks[..self.whole()], &self.answer].concat()
    }
}

/// Conversations of unequal length that share openings, at a rate at which queues form and go. Half of them have a
/// second turn, which begins with the first one's prompt and answer.
fn arrivals(seed: u64) -> Vec<Arrival> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut at_us = 0;
    let mut all = Vec::new();
    for number in 0..300u64 {
        at_us += random.random_range(0..450_000);
        let (group, shared) = (random.random_range(0..20u64), random.random_range(1..60));
        let own = random.random_range(0..80u64);
        let blocks: Vec<u64> = (0..shared)
            .map(|at| group << 32 | at)
            .chain((0..own).map(|at| (1_000 + number) << 32 | at))
            .collect();
        let first = Arrival::new(at_us, number, blocks, &mut random);
        if random.random_bool(0.5) {
            // Late enough for the first to have ended.
            let later_us = at_us + random.random_range(10_000_000..20_000_000);
            let mut blocks = first.all();
            let own = random.random_range(1..20u64);
            blocks.extend((0..own).map(|at| (500_000 + number) << 32 | at));
            let second = Arrival::new(later_us, 1_000_000 + number, blocks, &mut random);
            all.push(Arrival {
                former: Some(first.whole()),
                ..second
            });
        }
        all.push(first);
    }
    all.sort_by_key(|arrival| arrival.at_us);
    all
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
                    answer: arrival.answer.clone(),
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
            let sequence = Sequence {
                id: id as u64,
                chain: arrival.all(),
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
        for (name, times) in [("virtual", &virtual_), ("fake", &faked)] {
            let turns = arrivals.iter().zip(times);
            let turns = turns.filter_map(|(a, times)| Some((a.former?, times.cached)));
            let (all, found) = turns.fold((0, 0), |(all, found), (former, cached)| {
                (all + 1, found + usize::from(cached / BLOCK > former as u32))
            });
            assert!(
                found * 3 > all,
                "seed {seed}, {name}: {found} of {all} next turns found the answer"
            );
        }
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
