//! Sender and receiver together, over a network that loses, repeats, delays and cuts.

mod outbox;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::inbox::Outcome;
use super::known_workers::known_workers;
use super::sequence::{Arrival, Sequence};
use super::*;
use crate::config::EvidenceConfig;
use crate::made::{replica, start};
use crate::planes::Outbox;
use crate::wire::Message;

const GENERATION: u64 = 7;
const TICK: Duration = Duration::from_millis(20);

/// A record that is identified by its only link.
fn record(link: u64) -> Record {
    Record::Evidence(Evidence {
        worker: "w".parse().expect("valid"),
        epoch: 1,
        links: vec![link],
    })
}

fn batch(number: u64) -> Batch {
    Batch {
        number,
        records: vec![record(number)],
    }
}

fn heat(version: u64) -> HeatReport {
    HeatReport {
        version,
        counts: vec![(1, 2)],
        total: 3,
    }
}

/// Links of what was received, and how often something was lost.
fn links(heard: &[EvidenceEvent]) -> (Vec<u64>, usize) {
    let mut links = Vec::new();
    let mut lost = 0;
    for heard in heard {
        match heard {
            EvidenceEvent::Evidence { evidence, .. } => links.extend(&evidence.links),
            EvidenceEvent::Lost { .. } => lost += 1,
            _ => {}
        }
    }
    (links, lost)
}

/// One sender and one receiver; frames take up to 100 ms and arrive in any order.
struct Wire {
    random: StdRng,
    now: Instant,
    outbox: Outbox,
    inbox: Inbox,
    flying: Vec<(Instant, Message)>,
    heard: Vec<EvidenceEvent>,
    is_cut: bool,
    loss: f64,
    said: u64,
    lost: u64,
}

impl Wire {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            now: start(),
            outbox: Outbox::new(&EvidenceConfig::default()),
            inbox: Inbox::new(&EvidenceConfig::default()),
            flying: Vec::new(),
            heard: Vec::new(),
            is_cut: false,
            loss: 0.0,
            said: 0,
            lost: 0,
        }
    }

    fn say(&mut self, count: u64) {
        let records = (self.said..self.said + count).map(record).collect();
        self.said += count;
        self.outbox.log().append(records);
    }

    fn step(&mut self) {
        self.now += TICK;
        let linked = [(replica("b"), 1)];
        let linked = if self.is_cut { &[][..] } else { &linked };
        let mut sent = Vec::new();
        self.outbox.send(linked, None, self.now, |_, message| {
            sent.push(message.clone());
            true
        });
        for message in sent {
            if self.random.random_bool(self.loss) {
                continue;
            }
            let copies = 1 + usize::from(self.random.random_bool(0.1));
            for _ in 0..copies {
                let delay = Duration::from_millis(self.random.random_range(0..100));
                self.flying.push((self.now + delay, message.clone()));
            }
        }
        let (due, later) = std::mem::take(&mut self.flying)
            .into_iter()
            .partition(|(at, _)| *at <= self.now);
        self.flying = later;
        for (_, message) in due {
            self.arrive(message);
        }
        self.pull();
        let outcome = self.inbox.tick(self.now);
        self.take(outcome);
    }

    fn arrive(&mut self, message: Message) {
        let (from, known_workers) = (replica("a"), known_workers(&[("w", 1)]));
        let outcome = match message {
            Message::Evidence(batch) => {
                let batch = Arc::unwrap_or_clone(batch);
                self.inbox
                    .batch(&from, GENERATION, batch, &known_workers, self.now)
            }
            Message::EvidenceMark(mark) => self.inbox.mark(&from, GENERATION, mark, self.now),
            other => panic!("not sent here: {other:?}"),
        };
        self.take(outcome);
    }

    fn pull(&mut self) {
        for pull in self.inbox.pulls(self.now) {
            let is_answered = !self.is_cut && !self.random.random_bool(self.loss);
            let answer = is_answered.then(|| {
                let answer = self.outbox.pulled(&replica("b"), 1, &pull.gaps, self.now);
                let mut frames = answer.into_iter();
                let Some(Message::EvidenceMark(mark)) = frames.next() else {
                    panic!("a mark is first");
                };
                let batches = frames.map(|message| match message {
                    Message::Evidence(batch) => Arc::unwrap_or_clone(batch),
                    other => panic!("no batch: {other:?}"),
                });
                (GENERATION, mark, batches.collect())
            });
            let known_workers = known_workers(&[("w", 1)]);
            let outcome = self
                .inbox
                .pulled(&pull.from, answer, &known_workers, self.now);
            self.take(outcome);
        }
    }

    fn take(&mut self, outcome: Outcome) {
        self.lost += outcome.lost;
        self.heard.extend(outcome.events);
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever is lost, repeated or overtaken on the way: while cuts are shorter than patience and
    /// log, everything is received exactly once.
    #[test]
    fn everything_is_heard_once(seed in any::<u64>()) {
        let mut wire = Wire::new(seed);
        wire.steps(5);
        wire.loss = wire.random.random_range(0.0..0.4);
        for _ in 0..300 {
            if wire.random.random_bool(0.02) {
                wire.is_cut = !wire.is_cut;
            }
            if wire.random.random_bool(0.3) {
                let count = wire.random.random_range(1..20);
                wire.say(count);
            }
            wire.step();
        }
        (wire.is_cut, wire.loss) = (false, 0.0);
        wire.steps(500);
        let (mut heard, lost) = links(&wire.heard);
        heard.sort_unstable();
        prop_assert_eq!(heard, (0..wire.said).collect::<Vec<_>>());
        prop_assert_eq!((lost, wire.lost), (0, 0));
    }

    /// After an outage that is too long nothing is received twice, and what is missing is made known.
    #[test]
    fn what_cannot_be_repaired_is_made_known(seed in any::<u64>(), outage in 600..2000usize) {
        let mut wire = Wire::new(seed);
        wire.steps(5);
        wire.is_cut = true;
        for _ in 0..outage {
            let count = wire.random.random_range(1..30);
            wire.say(count);
            wire.step();
        }
        let kept = wire.said.min(LOG_BATCHES_MAX as u64);
        wire.is_cut = false;
        wire.say(1);
        // The log may be a megabyte, at a quarter of it a second.
        wire.steps(500);
        let (heard, lost) = links(&wire.heard);
        let distinct: BTreeSet<u64> = heard.iter().copied().collect();
        prop_assert_eq!(distinct.len(), heard.len());
        prop_assert_eq!(heard.iter().max(), Some(&(wire.said - 1)));
        prop_assert_eq!(lost > 0, (distinct.len() as u64) < wire.said);
        prop_assert!(heard.len() as u64 >= kept.min(1000));
    }

    /// Against a plain set: each number arrives once, is lost once, or is still missing.
    #[test]
    fn a_sequence_accounts_for_every_number(
        events in prop::collection::vec((0..4u8, 0..5000u64), 1..200),
    ) {
        let start = start();
        let mut sequence = Sequence::starting_at(0);
        let (mut arrived, mut lost, mut next) = (BTreeSet::new(), 0, 0);
        for (at, (event, number)) in events.into_iter().enumerate() {
            let now = start + Duration::from_millis(at as u64 * 100);
            match event {
                0 | 1 => {
                    let (arrival, given_up) = sequence.arrive(number, now);
                    lost += given_up;
                    if arrival != Arrival::Duplicate {
                        prop_assert!(arrived.insert(number));
                    }
                    prop_assert_eq!(arrival == Arrival::New, number >= next);
                    next = next.max(number + 1);
                }
                2 => {
                    lost += sequence.mark(number / 2, number, now);
                    next = next.max(number);
                }
                _ => lost += sequence.give_up(now),
            }
            let asked: u64 = sequence.overdue(now).iter().map(|gap| gap.end - gap.start).sum();
            prop_assert!(asked <= PULL_BATCHES_MAX as u64);
            prop_assert!(sequence.complete_below() <= next);
        }
        let later = start + Duration::from_secs(3600);
        lost += sequence.give_up(later);
        prop_assert_eq!(arrived.len() as u64 + lost, next);
        prop_assert!(sequence.overdue(later).is_empty());
    }
}

#[test]
fn a_wild_jump_is_bounded() {
    let now = start();
    let mut sequence = Sequence::starting_at(0);
    let (arrival, lost) = sequence.arrive(1 << 48, now);
    assert_eq!(arrival, Arrival::New);
    assert_eq!(lost, (1 << 48) - LOG_BATCHES_MAX as u64);
    assert_eq!(sequence.give_up(now + GAP_PATIENCE), LOG_BATCHES_MAX as u64);
}

#[test]
fn gaps_are_asked_for_in_runs_and_not_at_once() {
    let now = start();
    let mut sequence = Sequence::starting_at(5);
    for number in [5, 8, 10] {
        sequence.arrive(number, now);
    }
    assert!(sequence.overdue(now).is_empty(), "it may be on its way");
    let gap = |start, end| Gap { start, end };
    let later = now + Duration::from_secs(1);
    assert_eq!(sequence.overdue(later), [gap(6, 8), gap(9, 10)]);
    assert_eq!(sequence.complete_below(), 6);
    sequence.reach_back(4, later);
    assert_eq!(sequence.complete_below(), 4);
    assert_eq!(
        sequence.mark(7, 11, later),
        2,
        "4 and 6 are not kept any more"
    );
}

#[test]
fn only_what_was_asked_for_is_taken_from_an_answer() {
    let (now, a, known_workers) = (start(), replica("a"), known_workers(&[("w", 1)]));
    let mut inbox = Inbox::new(&EvidenceConfig::default());
    inbox.batch(&a, GENERATION, batch(0), &known_workers, now);
    inbox.batch(&a, GENERATION, batch(2), &known_workers, now);
    let later = now + Duration::from_secs(1);
    let pulls = inbox.pulls(later);
    assert_eq!(pulls[0].gaps, [Gap { start: 1, end: 2 }]);
    assert!(inbox.pulls(later).is_empty(), "one at a time");
    let mark = Mark { first: 0, next: 3 };
    let answer = vec![batch(1), batch(1), batch(900)];
    let outcome = inbox.pulled(&a, Some((GENERATION, mark, answer)), &known_workers, later);
    assert_eq!((links(&outcome.events), outcome.late), ((vec![1], 0), 1));
    assert!(inbox.pulls(later + Duration::from_secs(1)).is_empty());
}

#[test]
fn a_failed_pull_is_repeated_and_given_up() {
    let (now, a, known_workers) = (start(), replica("a"), known_workers(&[("w", 1)]));
    let mut inbox = Inbox::new(&EvidenceConfig::default());
    inbox.batch(&a, GENERATION, batch(0), &known_workers, now);
    inbox.batch(&a, GENERATION, batch(2), &known_workers, now);
    let mut asked = 0;
    let mut lost = 0;
    for at in 0..120 {
        let now = now + Duration::from_millis(at * 100);
        inbox.mark(&a, GENERATION, Mark { first: 0, next: 3 }, now);
        for pull in inbox.pulls(now) {
            asked += 1;
            inbox.pulled(&pull.from, None, &known_workers, now);
        }
        lost += inbox.tick(now).lost;
    }
    assert_eq!(lost, 1);
    assert!((20..=40).contains(&asked), "{asked} times in 10 s");
}

/// Batches overtake each other, also the first ones of a link.
#[test]
fn the_first_batches_of_a_sender_come_in_any_order() {
    let (now, a, known_workers) = (start(), replica("a"), known_workers(&[("w", 1)]));
    let take = |inbox: &mut Inbox, number: u64, now: Instant| {
        let taken = inbox.batch(&a, GENERATION, batch(number), &known_workers, now);
        links(&taken.events).0
    };
    for mark_is_first in [false, true] {
        let mut inbox = Inbox::new(&EvidenceConfig::default());
        if mark_is_first {
            inbox.mark(&a, GENERATION, Mark { first: 0, next: 9 }, now);
        } else {
            assert_eq!(take(&mut inbox, 8, now), [8]);
        }
        // What lies between was sent as well, and is asked for if it does not come.
        assert_eq!(take(&mut inbox, 5, now), [5]);
        assert_eq!(take(&mut inbox, 6, now), [6]);
        assert!(take(&mut inbox, 6, now).is_empty(), "it came before");
        let later = now + Duration::from_secs(1);
        let gaps = inbox.pulls(later).pop().map(|pull| pull.gaps);
        let end = if mark_is_first { 9 } else { 8 };
        assert_eq!(gaps, Some(vec![Gap { start: 7, end }]));
        let late = now + GAP_PATIENCE;
        assert!(take(&mut inbox, 4, late).is_empty(), "not after a while");
    }
    // Where it is known where to begin, nothing before that is wanted.
    let mut inbox = Inbox::new(&EvidenceConfig::default());
    let head = Head {
        replica: replica("a"),
        generation: GENERATION,
        next: 5,
    };
    inbox.take_heads(vec![head], now);
    assert_eq!(take(&mut inbox, 8, now), [8]);
    assert!(take(&mut inbox, 4, now).is_empty());
}

#[test]
fn a_newcomer_goes_on_where_its_snapshot_ends() {
    let (now, a, known_workers) = (start(), replica("a"), known_workers(&[("w", 1)]));
    let head = |generation| Head {
        replica: replica("a"),
        generation,
        next: 5,
    };
    let wanted = |inbox: &mut Inbox| {
        let later = now + Duration::from_secs(1);
        inbox.pulls(later).pop().map(|pull| pull.gaps)
    };
    // The snapshot first, then the sender.
    let mut inbox = Inbox::new(&EvidenceConfig::default());
    inbox.take_heads(vec![head(GENERATION)], now);
    inbox.batch(&a, GENERATION, batch(8), &known_workers, now);
    assert_eq!(wanted(&mut inbox), Some(vec![Gap { start: 5, end: 8 }]));
    // The other way round.
    let mut inbox = Inbox::new(&EvidenceConfig::default());
    inbox.mark(&a, GENERATION, Mark { first: 0, next: 8 }, now);
    inbox.take_heads(vec![head(GENERATION)], now);
    assert_eq!(wanted(&mut inbox), Some(vec![Gap { start: 5, end: 8 }]));
    // Of a former life; and by a liar that is far ahead of the sender.
    for (generation, number) in [(GENERATION - 1, 8), (GENERATION, 3)] {
        let mut inbox = Inbox::new(&EvidenceConfig::default());
        inbox.take_heads(vec![head(generation)], now);
        let outcome = inbox.batch(&a, GENERATION, batch(number), &known_workers, now);
        assert_eq!(links(&outcome.events), (vec![number], 0));
        assert_eq!(wanted(&mut inbox), None);
        assert_eq!(inbox.heads()[0].next, number + 1);
    }
}

/// A cut outlives every memory of the plane: what was sent meanwhile is pulled, or known as lost.
#[test]
fn what_was_told_in_a_cut_of_more_than_a_minute_is_pulled_or_lost() {
    let (now, a, known_workers) = (start(), replica("a"), known_workers(&[("w", 1)]));
    let back = now + Duration::from_secs(90);
    let after_cut = |generation, first, next| {
        let mut inbox = Inbox::new(&EvidenceConfig::default());
        inbox.batch(&a, GENERATION, batch(2), &known_workers, now);
        (1..90).for_each(|at| drop(inbox.tick(now + Duration::from_secs(at))));
        assert!(inbox.heads().is_empty(), "it is forgotten");
        let outcome = inbox.mark(&a, generation, Mark { first, next }, back);
        let pull = inbox.pulls(back + Duration::from_secs(1)).pop();
        (
            outcome.lost,
            links(&outcome.events).1,
            pull.map(|pull| pull.gaps),
        )
    };
    let gap = |start, end| Some(vec![Gap { start, end }]);
    assert_eq!(after_cut(GENERATION, 0, 8), (0, 0, gap(3, 8)));
    // Of 3 to 7 the sender keeps two.
    assert_eq!(after_cut(GENERATION, 6, 8), (3, 1, gap(6, 8)));
    // More than any sender keeps.
    let next = 3 + LOG_BATCHES_MAX as u64 + 5;
    assert_eq!(after_cut(GENERATION, next, next), (next - 3, 2, None));
    // In another life nothing of this one is missing.
    assert_eq!(after_cut(GENERATION + 1, 0, 8), (0, 0, None));
}

#[test]
fn evidence_about_former_lives_is_not_heard() {
    let (now, a) = (start(), replica("a"));
    let mut inbox = Inbox::new(&EvidenceConfig::default());
    let outcome = inbox.batch(&a, GENERATION, batch(0), &known_workers(&[("w", 2)]), now);
    assert_eq!((outcome.stale, outcome.records()), (1, 0));
}

/// The entry of a new worker, or of its restart, and what was placed there go different ways.
#[test]
fn evidence_about_a_worker_that_is_not_known_yet_waits_for_it_in_its_order() {
    let (now, a) = (start(), replica("a"));
    for before in [&[][..], &[("w", 0)]] {
        let mut inbox = Inbox::new(&EvidenceConfig::default());
        let (before, known) = (known_workers(before), known_workers(&[("w", 1)]));
        let outcome = inbox.batch(&a, GENERATION, batch(0), &before, now);
        assert_eq!((outcome.stale, outcome.records()), (0, 0));
        assert_eq!(inbox.known(&before, now), Outcome::default());
        // Behind the first, although its worker is known by now; another replica's does not wait.
        let outcome = inbox.batch(&a, GENERATION, batch(1), &known, now);
        assert_eq!((outcome.stale, outcome.records()), (0, 0));
        let outcome = inbox.batch(&replica("b"), GENERATION, batch(7), &known, now);
        assert_eq!(links(&outcome.events).0, [7]);
        let outcome = inbox.known(&known, now);
        assert_eq!(
            (outcome.stale, links(&outcome.events)),
            (0, (vec![0, 1], 0))
        );
        let outcome = inbox.batch(&a, GENERATION, batch(2), &known, now);
        assert_eq!(links(&outcome.events).0, [2], "nothing waits any more");
    }
}

#[test]
fn heat_counts_by_version_until_its_sender_is_gone() {
    let (start, a) = (start(), replica("a"));
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut inbox = Inbox::new(&EvidenceConfig::default());
    let hears = |inbox: &mut Inbox, generation, version, now| {
        inbox.heat(&a, generation, heat(version), now).events
    };
    let new = |version| EvidenceEvent::Heat {
        from: replica("a"),
        report: heat(version),
    };
    let gone = EvidenceEvent::Gone { from: replica("a") };
    assert_eq!(hears(&mut inbox, 1, 5, at(0)), [new(5)]);
    assert_eq!(hears(&mut inbox, 1, 5, at(1)), [], "a refresh");
    assert_eq!(hears(&mut inbox, 1, 4, at(2)), [], "overtaken");
    assert_eq!(inbox.tick(at(4)).events, []);
    assert_eq!(inbox.tick(at(8)).events, vec![gone.clone()]);
    assert_eq!(inbox.tick(at(9)).events, [], "told once");
    assert_eq!(hears(&mut inbox, 1, 5, at(10)), [new(5)], "back again");
    assert_eq!(
        hears(&mut inbox, 2, 1, at(11)),
        [gone.clone(), new(1)],
        "restarted"
    );
    assert_eq!(hears(&mut inbox, 1, 9, at(12)), [], "its former life");
    assert_eq!(inbox.left(&a), Some(gone));
    assert_eq!(inbox.left(&a), None);
}

#[test]
fn a_flood_uses_up_its_allowance() {
    let (start, a) = (start(), replica("a"));
    let mut inbox = Inbox::new(&EvidenceConfig::default());
    // Whether it ever sent anything, or only asks.
    let mut passed = 0;
    for at in 0..1000 {
        let now = start + Duration::from_millis(at);
        passed += usize::from(inbox.charge(&a, 256 << 10, now));
    }
    // 8 MiB at once, 1 MiB in the second.
    assert!((32..=38).contains(&passed), "{passed}");
    assert!(inbox.charge(&a, 100, start + Duration::from_secs(3)));
}

/// Names that come first would be the first to go, and have a full allowance again each time.
#[test]
fn of_too_many_replicas_the_one_that_was_silent_for_longest_is_forgotten() {
    let now = start();
    let others = |from: usize| (from..from + HEADS_MAX - 1).map(|n| replica(&format!("m{n}")));
    for (what, name) in [("a name that comes first", "a"), ("last", "z")] {
        let id = replica(name);
        let mut inbox = Inbox::new(&EvidenceConfig::default());
        while inbox.charge(&id, 1 << 20, now) {}
        for other in others(0) {
            inbox.charge(&other, 1, now);
        }
        for other in others(1_000) {
            assert!(!inbox.charge(&id, 1, now), "{what}, by {other}");
            inbox.charge(&other, 1, now);
        }
        // One that costs nothing any more gives way to those that do.
        inbox.charge(&replica("one-more"), 1, now);
        inbox.charge(&replica("another"), 1, now);
        for other in others(2_000) {
            inbox.charge(&other, 1, now);
        }
        assert!(inbox.charge(&id, 1, now), "{what}");
    }
    let head = |name: String| Head {
        replica: replica(&name),
        generation: GENERATION,
        next: 5,
    };
    let mut inbox = Inbox::new(&EvidenceConfig::default());
    let heads = (0..HEADS_MAX).map(|n| head(format!("m{n}")));
    inbox.take_heads(heads.collect(), now);
    inbox.take_heads(vec![head("a".into())], now);
    inbox.take_heads(vec![head("b".into())], now);
    let remembered = ["a", "b", "m0", "m1", "m2"].map(|name| inbox.remembers(&replica(name)));
    assert_eq!(remembered, [true, true, false, false, true]);
}
