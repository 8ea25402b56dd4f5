//! R03, X04: replicas that are stopped and go on.

use std::time::Duration;

use grapevine_gossip::bulletin::{Bulletin, TenantUse};
use grapevine_gossip::worker::{RawWorker, WorkerSpec};

use crate::cluster::Cluster;
use crate::invariants::{agree, nobody_offended};

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(15);

/// It wakes up with old acknowledgements in its receive buffer, takes the pause for a round trip, and
/// may hold connections for alive for minutes that its peers gave up long ago (random schedule 1004 of three
/// minutes met that).
#[test]
fn a_replica_that_slept_speaks_to_everybody_soon() {
    for seed in 20..24 {
        let mut cluster = Cluster::start(3, seed, &["r0", "r1"]);
        cluster.until_joined(LIMIT);
        // Something is under way to everybody, and its acknowledgement will wait.
        cluster.call(2, |agent| async move {
            let worker = "http://10.0.0.1:8000".parse().expect("valid");
            let spec = WorkerSpec::new(RawWorker::at("http://10.0.0.1:8000")).expect("valid");
            agent.configure(worker, spec).expect("room");
            agent.set_ring("sent to everybody at once");
            agent.post(Bulletin {
                health: Vec::new(),
                usage: vec![TenantUse::default()],
                ..Bulletin::default()
            });
        });
        cluster.run(SECOND / 50);
        cluster.pause(2);
        cluster.run(4 * SECOND);
        // What came until now waits for it; nobody tries to reach it.
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

/// All stop at once, as on a machine that is suspended: nobody is lost, nothing is removed.
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
