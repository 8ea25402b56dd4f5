//! One kind of fault at a time.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::invariants::{Ledger, agree};

const SECOND: Duration = Duration::from_secs(1);
/// Several times the usual time to join, to heal or to notice a death.
const LIMIT: Duration = Duration::from_secs(15);

fn joined(size: usize, seed: u64) -> Cluster {
    let mut cluster = Cluster::start(size, seed, &["r0", "r1"]);
    cluster.until_joined(LIMIT);
    cluster
}

#[test]
fn a_worker_added_through_one_replica_is_everywhere() {
    let mut cluster = joined(5, 1);
    let (id, ack) = cluster.add_worker(3, 8000);
    assert!(ack.replicated);
    let taken = cluster.until("worker everywhere", LIMIT, |cluster| {
        (0..5).all(|at| cluster.view(at).worker(&id).is_some()) && agree(cluster)
    });
    assert!(taken < SECOND, "{taken:?} is anti-entropy, not the push");
}

#[test]
fn a_removed_worker_never_comes_back_while_every_replica_restarts() {
    let mut cluster = joined(3, 2);
    let (kept, _) = cluster.add_worker(0, 8000);
    let (gone, _) = cluster.add_worker(1, 8001);
    assert!(cluster.remove_worker(2, &gone).replicated);
    let ledger = Ledger {
        kept: [kept].into(),
        gone: [gone].into(),
        ..Ledger::default()
    };
    for at in 0..3 {
        cluster.kill(at);
        cluster.run(2 * SECOND);
        cluster.restart(at);
        cluster.until("back in agreement", LIMIT, |cluster| {
            cluster.running().len() == 3
                && (0..3).all(|at| cluster.is_ready(at) && cluster.live(at) == 3)
                && agree(cluster)
        });
        ledger.check(&cluster);
    }
}

/// G01: both sides change the set during the partition; after it, the causally last change holds.
#[test]
fn a_healed_partition_agrees_on_both_sides_changes() {
    let mut cluster = joined(5, 3);
    let (gone, _) = cluster.add_worker(0, 8000);
    cluster.until("worker everywhere", LIMIT, agree);
    let digest = cluster.view(0).workers_digest();
    cluster.cut(&[0, 1], &[2, 3, 4]);
    cluster.until("partition seen", LIMIT, |cluster| {
        cluster.live(0) == 2 && cluster.live(4) == 3
    });
    assert!(
        (0..5).all(|at| cluster.view(at).workers_digest() == digest),
        "liveness changed the worker set"
    );
    let (kept, ack) = cluster.add_worker(1, 8001);
    assert!(ack.replicated);
    assert!(cluster.remove_worker(4, &gone).replicated);
    cluster.run(60 * SECOND);
    cluster.heal();
    let taken = cluster.until("agreement after the partition", LIMIT, |cluster| {
        agree(cluster) && cluster.view(4).worker(&kept).is_some()
    });
    assert!(taken <= 3 * SECOND, "{taken:?}");
    Ledger {
        kept: [kept].into(),
        gone: [gone].into(),
        ..Ledger::default()
    }
    .check(&cluster);
    cluster.until("all alive again", LIMIT, |cluster| {
        (0..5).all(|at| cluster.live(at) == 5)
    });
}

#[test]
fn a_killed_replica_is_missed_and_returns_in_a_new_generation() {
    let mut cluster = joined(3, 4);
    let generation = |cluster: &Cluster| {
        let view = cluster.view(0);
        view.replicas()
            .iter()
            .find(|seen| seen.id.as_str() == "r2")
            .map_or(0, |seen| seen.generation)
    };
    let (worker, _) = cluster.add_worker(2, 8000);
    let former = generation(&cluster);
    cluster.kill(2);
    cluster.until("death seen", LIMIT, |cluster| {
        cluster.live(0) == 2 && cluster.live(1) == 2
    });
    assert!(
        cluster.view(0).worker(&worker).is_some(),
        "a replica's death retracts nothing"
    );
    cluster.restart(2);
    cluster.until("return seen", LIMIT, |cluster| {
        cluster.running().len() == 3 && (0..3).all(|at| cluster.live(at) == 3) && agree(cluster)
    });
    assert!(generation(&cluster) > former);
    Ledger {
        kept: [worker].into(),
        ..Ledger::default()
    }
    .check(&cluster);
}

/// G03: the registry passes through a third replica; liveness may differ, the worker set must not.
#[test]
fn a_one_way_cut_does_not_keep_changes_away() {
    let mut cluster = joined(3, 5);
    cluster.cut_oneway(0, 1);
    cluster.run(5 * SECOND);
    let (first, _) = cluster.add_worker(0, 8000);
    let (second, _) = cluster.add_worker(1, 8001);
    cluster.until("agreement round the cut", LIMIT, |cluster| {
        agree(cluster) && cluster.view(2).workers().len() == 2
    });
    cluster.run(20 * SECOND);
    assert!(agree(&cluster));
    cluster.heal();
    cluster.until("all alive again", LIMIT, |cluster| {
        (0..3).all(|at| cluster.live(at) == 3)
    });
    Ledger {
        kept: [first, second].into(),
        ..Ledger::default()
    }
    .check(&cluster);
}

/// G04: QUIC retransmits chitchat's messages; no replica may be declared dead.
#[test]
fn a_fifth_of_all_packets_lost_kills_nobody() {
    let mut cluster = joined(5, 6);
    cluster.lose(0.2);
    let (worker, _) = cluster.add_worker(2, 8000);
    cluster.until("worker everywhere", LIMIT, agree);
    let mut deaths = 0;
    for _ in 0..600 {
        cluster.run(SECOND / 10);
        deaths += (0..5).filter(|&at| cluster.live(at) < 5).count();
    }
    assert_eq!(deaths, 0, "views with a false death, of 3,000");
    cluster.kill(4);
    cluster.until("death seen", LIMIT, |cluster| {
        (0..4).all(|at| cluster.live(at) == 4)
    });
    Ledger {
        kept: [worker].into(),
        ..Ledger::default()
    }
    .check(&cluster);
}

/// Silent, dead, unknown and own seeds in any order do not slow down a replica.
#[test]
fn bad_seeds_are_harmless() {
    let mut cluster = Cluster::start(4, 7, &["mute-1", "name.invalid", "r3", "mute-2", "r0"]);
    cluster.add_mute("mute-1");
    cluster.add_mute("mute-2");
    let taken = cluster.until_joined(LIMIT);
    assert!(taken < 5 * SECOND, "{taken:?}");
}

/// A replica that knows only a neighbour learns of the others from its gossip, and dials them.
#[test]
fn a_chain_of_seeds_becomes_a_mesh() {
    let mut cluster = Cluster::chain(6, 12);
    cluster.until_joined(LIMIT);
}

/// R04: no seed answers at first; the seed starts later.
#[test]
fn a_late_seed_is_found() {
    let mut cluster = Cluster::start(3, 8, &["r0"]);
    cluster.kill(0);
    let taken = cluster.until("serving alone", LIMIT, |cluster| {
        cluster.running().len() == 2 && cluster.is_ready(1) && cluster.is_ready(2)
    });
    assert!(
        taken > 5 * SECOND,
        "{taken:?}: ready without a worker while there are seeds to ask"
    );
    cluster.run(20 * SECOND);
    assert_eq!((cluster.live(1), cluster.live(2)), (1, 1));
    cluster.restart(0);
    cluster.until("joined after the seed came", LIMIT, |cluster| {
        cluster.running().len() == 3 && (0..3).all(|at| cluster.live(at) == 3)
    });
}

/// G06: a flapping link changes liveness, never the worker set.
#[test]
fn a_flapping_link_changes_no_worker() {
    let mut cluster = joined(3, 9);
    let (worker, _) = cluster.add_worker(0, 8000);
    cluster.until("worker everywhere", LIMIT, agree);
    let digest = cluster.view(0).workers_digest();
    for _ in 0..15 {
        cluster.cut(&[2], &[0, 1]);
        cluster.run(SECOND);
        cluster.heal();
        cluster.run(SECOND);
        assert!((0..3).all(|at| cluster.view(at).workers_digest() == digest));
    }
    cluster.until("stable again", LIMIT, |cluster| {
        (0..3).all(|at| cluster.live(at) == 3) && agree(cluster)
    });
    Ledger {
        kept: [worker].into(),
        ..Ledger::default()
    }
    .check(&cluster);
}

/// R10: a crash loop neither fills the digests nor disturbs the others' views.
#[test]
fn a_crash_loop_costs_the_others_nothing() {
    let mut cluster = joined(3, 10);
    for _ in 0..30 {
        cluster.kill(2);
        cluster.run(SECOND / 2);
        cluster.restart(2);
        cluster.run(SECOND / 2);
        for at in [0, 1] {
            let view = cluster.view(at);
            assert!(view.replicas().len() <= 3);
            assert!(
                view.replicas()
                    .iter()
                    .filter(|seen| seen.live && seen.id.as_str() != "r2")
                    .count()
                    == 2
            );
        }
    }
    cluster.until("whole again", LIMIT, |cluster| {
        cluster.running().len() == 3 && (0..3).all(|at| cluster.live(at) == 3)
    });
}

/// G10: all start at once; afterwards gossip and idle load frames cost little.
#[test]
fn sixteen_replicas_join_at_once_and_then_cost_little() {
    let mut cluster = Cluster::start(16, 11, &["r0", "r1"]);
    let taken = cluster.until_joined(LIMIT);
    assert!(taken < 5 * SECOND, "{taken:?}");
    let bytes = |cluster: &Cluster| -> u64 {
        let sent = cluster.counted(5, "gossip_bytes_total{direction=\"out\"");
        sent.iter()
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    };
    let before = bytes(&cluster);
    cluster.run(3 * SECOND);
    let rate = (bytes(&cluster) - before) / 3;
    println!(
        "{rate} payload bytes a second and replica: {:?}",
        cluster.counted(5, "gossip_bytes_total")
    );
    assert!(rate < 100_000, "{rate} bytes a second");
}
