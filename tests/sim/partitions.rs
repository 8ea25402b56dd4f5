//! Cuts: G01, G02, G03, and the effects of a false death.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::invariants::{Ledger, agree};
use crate::probe::{LIMIT, SECOND, Watch, joined, spread, whole};

/// Ten rounds.
const HEALED_WITHIN: Duration = Duration::from_secs(2);

/// G01: two against one for a minute, a worker added on one side and one removed on the other.
#[test]
fn two_sides_agree_two_seconds_after_a_partition() {
    let mut cluster = joined(3, 101);
    let (gone, _) = cluster.add_worker(2, 8000);
    cluster.until("worker everywhere", LIMIT, agree);
    cluster.cut(&[0, 1], &[2]);
    cluster.run(10 * SECOND);
    assert_eq!(
        (cluster.live(0), cluster.live(1), cluster.live(2)),
        (2, 2, 1)
    );
    let (kept, ack) = cluster.add_worker(0, 8001);
    assert!(ack.replicated);
    let alone = cluster.remove_worker(2, &gone);
    assert!(!alone.replicated, "nobody could confirm it");
    cluster.run(50 * SECOND);
    assert!(!agree(&cluster), "there was something to heal");
    cluster.heal();
    let taken = cluster.until("agreement after the partition", LIMIT, agree);
    assert!(taken <= HEALED_WITHIN, "{taken:?}");
    Ledger {
        kept: [kept].into(),
        gone: [gone].into(),
        ..Ledger::default()
    }
    .check(&cluster);
    cluster.until("all alive again", LIMIT, whole);
}

/// G02: an isolated replica knows that it is alone, goes on with its last view, and catches up.
#[test]
fn an_isolated_replica_knows_it_and_catches_up() {
    let mut cluster = joined(3, 102);
    cluster.run(20 * SECOND); // until the rhythm of heartbeats is learnt
    spread(&mut cluster, 1, 8000);
    let digest = cluster.view(2).workers_digest();
    let isolated = |cluster: &Cluster| cluster.gauge(2, "gossip_isolated") == 1;
    assert!(!isolated(&cluster));
    cluster.cut(&[2], &[0, 1]);
    let noticed = cluster.until("isolation noticed", LIMIT, isolated);
    assert!(noticed <= 3 * SECOND, "{noticed:?}");
    assert!(cluster.is_ready(2) && cluster.view(2).workers_digest() == digest);
    cluster.run(60 * SECOND);
    assert!(cluster.is_ready(2) && cluster.view(2).workers_digest() == digest);
    spread_to_others(&mut cluster);
    cluster.heal();
    let taken = cluster.until("agreement after isolation", LIMIT, agree);
    assert!(taken <= HEALED_WITHIN, "{taken:?}");
    cluster.until("all alive again", LIMIT, |cluster| {
        whole(cluster) && !isolated(cluster)
    });
}

/// A change that the isolated replica 2 cannot receive.
fn spread_to_others(cluster: &mut Cluster) {
    let (id, _) = cluster.add_worker(0, 8002);
    cluster.until("change at the other one", LIMIT, |cluster| {
        cluster.view(1).worker(&id).is_some()
    });
    assert!(cluster.view(2).worker(&id).is_none());
}

/// G03: through a third replica changes pass the cut within two seconds, in both directions.
#[test]
fn changes_go_round_a_one_way_cut() {
    let mut cluster = joined(3, 103);
    spread(&mut cluster, 1, 7999);
    cluster.cut_oneway(0, 1);
    let mut watch = Watch::new(&cluster);
    watch.run(&mut cluster, 10 * SECOND);
    assert_eq!(watch.rings, 0, "liveness changed the worker set");
    for (from, number) in [(0, 8000), (1, 8001), (2, 8002)] {
        let taken = spread(&mut cluster, from, number);
        assert!(taken <= HEALED_WITHIN, "from r{from}: {taken:?}");
    }
    let taken = cluster.until("equal digests", LIMIT, agree);
    assert!(taken <= HEALED_WITHIN, "{taken:?}");
    cluster.heal();
    cluster.until("all alive again", LIMIT, whole);
}

/// G03 without a third: the two may differ on liveness, not on the workers.
#[test]
fn a_one_way_cut_between_two_never_touches_the_ring() {
    let mut cluster = joined(2, 104);
    spread(&mut cluster, 1, 8000);
    let digest = cluster.view(0).workers_digest();
    cluster.cut_oneway(0, 1);
    let mut watch = Watch::new(&cluster);
    watch.run(&mut cluster, 60 * SECOND);
    println!(
        "one direction cut for 60 s: {} changes of the ring, liveness {:?}, now r0 sees {} and r1 {}",
        watch.rings,
        watch.liveness,
        cluster.live(0),
        cluster.live(1)
    );
    assert_eq!(watch.rings, 0);
    assert_eq!(cluster.view(0).workers_digest(), digest);
    assert_eq!(cluster.view(1).workers_digest(), digest);
    assert!(watch.liveness_most() <= 1, "{:?}", watch.liveness);
    cluster.heal();
    let taken = cluster.until("all alive again", LIMIT, whole);
    assert!(taken <= 3 * SECOND, "{taken:?}");
}

/// A replica that is seen as dead although it lives, and then as alive again: no worker set changes, no
/// replica becomes unready, and no other is seen as dead.
#[test]
fn a_false_death_changes_nothing_but_liveness() {
    let mut cluster = joined(4, 105);
    spread(&mut cluster, 1, 8000);
    let workers = cluster.view(0).workers().to_vec();
    let mut watch = Watch::new(&cluster);
    for _ in 0..3 {
        cluster.cut(&[3], &[0, 1, 2]);
        watch.run(&mut cluster, 5 * SECOND);
        assert!((0..3).all(|at| cluster.live(at) == 3), "no false death");
        assert!((0..4).all(|at| cluster.is_ready(at)));
        cluster.heal();
        watch.run(&mut cluster, 5 * SECOND);
        assert!(whole(&cluster));
    }
    assert_eq!(watch.rings, 0);
    assert!((0..4).all(|at| cluster.view(at).workers() == workers));
    let others: Vec<_> = watch.liveness.keys().collect();
    assert!(
        others
            .iter()
            .all(|(observer, peer)| *observer == 3 || peer == "r3"),
        "{others:?}"
    );
}
