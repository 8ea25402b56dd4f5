//! Laws of the virtual replay: repeatable, conserving, and of the right order.

use std::collections::HashMap;

use super::gaps::Gaps;
use super::timed_engine::{Done, Job, TimedEngine};
use super::*;
use crate::engine::{Change, Kv};
use crate::replay::{Row, Trace};

/// Tokens of a step.
pub(super) const STEP: u32 = 8_192;

pub(super) const SMALL: CacheSize = CacheSize {
    device_tokens: 100_000,
    host_tokens: 0,
};

pub(super) fn scenario() -> Scenario {
    Scenario {
        replicas: 3,
        workers: 4,
        split: None,
        step_tokens: STEP,
        cache: SMALL,
        load_age_us: 50_000,
        slow_us: 0,
        loss: 0.0,
        unheard_workers: 0,
        speed: 1.0,
        limit_us: 500_000,
        limit_token_us: 100,
        gap_limit_us: 50_000,
        ring: 0,
        seed: 7,
    }
}

/// Sessions that share a system prompt and grow; a row every 50 ms.
pub(super) fn workload() -> Workload {
    let row = |number: u64| {
        let (session, turn) = (number % 40, number / 40);
        let own = (0..=turn).map(|turn| 1_000 + session * 100 + turn);
        let blocks: Vec<u64> = [1, 2, 3].into_iter().chain(own).collect();
        Row {
            t_ms: number * 50,
            in_tokens: blocks.len() as u32 * 512 - 10,
            out_tokens: 20,
            blocks,
            session: Some(session),
            gap_ms: None,
        }
    };
    let trace = Trace {
        block_tokens: 512,
        system_blocks: 3,
        rows: (0..400).map(row).collect(),
    };
    Workload::of_trace("test", &trace, Form::Chat)
}

/// Runs a worker until nothing is left to do; returns what was done, and when.
fn drain(engine: &mut TimedEngine, mut next: Option<u64>) -> Vec<(u64, Done)> {
    let mut all = Vec::new();
    while let Some(at_us) = next {
        let mut done = Vec::new();
        next = engine.advance(at_us, &mut done, &mut Gaps::new(0));
        all.extend(done.into_iter().map(|done| (at_us, done)));
    }
    all
}

fn job(request: usize, blocks: std::ops::Range<u64>, out_tokens: u32) -> Job {
    Job {
        request,
        in_tokens: (blocks.end - blocks.start) as u32 * 512,
        blocks: blocks.collect(),
        answer: Vec::new(),
        out_tokens,
        kv: Kv::Local,
    }
}

#[test]
fn a_prompt_is_cached_but_for_its_last_block() {
    let mut engine = TimedEngine::new(512, SMALL, STEP);
    let next = engine.submit(0, job(0, 0..8, 5));
    let cold = drain(&mut engine, next);
    assert_eq!(
        cold[0].1,
        Done::First {
            request: 0,
            cached: 0
        }
    );
    assert_eq!(cold[1].1, Done::Last { request: 0 });
    assert_eq!((engine.requests(), engine.pending_tokens()), (0, 0));
    // The last token is always computed, so the last whole block is not reused.
    let next = engine.submit(10_000_000, job(1, 0..8, 5));
    let warm = drain(&mut engine, next);
    assert_eq!(
        warm[0].1,
        Done::First {
            request: 1,
            cached: 7 * 512
        }
    );
    assert!(
        warm[0].0 - 10_000_000 < cold[0].0 / 2,
        "{warm:?} after {cold:?}"
    );
}

#[test]
fn the_host_tier_keeps_what_the_device_lost() {
    for (host_tokens, cached) in [(0, 0), (1_000_000, 7 * 512)] {
        let size = CacheSize {
            device_tokens: 40 * 512,
            host_tokens,
        };
        let mut engine = TimedEngine::new(512, size, STEP);
        for (number, start) in (0..10).map(|start| start * 100).enumerate() {
            let next = engine.submit(number as u64 * 10_000_000, job(number, start..start + 8, 1));
            drain(&mut engine, next);
        }
        let next = engine.submit(200_000_000, job(99, 0..8, 1));
        let again = drain(&mut engine, next);
        assert_eq!(
            again[0].1,
            Done::First {
                request: 99,
                cached
            },
            "host {host_tokens}"
        );
    }
}

/// Whoever adds up what a worker says knows its cache, also while blocks go to the host and leave it.
#[test]
fn changes_add_up_to_what_is_held() {
    let size = CacheSize {
        device_tokens: 40 * 512,
        host_tokens: 60 * 512,
    };
    let mut engine = TimedEngine::new(512, size, STEP);
    engine.keep_changes();
    let (mut tiers, mut removed) = (HashMap::<u64, i32>::new(), 0);
    for number in 0..40_u64 {
        let start = (number * number + number / 3) % 7 * 100;
        let next = engine.submit(
            number * 10_000_000,
            job(number as usize, start..start + 9, 1),
        );
        drain(&mut engine, next);
        for change in engine.take_changes() {
            match change {
                Change::Stored { block, .. } => *tiers.entry(block).or_default() += 1,
                Change::Removed(block) => {
                    removed += 1;
                    *tiers.entry(block).or_default() -= 1;
                }
            }
        }
        for start in (0..7).map(|start| start * 100) {
            // The last token of a prompt is always computed, so a tenth block is asked for.
            let blocks: Vec<u64> = (start..start + 10).collect();
            let known = blocks
                .iter()
                .take_while(|&block| tiers.get(block).is_some_and(|&count| count > 0))
                .count();
            let held = engine.matched_tokens(&blocks, 10 * 512);
            assert_eq!(known as u32 * 512, held, "after {number}, from {start}");
        }
    }
    assert!(removed > 100, "{removed} removals");
}

/// Tokens that the last request found in the cache, after the others ran one after the other.
fn cached_at_last(size: CacheSize, jobs: Vec<Job>) -> u32 {
    let mut engine = TimedEngine::new(512, size, STEP);
    let mut last = 0;
    for (number, job) in jobs.into_iter().enumerate() {
        let next = engine.submit(number as u64 * 1_000_000_000, job);
        for (_, done) in drain(&mut engine, next) {
            if let Done::First { cached, .. } = done {
                last = cached;
            }
        }
    }
    last
}

#[test]
fn the_next_turn_finds_the_former_answer() {
    let first = || Job {
        answer: vec![4, 5],
        ..job(0, 0..4, 2 * 512 + 100)
    };
    assert_eq!(
        cached_at_last(SMALL, vec![first(), job(1, 0..8, 1)]),
        6 * 512
    );
    // A prompt that fills the cache evicts the blocks, which then are on the host.
    let size = CacheSize {
        device_tokens: 20 * 512,
        host_tokens: 1_000_000,
    };
    let jobs = vec![first(), job(1, 100..120, 1), job(2, 0..8, 1)];
    assert_eq!(cached_at_last(size, jobs), 6 * 512);
}

#[test]
fn answers_push_out_what_was_used_before_them() {
    let size = CacheSize {
        device_tokens: 40 * 512,
        host_tokens: 0,
    };
    // 8 blocks, then five times 4 and an answer of 3; the last of these needs 8 and finds room for 4 of them.
    for (caches, cached) in [(false, 7 * 512), (true, 4 * 512)] {
        let mut jobs = vec![job(0, 0..8, 1)];
        jobs.extend((1..=5).map(|number| {
            let start = number * 100;
            let answer = start + 4..start + 7;
            Job {
                answer: if caches { answer.collect() } else { Vec::new() },
                ..job(number as usize, start..start + 4, 3 * 512 + 1)
            }
        }));
        jobs.push(job(6, 0..8, 1));
        assert_eq!(cached_at_last(size, jobs), cached, "{caches}");
    }
}

/// Many decode steps in one, cut by an arrival, take as long as uncut ones.
#[test]
fn decoding_takes_as_long_however_it_is_cut() {
    let alone = {
        let mut engine = TimedEngine::new(512, SMALL, STEP);
        let next = engine.submit(0, job(0, 0..4, 200));
        drain(&mut engine, next).last().expect("an end").0
    };
    let mut engine = TimedEngine::new(512, SMALL, STEP);
    let first = engine.submit(0, job(0, 0..4, 200)).expect("a step");
    let next = engine
        .advance(first, &mut Vec::new(), &mut Gaps::new(0))
        .expect("decoding");
    assert_eq!(next, alone, "nothing between the first and the last token");
    let cut = engine
        .submit(alone / 2, job(1, 100..104, 1))
        .expect("the step is cut");
    assert!(
        cut >= alone / 2 && cut < alone / 2 + 10_000,
        "{cut} after {}",
        alone / 2
    );
    assert!(
        engine
            .advance(alone, &mut Vec::new(), &mut Gaps::new(0))
            .is_none(),
        "the longer step is void"
    );
    let done = drain(&mut engine, Some(cut));
    let end = done
        .iter()
        .find(|(_, done)| *done == Done::Last { request: 0 })
        .expect("it ends")
        .0;
    // One step of prefill in between: 2,048 tokens.
    assert!(
        end > alone + 40_000 && end < alone + 70_000,
        "{end} instead of {alone}"
    );
}

#[test]
fn equal_seeds_make_equal_results() {
    let workload = workload();
    let text = |seed| {
        let scenario = Scenario { seed, ..scenario() };
        format!(
            "{:?}",
            run(&workload, &Contender::prefix(), &scenario, false)
        )
    };
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8));
}

#[test]
fn every_rule_serves_every_request() {
    let workload = workload();
    let mut contenders = Contender::policies();
    contenders.extend(Contender::ablations());
    contenders.push(Contender::oracle());
    for contender in contenders {
        for loss in [0.0, 0.3, 1.0] {
            let scenario = Scenario { loss, ..scenario() };
            let outcome = run(&workload, &contender, &scenario, false).expect("to its end");
            assert_eq!(outcome.requests, 360, "{}, loss {loss}", contender.name);
            assert!(
                outcome.hit_rate < 1.0 && outcome.ttft_p99_ms > 0.0,
                "{outcome:?}"
            );
        }
    }
}

#[test]
fn affinity_beats_chance_and_agrees() {
    let workload = workload();
    let of = |name| {
        let contender = Contender::named(name).expect("known");
        run(&workload, &contender, &scenario(), false).expect("to its end")
    };
    let (prefix, random) = (of("prefix"), of("random"));
    assert!(
        prefix.hit_rate > random.hit_rate + 0.05,
        "{prefix:?} {random:?}"
    );
    assert!(
        prefix.agreement > 0.9 && random.agreement < 0.5,
        "{prefix:?} {random:?}"
    );
}

#[test]
fn capacity_lies_where_requests_begin_to_miss_the_limit() {
    let workload = workload();
    let scenario = scenario();
    let found = capacity(&workload, &Contender::prefix(), &scenario, 1.0, || ());
    let good = |factor: f64| {
        let scenario = Scenario {
            speed: found * factor,
            ..scenario.clone()
        };
        run(&workload, &Contender::prefix(), &scenario, false)
            .expect("to its end")
            .good_share
    };
    assert!(good(1.0) >= 0.9 && good(1.5) < 0.9, "capacity {found}");
}

/// Ten sessions of four turns, half a second apart, that begin within 18 s.
pub(super) fn sessions() -> Trace {
    let row = |number: u64| {
        let (session, turn) = (number / 4, number % 4);
        let own = (0..=turn).map(|turn| 1_000 + session * 100 + turn);
        let blocks: Vec<u64> = [1, 2, 3].into_iter().chain(own).collect();
        Row {
            t_ms: session * 2_000,
            in_tokens: blocks.len() as u32 * 512 - 10,
            out_tokens: 20,
            blocks,
            session: Some(session),
            gap_ms: Some(500),
        }
    };
    Trace {
        block_tokens: 512,
        system_blocks: 3,
        rows: (0..40).map(row).collect(),
    }
}

#[test]
fn the_capacity_of_a_closed_loop_is_found_with_more_sessions() {
    let workload = Workload::of_sessions("closed", sessions(), 1, Form::Chat);
    let (prefix, scenario) = (
        Contender::prefix(),
        Scenario {
            workers: 1,
            ..scenario()
        },
    );
    let good = |workload: &Workload, speed: f64| {
        let scenario = Scenario {
            speed,
            ..scenario.clone()
        };
        let outcome = run(workload, &prefix, &scenario, false).expect("to its end");
        outcome.good_share
    };
    assert!(
        good(&workload, 1e9) >= 0.9,
        "ten sessions are no load, even at once"
    );
    let alone = Workload::of_trace("closed", &sessions(), Form::Chat);
    let unbounded = capacity(&alone, &prefix, &scenario, 4.0, || ());
    assert!(unbounded.is_infinite(), "{unbounded} without more sessions");
    let mut runs = 0;
    let found = capacity(&workload, &prefix, &scenario, 4.0, || runs += 1);
    assert!(runs < 30, "{runs} runs, {found}");
    let good_at = |rate: f64| {
        let (load, speed) = workload.at(rate).expect("few requests");
        let last = load.chains.last().expect("some").start_us as f64 / speed;
        assert!((17e6..40e6).contains(&last), "{last} us at rate {rate}");
        good(&load, speed)
    };
    assert!(
        good_at(found) >= 0.9 && good_at(found * 1.5) < 0.9,
        "capacity {found}"
    );
}

#[test]
fn a_rate_that_needs_too_many_sessions_is_none() {
    let workload = Workload::of_sessions("closed", sessions(), 2, Form::Plain);
    let requests = |rate| {
        let (load, factor) = workload.at(rate)?;
        Some((load.requests.len(), factor))
    };
    assert_eq!(requests(1.0), Some((80, 1.0)));
    assert_eq!(requests(1.25), Some((120, 2.5 / 3.0)));
    assert_eq!(requests(0.25), Some((40, 0.5)));
    assert_eq!(requests(12_501.0), None, "more than a million");
    let open = self::workload();
    let (same, factor) = open.at(7.0).expect("no copies");
    assert_eq!((same.requests.len(), factor), (400, 7.0));
}

#[test]
fn answers_have_the_blocks_that_the_next_turn_brings() {
    let mut trace = sessions();
    for row in &mut trace.rows {
        row.out_tokens = 511;
    }
    let workload = Workload::of_trace("closed", &trace, Form::Chat);
    let asked: std::collections::HashSet<u64> = trace
        .rows
        .iter()
        .flat_map(|row| row.blocks.clone())
        .collect();
    for (number, request) in workload.requests.iter().enumerate() {
        // Prompts are 10 tokens short of whole blocks: the answer fills the last one.
        let at = request.blocks.len() - 1;
        let goes_on = number % 4 != 3;
        assert_eq!(request.answer.len(), 1, "{request:?}");
        if goes_on {
            assert_eq!(request.answer[0], workload.requests[number + 1].blocks[at]);
        } else {
            assert!(!asked.contains(&request.answer[0]), "{request:?}");
        }
    }
}

#[test]
fn copies_share_what_sessions_share() {
    let row = |session, blocks: &[u64]| Row {
        t_ms: session * 10,
        in_tokens: 1,
        out_tokens: 1,
        blocks: blocks.to_vec(),
        session: Some(session),
        gap_ms: Some(0),
    };
    let trace = Trace {
        block_tokens: 16,
        system_blocks: 1,
        rows: vec![row(0, &[1, 2]), row(1, &[1, 3])],
    };
    let twice = copies(&trace, 2);
    let firsts: Vec<u64> = twice.rows.iter().map(|row| row.blocks[0]).collect();
    let mut lasts: Vec<u64> = twice.rows.iter().map(|row| row.blocks[1]).collect();
    lasts.sort_unstable();
    lasts.dedup();
    assert_eq!((firsts, lasts.len()), (vec![1; 4], 4));
}

#[test]
fn reports_hold_every_line() {
    let setting = Setting {
        scenario: scenario(),
        capacity: false,
        contenders: Contender::policies(),
    };
    let lines = compare(&[workload()], &[setting], |_, _, _| ());
    let count = Contender::policies().len();
    assert_eq!(
        (lines.len(), csv(&lines).lines().count()),
        (count, count + 1)
    );
    let header = csv(&lines)
        .lines()
        .next()
        .map(|line| line.split(',').count());
    assert!(
        csv(&lines)
            .lines()
            .all(|line| Some(line.split(',').count()) == header)
    );
    for contender in Contender::policies() {
        assert!(table(&lines).contains(&contender.name) && svg(&lines).contains(&contender.name));
    }
}

#[test]
fn hundreds_of_workers_are_as_many_addresses() {
    let many = Scenario {
        workers: 600,
        ..scenario()
    };
    let outcome = run(&workload(), &Contender::prefix(), &many, false).expect("it runs to its end");
    assert_eq!(outcome.requests, 360);
}
