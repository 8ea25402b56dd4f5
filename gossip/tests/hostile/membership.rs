//! What an authenticated liar can claim about membership, through the whole inbound path: S03, S04, S05,
//! S07, S08, S09, S10, S12, G12.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use quinn::ConnectionError;
use tokio::time::timeout;

use super::chitchat::{self, Change, Node, Standing};
use super::rogue::{LIMIT, now_ms};
use super::scene::{CLUSTER, Scene, eventually, resident_kib, until_cut};

/// Offences that end in a ban.
const PATIENCE: usize = 10;

fn about(node: Node, values: &[(&str, &str, u64)]) -> Change {
    let text = |&(key, value, version): &(&str, &str, u64)| (key.into(), value.into(), version);
    Change {
        node,
        values: values.iter().map(text).collect(),
        version: None,
    }
}

/// Every message that is refused: dropped, counted under its reason, cut off at the tenth, and nobody
/// honest notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_counted_and_ends_in_a_ban() {
    let mut scene = Scene::new().await;
    let victim = scene.victim();
    let healthy = scene.honest[1].node();
    let me = victim.node();
    let mut below = about(healthy.clone(), &[("http", "x", 100)]);
    below.version = Some(90);
    let mut saturated = about(me.clone(), &[]);
    saturated.version = Some(u64::MAX);
    let keys: Vec<_> = (0..3000).map(|n| (format!("k{n}"), n + 1)).collect();
    let many_keys: Vec<_> = keys
        .iter()
        .map(|(key, version)| (key.as_str(), "x", *version))
        .collect();
    let long = "v".repeat(60_000);
    let heartbeat = scene.standing(1, u64::MAX, 1);
    let attacks: Vec<(&str, &str, Vec<u8>)> = vec![
        (
            "S09 a version above the declared greatest",
            "implausible",
            chitchat::ack(&[below]),
        ),
        (
            "S05 the receiver's own keys, further than anybody can have believed",
            "own_state",
            chitchat::ack(&[about(me.clone(), &[("http", "POISON", 1 << 40)])]),
        ),
        (
            "S05 version 2^64-1 of the receiver",
            "own_state",
            chitchat::ack(&[saturated]),
        ),
        (
            "S07 heartbeat 2^64-1",
            "implausible",
            chitchat::syn(CLUSTER, &[heartbeat]),
        ),
        (
            "S08 3,000 keys in a message",
            "too_many",
            chitchat::ack(&[about(healthy.clone(), &many_keys)]),
        ),
        (
            "S08 a value of 60 kB",
            "bad_value",
            chitchat::ack(&[about(healthy.clone(), &[("k", &long, 6)])]),
        ),
        (
            "S08 a key that is no ASCII",
            "bad_value",
            chitchat::ack(&[about(healthy.clone(), &[("é", "x", 6)])]),
        ),
        ("S10 a bomb", "inflated", chitchat::bomb()),
        (
            "S12 a question of another cluster",
            "other_cluster",
            chitchat::syn("prod", &[]),
        ),
        (
            "S12 a refusal of another cluster",
            "other_cluster",
            chitchat::bad_cluster(),
        ),
        ("S09 nothing", "malformed", Vec::new()),
        ("S09 random bytes", "malformed", vec![0xa5; 700]),
        ("S09 the longest", "too_long", vec![0x53; 66_001]),
        ("S09 longer than any frame", "too_long", vec![0x53; 300_000]),
    ];
    for (number, (attack, reason, bytes)) in attacks.iter().enumerate() {
        let rogue = scene.rogue(&format!("liar-{number}"));
        let line = rogue.dial(victim.address()).await;
        let (before, memory) = (victim.refused(reason), resident_kib());
        let times = until_cut(&line, bytes).await;
        // Two may be judged at once: who is cut off for the tenth may see it before the ninth is counted.
        let refused = eventually(attack, || {
            let refused = victim.refused(reason) - before;
            (refused >= PATIENCE as f64).then_some(refused)
        })
        .await;
        // Those under way with the tenth are refused, too, and no more counted than sent.
        println!(
            "{attack}: cut off after {refused} refused, {times} sent; memory {:+} KiB",
            resident_kib() - memory
        );
        assert!(rogue.is_locked_out(victim.address()).await, "{attack}");
        scene.unharmed(attack).await;
    }
    scene.still_works("all refused messages").await;
}

/// What an honest peer may carry is no offence, and changes nothing either: forged heartbeats and keys
/// of a healthy replica and of the receiver, invented replicas, records of former generations, messages of another cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hearsay_changes_nothing() {
    let mut scene = Scene::new().await;
    let rogue = scene.rogue("liar");
    let victim = scene.victim();
    let line = rogue.dial(victim.address()).await;
    let healthy = scene.honest[1].node();
    let me = victim.node();
    let former = Node {
        generation: healthy.generation - 1,
        ..healthy.clone()
    };
    let theirs = Node {
        id: "theirs".into(),
        ..healthy.clone()
    };
    let facts = [
        ("ready", "0", 900),
        ("http", "192.0.2.1:1", 901),
        ("registry", "lies", 902),
        ("ring", "lies", 903),
    ];
    let own = Standing {
        node: Node {
            id: rogue.id.clone(),
            generation: rogue.generation,
            address: rogue.address(),
        },
        heartbeat: 1,
        version: 0,
    };
    // As many as an honest peer may know where a liar has had so many lives.
    let invented = (0..600).map(|n| Standing {
        node: Node {
            id: format!("x{n}"),
            ..healthy.clone()
        },
        heartbeat: 1,
        version: 1,
    });
    let invented: Vec<_> = invented.collect();
    let told = |heartbeat| {
        let digest = [
            own.clone(),
            scene.standing(1, heartbeat, 1 << 30),
            Standing {
                node: former.clone(),
                heartbeat,
                version: 1 << 30,
            },
            Standing {
                node: theirs.clone(),
                heartbeat,
                version: 3,
            },
        ];
        let changes = [&healthy, &former, &theirs, &me].map(|node| about(node.clone(), &facts));
        [
            chitchat::syn(CLUSTER, &digest),
            chitchat::syn_ack(&digest, &changes),
            chitchat::ack(&changes),
        ]
    };
    for step in 1..=60 {
        for bytes in told(step * 1_000_000) {
            assert!(line.send(&bytes).await, "it is not cut off");
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    for _ in 0..2 * PATIENCE {
        assert!(line.send(&chitchat::syn(CLUSTER, &invented)).await);
    }
    assert!(victim.sum("gossip_trimmed_total", "") >= 120.0 + 600.0);
    assert_eq!(victim.refused(""), 0.0);
    let view = victim.agent.view();
    let h2 = view.replicas().iter().find(|r| r.id.as_str() == "h2");
    let h2 = h2.expect("it is there");
    assert!(h2.live && h2.http == "127.0.0.1:80", "{h2:?}");
    assert!(view.replicas().iter().all(|r| r.id.as_str() != "theirs"));
    let view = scene.honest[1].agent.view();
    let me = view.replicas().iter().find(|r| r.id.as_str() == "h1");
    assert!(me.is_some_and(|me| me.http == "127.0.0.1:80"), "{me:?}");
    drop(line);
    scene.still_works("hearsay").await;
}

/// S04: an earlier life of a replica is not believed again, and a liar that reports "I saw a later life of
/// you" again and again is not followed again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn former_and_future_lives() {
    let scene = Scene::new().await;
    let mut rogue = scene.rogue("liar");
    let victim = scene.victim();
    let line = rogue.dial(victim.address()).await;
    rogue.generation -= 1000;
    let former = rogue.greet(victim.address(), &rogue.id).await;
    let former = former.expect("it is told what was seen");
    let closed = timeout(LIMIT, former.connection.closed()).await;
    let ConnectionError::ApplicationClosed(close) = closed.expect("and refused") else {
        panic!("not by the victim");
    };
    // `transport::Close::Outdated`
    assert_eq!(close.error_code, 8u32.into());
    assert!(!line.is_over(), "the later life goes on");

    // It reports that only when asked: a fresh liar that the victim dials.
    let prophet = scene.rogue("prophet");
    let restarts = |scene: &Scene| scene.victim().sum("gossip_restarts_total", "");
    prophet.has_seen(now_ms() + 60_000);
    let met = prophet.dial(victim.address()).await;
    eventually("it is followed once", || {
        (restarts(&scene) >= 1.0).then_some(())
    })
    .await;
    for step in 1..=20 {
        prophet.has_seen(now_ms() + 60_000 + step * 1_000_000);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    eventually("it is refused from then on", || {
        let refused = scene.victim().sum("gossip_handshakes_total", "\"outruns\"");
        (refused >= 3.0).then_some(())
    })
    .await;
    assert_eq!(restarts(&scene), 1.0);
    drop((line, met));
    for replica in &scene.honest {
        replica
            .sees("everybody alive", |view| {
                view.replicas().iter().filter(|r| r.live).count() >= 3
            })
            .await;
    }
}

/// S09 and G12: random, cut and flipped messages on the wire: nothing panics, nothing of a damaged frame
/// is used, and their sender is cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_messages_on_the_wire() {
    use grapevine_gossip::wire::Message;

    let mut scene = Scene::new().await;
    let victim = scene.victim();
    let honest = chitchat::syn_ack(
        &[scene.standing(1, 5, 5), scene.standing(2, 5, 5)],
        &[about(
            scene.honest[2].node(),
            &[("http", "127.0.0.1:80", 6)],
        )],
    );
    let damage = (any::<prop::sample::Index>(), 0u8..8, any::<bool>());
    let noise = prop::collection::vec(any::<u8>(), 0..600);
    let mut runner = TestRunner::default();
    for round in 0..12 {
        let rogue = scene.rogue(&format!("noise-{round}"));
        let mut line = rogue.dial(victim.address()).await;
        let before = victim.refused("malformed");
        let whole = line.frame(&Message::Leave);
        for _ in 0..40 {
            let (at, bit, cut) = damage.new_tree(&mut runner).expect("a case").current();
            let mut bytes = match round % 4 {
                0 => noise.new_tree(&mut runner).expect("a case").current(),
                1 => [
                    &b"GV\x01\x03"[..],
                    &noise.new_tree(&mut runner).expect("a case").current(),
                ]
                .concat(),
                2 => honest.clone(),
                _ => whole.clone(),
            };
            if round % 4 >= 2 {
                let at = at.index(bytes.len());
                if cut {
                    bytes.truncate(at);
                } else {
                    bytes[at] ^= 1 << bit;
                }
            }
            if !line.send(&bytes).await {
                break;
            }
        }
        assert!(victim.refused("malformed") > before, "round {round}");
        drop(line);
        scene.unharmed(&format!("noise {round}")).await;
    }
    println!("{} refused as malformed", victim.refused("malformed"));
    scene.still_works("noise").await;
}
