//! R03, X04: replicas that are paused and go on.

use std::time::Duration;

use grapevine_gossip::peer_state::{PeerState, TenantUse};
use grapevine_gossip::worker::{RawWorker, WorkerSpec};

use crate::cluster::Cluster;
use crate::invariants::{agree, nobody_offended};

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(15);

/// A replica wakes up with old acknowledgements in its receive buffer and measures the pause as a round trip.
/// For minutes it may then treat connections as alive that its peers have closed (found by random schedule
/// 1004 of three minutes).
#[test]
fn a_replica_that_slept_speaks_to_everybody_soon() {
    for seed in 20..24 {
        let mut cluster = Cluster::start(3, seed, &["r0", "r1"]);
        cluster.until_joined(LIMIT);
        // A message is in flight to every peer, and its acknowledgement will wait.
        cluster.call(2, |agent| async move {
            let worker = "http://10.0.0.1:8000".parse().expect("valid");
            let spec = WorkerSpec::new(RawWorker::at("http://10.0.0.1:8000")).expect("valid");
            agent.configure(worker, spec).expect("room");
            agent.set_ring("sent to everybody at once");
            agent.publish_state(PeerState {
                health: Vec::new(),
                usage: vec![TenantUse::default()],
                ..PeerState::default()
            });
        });
        cluster.run(SECOND / 50);
        cluster.pause(2);
        cluster.run(4 * SECOND);
        // Packets that arrived until now wait for it; no peer tries to reach it.
        cluster.cut(&[2], &[0, 1]);
        cluster.run(29 * SECOND);
        cluster.heal();
        cluster.resume(2);
        cluster.run(3 * SECOND);
        let (worker, ack) = cluster.add_worker(2, 8001);
        assert_eq!(
            ack.confirmed_by.min(1),
            1,
            "seed {seed}: nobody was reached"
        );
        let taken = cluster.until("pushed to everybody", LIMIT, |cluster| {
            (0..3).all(|at| cluster.view(at).worker(&worker).is_some()) && agree(cluster)
        });
        assert!(taken < SECOND, "seed {seed}: {taken:?} is anti-entropy");
        nobody_offended(&cluster);
    }
}

/// All pause at once, as on a suspended machine: no replica is lost, nothing is removed.
#[test]
fn all_wake_up_together() {
    let mut cluster = Cluster::start(3, 30, &["r0", "r1"]);
    cluster.until_joined(LIMIT);
    let (worker, _) = cluster.add_worker(0, 8000);
    cluster.until("worker everywhere", LIMIT, agree);
    (0..3).for_each(|at| cluster.pause(at));
    cluster.run(30 * SECOND);
    (0..3).for_each(|at| cluster.resume(at));
    let taken = cluster.until("all are back", LIMIT, |cluster| {
        (0..3).all(|at| cluster.live(at) == 3 && cluster.view(at).worker(&worker).is_some())
            && agree(cluster)
    });
    println!("whole again after {taken:?}");
    cluster.run(SECOND);
    nobody_offended(&cluster);
}

/// A replica says goodbye for a second, since one of its peers stands still. Meanwhile the other one asks its seeds, the
/// one that leaves among them: it must not let it in again, and then dial it for a day.
#[test]
fn who_leaves_beside_a_paused_replica_is_not_taken_back() {
    let mut cluster = Cluster::start(3, 31, &["r0", "r1", "r2"]);
    cluster.until_joined(LIMIT);
    let is_there = |cluster: &Cluster| {
        let view = cluster.view(0);
        view.replicas().iter().any(|seen| seen.id.as_str() == "r1")
    };
    cluster.pause(2);
    cluster.call(1, |agent| async move {
        tokio::spawn(async move { agent.shutdown().await });
    });
    cluster.until("r0 knows that r1 leaves", LIMIT, |cluster| {
        !is_there(cluster)
    });
    for _ in 0..300 {
        cluster.run(SECOND / 100);
        assert!(!is_there(&cluster), "r1 is taken back");
    }
}
