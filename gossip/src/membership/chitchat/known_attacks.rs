//! Every message that is known to break chitchat 0.11.1, sent once by a peer with a valid certificate.
//!
//! | what was sent | what it did to chitchat (measured) | test |
//! |---|---|---|
//! | a key version above the declared greatest one | the gossip task panicked | `version_above_the_declared_greatest` |
//! | a delta about the receiver's own id | its own keys overwritten | `delta_about_the_receiver` |
//! | heartbeat 2^64-1 for a healthy replica | that replica dead everywhere, for good | `heartbeat_of_a_healthy_replica` |
//! | 1,800 made-up ids in two Syns | own digest too long to send: cut off, silently | `made_up_ids` |
//! | 900 made-up ids, to one replica | spread to all within 4 s | `made_up_ids` |
//! | 65 kB of compressed blocks | 195 MB in memory | `bomb` |
//! | messages of another cluster | taken, but for Syn | `other_cluster_on_every_kind` |
//! | version 2^64-1 for the receiver's own id | its next own write overflows | `delta_about_the_receiver` |
//! | a 9-byte Syn | 313 bytes back to an unproven address | not here: QUIC validates addresses, and an id must be admitted, `smallest_syn` |
//! | a value above 65 kB | never passed on, blocks all later keys | `keys_and_values` |
//! | a key that begins with a multi-byte character | every receiver panicked | `keys_and_values` |
//! | a new generation with each restart | 1,360 of them end gossip | `crash_loop` |
//! | 64 keys of 4 KiB in each of many lives | not chitchat, but our limits: who carried them was cut off for their length and number | `many_lives_of_many_keys` |
//! | other keys of itself to each peer | not chitchat, but our limit of keys: honest peers cut each other off for them | `other_keys_to_each_peer` |
//! | forged keys of a third replica | its own later values never count | `forged_keys_of_a_third_replica` |

use std::time::Duration;

use super::judge::{Passed, STRANGERS_MAX};
use super::judge_tests::*;
use super::parse::{self, Change};
use crate::peers::{AHEAD_MAX, KEYS_MAX, Lane, Member, Reason, STRIKES_MAX};
use crate::replica::ReplicaId;
use crate::transport::CHITCHAT_BYTES_MAX;

/// Panicked the gossip task of the receiver: a version below that of a key.
#[test]
fn version_above_the_declared_greatest() {
    let mut bench = Bench::new();
    let a = bench.a.clone();
    let mut bytes = operations(&[change(&a, &[("http", "x", 100)])]);
    bytes.push(2);
    bytes.extend(90u64.to_le_bytes());
    assert_eq!(bench.pass(&ack_of(&[(2, bytes)])), Err(Reason::Implausible));
    let sinking = change(&a, &[("http", "x", 9), ("admin", "x", 8)]);
    assert_eq!(
        bench.pass(&parse::write_ack(&[sinking])),
        Err(Reason::Implausible)
    );
}

/// Overwrote the receiver's own keys; with version 2^64-1 its next own write overflowed. What an honest peer can have believed
/// while it did not hear us is no offence of its.
#[test]
fn delta_about_the_receiver() {
    let mut bench = Bench::new();
    let me = bench.me.clone();
    let told = |version| parse::write_ack(&[change(&me, &[("http", "POISON", version)])]);
    let empty = |version| {
        let change = Change {
            version: Some(version),
            ..change(&me, &[])
        };
        parse::write_ack(&[change])
    };
    let wiped = |collected| {
        let change = Change {
            collected,
            ..change(&me, &[])
        };
        parse::write_ack(&[change])
    };
    let most = 7 + AHEAD_MAX;
    for (bytes, outdone) in [
        (told(7), None),
        (told(8), Some(8)),
        (empty(8), Some(8)),
        (wiped(9), Some(9)),
        (told(most), Some(most)),
    ] {
        for _ in 0..2 * STRIKES_MAX {
            let passed = bench.pass(&bytes).expect("no offence");
            let expected = Passed {
                bytes: parse::write_ack(&[]),
                trimmed: 1,
                strangers: Vec::new(),
                ask: Vec::new(),
                outdone,
            };
            assert_eq!(passed, expected);
        }
    }
    for bytes in [
        told(most + 1),
        empty(most + 1),
        wiped(most + 1),
        told(u64::MAX),
    ] {
        assert_eq!(bench.pass(&bytes), Err(Reason::OwnState));
    }
}

/// Dropped a healthy replica from every live set for the rest of its generation.
#[test]
fn heartbeat_of_a_healthy_replica() {
    let mut bench = Bench::new();
    let b = bench.b.clone();
    let said = |heartbeat, version| parse::write_syn(&[standing(&b, heartbeat, version)], "demo");
    assert_eq!(bench.pass(&said(u64::MAX, 5)), Err(Reason::Implausible));
    assert_eq!(bench.pass(&said(100, u64::MAX)), Err(Reason::Implausible));
    // What could come from an honest peer is cut down to b's own heartbeat, and no offence: its next
    // heartbeat is news.
    for heartbeat in [101, 350, 1 << 40] {
        let passed = bench.pass(&said(heartbeat, 9)).expect("cut down");
        assert_eq!(passed.bytes, said(100, 5), "{heartbeat}");
    }
    // Ten seconds without a message of its own: fifty rounds, whatever others claim.
    bench.now += Duration::from_secs(10);
    let passed = bench.pass(&said((1 << 40) + 1, 5)).expect("cut down");
    assert_eq!(passed.bytes, said(150, 5));
    let passed = bench.pass(&said(120, 5)).expect("honest");
    assert_eq!(passed.bytes, said(120, 5));
}

/// What a replica reports of itself is never outdone while it speaks; of one that is silent, what it can
/// have written since is believed.
#[test]
fn forged_keys_of_a_third_replica() {
    let mut bench = Bench::new();
    let b = bench.b.clone();
    let said = |version| parse::write_ack(&[change(&b, &[("ready", "0", version)])]);
    let nothing = parse::write_ack(&[]);
    for version in [1, 5, 6, 500] {
        let passed = bench.pass(&said(version)).expect("no offence");
        assert_eq!((passed.bytes, passed.trimmed), (nothing.clone(), 1));
    }
    let reset = Change {
        collected: 9,
        version: Some(9),
        ..change(&b, &[])
    };
    let passed = bench.pass(&parse::write_ack(&[reset])).expect("no offence");
    assert_eq!(passed.bytes, nothing, "nor are its keys wiped");
    assert_eq!(bench.pass(&said(u64::MAX)), Err(Reason::Implausible));

    bench.now += Duration::from_secs(3);
    let passed = bench
        .pass(&said(5 + 750))
        .expect("it may have written so much");
    assert_eq!(passed.bytes, said(5 + 750));
    let passed = bench.pass(&said(5 + 751)).expect("no offence");
    assert_eq!(passed.bytes, nothing);

    bench.now += Duration::from_secs(3600);
    let passed = bench.pass(&said(5 + AHEAD_MAX)).expect("no offence");
    assert_eq!(passed.bytes, said(5 + AHEAD_MAX));
    let passed = bench.pass(&said(6 + AHEAD_MAX)).expect("no offence");
    assert_eq!(passed.bytes, nothing, "an honest one writes no more");
}

/// In a large cluster a replica that is connected says for seconds nothing of itself to each one: what others say of it then
/// is no reason to believe them, but to ask it, now and then.
#[test]
fn forged_keys_of_a_replica_that_is_connected() {
    let mut bench = Bench::new();
    let b = bench.b.clone();
    let said = |version| parse::write_ack(&[change(&b, &[("ready", "0", version)])]);
    let mut asked = 0;
    for _ in 0..1000 {
        bench.now += Duration::from_millis(10);
        let load = bench.table.allow(&b.id, Lane::Load, 1, bench.now);
        load.expect("its load comes");
        let passed = bench.pass(&said(6)).expect("no offence");
        assert_eq!((passed.bytes, passed.trimmed), (parse::write_ack(&[]), 1));
        assert!(passed.ask.iter().all(|&address| address == b.address));
        asked += passed.ask.len();
        if !passed.ask.is_empty() {
            let nothing = parse::write_ack(&[]);
            bench
                .table
                .inspect(&b.id, &nothing, bench.now)
                .expect("its answer");
        }
    }
    assert_eq!(
        asked, 9,
        "each second, after the two in which it spoke itself"
    );
    let old = bench.pass(&said(5)).expect("no offence");
    assert_eq!(old.ask, [], "no news");
}

/// Where a cut goes one way, a replica is heard and does not hear us: its word comes by others, as of a silent one.
#[test]
fn news_of_a_replica_that_answers_no_question() {
    let mut bench = Bench::new();
    let b = bench.b.clone();
    let said = parse::write_ack(&[change(&b, &[("ready", "0", 6)])]);
    let nothing = parse::write_ack(&[]);
    let mut asked = 0;
    let mut passes = |bench: &mut Bench| {
        bench.now += Duration::from_secs(1);
        let load = bench.table.allow(&b.id, Lane::Load, 1, bench.now);
        load.expect("its load comes");
        let passed = bench.pass(&said).expect("no offence");
        asked += passed.ask.len();
        (passed.bytes == said, asked)
    };
    // Two seconds after its own word the first news may be any; then it is asked five times in vain.
    let seen: Vec<_> = (0..9).map(|_| passes(&mut bench)).collect();
    assert_eq!(seen.last(), Some(&(true, 5)), "{seen:?}");
    assert_eq!(
        seen.iter().filter(|(passed, _)| *passed).count(),
        3,
        "{seen:?}"
    );
    // Its first answer ends that.
    bench
        .table
        .inspect(&b.id, &nothing, bench.now)
        .expect("its answer");
    assert_eq!(passes(&mut bench), (false, 6));
}

/// However many replicas a liar has news of.
#[test]
fn questions_for_made_up_news_are_bounded() {
    let mut bench = Bench::new();
    let many: Vec<_> = (0..100)
        .map(|n| member(&format!("x{n}"), 100 + n))
        .collect();
    for one in &many {
        bench.table.admit(one, bench.now).expect("room");
        let word = parse::write_syn(&[standing(one, 1, 1)], "demo");
        bench.table.inspect(&one.id, &word, bench.now).expect("own");
    }
    let news: Vec<_> = many
        .iter()
        .map(|one| change(one, &[("ready", "0", 9)]))
        .collect();
    let mut asked = 0;
    bench.now += Duration::from_secs(3);
    for _ in 0..100 {
        bench.now += Duration::from_millis(100);
        for one in &many {
            let load = bench.table.allow(&one.id, Lane::Load, 1, bench.now);
            load.expect("its load comes");
        }
        asked += bench
            .pass(&parse::write_ack(&news))
            .expect("no offence")
            .ask
            .len();
    }
    assert!((100..=120).contains(&asked), "{asked} in 10 s");
}

/// 1,800 invented ids made the receiver's own messages too long to send, in every replica.
#[test]
fn made_up_ids() {
    let mut bench = Bench::new();
    let invented: Vec<_> = (0..1_000).map(|n| member(&format!("x{n}"), 7)).collect();
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
}

/// In each of its lives a liar told an honest peer as much as it may, which shrinks to next to nothing in what that one sends.
#[test]
fn many_lives_of_many_keys() {
    let mut bench = Bench::new();
    let lives: Vec<_> = (1..=600)
        .map(|life| Member {
            generation: GENERATION + life,
            ..member("liar", 9)
        })
        .collect();
    let text = "v".repeat(4096);
    let keys: Vec<_> = (0..KEYS_MAX).map(|n| format!("k{n}")).collect();
    let values: Vec<_> = keys
        .iter()
        .zip(1..)
        .map(|(key, version)| (key.as_str(), text.as_str(), version))
        .collect();
    let a = bench.a.clone();
    let first = change(&a, &[("http", "x", 6)]);
    let lies = lives.iter().map(|life| change(life, &values));
    let changes: Vec<_> = std::iter::once(first).chain(lies.take(50)).collect();
    let blocks: Vec<_> = operations(&changes)
        .chunks(16_384)
        .map(|block| (1, zstd::bulk::compress(block, 0).expect("zstd")))
        .collect();
    let carried = ack_of(&blocks);
    assert!(carried.len() < CHITCHAT_BYTES_MAX, "{}", carried.len());
    let digest: Vec<_> = lives.iter().map(|life| standing(life, 1, 1)).collect();
    for _ in 0..2 * STRIKES_MAX {
        let passed = bench.pass(&carried).expect("no offence");
        assert_eq!(
            passed.bytes,
            parse::write_ack(&[change(&a, &[("http", "x", 6)])])
        );
        let known = bench.pass(&parse::write_syn(&digest, "demo"));
        assert_eq!(known.expect("no offence").trimmed, lives.len());
    }
}

/// 65 kB inflated to 195 MB.
#[test]
fn bomb() {
    let mut bench = Bench::new();
    let block = zstd::bulk::compress(&vec![0; 65_000], 19).expect("zstd");
    let bomb = ack_of(&vec![(1, block.clone()); 65_000 / (block.len() + 3)]);
    assert!(bomb.len() < CHITCHAT_BYTES_MAX);
    assert_eq!(bench.pass(&bomb), Err(Reason::Inflated));
    let block = zstd::bulk::compress(&vec![0; 66_000], 19).expect("zstd");
    assert_eq!(bench.pass(&ack_of(&[(1, block)])), Err(Reason::Malformed));
}

/// Only Syn carries a cluster id. For the other kinds the certificate of the connection stands in: the
/// sender is of this cluster, and whatever it carries from another is about replicas never met here.
#[test]
fn other_cluster_on_every_kind() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.pass(&parse::write_syn(&[], "prod")),
        Err(Reason::OtherCluster)
    );
    assert_eq!(bench.pass(&[0x53, 0xb0, 0, 3]), Err(Reason::OtherCluster));
    let theirs = member("theirs", 9);
    let namesake = Member {
        generation: GENERATION + 7,
        address: ([127, 0, 0, 9], 3).into(),
        ..bench.b.clone()
    };
    let digest = [standing(&theirs, 1, 1), standing(&namesake, 1, 1)];
    let changes = [&theirs, &namesake].map(|subject| change(subject, &[("http", "x", 1)]));
    let passed = bench
        .pass(&parse::write_syn_ack(&digest, &changes))
        .expect("trimmed");
    assert_eq!(passed.bytes, parse::write_syn_ack(&[], &[]));
    let passed = bench.pass(&parse::write_ack(&changes)).expect("trimmed");
    assert_eq!(passed.bytes, parse::write_ack(&[]));
}

#[test]
fn keys_and_values() {
    let mut bench = Bench::new();
    let b = bench.a.clone();
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
        bench.table.limits.clear();
        bench.table.admit(&b, bench.now).expect("known");
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

/// 64 keys to us, and 64 others to a peer that carries them to us once their replica is silent here: no offence of either.
#[test]
fn other_keys_to_each_peer() {
    let mut bench = Bench::new();
    let (a, b) = (bench.a.id.clone(), bench.b.clone());
    let keys = |sort| (0..KEYS_MAX).map(move |n| format!("{sort}{n}"));
    let (ours, theirs): (Vec<_>, Vec<_>) = (keys('x').collect(), keys('y').collect());
    let said = |keys: &[String], from| {
        let values: Vec<_> = keys
            .iter()
            .zip(from..)
            .map(|(key, version)| (key.as_str(), "v", version))
            .collect();
        parse::write_ack(&[change(&b, &values)])
    };
    // b's own word ends at version 5.
    let (few, rest) = ours.split_at(4);
    let own = bench.table.inspect(&b.id, &said(few, 6), bench.now);
    assert!(own.is_ok());
    bench.now += Duration::from_secs(3);
    // What others report of it fills up what there may be.
    assert_eq!(
        bench.pass(&said(&theirs[..60], 6)).expect("told").trimmed,
        0
    );
    for _ in 0..2 * STRIKES_MAX {
        let carried = bench.table.inspect(&a, &said(&theirs, 6), bench.now);
        assert_eq!(carried.expect("no offence").trimmed, 1);
    }
    // That leaves b itself all the room that it has.
    let own = bench.table.inspect(&b.id, &said(rest, 80), bench.now);
    assert_eq!(own.expect("its own").trimmed, 0);
    let own = bench
        .table
        .inspect(&b.id, &said(&theirs[..1], 200), bench.now);
    assert_eq!(own.expect_err("one more").reason, Reason::TooMany);
}

/// Only the generation that was proven last exists: 1,360 of them in one digest ended gossip.
#[test]
fn crash_loop() {
    let mut bench = Bench::new();
    let lives: Vec<_> = (1..=400)
        .map(|life| Member {
            generation: GENERATION + life,
            ..bench.b.clone()
        })
        .collect();
    for life in &lives {
        bench.table.admit(life, bench.now).expect("restarted");
    }
    assert_eq!(bench.table.admitted.len(), 2);
    let word = parse::write_syn(&[standing(&lives[399], 1, 1)], "demo");
    let b = bench.b.id.clone();
    bench.table.inspect(&b, &word, bench.now).expect("own word");
    let digest: Vec<_> = lives.iter().map(|life| standing(life, 1, 1)).collect();
    let passed = bench
        .pass(&parse::write_syn(&digest, "demo"))
        .expect("trimmed");
    assert_eq!(passed.trimmed, 399);
    assert_eq!(passed.bytes, word);
}

/// Passes from every admitted replica, and from nobody else: there is no address to amplify to.
#[test]
fn smallest_syn() {
    let mut bench = Bench::new();
    let syn = parse::write_syn(&[], "demo");
    assert!(bench.pass(&syn).is_ok());
    let stranger: ReplicaId = "c".parse().expect("id");
    let refused = bench.table.inspect(&stranger, &syn, bench.now);
    assert_eq!(
        refused.map_err(|refused| refused.reason),
        Err(Reason::Unknown)
    );
}
