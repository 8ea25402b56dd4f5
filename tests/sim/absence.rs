//! Replicas that were away for long: G07, G08.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::invariants::{Ledger, agree};
use crate::probe::{LIMIT, SECOND, joined, whole};

/// Longer than chitchat remembers the dead.
const BEYOND_GRACE: Duration = Duration::from_secs(75);
/// New replicas are a cluster ten seconds after they met, at their next exchange.
const FOUNDED: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3600);

/// G07: away for longer than the dead are remembered; meanwhile a worker was removed.
#[test]
fn who_was_forgotten_brings_no_removed_worker_back() {
    let mut cluster = joined(3, 401);
    let (kept, _) = cluster.add_worker(0, 8000);
    let (gone, _) = cluster.add_worker(2, 8001);
    cluster.until("workers everywhere", LIMIT, agree);
    cluster.cut(&[2], &[0, 1]);
    cluster.run(5 * SECOND);
    assert!(cluster.remove_worker(0, &gone).replicated);
    cluster.run(BEYOND_GRACE);
    assert_eq!(cluster.view(0).replicas().len(), 2, "r2 is forgotten");
    assert!(cluster.view(2).worker(&gone).is_some(), "the zombie has it");
    cluster.heal();
    let taken = cluster.until("agreement with the zombie", LIMIT, agree);
    assert!(taken <= 2 * SECOND, "{taken:?}");
    let ledger = Ledger {
        kept: [kept].into(),
        gone: [gone].into(),
        ..Ledger::default()
    };
    ledger.check(&cluster);
    cluster.until("all alive again", LIMIT, whole);
    cluster.run(10 * SECOND);
    ledger.check(&cluster);
}

/// G08: within the time that tombstones live (23 h away, measured by contact) a removal outlives any
/// partition, also if one of the replicas that remember it dies meanwhile.
#[test]
fn a_removal_outlives_a_partition_and_a_restart() {
    let mut cluster = joined(3, 402);
    let (kept, _) = cluster.add_worker(0, 8000);
    let (gone, _) = cluster.add_worker(2, 8001);
    cluster.until("workers everywhere", LIMIT, agree);
    cluster.cut(&[2], &[0, 1]);
    cluster.run(5 * SECOND);
    assert!(cluster.remove_worker(0, &gone).replicated);
    suspend(&mut cluster, 2, 22 * HOUR);
    restart_one_by_one(&mut cluster);
    cluster.heal();
    let taken = cluster.until("agreement after 22 h", LIMIT, |cluster| {
        agree(cluster) && cluster.view(2).worker(&gone).is_none()
    });
    println!("G08: 22 h away, equal {taken:?} after the heal");
    Ledger {
        kept: [kept].into(),
        gone: [gone].into(),
        ..Ledger::default()
    }
    .check(&cluster);
}

/// G07, G08: beyond that time no replica remembers the removal (here because all that did have restarted). A
/// replica that was away for so long drops its registry and copies that of the others.
#[test]
fn who_was_away_for_a_day_brings_nothing_along() {
    let mut cluster = joined(3, 403);
    cluster.run(FOUNDED);
    let (gone, _) = cluster.add_worker(2, 8001);
    cluster.until("worker everywhere", LIMIT, agree);
    cluster.cut(&[2], &[0, 1]);
    cluster.run(5 * SECOND);
    assert!(cluster.remove_worker(0, &gone).replicated);
    suspend(&mut cluster, 2, 25 * HOUR);
    assert!(cluster.view(2).worker(&gone).is_some(), "the zombie has it");
    forget_all(&mut cluster);
    let (kept, _) = cluster.add_worker(0, 8002);
    cluster.heal();
    let taken = cluster.until("agreement after 25 h", 2 * LIMIT, agree);
    println!("G07: 25 h away, equal {taken:?} after the heal");
    let ledger = Ledger {
        kept: [kept].into(),
        gone: [gone].into(),
        ..Ledger::default()
    };
    ledger.check(&cluster);
    cluster.until("all alive again", 2 * LIMIT, whole);
    ledger.check(&cluster);
}

/// A replica that was alone for a day, and a new one that was ready before the two met: it is no cluster, and what the
/// first holds is all there is. A reunion in which one side starts over shows nobody a moment without workers.
#[test]
fn who_was_alone_for_a_day_loses_nothing_to_a_newcomer() {
    for meets_at_once in [false, true] {
        let mut cluster = joined(2, 405);
        cluster.run(FOUNDED);
        let (kept, _) = cluster.add_worker(0, 8000);
        cluster.until("worker everywhere", LIMIT, agree);
        cluster.kill(1);
        suspend(&mut cluster, 0, 25 * HOUR);
        if !meets_at_once {
            cluster.cut(&[0], &[1]);
        }
        cluster.restart(1);
        if !meets_at_once {
            cluster.until("the newcomer is ready alone", LIMIT, |cluster| {
                cluster.is_ready(1)
            });
            assert_eq!(cluster.view(1).workers().len(), 0);
            cluster.heal();
        }
        let taken = cluster.until("agreement with the newcomer", 2 * LIMIT, |cluster| {
            let is_there = |at| cluster.view(at).worker(&kept).is_some();
            assert!(is_there(0), "it never lost its worker");
            cluster.is_ready(1) && is_there(1) && agree(cluster)
        });
        println!("a newcomer after 25 h alone, at once {meets_at_once}: equal after {taken:?}");
        // Its next exchanges change nothing any more.
        cluster.until("all alive", 2 * LIMIT, whole);
        cluster.run(15 * SECOND);
        assert!((0..2).all(|at| cluster.view(at).worker(&kept).is_some()));
    }
}

/// The documented limit: if all replicas that know of a removal die within those 23 h, the side that was cut
/// off does not know of it, and the worker is back.
#[test]
fn a_removal_that_nobody_remembers_is_lost_within_the_day() {
    let mut cluster = joined(3, 404);
    let (risen, _) = cluster.add_worker(2, 8001);
    cluster.until("worker everywhere", LIMIT, agree);
    cluster.cut(&[2], &[0, 1]);
    cluster.run(5 * SECOND);
    assert!(cluster.remove_worker(0, &risen).replicated);
    forget_all(&mut cluster);
    cluster.heal();
    cluster.until("agreement", LIMIT, agree);
    assert!((0..3).all(|at| cluster.view(at).worker(&risen).is_some()));
}

/// The monotonic clock of one replica jumps, as that of a paused process does.
fn suspend(cluster: &mut Cluster, at: usize, time: Duration) {
    cluster.call(at, move |_| tokio::time::advance(time));
    cluster.run(5 * SECOND);
}

/// r0 and r1 restart together, so their side forgets everything.
fn forget_all(cluster: &mut Cluster) {
    cluster.kill(0);
    cluster.kill(1);
    cluster.run(SECOND);
    cluster.restart(0);
    cluster.restart(1);
    both_back(cluster);
    cluster.run(FOUNDED);
    assert_eq!(cluster.view(0).workers().len(), 0);
}

/// r0 and r1 restart one after the other, so each copies the registry of the other.
fn restart_one_by_one(cluster: &mut Cluster) {
    for at in [0, 1] {
        cluster.kill(at);
        cluster.run(SECOND);
        cluster.restart(at);
        both_back(cluster);
    }
}

fn both_back(cluster: &mut Cluster) {
    cluster.until("r0 and r1 together", LIMIT, |cluster| {
        cluster.running().len() == 3
            && [0, 1]
                .iter()
                .all(|&at| cluster.is_ready(at) && cluster.live(at) == 2)
            && cluster.view(0).registry() == cluster.view(1).registry()
    });
}
