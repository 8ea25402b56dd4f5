//! Every message that is known to break chitchat 0.11.1, and the honest ones that must pass.

use std::time::{Duration, Instant};

use chitchat::{ChitchatMessage, Deserializable};
use proptest::prelude::*;

use super::parse::{self, Value};
use super::*;

const GENERATION: u64 = 1_700_000_000_000;

fn member(name: &str, port: u16) -> Member {
    Member {
        id: name.parse().expect("id"),
        generation: GENERATION,
        address: ([127, 0, 0, 1], port).into(),
    }
}

/// A firewall of replica `me` that has met `a` and `b`, and heard `b` say that its heartbeat is 100.
struct Bench {
    firewall: Firewall,
    now: Instant,
    a: Member,
    b: Member,
    me: Member,
}

impl Bench {
    #[allow(
        clippy::disallowed_methods,
        reason = "an instant to start from; no test waits"
    )]
    fn new() -> Self {
        let (me, a, b) = (member("me", 1), member("a", 2), member("b", 3));
        let now = Instant::now();
        let mut firewall = Firewall::new("demo", me.clone());
        for peer in [&a, &b] {
            firewall.admit(peer, now).expect("first meeting");
            let word = parse::write_syn(&[standing(peer, 100, 5)], "demo");
            firewall.inspect(&peer.id, &word, now).expect("own word");
        }
        firewall.own_version(7);
        Self {
            firewall,
            now,
            a,
            b,
            me,
        }
    }

    /// A message from `a`.
    fn pass(&mut self, bytes: &[u8]) -> Result<Passed, Reason> {
        let from = self.a.id.clone();
        let passed = self
            .firewall
            .inspect(&from, bytes, self.now)
            .map_err(|refused| refused.reason)?;
        ChitchatMessage::deserialize(&mut &passed.bytes[..]).expect("chitchat reads what we write");
        Ok(passed)
    }
}

fn node(member: &Member) -> Node<'_> {
    Node {
        id: member.id.as_str(),
        generation: member.generation,
        address: member.address,
    }
}

fn standing(member: &Member, heartbeat: u64, version: u64) -> Standing<'_> {
    Standing {
        node: node(member),
        heartbeat,
        collected: 0,
        version,
    }
}

fn change<'a>(member: &'a Member, values: &[(&'a str, &'a str, u64)]) -> Change<'a> {
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
fn ack_of(blocks: &[(u8, Vec<u8>)]) -> Vec<u8> {
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
fn operations(changes: &[Change<'_>]) -> Vec<u8> {
    let message = parse::write_ack(changes);
    message[4 + 3..message.len() - 1].to_vec()
}

#[test]
fn honest_messages_pass_unchanged() {
    let mut bench = Bench::new();
    let (a, b, me) = (bench.a.clone(), bench.b.clone(), bench.me.clone());
    let digest = [
        standing(&a, 101, 6),
        standing(&b, 102, 5),
        standing(&me, 50, 7),
    ];
    let news = [change(
        &b,
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
    bench.firewall.admit(&silent, bench.now).expect("room");
    let passed = bench
        .pass(&parse::write_syn(&[standing(&silent, 1 << 40, 1)], "demo"))
        .expect("no offence");
    assert_eq!(passed.trimmed, 1);
}

/// Panicked the gossip task of the receiver: a version below that of a key.
#[test]
fn a_greatest_version_below_a_key_is_refused() {
    let mut bench = Bench::new();
    let b = bench.b.clone();
    let mut bytes = operations(&[change(&b, &[("http", "x", 100)])]);
    bytes.push(2);
    bytes.extend(90u64.to_le_bytes());
    assert_eq!(bench.pass(&ack_of(&[(2, bytes)])), Err(Reason::Implausible));
    let sinking = change(&b, &[("http", "x", 9), ("admin", "x", 8)]);
    assert_eq!(
        bench.pass(&parse::write_ack(&[sinking])),
        Err(Reason::Implausible)
    );
}

/// Overwrote the receiver's own keys; with version 2^64-1 its next own write overflowed.
#[test]
fn nobody_tells_us_about_ourselves() {
    let mut bench = Bench::new();
    let me = bench.me.clone();
    let echo = bench
        .pass(&parse::write_ack(&[change(&me, &[("http", "mine", 7)])]))
        .expect("an echo");
    assert_eq!(
        echo,
        Passed {
            bytes: parse::write_ack(&[]),
            trimmed: 1,
            strangers: Vec::new(),
        }
    );
    for version in [8, u64::MAX] {
        let forged = parse::write_ack(&[change(&me, &[("http", "POISON", version)])]);
        assert_eq!(bench.pass(&forged), Err(Reason::OwnState));
    }
    let empty = Change {
        version: Some(8),
        ..change(&me, &[])
    };
    assert_eq!(
        bench.pass(&parse::write_ack(&[empty])),
        Err(Reason::OwnState)
    );
}

/// Dropped a healthy replica from every live set for the rest of its generation.
#[test]
fn hearsay_stays_within_the_pace_of_its_subject() {
    let mut bench = Bench::new();
    let b = bench.b.clone();
    for (heartbeat, version) in [
        (u64::MAX, 5),
        (100 + 2 * PACE_PER_S, 5),
        (100, 5 + 2 * PACE_PER_S),
    ] {
        let bytes = parse::write_syn(&[standing(&b, heartbeat, version)], "demo");
        assert_eq!(bench.pass(&bytes), Err(Reason::Implausible));
    }
    let far = parse::write_ack(&[change(&b, &[("http", "x", 5 + 2 * PACE_PER_S)])]);
    assert_eq!(bench.pass(&far), Err(Reason::Implausible));
    // Ten seconds without a word of its own: others may know ten seconds more.
    bench.now += Duration::from_secs(10);
    let bytes = parse::write_syn(&[standing(&b, 100 + 10 * PACE_PER_S, 5)], "demo");
    assert!(bench.pass(&bytes).is_ok());
}

/// 1,800 invented ids made the receiver's own messages too long to send, in every replica.
#[test]
fn invented_replicas_do_not_enter() {
    let mut bench = Bench::new();
    let invented: Vec<_> = (0..parse::NODES_MAX)
        .map(|n| member(&format!("x{n}"), 7))
        .collect();
    let digest: Vec<_> = invented
        .iter()
        .map(|member| standing(member, 1, 1))
        .collect();
    let passed = bench
        .pass(&parse::write_syn(&digest, "demo"))
        .expect("trimmed");
    assert_eq!(
        (passed.trimmed, passed.bytes),
        (digest.len(), parse::write_syn(&[], "demo"))
    );
    assert_eq!(passed.strangers.len(), STRANGERS_MAX);
    let more = member("y", 7);
    let digest: Vec<_> = digest.into_iter().chain([standing(&more, 1, 1)]).collect();
    assert_eq!(
        bench.pass(&parse::write_syn(&digest, "demo")),
        Err(Reason::TooMany)
    );
}

/// 65 kB inflated to 195 MB.
#[test]
fn a_bomb_is_refused_at_the_first_mebibyte() {
    let mut bench = Bench::new();
    let block = zstd::bulk::compress(&vec![0; 65_000], 19).expect("zstd");
    let bomb = ack_of(&vec![(1, block.clone()); 65_000 / (block.len() + 3)]);
    assert!(bomb.len() < MESSAGE_BYTES_MAX);
    assert_eq!(bench.pass(&bomb), Err(Reason::Inflated));
    let block = zstd::bulk::compress(&vec![0; 66_000], 19).expect("zstd");
    assert_eq!(bench.pass(&ack_of(&[(1, block)])), Err(Reason::Malformed));
}

/// Only one of chitchat's four kinds carries a cluster id; the connection's certificate covers all.
#[test]
fn other_clusters_are_refused() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.pass(&parse::write_syn(&[], "prod")),
        Err(Reason::OtherCluster)
    );
    assert_eq!(bench.pass(&[0x53, 0xb0, 0, 3]), Err(Reason::OtherCluster));
}

#[test]
fn keys_and_values_are_bounded() {
    let mut bench = Bench::new();
    let b = bench.b.clone();
    let long = "v".repeat(4097);
    for (key, text) in [
        ("é", "x"),
        ("", "x"),
        ("a b", "x"),
        (long.as_str(), "x"),
        ("k", "é"),
        ("k", long.as_str()),
    ] {
        let bytes = parse::write_ack(&[change(&b, &[(key, text, 6)])]);
        assert_eq!(
            bench.pass(&bytes),
            Err(Reason::BadValue),
            "{key:.9} {text:.9}"
        );
        bench
            .firewall
            .admitted
            .get_mut("a")
            .expect("admitted")
            .strikes = 0;
    }
    // Over all messages too: 64 keys in each of two make 128.
    let keys: Vec<_> = (0..2 * KEYS_MAX).map(|n| format!("k{n}")).collect();
    let values: Vec<_> = keys
        .iter()
        .zip(6..)
        .map(|(key, version)| (key.as_str(), "x", version))
        .collect();
    let (first, second) = values.split_at(KEYS_MAX);
    assert!(bench.pass(&parse::write_ack(&[change(&b, first)])).is_ok());
    assert_eq!(
        bench.pass(&parse::write_ack(&[change(&b, second)])),
        Err(Reason::TooMany)
    );
    assert_eq!(
        bench.pass(&parse::write_ack(&[change(&b, &values)])),
        Err(Reason::TooMany)
    );
}

#[test]
fn the_tenth_strike_cuts_the_sender_off_for_a_while() {
    let mut bench = Bench::new();
    let a = bench.a.clone();
    for strike in 1..=STRIKES_MAX {
        let refused = bench
            .firewall
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
        bench.firewall.admit(&restarted, bench.now),
        Err(Reason::Banned)
    );
    bench.now += BAN;
    assert_eq!(bench.firewall.admit(&restarted, bench.now), Ok(()));
    assert!(bench.pass(&honest).is_ok());
    assert_eq!(
        bench.firewall.admit(&a, bench.now),
        Err(Reason::Implausible),
        "older generation"
    );
}

#[test]
fn strangers_cannot_speak_and_the_table_is_bounded() {
    let mut bench = Bench::new();
    let stranger = member("c", 9);
    let refused = bench
        .firewall
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
            .firewall
            .admit(&member(&format!("x{n}"), 7), bench.now)
            .expect("room");
    }
    assert_eq!(
        bench.firewall.admit(&stranger, bench.now),
        Err(Reason::TooMany)
    );
    bench.firewall.forget(&bench.b.id);
    let late = bench.firewall.inspect(&bench.b.id, b"junk", bench.now);
    let late = late.map_err(|refused| (refused.reason, refused.cut));
    assert_eq!(late, Err((Reason::Unknown, false)), "it has left");
    assert_eq!(bench.firewall.admit(&stranger, bench.now), Ok(()));
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
        let changes = [change(&b, &[("http", "127.0.0.1:80", 6), ("ready", "1", 7)])];
        let mut bytes = parse::write_syn_ack(&[standing(&a, 101, 6), standing(&b, 102, 5)], &changes);
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else { bytes[at] ^= flip }
        let _ = bench.pass(&bytes);
    }
}
