//! A publisher, a connection that loses and repeats, and the stream: what is known is what the publisher has, or says that
//! it is not.

use std::collections::{BTreeSet, VecDeque};

use grapevine_kv_events::batch::{Batch, Event, Removed, Stored};
use grapevine_kv_events::index::{Index, Limits as IndexLimits};
use grapevine_kv_events::publisher::{Knowledge, Publisher};
use grapevine_kv_events::stream::{Cause, Limits, Message, Step, Stream};
use grapevine_kv_events::{BlockHash, Tier};
use proptest::prelude::*;

/// What happens next.
#[derive(Clone, Debug)]
enum Act {
    /// The engine stores or removes a block, or clears its cache, and publishes it.
    Publish(u8),
    /// The next message on its way arrives, is lost, or comes twice.
    Deliver,
    Lose,
    Repeat,
    /// A message that arrived long ago comes again.
    Late(prop::sample::Index),
    /// The next answer of the replay, or its end.
    Replay,
    LoseReplayed,
    ReplayFails,
    /// The connection breaks, and is made again.
    Break,
    Connect,
    /// The process dies and another one begins; the connection breaks.
    Restart,
    Verify,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        30 => any::<u8>().prop_map(Act::Publish),
        30 => Just(Act::Deliver),
        4 => Just(Act::Lose),
        4 => Just(Act::Repeat),
        2 => any::<prop::sample::Index>().prop_map(Act::Late),
        30 => Just(Act::Replay),
        2 => Just(Act::LoseReplayed),
        1 => Just(Act::ReplayFails),
        2 => Just(Act::Break),
        8 => Just(Act::Connect),
        2 => Just(Act::Restart),
        2 => Just(Act::Verify),
    ]
}

#[derive(Clone)]
struct Published {
    message: Message<Vec<Event>>,
    /// The cache after it.
    cache: BTreeSet<u64>,
}

struct Scene {
    /// Of this process.
    published: Vec<Published>,
    process: u64,
    cache: BTreeSet<u64>,
    buffer: usize,
    connected: bool,
    on_the_way: VecDeque<Message<Vec<Event>>>,
    delivered: Vec<Message<Vec<Event>>>,
    replay: Option<VecDeque<Message<Vec<Event>>>>,
    stream: Stream<Vec<Event>>,
    publisher: Publisher,
    index: Index,
}

impl Scene {
    fn new(has_replay: bool, buffer: usize, limits: Limits) -> Self {
        Self {
            published: Vec::new(),
            process: 1,
            cache: BTreeSet::new(),
            buffer,
            connected: false,
            on_the_way: VecDeque::new(),
            delivered: Vec::new(),
            replay: None,
            stream: Stream::new(has_replay, limits),
            publisher: Publisher::default(),
            index: Index::new(IndexLimits::default(), 7),
        }
    }

    fn act(&mut self, act: &Act) {
        let mut steps = Vec::new();
        match act {
            Act::Publish(number) => self.publish(*number),
            Act::Deliver => {
                if let Some(message) = self.on_the_way.pop_front() {
                    self.delivered.push(message.clone());
                    self.stream.heard(message, &mut steps);
                }
            }
            Act::Lose => drop(self.on_the_way.pop_front()),
            Act::Repeat => {
                if let Some(message) = self.on_the_way.front() {
                    self.on_the_way.push_front(message.clone());
                }
            }
            Act::Late(which) => {
                if self.connected && !self.delivered.is_empty() {
                    let message = self.delivered[which.index(self.delivered.len())].clone();
                    self.stream.heard(message, &mut steps);
                }
            }
            Act::Replay => match self.replay.as_mut().map(VecDeque::pop_front) {
                Some(Some(message)) => self.stream.replayed(message, &mut steps),
                Some(None) => {
                    self.replay = None;
                    self.stream.replay_ended(&mut steps);
                }
                None => {}
            },
            Act::LoseReplayed => {
                if let Some(replay) = &mut self.replay {
                    drop(replay.pop_front());
                }
            }
            Act::ReplayFails => {
                if self.replay.take().is_some() {
                    self.stream.replay_failed(&mut steps);
                }
            }
            Act::Break => self.disconnect(),
            Act::Connect => {
                if !self.connected {
                    self.connected = true;
                    self.stream.connected(&mut steps);
                }
            }
            Act::Restart => {
                self.disconnect();
                self.restart();
            }
            Act::Verify => self.stream.verify(&mut steps),
        }
        self.carry_out(steps);
    }

    fn disconnect(&mut self) {
        self.connected = false;
        self.on_the_way.clear();
        self.delivered.clear();
        self.replay = None;
        self.stream.disconnected();
    }

    fn restart(&mut self) {
        self.process += 1;
        self.published.clear();
        self.cache.clear();
    }

    fn publish(&mut self, number: u8) {
        let block = u64::from(number % 24);
        let event = if number == 255 {
            self.cache.clear();
            Event::Cleared
        } else if self.cache.remove(&block) {
            Event::Removed(Removed {
                hashes: vec![BlockHash(block)],
                tier: Tier::Gpu,
                group: 0,
            })
        } else {
            self.cache.insert(block);
            Event::Stored(Stored {
                text: None,
                hashes: vec![BlockHash(block)],
                parent: None,
                tokens: vec![1],
                block_tokens: 1,
                tier: Tier::Gpu,
                lora: None,
                group: 0,
                is_full_attention: true,
            })
        };
        let sequence = self.published.len() as u64;
        let message = Message {
            sequence,
            // As payloads have the time in them, no two are equal.
            fingerprint: self.process << 32 | sequence,
            bytes: 100,
            payload: vec![event],
        };
        if self.connected {
            self.on_the_way.push_back(message.clone());
        }
        self.published.push(Published {
            message,
            cache: self.cache.clone(),
        });
    }

    fn carry_out(&mut self, steps: Vec<Step<Vec<Event>>>) {
        for step in steps {
            match step {
                Step::Ask(from) => {
                    let first = self.published.len().saturating_sub(self.buffer);
                    let buffered = self.published[first..].iter().map(|p| p.message.clone());
                    self.replay = Some(buffered.filter(|m| m.sequence >= from).collect());
                }
                Step::Forget(_) => self.publisher.forget(&mut self.index),
                Step::Begin { is_first } => self.publisher.begin(is_first),
                Step::Apply(events) => {
                    let batch = Batch {
                        time: 0.0,
                        events,
                        rank: None,
                        unknown_events: 0,
                    };
                    self.publisher.apply(&batch, &mut self.index);
                }
            }
        }
    }

    fn known(&self) -> BTreeSet<u64> {
        let Some(holder) = self.publisher.holder() else {
            return BTreeSet::new();
        };
        let has = |block: &u64| self.index.has(holder, Tier::Gpu, BlockHash(*block));
        (0..24).filter(has).collect()
    }

    /// What is known is what the process had after the message that was applied last: all of it, or a part of it. If the
    /// process is another one by now and nobody noticed, nothing of that can be said.
    fn check(&mut self, is_same_process: bool) {
        let known = self.known();
        if self.publisher.knowledge() == Knowledge::Unknown {
            assert!(known.is_empty());
            return;
        }
        if !is_same_process {
            return;
        }
        let last = self.stream.last().expect("something was applied") as usize;
        let truth = &self.published[last].cache;
        if self.publisher.knowledge() == Knowledge::Whole {
            assert_eq!(&known, truth);
        } else {
            assert!(known.is_subset(truth), "{known:?} {truth:?}");
        }
    }

    /// Everything arrives, and what may be missing is asked for.
    fn settle(&mut self) {
        self.act(&Act::Connect);
        for _ in 0..3 {
            self.act(&Act::Publish(100));
            for _ in 0..self.published.len() * 4 + 40 {
                self.act(&Act::Replay);
                self.act(&Act::Deliver);
            }
            self.act(&Act::Verify);
            // A replay that failed before is asked for anew.
            for _ in 0..self.published.len() * 4 + 40 {
                self.act(&Act::Replay);
            }
        }
    }
}

fn limits(waiting: usize) -> Limits {
    Limits {
        waiting_messages: waiting,
        waiting_bytes: 100 * waiting,
        remembered: 8,
        vain_replays: 3,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn under_loss_repeats_and_restarts_what_is_known_is_true_or_unknown(
        acts in prop::collection::vec(act(), 1..160),
        has_replay in any::<bool>(),
        buffer in prop_oneof![Just(1_usize), Just(5), Just(10_000)],
        waiting in prop_oneof![Just(3_usize), Just(1_000)],
    ) {
        let mut scene = Scene::new(has_replay, buffer, limits(waiting));
        // The process whose messages the known ones are.
        let mut of_process = 0;
        for act in &acts {
            let before = scene.stream.counts().applied;
            scene.act(act);
            // What is applied is of the process that speaks, except for late copies of the one before.
            if scene.stream.counts().applied > before
                && let Some(last) = scene.stream.last()
            {
                let is_of_this = scene.is_of_this_process(last as usize);
                of_process = if is_of_this { scene.process } else { 0 };
            }
            scene.check(of_process == scene.process);
        }
        scene.settle();
        // In the end it hears, and with a replay socket it knows all that the buffer still has.
        prop_assert!(scene.stream.is_current());
        scene.check(true);
        let last = scene.stream.last();
        prop_assert_eq!(last, Some(scene.published.len() as u64 - 1));
        let lost_replayed = acts.iter().any(|act| matches!(act, Act::LoseReplayed));
        if has_replay && buffer == 10_000 && waiting == 1_000 && !lost_replayed {
            prop_assert_eq!(scene.publisher.knowledge(), Knowledge::Whole);
            prop_assert_eq!(scene.known(), scene.cache.clone());
        }
    }
}

impl Scene {
    /// Whether the message that was applied last is one of the process that runs now.
    fn is_of_this_process(&self, last: usize) -> bool {
        self.published
            .get(last)
            .is_some_and(|p| self.stream.last_fingerprint() == Some(p.message.fingerprint))
    }
}

type Plain = Message<u64>;

fn message(process: u64, sequence: u64) -> Plain {
    Message {
        sequence,
        fingerprint: process << 32 | sequence,
        bytes: 10,
        payload: sequence,
    }
}

/// What a call makes to be done.
fn steps(call: impl FnOnce(&mut Vec<Step<u64>>)) -> Vec<Step<u64>> {
    let mut steps = Vec::new();
    call(&mut steps);
    steps
}

/// One that has heard messages 0 to 4 and is live.
fn live(has_replay: bool) -> Stream<u64> {
    let mut stream = Stream::new(has_replay, limits(100));
    let mut steps = Vec::new();
    stream.connected(&mut steps);
    stream.replay_ended(&mut steps);
    (0..5).for_each(|sequence| stream.heard(message(1, sequence), &mut steps));
    assert_eq!(stream.last(), Some(4));
    stream
}

const FIRST: Step<u64> = Step::Begin { is_first: true };
const LATER: Step<u64> = Step::Begin { is_first: false };

#[test]
fn a_new_listener_asks_for_everything_and_then_applies_what_waited() {
    let mut stream = Stream::new(true, limits(100));
    assert_eq!(steps(|s| stream.connected(s)), [Step::Ask(0)]);
    assert_eq!(steps(|s| stream.heard(message(1, 2), s)), []);
    assert_eq!(
        steps(|s| stream.replayed(message(1, 0), s)),
        [FIRST, Step::Apply(0)]
    );
    assert_eq!(
        steps(|s| stream.replayed(message(1, 1), s)),
        [Step::Apply(1)]
    );
    assert!(!stream.is_current());
    assert_eq!(steps(|s| stream.replay_ended(s)), [Step::Apply(2)]);
    assert!(stream.is_current());
}

#[test]
fn a_gap_is_filled_by_a_replay_that_begins_with_the_last_message_as_a_proof() {
    let mut stream = live(true);
    assert_eq!(steps(|s| stream.heard(message(1, 7), s)), [Step::Ask(4)]);
    assert!(!stream.is_current());
    assert_eq!(steps(|s| stream.replayed(message(1, 4), s)), []);
    assert_eq!(
        steps(|s| stream.replayed(message(1, 5), s)),
        [Step::Apply(5)]
    );
    assert_eq!(
        steps(|s| stream.replayed(message(1, 6), s)),
        [Step::Apply(6)]
    );
    assert_eq!(steps(|s| stream.replay_ended(s)), [Step::Apply(7)]);
    assert!(stream.is_current());
    assert_eq!((stream.counts().gaps, stream.counts().restarts), (1, 0));
}

#[test]
fn looks_that_find_nothing_do_not_count_as_replays_in_vain() {
    let mut stream = live(true);
    for _ in 0..10 {
        assert_eq!(steps(|s| stream.verify(s)), [Step::Ask(4)]);
        assert_eq!(steps(|s| stream.replayed(message(1, 4), s)), []);
        assert!(stream.is_current());
        assert_eq!(steps(|s| stream.replay_ended(s)), []);
    }
    assert_eq!(steps(|s| stream.heard(message(1, 7), s)), [Step::Ask(4)]);
}

#[test]
fn what_somebody_else_knew_is_proved_before_it_is_gone_on_from() {
    let mark = message(1, 4).mark();
    let mut behind = Stream::behind(mark, true, true, Limits::default());
    assert!(!behind.is_current());
    assert_eq!(steps(|s| behind.connected(s)), [Step::Ask(4)]);
    assert_eq!(steps(|s| behind.heard(message(1, 6), s)), []);
    assert_eq!(steps(|s| behind.replayed(message(1, 4), s)), []);
    assert_eq!(
        steps(|s| behind.replayed(message(1, 5), s)),
        [Step::Apply(5)]
    );
    assert_eq!(steps(|s| behind.replay_ended(s)), [Step::Apply(6)]);
    assert!(behind.is_current());
    // The process is another one since.
    let mut behind = Stream::behind(mark, true, true, Limits::default());
    steps(|s| behind.connected(s));
    let anew = [Step::Forget(Cause::Restart), Step::Ask(0)];
    assert_eq!(steps(|s| behind.replayed(message(2, 4), s)), anew);
    // Nobody can prove it.
    let mut behind: Stream<u64> = Stream::behind(mark, true, false, Limits::default());
    assert_eq!(steps(|s| behind.connected(s)), [Step::Forget(Cause::Gap)]);
}

#[test]
fn a_look_that_fails_costs_nothing() {
    let mut stream = live(true);
    assert_eq!(steps(|s| stream.verify(s)), [Step::Ask(4)]);
    assert!(stream.is_current(), "as far as is known");
    assert_eq!(steps(|s| stream.heard(message(1, 5), s)), []);
    assert!(!stream.is_current());
    assert_eq!(steps(|s| stream.replay_failed(s)), [Step::Apply(5)]);
    assert!(stream.is_current());
    // All is known, so the next look is no other one.
    assert_eq!(steps(|s| stream.verify(s)), [Step::Ask(5)]);
}

#[test]
fn a_replay_that_breaks_off_goes_on_where_it_was_and_ends_after_some_in_vain() {
    let mut stream = live(true);
    assert_eq!(steps(|s| stream.heard(message(1, 9), s)), [Step::Ask(4)]);
    steps(|s| stream.replayed(message(1, 4), s));
    let applied = steps(|s| stream.replayed(message(1, 5), s));
    assert_eq!(applied, [Step::Apply(5)]);
    // It brought something: what it did not bring is asked for from there on.
    assert_eq!(steps(|s| stream.replay_failed(s)), [Step::Ask(5)]);
    assert_eq!(steps(|s| stream.replay_failed(s)), [Step::Ask(5)]);
    assert_eq!(steps(|s| stream.replay_failed(s)), [Step::Ask(5)]);
    let given_up = [Step::Forget(Cause::Gap), LATER, Step::Apply(9)];
    assert_eq!(steps(|s| stream.replay_failed(s)), given_up);
    // A later look asks for all, to know more than that.
    assert_eq!(steps(|s| stream.verify(s)), [Step::Ask(0)]);
}

#[test]
fn a_replay_that_breaks_off_with_nothing_behind_it_is_not_all_there_was() {
    let mut stream = Stream::new(true, limits(100));
    steps(|s| stream.connected(s));
    (0..3).for_each(|sequence| drop(steps(|s| stream.replayed(message(1, sequence), s))));
    assert_eq!(steps(|s| stream.replay_failed(s)), [Step::Ask(2)]);
    // Nor is it after one that brings the proof alone.
    steps(|s| stream.replayed(message(1, 2), s));
    assert_eq!(steps(|s| stream.replay_failed(s)), []);
    assert!(!stream.is_current());
    // The look that follows looks for what is missing.
    let mut looks = stream.clone();
    assert_eq!(steps(|s| looks.verify(s)), [Step::Ask(2)]);
    assert!(!looks.is_current());
    steps(|s| looks.replayed(message(1, 2), s));
    steps(|s| looks.replay_ended(s));
    assert!(looks.is_current(), "that was all");
    // The next number says as much.
    assert_eq!(steps(|s| stream.heard(message(1, 3), s)), [Step::Apply(3)]);
    assert!(stream.is_current());
}

#[test]
fn a_process_that_could_not_be_shown_to_be_the_same_is_taken_for_another_one() {
    let mut stream = live(true);
    stream.disconnected();
    assert_eq!(steps(|s| stream.connected(s)), [Step::Ask(4)]);
    assert_eq!(
        steps(|s| stream.replay_failed(s)),
        [Step::Forget(Cause::Gap)]
    );
}

#[test]
fn a_gap_that_cannot_be_filled_makes_everything_unknown() {
    let mut without = live(false);
    let expected = [Step::Forget(Cause::Gap), LATER, Step::Apply(7)];
    assert_eq!(steps(|s| without.heard(message(1, 7), s)), expected);
    // The replay's buffer begins behind the hole: what came last is not there as a proof.
    let mut with = live(true);
    steps(|s| with.heard(message(1, 9), s));
    let anew = [Step::Forget(Cause::Gap), Step::Ask(0)];
    assert_eq!(steps(|s| with.replayed(message(1, 8), s)), anew);
    assert_eq!(
        steps(|s| with.replayed(message(1, 8), s)),
        [LATER, Step::Apply(8)]
    );
    assert_eq!(steps(|s| with.replay_ended(s)), [Step::Apply(9)]);
}

#[test]
fn a_restarted_process_is_recognised_before_and_behind_the_number_heard_last() {
    let mut stream = live(true);
    // It has come to number 1.
    let anew = [Step::Forget(Cause::Restart), Step::Ask(0)];
    assert_eq!(steps(|s| stream.heard(message(2, 1), s)), anew);
    steps(|s| stream.replayed(message(2, 0), s));
    assert_eq!(steps(|s| stream.replay_ended(s)), [Step::Apply(1)]);
    // It has come further than the one before, while nobody listened: only the proof shows it.
    let mut stream = live(true);
    stream.disconnected();
    assert_eq!(steps(|s| stream.connected(s)), [Step::Ask(4)]);
    assert_eq!(steps(|s| stream.replayed(message(2, 4), s)), anew);
    // It has not come so far: the replay has nothing.
    let mut stream = live(true);
    stream.disconnected();
    steps(|s| stream.connected(s));
    assert_eq!(steps(|s| stream.replay_ended(s)), anew);
}

#[test]
fn repeated_messages_change_nothing() {
    let mut stream = live(true);
    for sequence in 0..5 {
        assert_eq!(steps(|s| stream.heard(message(1, sequence), s)), []);
    }
    assert_eq!(stream.counts().repeated, 5);
    assert!(stream.is_current());
}

#[test]
fn numbers_without_sense_cost_a_few_replays_and_then_begin_anew() {
    let mut stream = live(true);
    let mut asked = 0;
    for round in 0..1_000_u64 {
        let number = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1;
        for step in steps(|s| stream.heard(message(1, number), s)) {
            if let Step::Ask(_) = step {
                asked += 1;
                steps(|s| stream.replay_ended(s));
            }
        }
    }
    assert!(stream.counts().applied > 10, "{:?}", stream.counts());
    assert!(asked < 4_000);
}

#[test]
fn a_replay_with_a_hole_goes_on_from_where_it_was() {
    let mut stream = live(true);
    steps(|s| stream.heard(message(1, 9), s));
    steps(|s| stream.replayed(message(1, 4), s));
    assert_eq!(
        steps(|s| stream.replayed(message(1, 5), s)),
        [Step::Apply(5)]
    );
    assert_eq!(steps(|s| stream.replayed(message(1, 7), s)), [Step::Ask(5)]);
    // One that does not get any further has a hole that nobody fills.
    steps(|s| stream.replayed(message(1, 5), s));
    let expected = [Step::Forget(Cause::Gap), LATER, Step::Apply(7)];
    assert_eq!(steps(|s| stream.replayed(message(1, 7), s)), expected);
}

#[test]
fn what_waits_for_a_replay_is_bounded() {
    let mut stream = Stream::new(true, limits(10));
    steps(|s| stream.connected(s));
    let mut all = Vec::new();
    for sequence in 3..14 {
        all.extend(steps(|s| stream.heard(message(1, sequence), s)));
    }
    // The eleventh is one too many: the replay is given up.
    assert_eq!(all[..2], [LATER, Step::Apply(3)]);
    assert_eq!(stream.last(), Some(13));
    assert!(stream.is_current());
}

/// What was heard while a replay was under way is not what the replay has, as often as it is asked.
#[test]
fn messages_that_the_replay_contradicts_do_not_have_it_asked_for_ever() {
    let mut stream = Stream::new(true, limits(100));
    steps(|s| stream.connected(s));
    for sequence in [1, 2] {
        steps(|s| stream.heard(message(9, sequence), s));
    }
    let anew = [Step::Forget(Cause::Restart), Step::Ask(0)];
    for _ in 0..limits(100).vain_replays {
        (0..3).for_each(|sequence| drop(steps(|s| stream.replayed(message(1, sequence), s))));
        assert_eq!(steps(|s| stream.replay_ended(s)), anew);
        assert!(!stream.is_current());
    }
    (0..3).for_each(|sequence| drop(steps(|s| stream.replayed(message(1, sequence), s))));
    let as_heard = [
        Step::Forget(Cause::Restart),
        LATER,
        Step::Apply(1),
        Step::Apply(2),
    ];
    assert_eq!(steps(|s| stream.replay_ended(s)), as_heard);
    assert!(stream.is_current());
    // A later look finds what the publisher has.
    assert_eq!(steps(|s| stream.verify(s)), [Step::Ask(2)]);
    assert_eq!(steps(|s| stream.replayed(message(1, 2), s)), anew);
    (0..3).for_each(|sequence| drop(steps(|s| stream.replayed(message(1, sequence), s))));
    steps(|s| stream.replay_ended(s));
    assert!(stream.is_current());
    assert_eq!(stream.last(), Some(2));
}
