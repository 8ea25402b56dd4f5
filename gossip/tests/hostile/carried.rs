//! What a liar tells one honest replica so that another one gets it from there: never held against the carrier. S03, S08.

use std::time::Duration;

use grapevine_gossip::identity;
use grapevine_gossip::view::View;
use tokio::time::{Instant, sleep};

use super::chitchat::{self, Change, Node, Standing};
use super::gate::Gate;
use super::rogue::{LIMIT, Rogue};
use super::scene::{CLUSTER, Honest, Scene, pem};

/// As chitchat names it.
fn node_of(rogue: &Rogue) -> Node {
    Node {
        id: rogue.id.clone(),
        generation: rogue.generation,
        address: rogue.address(),
    }
}

/// A liar has other keys for each replica, as many as it may have. One of them does not hear it any more, and gets the other
/// ones from an honest peer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_keys_to_each_peer_cut_off_no_honest_one() {
    const KEYS: u64 = 64;
    let mut scene = Scene::new().await;
    let rogue = scene.rogue("liar");
    let [victim, carrier] = [&scene.honest[0], &scene.honest[1]];
    let said = |heartbeat, version| {
        let standing = Standing {
            node: node_of(&rogue),
            heartbeat,
            version,
        };
        chitchat::syn(CLUSTER, &[standing])
    };
    let keys = |sort: &str, from| {
        let value = |n| (format!("{sort}{n}"), "x".to_owned(), from + n);
        chitchat::ack(&[Change {
            node: node_of(&rogue),
            values: (0..KEYS).map(value).collect(),
            version: None,
        }])
    };
    let line = rogue.dial(victim.address()).await;
    assert!(line.send(&said(1, KEYS)).await && line.send(&keys("b", 1)).await);
    let other = rogue.dial(carrier.address()).await;
    let begun = Instant::now();
    let mut heartbeat = 1;
    // Two seconds until hearsay counts, and then the time of more than ten messages of the carrier.
    while begun.elapsed() < Duration::from_secs(6) {
        heartbeat += 1;
        assert!(other.send(&said(heartbeat, 2 * KEYS)).await);
        assert!(other.send(&keys("a", KEYS + 1)).await);
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(victim.refused(""), 0.0, "nothing of an honest replica");
    assert!(victim.sum("gossip_trimmed_total", "") > 10.0);
    drop((line, other));
    scene.still_works("other keys to each peer").await;
}

/// While an honest replica does not hear another one, a liar tells it what that one never said. It believes some of that, but is
/// not cut off for it, and all is true again once it hears the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_forged_of_a_silent_replica_ends_when_it_is_heard() {
    let authority = identity::create(CLUSTER).expect("authority");
    let victim = Honest::start(&authority, "h1", Vec::new()).await;
    let gate = Gate::new().await;
    let seeds = vec![victim.address().to_string()];
    let dials = Some(gate.address);
    // Its HELLO is answered, and its address leads to it, before it is dialled there.
    let carrier = Honest::start_behind(&authority, "h2", seeds, dials);
    let carrier = carrier.await;
    gate.leads_to(carrier.address());
    for replica in [&victim, &carrier] {
        let both = |view: &View| view.replicas().iter().filter(|r| r.live).count() == 2;
        replica.sees("the other one", both).await;
    }
    let of_victim = |view: &View| {
        let victim = view.replicas().iter().find(|r| r.id.as_str() == "h1");
        victim.map(|r| (r.http.clone(), r.leaving))
    };
    let truth = of_victim(&carrier.agent.view());
    assert_eq!(truth, Some(("127.0.0.1:80".into(), false)));

    let rogue = Rogue::start(CLUSTER, "liar", &pem(&authority, "liar"));
    let line = rogue.dial(carrier.address()).await;
    let value = |(key, value, version): (&str, &str, u64)| (key.into(), value.into(), version);
    let facts = [
        ("http", "192.0.2.1:1", 298),
        ("leaving", "1", 299),
        ("registry", "lies", 300),
    ];
    let forged = chitchat::ack(&[Change {
        node: victim.node(),
        values: facts.map(value).into(),
        version: None,
    }]);
    let lies = Some(("192.0.2.1:1".to_owned(), true));
    for _ in 0..20 {
        assert!(line.send(&forged).await);
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(of_victim(&carrier.agent.view()), truth, "while it speaks");

    gate.close(true);
    let begun = Instant::now();
    while of_victim(&carrier.agent.view()) != lies {
        assert!(begun.elapsed() < LIMIT, "the lie is believed");
        assert!(line.send(&forged).await);
        sleep(Duration::from_millis(50)).await;
    }
    println!("believed after {:?}", begun.elapsed());
    gate.close(false);
    drop(line);
    let is_true = |view: &View| of_victim(view) == truth;
    carrier.sees("the truth about the other one", is_true).await;
    println!("and no more after {:?}", begun.elapsed());
    assert_eq!(victim.refused(""), 0.0, "nothing of an honest replica");
    assert_eq!(carrier.refused(""), 0.0);
    for replica in [&victim, &carrier] {
        assert_eq!(replica.sum("gossip_restarts_total", ""), 0.0);
    }
}
