//! The laws of the rule, on several replicas that share a worker set, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::view::ReplicaInfo;
use grapevine_gossip::worker::{Labels, RawWorker, State, WorkerId, WorkerSpec};
use proptest::prelude::*;
use tokio::time::Instant;

use super::{Counts, Entries, PeerStatement, Rule, Settings, Statement, WorkerSet};
use crate::picture::{Found, Picture};

/// How often every replica looks.
const LOOK: Duration = Duration::from_millis(500);
pub(super) const HOLD: Duration = Duration::from_secs(30);

/// Replicas, each with a picture of its own; `None` cannot see.
pub(super) struct Replicas {
    now: Instant,
    rules: Vec<(Rule, Option<Picture>, Statement)>,
    pub(super) entries: Entries,
    /// Labels that the registry has, of workers that have any.
    labels: BTreeMap<WorkerId, Labels>,
    /// What each replica counted at its last look.
    counts: BTreeMap<usize, Counts>,
    /// Workers that another source declares, too.
    held_otherwise: BTreeSet<WorkerId>,
    /// Those that the others do not hear.
    pub(super) unheard: BTreeMap<usize, Unheard>,
    puts: usize,
    label_writes: usize,
    pub(super) removes: usize,
}

/// Why a replica is not heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unheard {
    /// Cut off or dead: nobody knows.
    Lost,
    /// The same, longer ago than gossip remembers.
    Forgotten,
    /// It is about to end, or has ended, with a word.
    Leaving,
    Left,
}

/// The registry beside this source.
struct Beside<'a> {
    labels: &'a BTreeMap<WorkerId, Labels>,
    held_otherwise: &'a BTreeSet<WorkerId>,
}

impl WorkerSet for Beside<'_> {
    fn labels(&self, id: &WorkerId) -> Option<Arc<Labels>> {
        Some(Arc::new(self.labels.get(id).cloned().unwrap_or_default()))
    }

    fn is_held_otherwise(&self, id: &WorkerId) -> bool {
        self.held_otherwise.contains(id)
    }
}

pub(super) fn id(number: usize) -> WorkerId {
    format!("w{number}").parse().expect("an id")
}

fn found(number: usize, weight: u32, is_ready: bool) -> Found {
    let mut raw = RawWorker::at(format!("http://10.0.0.{number}:8000"));
    raw.weight_milli = weight;
    let spec = WorkerSpec::new(raw).expect("valid");
    Found::new(&spec, is_ready).expect("valid")
}

/// A picture of these workers, plain and ready.
pub(super) fn of(numbers: &[usize]) -> Option<Picture> {
    let workers = numbers.iter().map(|&n| (id(n), found(n, 1000, true)));
    Some(Picture::new(workers).expect("a picture"))
}

/// What the others' gossip knows of a replica; nothing of one that left, or was forgotten.
fn info(at: usize, unheard: Option<Unheard>) -> Option<ReplicaInfo> {
    if matches!(unheard, Some(Unheard::Left | Unheard::Forgotten)) {
        return None;
    }
    Some(ReplicaInfo {
        id: format!("r{at}").parse().expect("an id"),
        generation: 1,
        gossip_addr: ([127, 0, 0, 1], 1).into(),
        http: String::new(),
        admin: String::new(),
        version: String::new(),
        ready: true,
        leaving: unheard == Some(Unheard::Leaving),
        live: unheard.is_none(),
        registry: String::new(),
        settings: String::new(),
        ring: String::new(),
    })
}

impl Replicas {
    /// `count` replicas that see these workers, when all of them are registered.
    pub(super) fn that_see(count: usize, numbers: &[usize]) -> Self {
        let rule = |at: usize| {
            let replica = format!("r{at}").parse().expect("an id");
            let rule = Rule::new(replica, Settings::default());
            (rule, of(numbers), Statement::default())
        };
        let mut replicas = Self {
            now: Instant::now(),
            rules: (0..count).map(rule).collect(),
            entries: Entries::new(),
            labels: BTreeMap::new(),
            counts: BTreeMap::new(),
            held_otherwise: BTreeSet::new(),
            unheard: BTreeMap::new(),
            puts: 0,
            label_writes: 0,
            removes: 0,
        };
        replicas.run(Duration::from_secs(5));
        assert_eq!(
            replicas.registered(),
            numbers.iter().map(|&n| id(n)).collect::<Vec<_>>()
        );
        replicas
    }

    pub(super) fn see(&mut self, at: usize, picture: Option<Picture>) {
        self.rules[at].1 = picture;
    }

    pub(super) fn all_see(&mut self, picture: &Option<Picture>) {
        for (_, seen, _) in &mut self.rules {
            seen.clone_from(picture);
        }
    }

    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += LOOK;
            for at in (0..self.rules.len())
                .filter(|at| !self.unheard.contains_key(at))
                .collect::<Vec<_>>()
            {
                self.step(at);
            }
        }
    }

    /// One replica looks; what it writes is known to all before the next one looks.
    fn step(&mut self, at: usize) {
        let peers: Vec<_> = (0..self.rules.len())
            .filter(|peer| *peer != at && !self.unheard.contains_key(peer))
            .map(|peer| PeerStatement {
                replica: format!("r{peer}").parse().expect("an id"),
                statement: self.rules[peer].2.clone(),
            })
            .collect();
        let infos: Vec<_> = (0..self.rules.len())
            .filter_map(|peer| info(peer, self.unheard.get(&peer).copied()))
            .collect();
        let (rule, picture, statement) = &mut self.rules[at];
        let beside = Beside {
            labels: &self.labels,
            held_otherwise: &self.held_otherwise,
        };
        let picture = picture.as_ref();
        let step = rule.step(self.now, picture, &self.entries, &beside, &peers, &infos);
        *statement = step.statement;
        self.counts.insert(at, step.counts);
        self.puts += step.put.len();
        self.removes += step.remove.len();
        for (id, spec) in step.put {
            self.entries.insert(id, Some(Arc::new(spec)));
        }
        self.label_writes += step.label.len();
        for (id, labels) in step.label {
            let known = self.labels.entry(id).or_default();
            *known = known.overlaid_with(&labels).expect("few");
        }
        for id in step.remove {
            self.entries.insert(id, None);
        }
    }

    pub(super) fn registered(&self) -> Vec<WorkerId> {
        let present = self.entries.iter().filter(|(_, spec)| spec.is_some());
        present.map(|(id, _)| id.clone()).collect()
    }

    /// The registry forgets what was removed, as it does after a day.
    pub(super) fn forget_removals(&mut self) {
        self.entries.retain(|_, spec| spec.is_some());
    }

    /// Of each replica, in their order, how many workers are contested.
    pub(super) fn contested(&self) -> Vec<usize> {
        let counts = self.counts.values();
        counts.map(|counts| counts.contested).collect()
    }

    pub(super) fn state(&self, number: usize) -> Option<State> {
        let spec = self.entries.get(&id(number))?.as_ref()?;
        Some(spec.state())
    }

    fn weight(&self, number: usize) -> u32 {
        let spec = self.entries[&id(number)].as_ref().expect("registered");
        spec.weight_milli()
    }
}

#[test]
fn a_new_worker_is_added_at_once() {
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    replicas.see(2, of(&[1, 2, 3]));
    replicas.run(Duration::from_secs(2));
    assert_eq!(replicas.registered(), [id(1), id(2), id(3)]);
    let puts = replicas.puts;
    assert_eq!(puts, 3, "one write for each worker is enough");
    replicas.all_see(&of(&[1, 2, 3]));
    replicas.run(Duration::from_secs(700));
    assert_eq!((replicas.puts, replicas.removes), (puts, 0));
}

/// A picture of one worker with these labels.
fn with_labels<const N: usize>(labels: [(&str, &str); N]) -> Option<Picture> {
    let labels = Labels::new(labels).expect("valid");
    let worker = found(1, 1000, true).labelled(labels);
    Some(Picture::new([(id(1), worker)]).expect("a picture"))
}

#[test]
fn what_was_learned_and_what_is_declared_do_not_replace_each_other() {
    let mut replicas = Replicas::that_see(3, &[1]);
    let labels = |replicas: &Replicas| replicas.labels[&id(1)].clone();
    let of = |pairs: &[(&str, &str)]| Labels::new(pairs.iter().copied()).expect("valid");
    replicas.all_see(&with_labels([("kv.connector", "nixl"), ("kv.port", "1")]));
    replicas.run(Duration::from_secs(5));
    let declared = of(&[("kv.connector", "nixl"), ("kv.port", "1")]);
    assert_eq!(labels(&replicas), declared);
    assert_eq!(replicas.label_writes, 1, "one write is enough");
    // Beside what is learned, and in the place of one: neither writes again.
    let learned = of(&[("kv.port", "2"), ("kv.block_size", "16")]);
    let known = declared.overlaid_with(&learned).expect("few");
    replicas.labels.insert(id(1), known.clone());
    replicas.run(Duration::from_secs(700));
    assert_eq!((labels(&replicas), replicas.label_writes), (known, 1));
    // One that was lost is there again.
    replicas.labels.insert(id(1), learned.clone());
    replicas.run(Duration::from_secs(5));
    assert_eq!(labels(&replicas).get("kv.connector"), Some("nixl"));
    assert_eq!(labels(&replicas).get("kv.port"), Some("2"));
    assert_eq!(replicas.label_writes, 2);
    // Another declaration counts at once, though one replica still sees the former.
    let newer = with_labels([("kv.connector", "nixl"), ("kv.port", "3")]);
    replicas.see(0, newer.clone());
    replicas.see(1, newer);
    replicas.run(Duration::from_secs(700));
    assert_eq!(labels(&replicas).get("kv.port"), Some("3"));
    assert_eq!((replicas.label_writes, replicas.puts), (3, 1));
}

/// Whoever reads a role by its labels never sees the one without the other.
#[test]
fn a_description_and_the_labels_beside_it_change_in_one_step() {
    let mut replicas = Replicas::that_see(1, &[1]);
    replicas.all_see(&with_labels([("kv.connector", "nixl")]));
    replicas.run(Duration::from_secs(5));
    let newer = Labels::new([("kv.connector", "mooncake"), ("kv.port", "1")]).expect("valid");
    let worker = found(1, 2000, true).labelled(newer.clone());
    replicas.all_see(&Picture::new([(id(1), worker)]).ok());
    for _ in 0..20 {
        replicas.step(0);
        let is_described = replicas.weight(1) == 2000;
        assert_eq!(is_described, replicas.labels[&id(1)] == newer);
        replicas.now += LOOK;
    }
    assert_eq!((replicas.weight(1), replicas.label_writes), (2000, 2));
}

/// What came of all workers being gone says nothing of those that are not back when others are.
#[test]
fn those_that_are_back_last_are_not_removed_at_once() {
    let mut replicas = Replicas::that_see(3, &[1, 2, 3]);
    replicas.all_see(&of(&[]));
    replicas.run(2 * HOLD);
    assert_eq!(replicas.state(2), Some(State::Active));
    replicas.all_see(&of(&[1]));
    replicas.run(Duration::from_secs(2));
    assert_eq!(replicas.registered().len(), 3);
    assert_eq!(replicas.state(2), Some(State::Draining));
    replicas.all_see(&of(&[1, 2]));
    replicas.run(Duration::from_secs(2));
    assert_eq!(
        (replicas.state(2), replicas.removes),
        (Some(State::Active), 0)
    );
    replicas.run(HOLD);
    assert_eq!(replicas.registered(), [id(1), id(2)]);
}

#[test]
fn a_worker_that_another_source_declares_is_not_drained() {
    let mut replicas = Replicas::that_see(3, &[1, 2, 3]);
    replicas.held_otherwise.insert(id(2));
    replicas.all_see(&of(&[1]));
    replicas.run(Duration::from_secs(2));
    assert_eq!(replicas.state(2), Some(State::Active));
    assert_eq!(replicas.state(3), Some(State::Draining));
    replicas.run(HOLD);
    assert_eq!(replicas.registered(), [id(1)], "this source takes it back");
}

#[test]
fn a_blind_replica_writes_nothing() {
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    replicas.see(0, None);
    replicas.see(1, None);
    replicas.see(2, None);
    replicas.run(Duration::from_secs(3600));
    assert_eq!(replicas.removes, 0);
    assert_eq!(replicas.state(1), Some(State::Active));
}

#[test]
fn what_nobody_sees_is_drained_then_removed() {
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    replicas.all_see(&of(&[1]));
    // One that cannot see does not hold it.
    replicas.see(1, None);
    replicas.run(Duration::from_secs(4));
    assert_eq!(replicas.state(2), Some(State::Draining));
    replicas.run(HOLD - Duration::from_secs(4));
    assert_eq!(replicas.state(2), Some(State::Draining));
    replicas.run(Duration::from_secs(4));
    assert_eq!(replicas.registered(), [id(1)]);
    assert_eq!(replicas.removes, 1, "one write is enough");
}

#[test]
fn a_return_within_the_hold_removes_nothing() {
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    replicas.all_see(&of(&[1]));
    replicas.run(HOLD / 2);
    replicas.all_see(&of(&[1, 2]));
    replicas.run(Duration::from_secs(2));
    assert_eq!(replicas.state(2), Some(State::Active));
    // The time of the hold begins anew.
    replicas.all_see(&of(&[1]));
    replicas.run(HOLD * 3 / 4);
    assert_eq!(replicas.removes, 0);
}

#[test]
fn one_that_still_sees_it_holds_it_for_a_while() {
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    replicas.see(0, of(&[1]));
    replicas.see(1, of(&[1]));
    replicas.run(Duration::from_secs(590));
    assert_eq!(replicas.state(2), Some(State::Active));
    replicas.run(Duration::from_secs(15));
    assert_eq!(replicas.registered(), [id(1)], "two of three decide");

    let mut replicas = Replicas::that_see(2, &[1, 2]);
    replicas.see(0, of(&[1]));
    replicas.run(Duration::from_secs(3600));
    assert_eq!(replicas.registered(), [id(1), id(2)], "one of two does not");
}

/// The rest of a fault in which one replica's watch is stale without anybody knowing.
#[test]
fn a_stale_picture_brings_nothing_back() {
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    replicas.see(0, of(&[1]));
    replicas.see(1, of(&[1]));
    replicas.run(Duration::from_secs(605));
    assert_eq!(replicas.registered(), [id(1)]);
    replicas.run(Duration::from_secs(3600));
    assert_eq!(replicas.registered(), [id(1)]);
    assert_eq!(replicas.removes, 1);
    // It appears anew, whoever sees that first.
    replicas.see(1, of(&[1, 2]));
    replicas.run(Duration::from_secs(2));
    assert_eq!(replicas.registered(), [id(1), id(2)]);
}

/// Those whose pictures are late have missed it for a long time, but not since it is there again.
#[test]
fn a_worker_that_returns_long_after_its_removal_is_not_removed_by_late_pictures() {
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    replicas.all_see(&of(&[1]));
    replicas.run(Duration::from_secs(3600));
    assert_eq!((replicas.registered(), replicas.removes), (vec![id(1)], 1));
    replicas.see(0, of(&[1, 2]));
    replicas.run(Duration::from_secs(5));
    assert_eq!(replicas.registered(), [id(1), id(2)]);
    replicas.all_see(&of(&[1, 2]));
    replicas.run(Duration::from_secs(60));
    assert_eq!(replicas.registered(), [id(1), id(2)]);
    assert_eq!(replicas.removes, 1);
}

#[test]
fn what_most_still_see_returns_after_the_hold() {
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    // Somebody wrote it, from before a partition for example.
    replicas.entries.insert(id(2), None);
    replicas.run(HOLD - Duration::from_secs(2));
    assert_eq!(replicas.registered(), [id(1)]);
    replicas.run(Duration::from_secs(4));
    assert_eq!(replicas.registered(), [id(1), id(2)]);
}

#[test]
fn an_empty_picture_is_believed_late() {
    for workers in [&[1, 2][..], &[1]] {
        let mut replicas = Replicas::that_see(3, workers);
        replicas.all_see(&of(&[]));
        replicas.run(Duration::from_secs(290));
        assert_eq!(replicas.registered().len(), workers.len());
        assert_eq!(replicas.state(1), Some(State::Active), "in use meanwhile");
        replicas.run(Duration::from_secs(15));
        assert_eq!(replicas.registered().len(), 0);
    }
    // What goes on to be used is the last one, if the others went before.
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    replicas.all_see(&of(&[1]));
    replicas.run(Duration::from_secs(10));
    replicas.all_see(&of(&[]));
    replicas.run(Duration::from_secs(200));
    assert_eq!(replicas.state(1), Some(State::Active));
}

#[test]
fn the_newer_description_stands() {
    let mut replicas = Replicas::that_see(3, &[1]);
    let heavier = Picture::new([(id(1), found(1, 2000, true))]).expect("a picture");
    replicas.see(1, Some(heavier.clone()));
    replicas.run(Duration::from_secs(2));
    assert_eq!(replicas.weight(1), 2000, "of two of which one changed");
    // The others are late, by less than the time after which most decide.
    replicas.run(Duration::from_secs(5));
    replicas.all_see(&Some(heavier));
    let puts = replicas.puts;
    replicas.run(Duration::from_secs(60));
    assert_eq!((replicas.weight(1), replicas.puts), (2000, puts));
}

#[test]
fn no_war_over_descriptions() {
    let mut replicas = Replicas::that_see(3, &[1]);
    let heavier = Picture::new([(id(1), found(1, 2000, true))]).expect("a picture");
    replicas.see(1, Some(heavier));
    replicas.run(Duration::from_secs(3600));
    assert_eq!(replicas.weight(1), 1000, "two of three");
    assert_eq!(replicas.puts, 3, "one there, one back");
}

#[test]
fn readiness_moves_no_ring() {
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    let unready = [
        (id(1), found(1, 1000, true)),
        (id(2), found(2, 1000, false)),
    ];
    let unready = Some(Picture::new(unready).expect("a picture"));
    for _ in 0..10 {
        replicas.all_see(&unready);
        replicas.run(Duration::from_secs(60));
        assert_eq!(replicas.state(2), Some(State::Draining));
        replicas.all_see(&of(&[1, 2]));
        replicas.run(Duration::from_secs(60));
        assert_eq!(replicas.state(2), Some(State::Active));
    }
    assert_eq!(replicas.removes, 0);
}

#[test]
fn who_was_never_ready_has_no_place() {
    let mut replicas = Replicas::that_see(3, &[1]);
    let with_two = |is_ready| {
        let workers = [
            (id(1), found(1, 1000, true)),
            (id(2), found(2, 1000, is_ready)),
        ];
        Some(Picture::new(workers).expect("a picture"))
    };
    replicas.all_see(&with_two(false));
    replicas.run(Duration::from_secs(3600));
    assert_eq!((replicas.registered(), replicas.puts), (vec![id(1)], 1));
    replicas.all_see(&with_two(true));
    replicas.run(Duration::from_secs(2));
    assert_eq!(replicas.registered(), [id(1), id(2)]);
}

#[test]
fn a_warm_up_is_no_difference() {
    let mut replicas = Replicas::that_see(2, &[1]);
    let mut raw = found(1, 1000, true).spec().to_raw();
    raw.state = State::Warming { until_ms: 1 };
    raw.epoch = 7;
    let warming = Arc::new(WorkerSpec::new(raw).expect("valid"));
    replicas.entries.insert(id(1), Some(warming));
    let puts = replicas.puts;
    replicas.run(Duration::from_secs(60));
    assert_eq!(replicas.puts, puts);
}

#[test]
fn statements_are_empty_when_all_is_well() {
    let replicas = Replicas::that_see(3, &[1, 2]);
    for (_, _, statement) in &replicas.rules {
        assert!(statement.is_seeing && statement.objections.is_empty());
    }
}

#[test]
fn five_thousand_that_change_at_once_are_one_write_each() {
    let many = |range: std::ops::Range<usize>| {
        let worker = |n: usize| {
            let spec = WorkerSpec::new(RawWorker::at(format!("http://w{n}:8000"))).expect("valid");
            (id(n), Found::new(&spec, true).expect("valid"))
        };
        Picture::new(range.map(worker)).expect("a picture")
    };
    let mut replicas = Replicas::that_see(3, &[]);
    replicas.all_see(&Some(many(0..5000)));
    replicas.run(Duration::from_secs(1));
    assert_eq!((replicas.registered().len(), replicas.puts), (5000, 5000));
    replicas.all_see(&Some(many(5000..10_000)));
    replicas.run(Duration::from_secs(40));
    assert_eq!(replicas.registered().len(), 5000);
    assert_eq!(replicas.removes, 5000);
    assert_eq!(replicas.puts, 5000 + 5000 + 5000, "added, added, drained");
}

proptest! {
    /// Whatever each replica saw in between: once all see the same, the worker set is that, and nothing is written any more.
    #[test]
    fn equal_pictures_end_in_that_worker_set(
        seen in prop::collection::vec((0_usize..3, prop::option::of(prop::collection::btree_set(1_usize..6, 0..5)), 1_u64..120, any::<bool>()), 0..12),
        last in prop::collection::btree_set(1_usize..6, 1..5),
    ) {
        let mut replicas = Replicas::that_see(3, &[1, 2, 3]);
        for (at, picture, seconds, forgets) in seen {
            replicas.see(at, picture.and_then(|numbers| of(&numbers.into_iter().collect::<Vec<_>>())));
            replicas.run(Duration::from_secs(seconds));
            if forgets {
                replicas.forget_removals();
            }
        }
        let last: Vec<usize> = last.into_iter().collect();
        replicas.all_see(&of(&last));
        replicas.run(Duration::from_secs(120));
        let expected: BTreeMap<_, _> = last.iter().map(|&n| (id(n), State::Active)).collect();
        let is: BTreeMap<_, _> = replicas.entries.iter().filter_map(|(id, spec)| Some((id.clone(), spec.as_ref()?.state()))).collect();
        prop_assert_eq!(is, expected);
        let (puts, removes) = (replicas.puts, replicas.removes);
        replicas.run(Duration::from_secs(60));
        prop_assert_eq!((replicas.puts, replicas.removes), (puts, removes));
    }
}
