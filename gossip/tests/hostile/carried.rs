//! What a liar tells one honest replica so that another one gets it from there: never held against the carrier. S03, S08.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::chitchat::{self, Change, Node, Standing};
use super::rogue::Rogue;
use super::scene::{CLUSTER, Scene};

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
