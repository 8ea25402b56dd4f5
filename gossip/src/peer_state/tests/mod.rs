//! The peer-state plane from publishing to reading. Two of its parts by themselves: `quarantined.rs`, `heard.rs`; how old bad
//! claims are: `spells.rs`.

mod heard;
mod quarantined;
mod spells;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::received::SENDERS_MAX;
use super::*;
use crate::evidence::KnownWorkers;
use crate::made::{registry, replica, spec_with, start, worker};
use crate::planes::Publisher;
use crate::view::View;
use crate::wire::{self, Message};
use crate::worker::Source;

const MS: Duration = Duration::from_millis(1);

/// Every entry fits.
const NOTHING: [(&str, usize); 6] = [
    ("health", 0),
    ("usage", 0),
    ("quarantine", 0),
    ("paces", 0),
    ("sightings", 0),
    ("heard", 0),
];

fn known_workers(workers: &[(&str, u64)]) -> KnownWorkers {
    let mut registry = registry("r");
    for (name, epoch) in workers {
        let spec = spec_with(|raw| raw.epoch = *epoch);
        let put = registry.put(worker(name), Source::Admin, spec, 1);
        put.expect("room");
    }
    KnownWorkers::new(&View::new(&registry, Vec::new()))
}

fn claim(name: &str, claim: Claim, age: Duration) -> HealthClaim {
    HealthClaim {
        worker: worker(name),
        epoch: 1,
        claim,
        age,
    }
}

fn used(tenant: u64, in_flight: u32, queued: u32) -> TenantUse {
    TenantUse {
        tenant,
        in_flight,
        queued,
    }
}

fn health_of(messages: &[Message]) -> Option<&[HealthClaim]> {
    messages.iter().find_map(|message| match message {
        Message::Health(claims) => Some(claims.as_slice()),
        _ => None,
    })
}

fn usage_of(messages: &[Message]) -> Option<&[TenantUse]> {
    messages.iter().find_map(|message| match message {
        Message::Usage(usage) => Some(usage.as_slice()),
        _ => None,
    })
}

/// A received that knows workers `a` and `b`, both in epoch 1.
fn received() -> ReceivedStates {
    let mut received = ReceivedStates::default();
    assert!(received.follow(known_workers(&[("a", 1), ("b", 1)])));
    received
}

/// The claims on a worker, and the age of each at `now`.
fn claims(states: &PeerStates, name: &str, now: Instant) -> Vec<(String, Claim, Duration)> {
    let id = worker(name);
    let of = |peer: &ReceivedState| {
        let sent = peer.health.iter().find(|sent| sent.worker == id)?;
        Some((peer.replica.to_string(), sent.claim, peer.age(sent, now)))
    };
    states.peers().filter_map(of).collect()
}

/// What is due, but for whom the replica hears: that is told also where nothing was said of it.
fn due(publisher: &mut Publisher, now: Instant) -> Vec<Message> {
    let due = publisher.due(now).into_iter();
    due.filter(|message| !matches!(message, Message::Heard(_)))
        .collect()
}

#[test]
fn only_parts_that_changed_are_sent_and_all_are_renewed() {
    let (mut publisher, mut now) = (Publisher::default(), start());
    assert!(due(&mut publisher, now).is_empty(), "nothing published yet");
    let publish = |publisher: &mut Publisher, age, in_flight, now| {
        let state = PeerState {
            health: vec![claim("a", Claim::Stalled, age)],
            usage: vec![used(7, in_flight, 0)],
            ..PeerState::default()
        };
        assert_eq!(publisher.publish(state, now), NOTHING);
    };
    publish(&mut publisher, 5 * MS, 1, now);
    assert!(publisher.has_news());
    assert_eq!(due(&mut publisher, now).len(), 2);
    assert!(!publisher.has_news());

    now += PAUSE;
    publish(&mut publisher, 55 * MS, 2, now);
    let sent = due(&mut publisher, now);
    assert_eq!(usage_of(&sent), Some(&[used(7, 2, 0)][..]));
    assert!(health_of(&sent).is_none(), "it only grew older");

    // Unsaid news stays news, whatever is published after it.
    let other = PeerState {
        health: vec![claim("b", Claim::Good, MS)],
        usage: vec![],
        ..PeerState::default()
    };
    publisher.publish(other, now);
    publish(&mut publisher, 60 * MS, 2, now);
    assert_eq!(due(&mut publisher, now).len(), 2);

    now += RENEW_AFTER - MS;
    assert!(due(&mut publisher, now).is_empty());
    now += MS;
    let sent = due(&mut publisher, now);
    let claims = health_of(&sent).expect("renewed");
    assert_eq!(claims[0].age, 60 * MS + RENEW_AFTER, "it grew older here");
    assert_eq!(usage_of(&sent), Some(&[used(7, 2, 0)][..]));

    publisher.send_again();
    assert_eq!(due(&mut publisher, now).len(), 2, "somebody new is there");
}

#[test]
fn what_is_published_is_brought_into_form() {
    let (mut publisher, now) = (Publisher::default(), start());
    let state = PeerState {
        health: vec![
            claim("b", Claim::Good, Duration::MAX),
            claim("a", Claim::Good, MS),
            claim("a", Claim::Ejected, MS),
        ],
        usage: vec![
            used(9, 1, 1),
            used(3, u32::MAX, 0),
            used(9, 1, 0),
            used(4, 0, 0),
        ],
        ..PeerState::default()
    };
    assert_eq!(publisher.publish(state, now), NOTHING);
    let due = publisher.due(now);
    assert_eq!(
        health_of(&due).expect("due"),
        [
            claim("a", Claim::Ejected, MS),
            claim("b", Claim::Good, AGE_MAX)
        ]
    );
    assert_eq!(
        usage_of(&due).expect("due"),
        [used(3, REQUESTS_MAX, 0), used(9, 2, 1)]
    );
}

#[test]
fn what_does_not_fit_is_left_out_and_counted() {
    let (mut publisher, now) = (Publisher::default(), start());
    let long = |n: usize, kind, age| claim(&format!("{n:0>500}"), kind, age);
    let good = (0..100).map(|n| long(n, Claim::Good, MS));
    let bad = (100..200).map(|n| long(n, Claim::Stalled, n as u32 * MS));
    let tenants = (0..TENANTS_MAX as u64 + 10).map(|n| used(n, 1 + u32::from(n >= 10), 0));
    let state = PeerState {
        health: good.chain(bad).collect(),
        usage: tenants.collect(),
        ..PeerState::default()
    };
    let cut = publisher.publish(state, now);
    let due = publisher.due(now);
    let (claims, usage) = (health_of(&due).expect("due"), usage_of(&due).expect("due"));
    assert_eq!(
        (cut[0], cut[1]),
        (("health", 200 - claims.len()), ("usage", 10))
    );
    assert!(claims.len() > 100 && claims.len() < 150, "{}", claims.len());
    let bad = claims.iter().filter(|sent| sent.claim == Claim::Stalled);
    assert_eq!(bad.count(), 100, "good ones are left out first");
    assert!(usage.iter().all(|used| used.in_flight == 2));
    for message in &due {
        let mut bytes = Vec::new();
        wire::encode(&mut bytes, 1, 1, message).expect("fits");
        assert!(wire::decode(&bytes).expect("decodes").message.is_some());
    }
    // Of the bad ones the oldest.
    let state = PeerState {
        health: (0..200)
            .map(|n| long(n, Claim::Stalled, n as u32 * MS))
            .collect(),
        usage: vec![],
        ..PeerState::default()
    };
    let cut = publisher.publish(state, now);
    let due = publisher.due(now);
    let claims = health_of(&due).expect("due");
    assert_eq!(cut[0], ("health", 200 - claims.len()));
    let oldest = claims.iter().map(|sent| sent.age).max();
    assert_eq!(oldest, Some((claims.len() as u32 - 1) * MS));
}

#[test]
fn what_one_replica_publishes_the_others_read() {
    let (mut received, mut now) = (received(), start());
    let sent = vec![
        claim("a", Claim::Stalled, 10 * MS),
        claim("b", Claim::Good, MS),
    ];
    assert_eq!(
        received.part(&replica("x"), (1, 5), sent, now),
        Taken::Fresh
    );
    let good = vec![claim("a", Claim::Good, MS)];
    assert_eq!(
        received.part(&replica("y"), (1, 9), good, now),
        Taken::Fresh
    );
    for (from, in_flight) in [("x", 3), ("y", 4)] {
        let usage = vec![used(7, in_flight, 1), used(8, u32::MAX, u32::MAX)];
        assert_eq!(
            received.part(&replica(from), (1, 10), usage, now),
            Taken::Fresh
        );
    }
    now += 40 * MS;
    let states = received.states();
    assert_eq!(
        claims(&states, "a", now),
        [
            ("x".to_owned(), Claim::Stalled, 50 * MS),
            ("y".to_owned(), Claim::Good, 41 * MS)
        ]
    );
    assert_eq!(claims(&states, "b", now).len(), 1);
    assert_eq!(states.others_usage(7), used(7, 7, 2));
    assert_eq!(states.others_usage(6), used(6, 0, 0));
    let most = 2 * REQUESTS_MAX;
    assert_eq!(states.others_usage(8), used(8, most, most), "clamped");
    let named: Vec<_> = states.claims_on(&worker("a")).collect();
    assert_eq!(named.len(), 2);
    assert!(named.iter().all(|(_, sent, age)| *age >= sent.age));
}

#[test]
fn claims_about_unknown_workers_and_former_lives_are_not_shown() {
    let (mut received, now) = (received(), start());
    let mut former = claim("b", Claim::Stalled, MS);
    former.epoch = 0;
    let sent = vec![
        claim("a", Claim::Ejected, MS),
        former,
        claim("c", Claim::Stalled, MS),
    ];
    received.part(&replica("x"), (1, 1), sent, now);
    let shown = |received: &ReceivedStates| {
        let states = received.states();
        ["a", "b", "c"].map(|name| claims(&states, name, now).len())
    };
    assert_eq!(shown(&received), [1, 0, 0]);
    // The registry may be later than the claim about its worker.
    assert!(received.follow(known_workers(&[("a", 2), ("c", 1)])));
    assert_eq!(shown(&received), [0, 0, 1]);
    assert!(!received.follow(known_workers(&[("a", 2), ("c", 1)])));
}

#[test]
fn what_is_not_renewed_counts_no_more() {
    let (mut received, start) = (received(), start());
    let (x, sent) = (replica("x"), vec![claim("a", Claim::Stalled, MS)]);
    received.part(&x, (1, 1), sent.clone(), start);
    received.part(&x, (1, 2), vec![used(7, 1, 0)], start + MS);
    assert!(!received.expire(start + SILENT_AFTER - MS));
    // One part may be older than the other.
    assert!(received.expire(start + SILENT_AFTER));
    assert!(claims(&received.states(), "a", start).is_empty());
    assert_eq!(received.states().others_usage(7), used(7, 1, 0));
    assert!(received.expire(start + SILENT_AFTER + MS));
    assert_eq!(received.states().peers().len(), 0);
    assert!(!received.expire(start + SILENT_AFTER + MS), "once");
    // A late copy is refused as long as one may be under way.
    let later = start + FORGET_AFTER - MS;
    received.expire(later);
    assert_eq!(received.part(&x, (1, 1), sent.clone(), later), Taken::Stale);
    received.expire(later + 2 * MS);
    assert_eq!(
        received.part(&x, (1, 1), sent, later + 2 * MS),
        Taken::Fresh
    );
}

#[test]
fn a_leaving_replica_is_gone_at_once_and_stays_so_until_it_restarts() {
    let (mut received, now) = (received(), start());
    let (x, sent) = (replica("x"), vec![claim("a", Claim::Stalled, MS)]);
    assert!(!received.left(&x), "never heard");
    received.part(&x, (1, 8), sent.clone(), now);
    assert!(received.left(&x));
    assert!(claims(&received.states(), "a", now).is_empty());
    // Streams overtake each other.
    assert_eq!(received.part(&x, (1, 9), sent.clone(), now), Taken::Gone);
    assert_eq!(
        received.part(&x, (1, 10), Vec::<TenantUse>::new(), now),
        Taken::Gone
    );
    // Restarted: a higher generation, and a sequence that begins anew.
    assert_eq!(received.part(&x, (2, 0), sent.clone(), now), Taken::Fresh);
    assert_eq!(claims(&received.states(), "a", now).len(), 1);
    assert_eq!(received.part(&x, (1, 99), sent, now), Taken::Stale);
}

/// Trusted roots were replaced, and its next certificate is of the new ones: it is the same process.
#[test]
fn a_replica_that_was_cut_off_counts_again_once_it_is_connected() {
    let (mut received, now) = (received(), start());
    let (x, sent) = (replica("x"), vec![claim("a", Claim::Stalled, MS)]);
    received.linked(&x);
    received.part(&x, (1, 8), sent.clone(), now);
    assert!(received.left(&x));
    received.linked(&x);
    assert!(claims(&received.states(), "a", now).is_empty(), "not yet");
    assert_eq!(received.part(&x, (1, 8), sent.clone(), now), Taken::Stale);
    assert_eq!(received.part(&x, (1, 9), sent, now), Taken::Fresh);
    assert_eq!(claims(&received.states(), "a", now).len(), 1);
}

#[test]
fn a_restarted_replica_has_nothing_of_what_it_had() {
    let (mut received, now) = (received(), start());
    let x = replica("x");
    received.part(&x, (1, 900), vec![used(7, 5, 0)], now);
    received.part(&x, (2, 3), vec![claim("a", Claim::Good, MS)], now);
    assert_eq!(received.states().others_usage(7), used(7, 0, 0));
}

#[test]
fn senders_and_their_frames_are_bounded() {
    let (mut received, now) = (received(), start());
    let mut flooded = 0;
    for seq in 0..1000 {
        let taken = received.part(&replica("x"), (1, seq), vec![used(7, 1, 0)], now);
        flooded += u32::from(taken == Taken::Flood);
    }
    assert!((400..600).contains(&flooded), "{flooded}");
    // It may go on later, and nobody else is held back.
    let second = now + Duration::from_secs(1);
    let taken = received.part(&replica("x"), (1, 2000), Vec::<TenantUse>::new(), second);
    assert_eq!(taken, Taken::Fresh);
    for n in 1..SENDERS_MAX {
        let taken = received.part(
            &replica(&format!("s{n}")),
            (1, 0),
            Vec::<TenantUse>::new(),
            now,
        );
        assert_eq!(taken, Taken::Fresh);
    }
    let more = received.part(&replica("more"), (1, 0), Vec::<TenantUse>::new(), now);
    assert_eq!(more, Taken::TooManySenders);
}

/// One frame under way: generation and sequence of its sender, and its message.
#[derive(Clone, Debug)]
struct UnderWay {
    generation: u64,
    seq: u64,
    message: Message,
}

fn any_claim() -> impl Strategy<Value = Claim> {
    prop::sample::select(&Claim::ALL[..])
}

proptest! {
    /// Frames are lost, repeated and reordered, and the sender restarts with a lower sequence: what
    /// is read is always the latest of what arrived of the latest generation that was received, and
    /// after the next renewal it is what was published last.
    #[test]
    fn the_latest_word_counts(
        published in prop::collection::vec((any_claim(), 0..9u32, any::<bool>()), 1..12),
        arrivals in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let (mut now, x) = (start(), replica("x"));
        let mut publisher = Publisher::default();
        let (mut generation, mut seq) = (1, 50);
        let mut under_way = Vec::new();
        let mut last = (Claim::Good, 0);
        for (kind, in_flight, restarts) in published {
            if restarts {
                (publisher, generation, seq) = (Publisher::default(), generation + 1, 0);
            }
            let usage = vec![used(7, in_flight, 0)];
            let health = vec![claim("a", kind, MS)];
            publisher.publish(PeerState { health, usage, ..PeerState::default() }, now);
            last = (kind, in_flight);
            now += PAUSE;
            for message in due(&mut publisher, now) {
                seq += 1;
                under_way.push(UnderWay { generation, seq, message });
            }
        }
        let mut received = received();
        let mut heard: BTreeMap<(u64, bool), u64> = BTreeMap::new();
        let mut latest_generation = 0;
        for arrival in arrivals {
            let UnderWay { generation, seq, message } = under_way[arrival.index(under_way.len())].clone();
            let is_health = matches!(message, Message::Health(_));
            let latest = heard.entry((generation, is_health)).or_default();
            let is_news = generation >= latest_generation && *latest < seq;
            let taken = match &message {
                Message::Health(claims) => received.part(&x, (generation, seq), claims.to_vec(), now),
                Message::Usage(usage) => received.part(&x, (generation, seq), usage.to_vec(), now),
                _ => unreachable!("a publisher says nothing else"),
            };
            prop_assert_eq!(taken == Taken::Fresh, is_news);
            latest_generation = latest_generation.max(generation);
            if is_news {
                *latest = seq;
            }
            // Exactly the latest frame of each part in the latest generation is shown.
            let of = |is_health| {
                let seq = heard.get(&(latest_generation, is_health))?;
                under_way.iter().find(|sent| (sent.generation, sent.seq) == (latest_generation, *seq))
            };
            let states = received.states();
            let shown = claims(&states, "a", now).first().map(|(_, kind, _)| *kind);
            let expected = of(true).map(|sent| match &sent.message {
                Message::Health(claims) => claims[0].claim,
                _ => unreachable!("it was noted as claims"),
            });
            prop_assert_eq!(shown, expected);
            let expected = of(false).map_or(0, |sent| match &sent.message {
                Message::Usage(usage) => usage.first().map_or(0, |used| used.in_flight),
                _ => unreachable!("it was noted as use"),
            });
            prop_assert_eq!(states.others_usage(7).in_flight, expected);
        }
        now += RENEW_AFTER;
        for message in due(&mut publisher, now) {
            seq += 1;
            let order = (generation, seq);
            match message {
                Message::Health(claims) => received.part(&x, order, Arc::unwrap_or_clone(claims), now),
                Message::Usage(usage) => received.part(&x, order, Arc::unwrap_or_clone(usage), now),
                _ => unreachable!("a publisher says nothing else"),
            };
        }
        let states = received.states();
        prop_assert_eq!(claims(&states, "a", now)[0].1, last.0);
        prop_assert_eq!(states.others_usage(7).in_flight, last.1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is published fits a frame, arrives whole, and the counts show what was left out.
    #[test]
    fn any_peer_state_fits_its_frames(
        claims in prop::collection::vec((0..1000usize, any::<u64>(), any_claim(), any::<u64>()), 0..300),
        usage in prop::collection::vec(any::<(u64, u32, u32)>(), 0..1200),
    ) {
        let health: Vec<_> = claims.into_iter().map(|(name, epoch, claim, age)| HealthClaim {
            worker: worker(&format!("{name:0>width$}", width = 1 + name % 400)),
            epoch,
            claim,
            age: Duration::from_millis(age),
        }).collect();
        let workers: std::collections::BTreeSet<_> = health.iter().map(|sent| sent.worker.clone()).collect();
        let usage: Vec<_> = usage.into_iter().map(|(tenant, a, b)| used(tenant, a, b)).collect();
        let now = start();
        let mut publisher = Publisher::default();
        let cut = publisher.publish(PeerState { health, usage, ..PeerState::default() }, now);
        for message in publisher.due(now + AGE_MAX) {
            let mut bytes = Vec::new();
            wire::encode(&mut bytes, 1, 1, &message).expect("fits");
            prop_assert!(bytes.len() <= PART_BYTES_MAX + 28);
            let received = wire::decode(&bytes).expect("decodes");
            prop_assert_eq!(received.refused, 0);
            prop_assert_eq!(format!("{:?}", received.message), format!("{:?}", Some(&message)));
            if let Message::Health(claims) = message {
                prop_assert_eq!(claims.len() + cut[0].1, workers.len());
            }
        }
    }
}
