//! Replicas that were away, those that they meet first, and the cluster: planes with a queue between them.

use super::super::tests::registry_of;
use super::*;
use crate::config::SYNC_EVERY;
use crate::hlc::{DRIFT_MAX, Stamp};
use crate::plane::{Effect, Link};
use crate::registry::{MERGED_ENTRIES_MAX, RETENTION};
use crate::wire::tests::samples::sealed;
use crate::wire::{Message, decode};
use crate::worker::{RawWorker, Source};

const HOUR: Duration = Duration::from_secs(3600);

/// Some replicas, each alone unless it is said otherwise.
struct Replicas {
    planes: Vec<RegistryPlane>,
    now: Instant,
    /// The wall clock of each.
    unix_ms: Vec<u64>,
    /// Offences that were found in an exchange.
    strikes: usize,
    /// A worker whose entry no answer can be read of, as where a later release wrote it.
    unreadable: Option<&'static str>,
}

impl Replicas {
    fn new<const N: usize>(names: [&str; N]) -> Self {
        let now = tokio::time::Instant::now().into_std();
        let planes = names.map(|name| registry_of(name, now)).into();
        Self {
            planes,
            now,
            unix_ms: vec![1_000; N],
            strikes: 0,
            unreadable: None,
        }
    }

    fn cx(&self, at: usize) -> Context {
        Context::at(self.now, self.unix_ms[at])
    }

    fn starts(&mut self, name: &str) -> usize {
        self.planes.push(registry_of(name, self.now));
        self.unix_ms.push(1_000);
        self.planes.len() - 1
    }

    fn put(&mut self, at: usize, worker: &str) {
        let spec = WorkerSpec::new(RawWorker::at(format!("http://{worker}:8000"))).expect("valid");
        let id: WorkerId = worker.parse().expect("valid");
        let mut cx = self.cx(at);
        let put = |registry: &mut Registry, now| {
            Ok(Vec::from_iter(registry.put(
                id,
                Source::Admin,
                spec,
                now,
            )?))
        };
        self.planes[at].write(put, &mut cx).expect("room");
    }

    /// A worker of the configuration, of this weight.
    fn configure(&mut self, at: usize, weight: u32) {
        let mut raw = RawWorker::at("http://w:8000");
        raw.weight_milli = weight;
        let spec = WorkerSpec::new(raw).expect("valid");
        let worker = ("w".parse().expect("valid"), spec);
        let mut cx = self.cx(at);
        self.planes[at].configure([worker], &mut cx).expect("room");
    }

    fn weight(&self, at: usize) -> u32 {
        self.planes[at].registry.workers()[0].spec.weight_milli()
    }

    /// Removes a worker, and forgets that.
    fn remove_and_forget(&mut self, at: usize, worker: &str) {
        self.remove(at, worker);
        self.forget(at);
    }

    fn remove(&mut self, at: usize, worker: &str) {
        let id: WorkerId = worker.parse().expect("valid");
        let mut cx = self.cx(at);
        let remove = |registry: &mut Registry, now| registry.remove(&id, Source::Admin, now);
        self.planes[at].write(remove, &mut cx).expect("known");
    }

    /// Time passes in which nobody brings a removed worker back.
    fn forget(&mut self, at: usize) {
        self.planes[at].registry.advance(2 * RETENTION);
    }

    fn workers(&self, at: usize) -> Vec<String> {
        let workers = self.planes[at].registry.workers();
        workers.iter().map(|worker| worker.id.to_string()).collect()
    }

    /// These pass so much time alone: in one step, as it counts for all but their peers.
    fn alone_for(&mut self, time: Duration, which: &[usize]) {
        self.now += time;
        for &at in which {
            let mut cx = self.cx(at);
            self.planes[at].on_tick(&around(&[]), &mut cx);
        }
    }

    /// These are together, and each compares registries with each other one, twice.
    fn together(&mut self, which: &[usize]) {
        for _ in 0..2 {
            for step in 1..which.len() {
                self.now += SYNC_EVERY;
                for (n, &at) in which.iter().enumerate() {
                    self.exchange(at, which[(n + step) % which.len()]);
                }
            }
        }
    }

    fn exchange(&mut self, asking: usize, answering: usize) {
        let peer = self.planes[answering].replica.clone();
        let mut cx = self.cx(asking);
        self.planes[asking].on_tick(&around(std::slice::from_ref(&peer)), &mut cx);
        let mut questions = questions(cx);
        assert!(!questions.is_empty(), "it asks each {SYNC_EVERY:?}");
        while let Some(question) = questions.pop() {
            let answer = self.ask(asking, answering, &question);
            let mut cx = self.cx(asking);
            self.planes[asking].on_answer(&peer, &question, Ok(answer), &mut cx);
            self.strikes += strikes(&cx);
            questions.extend(self::questions(cx));
        }
    }

    /// A starting replica takes everything of another one.
    fn adopt(&mut self, new: usize, from: usize) {
        let peer = self.planes[from].replica.clone();
        let answer = self.ask(new, from, &Message::SnapshotRequest);
        let mut cx = self.cx(new);
        self.planes[new]
            .adopt(&peer, answer, &mut cx)
            .expect("whole");
    }

    fn ask(&mut self, asking: usize, answering: usize, question: &Message) -> Vec<Received> {
        let received = decode(&sealed(question)).expect("whole");
        let peer = self.planes[asking].replica.clone();
        let origin = Origin {
            peer: &peer,
            header: received.header,
            bytes: 100,
        };
        let mut cx = self.cx(answering);
        let message = received.message.expect("known");
        self.planes[answering].on_message(origin, message, &mut cx);
        self.strikes += strikes(&cx);
        let frames = cx.answer.iter();
        frames.map(|frame| self.read(frame)).collect()
    }

    fn read(&self, frame: &Message) -> Received {
        let mut received = decode(&sealed(frame)).expect("whole");
        if let Some(Message::SyncResponse(piece)) = &mut received.message {
            let all = piece.entries.len();
            let is_read = |entry: &Entry| Some(entry.id.as_str()) != self.unreadable;
            piece.entries.retain(is_read);
            received.refused += all - piece.entries.len();
        }
        received
    }
}

fn strikes(cx: &Context) -> usize {
    let is_strike = |effect: &&Effect| matches!(effect, Effect::Strike(..));
    cx.effects.iter().filter(is_strike).count()
}

fn questions(cx: Context) -> Vec<Message> {
    let asked = cx.effects.into_iter().filter_map(|effect| match effect {
        Effect::Ask(_, question) => Some(question),
        _ => None,
    });
    asked.collect()
}

/// These are connected and live.
fn around(peers: &[ReplicaId]) -> Surroundings {
    let address = "127.0.0.1:2".parse().expect("valid");
    let links = peers.iter().map(|peer| Link {
        peer: peer.clone(),
        generation: 1,
        room: 16,
        address,
    });
    let others = peers.iter().map(|peer| SeenReplica {
        id: peer.clone(),
        generation: 1,
        address,
        live: true,
        facts: std::collections::BTreeMap::new(),
    });
    Surroundings {
        links: links.collect(),
        seen: Arc::new(Seen {
            others: others.collect(),
            generation: 1,
            is_synced: true,
            ..Seen::default()
        }),
    }
}

/// Three of one cluster with two workers, of which the others remove one while the first, or the first two, are alone for
/// longer than that is remembered.
fn apart(alone: &[usize]) -> Replicas {
    let mut all = together();
    all.alone_for(25 * HOUR, alone);
    all.remove_and_forget(2, "removed");
    all
}

/// Three of one cluster with two workers.
fn together() -> Replicas {
    let mut all = Replicas::new(["l1", "l2", "c"]);
    all.together(&[0, 1, 2]);
    all.together(&[0, 1, 2]);
    all.put(2, "kept");
    all.put(0, "removed");
    all.together(&[0, 1, 2]);
    for at in 0..3 {
        assert_eq!(all.workers(at), ["kept", "removed"]);
    }
    all
}

/// Its monotonic clock stood still, so that it seems to have been together with the others all the time.
#[test]
fn who_was_suspended_for_a_day_brings_no_removed_worker_back() {
    for is_asked_first in [false, true] {
        let mut all = together();
        all.remove(2, "removed");
        all.together(&[1, 2]);
        all.forget(1);
        all.forget(2);
        all.unix_ms[0] += u64::try_from(26 * HOUR.as_millis()).expect("small");
        match is_asked_first {
            true => all.together(&[1, 2, 0]),
            false => all.together(&[0, 1, 2]),
        }
        for at in 0..3 {
            assert_eq!(all.workers(at), ["kept"], "{at}");
        }
        // It is one of the cluster again: what is written here counts.
        all.unix_ms[0] = all.unix_ms[1];
        all.put(0, "new");
        all.together(&[0, 1, 2]);
        assert_eq!(all.workers(2), ["kept", "new"]);
    }
}

/// Whichever of the two descriptions has the greater bytes, and whichever way the registry is taken.
#[test]
fn a_start_describes_no_worker_of_the_cluster_anew() {
    for (before, after, is_exchanged) in [(1, 2, false), (2, 1, false), (1, 2, true), (2, 1, true)]
    {
        let mut all = Replicas::new(["a", "b"]);
        all.configure(0, before);
        all.configure(1, before);
        all.together(&[0, 1]);
        all.together(&[0, 1]);
        assert!(!all.planes[0].contact.has_met_nobody());
        // Two start beside them, and one of them meets the other first.
        let (c, d) = (all.starts("c"), all.starts("d"));
        all.configure(c, after);
        all.configure(d, after);
        all.adopt(d, c);
        for new in [c, d] {
            // An old one compares first, as it may at any time.
            all.now += SYNC_EVERY;
            all.exchange(1, new);
            if is_exchanged {
                all.now += SYNC_EVERY;
                all.exchange(new, 0);
            } else {
                all.adopt(new, 0);
            }
            assert_eq!(all.weight(new), before);
        }
        all.together(&[0, 1, c, d]);
        for at in [0, 1, c, d] {
            assert_eq!(all.weight(at), before, "{at}");
        }
    }
}

/// Certificates and keys are read in between, which may take longer than a peer takes to answer.
#[test]
fn nor_where_the_registry_comes_before_the_configuration() {
    for (before, after) in [(1, 2), (2, 1)] {
        let mut all = Replicas::new(["a", "b"]);
        all.configure(0, before);
        all.configure(1, before);
        all.together(&[0, 1]);
        all.together(&[0, 1]);
        let new = all.starts("c");
        all.adopt(new, 0);
        all.configure(new, after);
        all.together(&[0, 1, new]);
        for at in [0, 1, new] {
            assert_eq!(all.weight(at), before, "{at}");
        }
        // It is of this replica's configuration all the same.
        all.planes[new].registry.start_over();
        assert_eq!(all.weight(new), before);
    }
}

#[test]
fn who_copied_from_a_replica_that_was_away_brings_no_removed_worker_back() {
    let mut all = apart(&[0, 1]);
    let new = all.starts("n");
    all.adopt(new, 0);
    assert_eq!(all.workers(new), ["kept", "removed"]);
    all.together(&[0, new]);
    all.together(&[0, 1, 2, new]);
    for at in [0, 1, 2, new] {
        assert_eq!(all.workers(at), ["kept"], "{at}");
    }
}

/// Else it would ask for all of it each time, take nothing, and stay away for as long as the entry is there.
#[test]
fn who_was_away_takes_what_it_can_read_of_a_later_release() {
    let mut all = apart(&[0]);
    all.put(2, "later");
    all.unreadable = Some("later");
    all.now += SYNC_EVERY;
    all.exchange(0, 2);
    assert_eq!(all.workers(0), ["kept"]);
    assert!(!all.planes[0].contact.is_away());
}

/// It was met by a replica that was away before it met the cluster: what it was given there comes with a warning.
#[test]
fn a_newcomer_carries_nothing_from_a_replica_that_was_away_to_the_cluster() {
    let mut all = apart(&[0, 1]);
    let new = all.starts("n");
    all.now += SYNC_EVERY;
    all.exchange(0, new);
    all.now += SYNC_EVERY;
    all.exchange(new, 2);
    all.together(&[0, 1, 2, new]);
    for at in [0, 1, 2, new] {
        assert_eq!(all.workers(at), ["kept"], "{at}");
    }
}

#[test]
fn two_that_were_away_and_meet_first_bring_no_removed_worker_back() {
    let mut all = apart(&[0, 1]);
    all.together(&[0, 1]);
    assert_eq!(all.workers(0), ["kept", "removed"]);
    all.together(&[0, 1, 2]);
    for at in 0..3 {
        assert_eq!(all.workers(at), ["kept"], "{at}");
    }
}

/// All links failed for a day, so all were away, and there is nothing better than what they hold.
#[test]
fn a_cluster_whose_replicas_were_all_away_keeps_what_it_holds() {
    let mut all = Replicas::new(["a", "b", "c"]);
    all.together(&[0, 1, 2]);
    all.together(&[0, 1, 2]);
    all.put(0, "kept");
    all.together(&[0, 1, 2]);
    all.alone_for(25 * HOUR, &[0, 1, 2]);
    all.together(&[0, 1, 2]);
    // Two of them start again at once, and one takes everything of the other before it meets the third.
    let (b, c) = (all.starts("b"), all.starts("c"));
    all.adopt(c, b);
    all.together(&[0, b, c]);
    for at in [0, b, c] {
        assert_eq!(all.workers(at), ["kept"], "{at}");
    }
}

/// A starting replica asks several at once: the newcomer's answer may come last.
#[test]
fn a_newcomer_gives_nothing_to_who_has_the_clusters() {
    let mut all = Replicas::new(["a", "b"]);
    all.together(&[0, 1]);
    all.together(&[0, 1]);
    all.put(0, "kept");
    all.together(&[0, 1]);
    let (c, d) = (all.starts("c"), all.starts("d"));
    all.put(d, "other");
    all.adopt(c, 0);
    all.adopt(c, d);
    assert_eq!(all.workers(c), ["kept"]);
}

/// A liar gives an entry that is stamped a day ahead to the one of two whose clock is ahead by some seconds. The other one
/// leaves it out, takes all else, and holds it against nobody.
#[test]
fn a_stamp_between_the_limits_of_two_clocks_sets_nobody_against_a_peer() {
    let mut all = Replicas::new(["a", "b"]);
    all.together(&[0, 1]);
    all.together(&[0, 1]);
    all.put(0, "kept");
    all.unix_ms[0] += 3_000;
    let day = DRIFT_MAX.as_millis() as u64;
    let mut liar = Registry::new("liar".parse().expect("valid"));
    let spec = WorkerSpec::new(RawWorker::at("http://far:8000")).expect("valid");
    let far = "far".parse().expect("valid");
    let far = liar.put(far, Source::Admin, spec, all.unix_ms[0] + day - 1);
    let far = far.expect("room").into_iter().collect();
    let mut cx = all.cx(0);
    let merged = all.planes[0].merge(&"liar".parse().expect("valid"), far, &mut cx);
    assert_eq!(merged.map(|merged| merged.changed), Ok(1));
    all.together(&[0, 1]);
    assert_eq!(all.workers(0), ["far", "kept"]);
    assert_eq!(all.workers(1), ["kept"]);
    all.unix_ms[1] += 3_000;
    all.together(&[0, 1]);
    assert_eq!(all.workers(1), ["far", "kept"]);
    assert_eq!(all.strikes, 0);
}

/// What it writes meanwhile nobody takes, and nobody holds it against it; once its clock is right, it lets that go.
#[test]
fn who_was_far_ahead_for_a_moment_is_one_of_the_cluster_again() {
    let mut all = together();
    let ahead = u64::try_from((30 * HOUR).as_millis()).expect("small");
    all.unix_ms[0] += ahead;
    // The jump is taken for time away.
    all.together(&[0, 1, 2]);
    all.put(0, "ahead");
    all.together(&[0, 1, 2]);
    assert_eq!(all.workers(0), ["ahead", "kept", "removed"]);
    for at in 1..3 {
        assert_eq!(all.workers(at), ["kept", "removed"], "{at}");
        assert_eq!(all.planes[at].metrics.clock_drift.get(), 108_000);
    }
    all.unix_ms[0] -= ahead;
    all.together(&[0, 1, 2]);
    for at in 0..3 {
        assert_eq!(all.workers(at), ["kept", "removed"], "{at}");
    }
    all.put(0, "new");
    all.together(&[0, 1, 2]);
    assert_eq!(all.workers(2), ["kept", "new", "removed"]);
    assert_eq!(all.strikes, 0);
}

/// Every replica carries its lead on, for as long as it was ahead: the clocks are right.
#[test]
fn a_lead_that_others_carry_on_is_held_against_no_clock() {
    let mut all = Replicas::new(["a", "b", "c"]);
    all.together(&[0, 1, 2]);
    all.unix_ms[1] += 7_200_000;
    all.put(1, "w");
    all.together(&[1, 2]);
    all.unix_ms[1] -= 7_200_000;
    all.put(2, "v");
    all.together(&[0, 2]);
    assert_eq!(all.workers(0), ["v", "w"]);
    assert_eq!(all.planes[0].metrics.clock_drift.get(), 0);
    assert_eq!(all.planes[2].metrics.clock_drift.get(), 7_200);
}

/// An alarm goes by it, which is to end once the clocks are right.
#[test]
fn a_clock_that_is_ahead_is_shown_for_an_hour() {
    let mut all = Replicas::new(["a", "b"]);
    let shown = |all: &Replicas| all.planes[0].metrics.clock_drift.get();
    all.together(&[0, 1]);
    all.unix_ms[1] += 90_000;
    all.put(1, "w");
    all.together(&[0, 1]);
    assert_eq!(shown(&all), 90);
    all.alone_for(HOUR / 2, &[0]);
    assert_eq!(shown(&all), 90);
    all.alone_for(HOUR / 2, &[0]);
    assert_eq!(shown(&all), 0);
}

/// Whoever waits for a confirmation is told that the change is held by others, too.
#[test]
fn a_push_is_confirmed_only_where_all_of_it_was_taken() {
    let day = DRIFT_MAX.as_millis() as u64;
    let pushed = |worker: &str, stamp_ms, epoch| {
        let mut raw = RawWorker::at("http://w:8000");
        raw.epoch = epoch;
        Entry {
            id: worker.parse().expect("valid"),
            source: Source::Admin,
            stamp: Stamp::at_ms(stamp_ms),
            writer: Some("a".parse().expect("valid")),
            spec: Some(Arc::new(WorkerSpec::new(raw).expect("valid"))),
            unused_ms: 0,
        }
    };
    let mut all = Replicas::new(["a", "b"]);
    let mut is_confirmed = |entry: Entry| {
        let whole = pushed("whole", 1_000, 0);
        let answer = all.ask(0, 1, &Message::RegistryPush(vec![whole, entry]));
        let acks = answer.iter().map(|frame| &frame.message);
        acks.filter(|message| matches!(message, Some(Message::PushAck(_))))
            .count()
            == 1
    };
    assert!(is_confirmed(pushed("w", 1_000, 0)));
    assert!(is_confirmed(pushed("w", 1_000, 0)), "it was taken before");
    assert!(!is_confirmed(pushed("later", 1_001 + day, 0)), "its stamp");
    assert!(
        !is_confirmed(pushed("later", 1_000, 2 + day / 1000)),
        "its start"
    );
    // As many as there is room for.
    let many = (0..MERGED_ENTRIES_MAX).map(|n| pushed(&format!("w{n}"), 1_000, 0));
    let merged = all.planes[1].registry.merge(many.collect(), 1_000);
    assert!(merged.expect("no drift").refused > 0);
    let push = Message::RegistryPush(vec![pushed("one-more", 1_000, 0)]);
    assert!(all.ask(0, 1, &push).is_empty(), "there is no room");
    assert_eq!(all.strikes, 0);
}
