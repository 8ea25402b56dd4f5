//! What is known of a peer leaves with it: whatever it sent, no plane holds anything of it a while after it left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::config::{EvidenceConfig, LOAD_BATCH, ROUND};
use crate::evidence::{Batch, HEADS_MAX, Head};
use crate::facts::{FactMap, SeenReplica, fact};
use crate::load::{Coverage, LoadBoard, LoadFrame};
use crate::made::{replica as id, start};
use crate::metrics::{Metrics, Why};
use crate::peer_state::TenantUse;
use crate::plane::{Context, Effect, Link, Origin, Plane, Seen, Surroundings};
use crate::replica::ReplicaId;
use crate::wire::tests::samples::{messages, sealed};
use crate::wire::{Message, Role, decode};

/// What a plane still holds of a peer. Implemented by taking the plane apart field by field, so that a new field does not
/// compile until somebody decided whether it leaves with the peer.
pub(super) trait Remembers {
    /// Names of the parts that hold anything.
    fn remembers(&self, peer: &ReplicaId) -> Vec<&'static str>;
}

/// The names of the parts that do.
pub(super) fn named<const N: usize>(parts: [(&'static str, bool); N]) -> Vec<&'static str> {
    let holding = parts.into_iter().filter(|(_, holds)| *holds);
    holding.map(|(name, _)| name).collect()
}

/// The longest that anything is remembered against late frames, and some rounds.
const WHILE: Duration = Duration::from_secs(65);

fn link(peer: &ReplicaId) -> Link {
    Link {
        peer: peer.clone(),
        generation: 3,
        room: 16,
        address: "127.0.0.1:2".parse().expect("valid"),
    }
}

/// As a replica sees others of which the first names a twin of itself and another registry.
fn around(peers: &[ReplicaId]) -> Surroundings {
    let facts = [
        (fact::REGISTRY, "0000000b/1/0000000000000001"),
        (fact::TWINS, "x/127.0.0.1:2/127.0.0.1:3"),
    ];
    let seen = peers.iter().map(|peer| SeenReplica {
        id: peer.clone(),
        generation: 3,
        address: "127.0.0.1:2".parse().expect("valid"),
        live: true,
        facts: facts
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
    });
    Surroundings {
        links: peers.iter().map(link).collect(),
        seen: Arc::new(Seen {
            others: seen.collect(),
            generation: 1,
            is_synced: true,
            ..Seen::default()
        }),
    }
}

/// A plane gets a message of a peer, as that one's frame with this sequence number.
fn deliver(plane: &mut dyn Plane, peer: &ReplicaId, seq: u64, message: Message, cx: &mut Context) {
    let mut header = decode(&sealed(&message)).expect("whole").header;
    header.seq = seq;
    let origin = Origin {
        peer,
        header,
        bytes: 100,
    };
    plane.on_message(origin, message, cx);
}

/// Gives a plane everything that a peer may send it, then lets the peer go. What is remembered: before, just after, and
/// after a while.
fn life_of_a_peer<P: Plane + Remembers>(mut plane: P) -> [Vec<&'static str>; 3] {
    let peer = id("x");
    let mut now: Instant = start();
    let mut cx = Context::at(now, 1_000);
    plane.on_link(&peer, &mut cx);
    plane.on_tick(&around(std::slice::from_ref(&peer)), &mut cx);
    // Of the workers that this replica has, none; the sample is about others.
    let load = Message::Load(LoadFrame {
        workers_digest: 0,
        coverage: Coverage::Changes,
        slots: Vec::new(),
        moment: None,
        earlier: Vec::new(),
    });
    for (seq, message) in (5..).zip(messages().into_iter().chain([load])) {
        let kind = message.kind();
        if !plane.names().contains(&kind.plane) || matches!(kind.role, Role::Answer) {
            continue;
        }
        deliver(&mut plane, &peer, seq, message, &mut cx);
    }
    // Further rounds, in which it is still there: its registry is compared once ours has settled.
    for _ in 0..3 {
        now += ROUND;
        let mut cx = Context::at(now, 1_000);
        plane.on_tick(&around(std::slice::from_ref(&peer)), &mut cx);
    }
    // The answers are made.
    drop(cx);
    let before = plane.remembers(&peer);
    plane.on_left(&peer, &mut Context::at(now, 1_000));
    let just_after = plane.remembers(&peer);
    let end = now + WHILE;
    while now < end {
        now += ROUND;
        plane.on_tick(&around(&[]), &mut Context::at(now, 1_000));
    }
    [before, just_after, plane.remembers(&peer)]
}

fn evidence(now: Instant) -> EvidencePlane {
    let pending = PendingHandle::new(Metrics::default());
    let config = EvidenceConfig::default();
    EvidencePlane::new(id("me"), &config, pending, Metrics::default(), now)
}

/// The plane of one replica of a cluster.
pub(super) fn registry_of(replica: &str, now: Instant) -> RegistryPlane {
    let own = Own {
        replica: id(replica),
        generation: 1,
        address: "127.0.0.1:1".parse().expect("valid"),
        facts: FactMap::new(),
    };
    let load = Arc::new(|| LoadFrame {
        coverage: Coverage::Full,
        workers_digest: 0,
        slots: Vec::new(),
        moment: None,
        earlier: Vec::new(),
    });
    RegistryPlane::new(own, load, false, Metrics::default(), now)
}

/// What stays for a while is what tells a late frame from a new one, or a flood from a burst.
#[test]
fn no_plane_holds_anything_of_a_peer_that_left() {
    let now = start();
    let load = LoadMessages::new(
        Arc::new(LoadBoard::default()),
        |_| 1.0,
        LOAD_BATCH,
        Metrics::default(),
        now,
    );
    let lives = [
        ("evidence", life_of_a_peer(evidence(now))),
        ("load", life_of_a_peer(load)),
        (
            "peer state",
            life_of_a_peer(PeerStatePlane::new(Shown::default(), Metrics::default())),
        ),
        ("registry", life_of_a_peer(registry_of("me", now))),
        (
            "dry run",
            life_of_a_peer(DryRunPlane::new(Arc::default(), Metrics::default())),
        ),
        (
            "twin",
            life_of_a_peer(TwinPlane::new(id("me"), Metrics::default())),
        ),
    ];
    let expected: [(_, [&[&str]; 2]); 6] = [
        ("evidence", [&["outbox", "inbox"], &["outbox"]]),
        ("load", [&["senders"], &["senders"]]),
        ("peer state", [&["received", "shown"], &["received"]]),
        ("registry", [&["exchanges", "others", "seen"], &["seen"]]),
        ("dry run", [&["answered"], &["answered"]]),
        ("twin", [&["twins", "shares"], &["twins", "shares"]]),
    ];
    for ((name, [before, just_after, later]), (_, [held, stays])) in lives.iter().zip(expected) {
        assert_eq!(before, held, "{name}, before");
        assert_eq!(just_after, stays, "{name}, just after");
        assert_eq!(later, &[] as &[&str], "{name}, after a while");
    }
}

/// It was cut off, and proves itself again as the process that it was: what it sends counts again, on each plane.
#[test]
fn who_is_connected_again_counts_again() {
    let (now, peer) = (start(), id("x"));
    let board = Arc::new(LoadBoard::default());
    let mut load = LoadMessages::new(board.clone(), |_| 1.0, LOAD_BATCH, Metrics::default(), now);
    let shown = Shown::default();
    let mut states = PeerStatePlane::new(shown.clone(), Metrics::default());
    let counts = |load: &mut LoadMessages, states: &mut PeerStatePlane, seq: u64| {
        let mut cx = Context::at(now, 1_000);
        let sent = Message::Load(LoadFrame {
            workers_digest: 0,
            coverage: Coverage::Full,
            slots: Vec::new(),
            moment: None,
            earlier: Vec::new(),
        });
        let used = Message::Usage(Arc::new(vec![TenantUse {
            tenant: 7,
            in_flight: 1,
            queued: 0,
        }]));
        let planes: [(&mut dyn Plane, Message); 2] = [(load, sent), (states, used)];
        for (plane, message) in planes {
            deliver(plane, &peer, seq, message, &mut cx);
        }
        (board.reporting(), shown.states().peers().len())
    };
    assert_eq!(counts(&mut load, &mut states, 1), (2, 1));
    let mut cx = Context::at(now, 1_000);
    load.on_left(&peer, &mut cx);
    states.on_left(&peer, &mut cx);
    assert_eq!((board.reporting(), shown.states().peers().len()), (1, 0));
    assert_eq!(counts(&mut load, &mut states, 2), (1, 0), "late");
    load.on_link(&peer, &mut cx);
    states.on_link(&peer, &mut cx);
    assert_eq!(counts(&mut load, &mut states, 3), (2, 1));
}

/// The peers of a replica whose settings allow it more: by its own it is honest.
#[test]
fn evidence_beyond_our_settings_is_dropped_and_no_offence() {
    let (start, peer) = (start(), id("x"));
    let metrics = Metrics::default();
    let config = EvidenceConfig::default();
    let pending = PendingHandle::new(Metrics::default());
    let mut plane = EvidencePlane::new(id("me"), &config, pending, metrics.clone(), start);
    let dropped = || {
        let reason = "evidence_flood";
        metrics.drops.get_or_create(&Why { reason }).get()
    };
    const FRAME: usize = 64 << 10;
    let send = |plane: &mut EvidencePlane, number: u64, now: Instant| {
        let batch = Batch {
            number,
            records: Vec::new(),
        };
        let message = Message::Evidence(Arc::new(batch));
        let mut header = decode(&sealed(&message)).expect("whole").header;
        header.seq = number;
        let origin = Origin {
            peer: &peer,
            header,
            bytes: FRAME,
        };
        let mut cx = Context::at(now, 1_000);
        plane.on_message(origin, message, &mut cx);
        assert!(cx.effects.is_empty(), "an offence");
    };
    // Ten seconds of 16 MiB each: we allow 1 MiB a second, and 8 at once.
    let (frames, each) = (10 * 256, Duration::from_secs(1) / 256);
    for number in 0..frames {
        send(&mut plane, number, start + each * number as u32);
    }
    let taken = frames - dropped();
    let allowed = (18 << 20) / FRAME as u64;
    assert!(
        (allowed - 8..=allowed + 8).contains(&taken),
        "{taken} taken"
    );
    // What is missing of it is asked for when there is room for the answer.
    let asks = |plane: &mut EvidencePlane, now: Instant| {
        let mut cx = Context::at(now, 1_000);
        plane.on_tick(&around(std::slice::from_ref(&peer)), &mut cx);
        let is_pull = |effect: &Effect| matches!(effect, Effect::Ask(_, Message::EvidencePull(_)));
        cx.effects.iter().any(is_pull)
    };
    let end = start + Duration::from_secs(10);
    send(&mut plane, frames, end);
    send(&mut plane, frames + 1, end);
    assert!(!asks(&mut plane, end));
    assert!(asks(&mut plane, end + Duration::from_secs(1)));
}

/// To count what it believes, a replica reads all of it, as for a snapshot.
#[test]
fn whoever_asks_how_much_there_is_asks_seldom() {
    let (start, peer) = (start(), id("x"));
    let mut plane = evidence(start);
    let mut is_answered = |now: Instant| {
        let mut cx = Context::at(now, 1_000);
        deliver(&mut plane, &peer, 1, Message::EvidenceSizeRequest, &mut cx);
        cx.later.is_some()
    };
    let at_once = (0..100).filter(|_| is_answered(start)).count();
    assert_eq!(at_once, 8);
    let in_a_second = start + Duration::from_secs(1);
    let then = (0..100).filter(|_| is_answered(in_a_second)).count();
    assert_eq!(then, 1);
}

/// It has received of as many as a cluster may have: with its own head those are more than a receiver takes.
#[test]
fn a_snapshot_of_the_greatest_cluster_can_be_read() {
    let now = start();
    let mut plane = evidence(now);
    for peer in 0..HEADS_MAX {
        let batch = Batch {
            number: 0,
            records: Vec::new(),
        };
        let mut cx = Context::at(now, 1_000);
        let message = Message::Evidence(Arc::new(batch));
        deliver(&mut plane, &id(&format!("r{peer}")), 1, message, &mut cx);
    }
    let mut cx = Context::at(now, 1_000);
    let question = Message::EvidenceSnapshotRequest;
    deliver(&mut plane, &id("r0"), 2, question, &mut cx);
    let frames = (cx.later.expect("answered").make)();
    let [frame] = &frames[..] else {
        panic!("{} frames", frames.len());
    };
    let read = decode(&sealed(frame)).expect("as an honest peer sends it");
    let Some(Message::EvidenceSnapshot(snapshot)) = read.message else {
        panic!("another kind");
    };
    assert_eq!(snapshot.heads.len(), HEADS_MAX);
    let is_own = |head: &Head| head.replica == id("me");
    assert!(snapshot.heads.iter().any(is_own));
}
