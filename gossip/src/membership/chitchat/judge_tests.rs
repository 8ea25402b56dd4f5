//! Honest messages pass, replicas not met are trimmed, offenders are cut off. What is known to break
//! chitchat is in `known_attacks.rs`.

use std::time::{Duration, Instant};

use chitchat::{ChitchatMessage, Deserializable};
use proptest::prelude::*;

use super::judge::*;
use super::parse::{self, Change, Node, Standing, Value};
use crate::config::ROUND;
use crate::peers::{
    BAN, LIMITS_MAX, Member, PeerTable, REPLICAS_MAX, Reason, Refused, STRIKES_MAX,
};

pub(super) const GENERATION: u64 = 1_700_000_000_000;

pub(super) fn member(name: &str, port: u16) -> Member {
    Member {
        id: name.parse().expect("id"),
        generation: GENERATION,
        address: ([127, 0, 0, 1], port).into(),
    }
}

/// The table of replica `me` that has met `a` and `b`, and received from `b` that its heartbeat is 100.
pub(super) struct Bench {
    pub(super) table: PeerTable,
    pub(super) now: Instant,
    pub(super) a: Member,
    pub(super) b: Member,
    pub(super) me: Member,
}

impl Bench {
    #[allow(
        clippy::disallowed_methods,
        reason = "an instant to start from; no test waits"
    )]
    pub(super) fn new() -> Self {
        let (me, a, b) = (member("me", 1), member("a", 2), member("b", 3));
        let now = Instant::now();
        let mut table = PeerTable::new("demo", me.clone());
        for peer in [&a, &b] {
            table.admit(peer, now).expect("first meeting");
            let word = parse::write_syn(&[standing(peer, 100, 5)], "demo");
            table.inspect(&peer.id, &word, now).expect("own word");
        }
        table.own_version(7);
        Self {
            table,
            now,
            a,
            b,
            me,
        }
    }

    /// A message from `a`.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Result<Passed, Reason> {
        let from = self.a.id.clone();
        let passed = self
            .table
            .inspect(&from, bytes, self.now)
            .map_err(|refused| refused.reason)?;
        ChitchatMessage::deserialize(&mut &passed.bytes[..]).expect("chitchat reads what we write");
        Ok(passed)
    }
}

pub(super) fn node(member: &Member) -> Node<'_> {
    Node {
        id: member.id.as_str(),
        generation: member.generation,
        address: member.address,
    }
}

pub(super) fn standing(member: &Member, heartbeat: u64, version: u64) -> Standing<'_> {
    Standing {
        node: node(member),
        heartbeat,
        collected: 0,
        version,
    }
}

pub(super) fn change<'a>(member: &'a Member, values: &[(&'a str, &'a str, u64)]) -> Change<'a> {
    let value = |&(key, text, version): &(&'a str, &'a str, u64)| Value {
        key,
        text,
        version,
        status: 0,
    };
    Change {
        node: node(member),
        collected: 0,
        from: 0,
        values: values.iter().map(value).collect(),
        version: None,
    }
}

/// An ack whose delta consists of hand-made blocks.
pub(super) fn ack_of(blocks: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = parse::write_ack(&[]);
    bytes.pop(); // the end of blocks
    for (kind, block) in blocks {
        bytes.push(*kind);
        bytes.extend(u16::try_from(block.len()).expect("short").to_le_bytes());
        bytes.extend(block);
    }
    bytes.push(0);
    bytes
}

/// The operations of a delta, as they are inside its blocks.
pub(super) fn operations(changes: &[Change<'_>]) -> Vec<u8> {
    let message = parse::write_ack(changes);
    let (mut rest, mut operations) = (&message[4..], Vec::new());
    while let [2, low, high, blocks @ ..] = rest {
        let (block, next) = blocks.split_at(u16::from_le_bytes([*low, *high]).into());
        operations.extend(block);
        rest = next;
    }
    operations
}

#[test]
fn honest_messages_pass_unchanged() {
    let mut bench = Bench::new();
    bench.now += ROUND;
    let (a, b, me) = (bench.a.clone(), bench.b.clone(), bench.me.clone());
    let digest = [
        standing(&a, 101, 6),
        standing(&b, 99, 5),
        standing(&me, 50, 7),
    ];
    let news = [change(
        &a,
        &[("http", "127.0.0.1:80", 6), ("ready", "1", 7)],
    )];
    for bytes in [
        parse::write_syn(&digest, "demo"),
        parse::write_syn_ack(&digest, &news),
        parse::write_ack(&news),
    ] {
        assert_eq!(
            bench.pass(&bytes),
            Ok(Passed {
                bytes: bytes.clone(),
                trimmed: 0,
                strangers: Vec::new(),
                ask: Vec::new(),
                outdone: None,
            })
        );
    }
    // Compressed blocks, cut anywhere, arrive as plain ones.
    let plain = operations(&news);
    let (head, tail) = plain.split_at(20);
    let zstd = |bytes| zstd::bulk::compress(bytes, 0).expect("zstd");
    let passed = bench
        .pass(&ack_of(&[(1, zstd(head)), (2, tail.to_vec())]))
        .expect("passes");
    assert_eq!(passed.bytes, parse::write_ack(&news));
}

#[test]
fn strangers_and_former_generations_are_trimmed_without_a_strike() {
    let mut bench = Bench::new();
    let (a, b, me) = (bench.a.clone(), bench.b.clone(), bench.me.clone());
    let stranger = member("c", 9);
    let former_b = Member {
        generation: GENERATION - 1,
        ..b.clone()
    };
    let former_me = Member {
        generation: GENERATION - 1,
        ..me
    };
    let moved_b = Member {
        address: ([127, 0, 0, 1], 99).into(),
        ..b
    };
    for _ in 0..STRIKES_MAX * 2 {
        let subjects = [&stranger, &former_b, &former_me, &moved_b];
        let mut digest: Vec<_> = subjects
            .iter()
            .map(|subject| standing(subject, 1, 1))
            .collect();
        digest.push(standing(&a, 100, 5));
        let changes = subjects.map(|subject| change(subject, &[("http", "x", 1)]));
        let passed = bench
            .pass(&parse::write_syn_ack(&digest, &changes))
            .expect("no offence");
        assert_eq!(passed.trimmed, 8);
        assert_eq!(passed.strangers, [(stranger.id.clone(), stranger.address)]);
        assert_eq!(
            passed.bytes,
            parse::write_syn_ack(&[standing(&a, 100, 5)], &[])
        );
    }
}

#[test]
fn a_replica_that_has_not_spoken_for_itself_is_trimmed() {
    let mut bench = Bench::new();
    let silent = member("c", 9);
    bench.table.admit(&silent, bench.now).expect("room");
    let passed = bench
        .pass(&parse::write_syn(&[standing(&silent, 1 << 40, 1)], "demo"))
        .expect("no offence");
    assert_eq!(passed.trimmed, 1);
}

#[test]
fn the_tenth_strike_cuts_the_sender_off_for_a_while() {
    let mut bench = Bench::new();
    let a = bench.a.clone();
    for strike in 1..=STRIKES_MAX {
        let refused = bench
            .table
            .inspect(&a.id, b"junk", bench.now)
            .expect_err("junk");
        assert_eq!(
            (refused.reason, refused.cut),
            (Reason::Malformed, strike == STRIKES_MAX)
        );
    }
    let honest = parse::write_syn(&[], "demo");
    assert_eq!(bench.pass(&honest), Err(Reason::Banned));
    let restarted = Member {
        generation: GENERATION + 1,
        ..a.clone()
    };
    assert_eq!(
        bench.table.admit(&restarted, bench.now),
        Err(Reason::Banned)
    );
    bench.now += BAN;
    assert_eq!(bench.table.admit(&restarted, bench.now), Ok(()));
    assert!(bench.pass(&honest).is_ok());
    assert_eq!(
        bench.table.admit(&a, bench.now),
        Err(Reason::Implausible),
        "older generation"
    );
}

#[test]
fn strangers_cannot_speak_and_the_table_is_bounded() {
    let mut bench = Bench::new();
    let stranger = member("c", 9);
    let refused = bench
        .table
        .inspect(&stranger.id, &parse::write_syn(&[], "demo"), bench.now);
    assert_eq!(
        refused,
        Err(Refused {
            reason: Reason::Unknown,
            cut: false
        })
    );
    for n in 0..REPLICAS_MAX - 2 {
        bench
            .table
            .admit(&member(&format!("x{n}"), 7), bench.now)
            .expect("room");
    }
    assert_eq!(
        bench.table.admit(&stranger, bench.now),
        Err(Reason::TooMany)
    );
    bench.table.forget(&bench.b.id, bench.now);
    let late = bench.table.inspect(&bench.b.id, b"junk", bench.now);
    let late = late.map_err(|refused| (refused.reason, refused.cut));
    assert_eq!(late, Err((Reason::Unknown, false)), "it has left");
    assert_eq!(bench.table.admit(&stranger, bench.now), Ok(()));
}

/// A liar that leaves before the tenth offence, or restarts, or moves, is remembered.
#[test]
fn leaving_does_not_wash_the_record_clean() {
    let mut bench = Bench::new();
    let a = bench.a.clone();
    for strike in 1..=STRIKES_MAX {
        let refused = bench.table.inspect(&a.id, b"junk", bench.now);
        assert_eq!(
            refused.expect_err("junk").cut,
            strike == STRIKES_MAX,
            "{strike}"
        );
        bench.table.forget(&a.id, bench.now);
        let again = Member {
            generation: GENERATION + u64::from(strike),
            ..a.clone()
        };
        let verdict = bench.table.admit(&again, bench.now);
        assert_eq!(verdict.is_err(), strike == STRIKES_MAX);
    }
    assert_eq!(bench.table.greeted(&a.id, bench.now), Err(Reason::Banned));
}

#[test]
fn records_of_conduct_are_bounded() {
    let mut bench = Bench::new();
    for n in 0..2 * LIMITS_MAX {
        let visitor = member(&format!("x{n}"), 7);
        bench.table.admit(&visitor, bench.now).expect("room");
        bench.table.forget(&visitor.id, bench.now);
    }
    assert!(bench.table.limits.len() <= LIMITS_MAX);
    for n in 0..LIMITS_MAX {
        let offender = member(&format!("y{n}"), 7);
        let _ = bench.table.admit(&offender, bench.now);
        bench
            .table
            .strike(&offender.id, Reason::Malformed, bench.now);
        bench.table.forget(&offender.id, bench.now);
    }
    assert!(bench.table.limits.len() <= LIMITS_MAX);
    assert_eq!(bench.pass(&parse::write_syn(&[], "demo")).err(), None);
}

#[test]
fn a_flood_of_honest_messages_is_refused_and_ends_in_a_ban() {
    let mut bench = Bench::new();
    let syn = parse::write_syn(&[], "demo");
    let mut passed = 0;
    let verdict = loop {
        match bench.pass(&syn) {
            Ok(_) => passed += 1,
            Err(Reason::Flood) => {}
            Err(reason) => break reason,
        }
        bench.now += Duration::from_micros(100);
    };
    assert_eq!(verdict, Reason::Banned);
    println!("{passed} messages passed before the ban");
    assert!((400..1000).contains(&passed), "{passed}");
    // The others are not counted against.
    let b = bench.b.id.clone();
    assert!(bench.table.inspect(&b, &syn, bench.now).is_ok());
}

/// Answers are bounded by their bytes; asking for more is no offence.
#[test]
fn answers_are_withheld_when_a_share_is_used_up() {
    let mut bench = Bench::new();
    let (a, b) = (bench.a.id.clone(), bench.b.id.clone());
    let mut answers = 0;
    while bench.table.may_answer(&a, bench.now) {
        bench.table.answered(&a, 1 << 20, bench.now);
        answers += 1;
    }
    assert_eq!(answers, 16, "16 MiB at once");
    assert!(bench.table.may_answer(&b, bench.now));
    bench.now += Duration::from_secs(1);
    assert!(bench.table.may_answer(&a, bench.now));
    assert!(bench.pass(&parse::write_syn(&[], "demo")).is_ok());
}

proptest! {
    /// No bytes make it panic, and what passes is readable by chitchat.
    #[test]
    fn any_bytes_are_judged(kind in 0u8..5, body in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bench = Bench::new();
        let mut bytes = vec![0x53, 0xb0, 0, kind];
        bytes.extend(body);
        let _ = bench.pass(&bytes);
    }

    /// Cutting or flipping a byte of an honest message never panics either.
    #[test]
    fn damaged_messages_are_judged(at in 0usize..200, flip in 1u8.., cut in any::<bool>()) {
        let mut bench = Bench::new();
        let (a, b) = (bench.a.clone(), bench.b.clone());
        let changes = [change(&a, &[("http", "127.0.0.1:80", 6), ("ready", "1", 7)])];
        let mut bytes = parse::write_syn_ack(&[standing(&a, 101, 6), standing(&b, 99, 5)], &changes);
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else { bytes[at] ^= flip }
        let _ = bench.pass(&bytes);
    }
}

/// What the judges of earlier releases gave to chitchat passes, and is written as they did.
#[test]
fn releases_speak_the_same_chitchat() {
    let bench = Bench::new();
    let facts = [
        ("http", "10.0.0.2:30000", 1),
        ("admin", "10.0.0.2:30001", 2),
        ("version", "0.1.0", 3),
        ("settings", "89abcdef", 4),
        ("ready", "1", 5),
        ("registry", "0000009f:12:0000000000000abc", 6),
        ("ring", "01234567", 7),
        ("what-a-later-release-says", "something", 8),
    ];
    let digest = [standing(&bench.a, 120, 8), standing(&bench.b, 100, 5)];
    let messages = [
        ("Syn", parse::write_syn(&digest, "demo")),
        (
            "SynAck",
            parse::write_syn_ack(&digest, &[change(&bench.a, &facts)]),
        ),
        ("Ack", parse::write_ack(&[change(&bench.a, &facts)])),
    ];
    let now = messages.map(|(name, bytes)| (name.to_owned(), bytes));
    for kept in crate::releases::kept("chitchat", &now) {
        for (name, bytes) in &kept.lines {
            let mut bench = Bench::new();
            bench.now += ROUND;
            let passed = bench.pass(bytes);
            let passed =
                passed.unwrap_or_else(|why| panic!("{name} of release {}: {why:?}", kept.release));
            assert_eq!(passed.trimmed, 0, "{name} of release {}", kept.release);
            assert_eq!(&passed.bytes, bytes, "{name} of release {}", kept.release);
        }
    }
}

/// All know the last heartbeat of a dead replica, and each has received it at another time: it must not
/// live on by what they repeat.
#[test]
fn what_was_told_before_is_no_news() {
    let mut bench = Bench::new();
    let b = bench.b.clone();
    let said = |heartbeat| parse::write_syn(&[standing(&b, heartbeat, 5)], "demo");
    let mut check = |told, seconds, expected| {
        bench.now += Duration::from_secs(seconds);
        let passed = bench.pass(&said(told)).expect("an honest word");
        assert_eq!(passed.bytes, said(expected), "{told} after {seconds} s");
    };
    check(150, 1, 105);
    check(150, 1, 105);
    check(150, 5, 105);
    check(151, 1, 140);
    check(151, 60, 140);
    check(180, 1, 180);
}

/// All that know of a replica together know its last heartbeat within a round or two; if it came through drop
/// by drop, each drop would be news to somebody, and a dead replica would live on for seconds.
#[test]
fn hearsay_counts_at_the_replicas_own_pace_and_once_a_round() {
    let mut bench = Bench::new();
    let b = bench.b.clone();
    let said = |heartbeat| parse::write_syn(&[standing(&b, heartbeat, 5)], "demo");
    bench.now += Duration::from_secs(3);
    let own = bench.table.inspect(&b.id, &said(190), bench.now);
    assert_eq!(own.expect("its own word").bytes, said(190));
    let mut check = |told, ms, expected| {
        bench.now += Duration::from_millis(ms);
        let passed = bench.pass(&said(told)).expect("an honest word");
        assert_eq!(passed.bytes, said(expected), "{told} after {ms} ms");
    };
    // Thirty a second.
    check(1000, 1000, 220);
    check(1001, 100, 220);
    check(1001, 100, 226);
    check(1002, 8800, 490);
    // A replica that was silent for so long may have become slower.
    check(1003, 10_000, 540);
}
