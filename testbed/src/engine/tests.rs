//! Rules of the engine model, by table and by random schedule.

use proptest::prelude::*;

use super::*;

/// A pass from begin to end.
struct Step {
    cost: Duration,
    progress: Vec<(u64, Progress)>,
}

impl Engine {
    fn step(&mut self) -> Option<Step> {
        let passes = self.begin(1)?;
        Some(Step {
            cost: passes.cost(1),
            progress: self.finish(1),
        })
    }
}

fn config() -> EngineConfig {
    EngineConfig {
        blocks: 64,
        running_max: 4,
        step_tokens_max: 64,
        ..EngineConfig::default()
    }
}

/// A prompt of `tokens` tokens whose chain is that of group `group`.
fn sequence(id: u64, group: u64, prompt_tokens: u32, answer_tokens: u32) -> Sequence {
    let blocks = u64::from((prompt_tokens + answer_tokens) / 16);
    let chain = (0..blocks).map(|block| group << 32 | block).collect();
    Sequence {
        id,
        chain,
        prompt_tokens,
        answer_tokens,
    }
}

/// Runs until idle; returns the last progress of each sequence, in order of ending.
fn drain(engine: &mut Engine) -> Vec<(u64, Progress)> {
    let mut ended = Vec::new();
    while let Some(step) = engine.step() {
        ended.extend(step.progress.into_iter().filter(|(_, p)| p.done));
    }
    ended
}

#[test]
fn hits_are_whole_blocks_and_never_the_last_token() {
    // (prompt tokens, cached tokens when it comes again)
    for (tokens, cached) in [(1, 0), (16, 0), (17, 16), (32, 16), (33, 32), (100, 96)] {
        let mut engine = Engine::new(config());
        for id in [1, 2] {
            engine.submit(sequence(id, 7, tokens, 1)).expect("no limit");
            let ended = drain(&mut engine);
            let expected = if id == 1 { 0 } else { cached };
            assert_eq!(
                ended[0].1.cached_tokens, expected,
                "{tokens} tokens, try {id}"
            );
        }
    }
}

#[test]
fn answer_blocks_are_reused_by_the_next_turn() {
    let mut engine = Engine::new(config());
    engine.submit(sequence(1, 7, 32, 33)).expect("no limit");
    drain(&mut engine);
    // Same conversation, longer: 32 prompt + 32 of the answer are whole computed blocks; the
    // answer's last token was never fed back, so it is not in the cache.
    engine.submit(sequence(2, 7, 100, 1)).expect("no limit");
    assert_eq!(drain(&mut engine)[0].1.cached_tokens, 64);
}

#[test]
fn a_chunk_is_reusable_before_the_prompt_is_complete() {
    let mut engine = Engine::new(config());
    engine.submit(sequence(1, 7, 200, 1)).expect("no limit");
    engine.step();
    engine.submit(sequence(2, 7, 200, 1)).expect("no limit");
    let ended = drain(&mut engine);
    assert!(ended.iter().any(|(id, p)| *id == 2 && p.cached_tokens > 0));
}

#[test]
fn cost_follows_uncached_tokens_and_batch_size() {
    let mut engine = Engine::new(config());
    engine.submit(sequence(1, 7, 64, 3)).expect("no limit");
    let cold = engine.step().expect("work").cost;
    assert_eq!(cold, Duration::from_micros(10_000 + 6_400));
    let decode = engine.step().expect("work").cost;
    assert_eq!(decode, Duration::from_micros(10_200));
    drain(&mut engine);
    engine.submit(sequence(2, 7, 64, 3)).expect("no limit");
    let warm = engine.step().expect("work").cost;
    assert_eq!(
        warm,
        Duration::from_micros(10_000 + 1_600),
        "16 of 64 left to compute"
    );
}

#[test]
fn slots_are_bounded_and_the_queue_is_first_in_first_out() {
    let mut engine = Engine::new(config());
    for id in 0..10 {
        engine.submit(sequence(id, id, 4, 5)).expect("no limit");
    }
    engine.step();
    assert_eq!((engine.gauges().running, engine.gauges().waiting), (4, 6));
    let order: Vec<u64> = drain(&mut engine).into_iter().map(|(id, _)| id).collect();
    assert_eq!(order, (0..10).collect::<Vec<_>>());
}

#[test]
fn queue_limits_refuse_and_count() {
    let limits = EngineConfig {
        queued_requests_max: Some(2),
        queued_tokens_max: Some(100),
        ..config()
    };
    let mut engine = Engine::new(limits);
    assert_eq!(engine.submit(sequence(1, 1, 60, 1)), Ok(()));
    assert_eq!(engine.submit(sequence(2, 2, 60, 1)), Err(Refusal::Tokens));
    assert_eq!(engine.submit(sequence(3, 3, 40, 1)), Ok(()));
    assert_eq!(engine.submit(sequence(4, 4, 1, 1)), Err(Refusal::Requests));
    let counted = engine.counters();
    assert_eq!((counted.refused_requests, counted.refused_tokens), (1, 1));
    drain(&mut engine);
    assert_eq!(engine.submit(sequence(5, 5, 60, 1)), Ok(()));
}

#[test]
fn an_embedding_ends_with_its_prefill() {
    let mut engine = Engine::new(config());
    engine.submit(sequence(1, 1, 20, 0)).expect("no limit");
    let ended = drain(&mut engine);
    assert_eq!(
        (ended[0].1.produced, engine.counters().generated_tokens),
        (0, 0)
    );
}

#[derive(Debug, Clone)]
enum Action {
    Submit {
        group: u64,
        prompt: u32,
        answer: u32,
    },
    Abort(u64),
    Step,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (0..4u64, 1..300u32, 0..40u32)
            .prop_map(|(group, prompt, answer)| Action::Submit { group, prompt, answer }),
        1 => (0..40u64).prop_map(Action::Abort),
        4 => Just(Action::Step),
    ]
}

proptest! {
    /// Whatever the schedule: the cache is never overbooked, counters add up, everything that was
    /// not aborted ends with its full answer, and an idle engine holds no block.
    #[test]
    fn any_schedule_keeps_the_books(actions in prop::collection::vec(action(), 1..120)) {
        let mut engine = Engine::new(config());
        let mut open = HashMap::new();
        for (id, action) in actions.into_iter().enumerate() {
            match action {
                Action::Submit { group, prompt, answer } => {
                    let id = id as u64;
                    engine.submit(sequence(id, group, prompt, answer)).expect("no limit");
                    open.insert(id, answer);
                }
                Action::Abort(id) => {
                    engine.abort(id);
                    open.remove(&id);
                }
                Action::Step => {
                    for (id, progress) in engine.step().into_iter().flat_map(|step| step.progress) {
                        if progress.done {
                            prop_assert_eq!(open.remove(&id), Some(progress.produced));
                        }
                    }
                }
            }
            let gauges = engine.gauges();
            prop_assert!(gauges.cache_usage <= 1.0);
            prop_assert!(gauges.running <= 4);
        }
        for (id, progress) in drain(&mut engine) {
            prop_assert_eq!(open.remove(&id), Some(progress.produced));
        }
        prop_assert!(open.is_empty(), "left behind: {:?}", open);
        prop_assert_eq!(engine.gauges(), Gauges::default());
        prop_assert!(engine.counters().hit_tokens <= engine.counters().queried_tokens);
    }
}

#[test]
fn a_prompt_from_elsewhere_takes_room_but_no_slot_until_it_is_here() {
    let mut engine = Engine::new(EngineConfig {
        running_max: 1,
        ..config()
    });
    let remote = sequence(1, 7, 100, 4);
    engine.submit_with(remote, Kv::Remote).expect("no limit");
    engine.submit(sequence(2, 8, 32, 2)).expect("no limit");
    let first = engine.step().expect("the second runs");
    assert_eq!(first.progress[0].0, 2);
    let reserved = engine.take_reserved();
    assert_eq!((reserved.len(), reserved[0].0), (1, 1));
    let progress = reserved[0].1;
    assert_eq!((progress.external_tokens, progress.reserved), (100, true));
    let gauges = engine.gauges();
    assert_eq!((gauges.running, gauges.deferred, gauges.waiting), (1, 1, 0));
    assert_eq!(gauges.cache_usage, f64::from(7 + 3) / 64.0);
    engine.arrived(1);
    assert_eq!((engine.gauges().deferred, engine.gauges().waiting), (0, 1));
    let ended = drain(&mut engine);
    let ids: Vec<u64> = ended.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [2, 1]);
    assert_eq!(engine.counters().external_tokens, 100);
    assert_eq!(engine.gauges(), Gauges::default());
    // What came is in the cache like what was computed here.
    engine.submit(sequence(3, 7, 100, 1)).expect("no limit");
    assert_eq!(drain(&mut engine)[0].1.cached_tokens, 96);
}

#[test]
fn the_first_token_after_a_transfer_costs_one_token_of_prefill() {
    let mut engine = Engine::new(config());
    let remote = sequence(1, 7, 100, 4);
    engine.submit_with(remote, Kv::Remote).expect("no limit");
    assert!(engine.step().is_none(), "nothing to compute meanwhile");
    engine.arrived(1);
    let step = engine.step().expect("it runs");
    let token = Duration::from_secs_f64(1.0 / engine.config.prefill_tokens_per_s);
    assert_eq!(step.cost, engine.config.step_base + token);
    assert_eq!(step.progress[0].1.produced, 1);
}

#[test]
fn kept_blocks_stay_after_the_end_until_they_are_given_up() {
    let mut engine = Engine::new(config());
    let kept = sequence(1, 7, 100, 1);
    engine.submit_with(kept, Kv::Kept).expect("no limit");
    drain(&mut engine);
    assert_eq!(engine.gauges().cache_usage, 7.0 / 64.0);
    engine.abort(1);
    assert_eq!(engine.gauges(), Gauges::default());
    assert!(engine.holds(7 << 32), "they are cached all the same");
}

#[test]
fn a_sequence_that_waits_for_blocks_can_be_aborted_at_any_moment() {
    for arrived in [None, Some(false), Some(true)] {
        let mut engine = Engine::new(config());
        let remote = sequence(1, 7, 100, 4);
        engine.submit_with(remote, Kv::Remote).expect("no limit");
        if arrived.is_some() {
            assert!(engine.step().is_none());
        }
        if arrived == Some(true) {
            engine.arrived(1);
        }
        engine.abort(1);
        assert_eq!(engine.gauges(), Gauges::default(), "{arrived:?}");
        engine.arrived(1);
        assert!(engine.step().is_none());
    }
}

#[test]
fn stored_blocks_are_loaded_behind_cached_ones_and_never_the_last_token() {
    // (blocks in the store, tokens that it supplies beyond the two blocks in the cache)
    for (stored, external) in [(0, 0), (2, 0), (4, 32), (5, 48), (99, 48)] {
        let mut engine = Engine::new(config());
        engine.submit(sequence(1, 7, 40, 1)).expect("no limit");
        drain(&mut engine);
        let again = sequence(2, 7, 96, 1);
        let kv = Kv::Stored(stored);
        engine.submit_with(again, kv).expect("no limit");
        let progress = drain(&mut engine)[0].1;
        let (cached, from_store) = (progress.cached_tokens, progress.external_tokens);
        assert_eq!((cached, from_store), (32, external), "{stored} blocks");
        assert_eq!(engine.counters().external_tokens, u64::from(external));
    }
}
