//! Clocks that jump and replicas that pause: X01, X02, R03, X04.

use crate::cluster::Cluster;
use crate::host::START_MS;
use crate::invariants::{Ledger, agree, nobody_offended};
use crate::probe::{LIMIT, SECOND, Watch, count, joined, spread, whole};

const HOUR_MS: i64 = 3_600_000;

/// X01: a wall clock that jumps two hours either way changes no replica's liveness, and changes of workers
/// still spread.
#[test]
fn a_wall_clock_that_jumps_kills_nobody() {
    for (seed, skew) in [(701, -2 * HOUR_MS), (702, 2 * HOUR_MS)] {
        let mut cluster = joined(3, seed);
        let (before, _) = cluster.add_worker(0, 8000);
        cluster.until("worker everywhere", LIMIT, agree);
        let mut watch = Watch::new(&cluster);
        cluster.skew(2, skew);
        watch.run(&mut cluster, 60 * SECOND);
        assert_eq!(watch.liveness_changes(), 0, "{:?}", watch.liveness);
        assert_eq!(watch.rings, 0);
        // The later change wins, also over a stamp from two hours ahead.
        let (gone, ack) = cluster.add_worker(2, 8001);
        assert!(ack.replicated);
        cluster.until("worker everywhere", LIMIT, agree);
        assert!(cluster.remove_worker(0, &gone).replicated);
        let (kept, _) = cluster.add_worker(0, 8002);
        let taken = cluster.until("changes everywhere", LIMIT, agree);
        assert!(taken <= SECOND, "{taken:?}");
        let ledger = Ledger {
            kept: [before, kept].into(),
            gone: [gone].into(),
            ..Ledger::default()
        };
        ledger.check(&cluster);
        let behind = if skew > 0 { 0 } else { 2 };
        let lead = cluster.gauge(behind, "gossip_clock_drift_seconds");
        assert!((7_000..=7_200).contains(&lead), "r{behind} says {lead} s");
        cluster.skew(2, 0);
        let mut watch = Watch::new(&cluster);
        watch.run(&mut cluster, 20 * SECOND);
        assert_eq!(watch.liveness_changes(), 0, "{:?}", watch.liveness);
        ledger.check(&cluster);
    }
}

/// X01: a clock is 30 hours ahead for some seconds, in which a worker is added there. Nobody takes it, and nobody is cut off;
/// once the clock is right, the replica is one of the cluster again.
#[test]
fn a_clock_that_was_far_ahead_keeps_its_replica_out_no_longer() {
    let mut cluster = joined(3, 709);
    let (before, _) = cluster.add_worker(0, 8000);
    cluster.until("worker everywhere", LIMIT, agree);
    let mut watch = Watch::new(&cluster);
    cluster.skew(2, 30 * HOUR_MS);
    // It takes the jump for time away, and a peer's registry in place of its own.
    watch.run(&mut cluster, 10 * SECOND);
    let (gone, ack) = cluster.add_worker(2, 8001);
    assert!(!ack.replicated);
    watch.run(&mut cluster, 30 * SECOND);
    assert!(cluster.view(2).worker(&gone).is_some());
    cluster.skew(2, 0);
    let taken = cluster.until("one registry", LIMIT, agree);
    println!("30 h ahead: one registry {taken:?} after the clock was right");
    assert!(taken <= 6 * SECOND, "{taken:?}");
    let (kept, ack) = cluster.add_worker(2, 8002);
    assert!(ack.replicated);
    let taken = cluster.until("change everywhere", LIMIT, agree);
    assert!(taken <= SECOND, "{taken:?}");
    watch.run(&mut cluster, 20 * SECOND);
    assert_eq!(watch.liveness_changes(), 0, "{:?}", watch.liveness);
    assert!(whole(&cluster));
    let view = cluster.view(0);
    assert!(view.worker(&before).is_some() && view.worker(&kept).is_some());
    assert!(view.worker(&gone).is_none());
    assert_eq!(strikes(&cluster), [1, 1, 0], "for what it pushed, once");
}

/// Messages that each replica has refused.
fn strikes(cluster: &Cluster) -> Vec<u64> {
    let running = cluster.running().into_iter();
    let refused = running.map(|at| count(cluster, at, "gossip_refused_total"));
    refused.collect()
}

/// X01: the same 30 hours back. The replica keeps its workers and its peers, and takes what changed once its clock is right.
#[test]
fn a_clock_that_is_far_behind_loses_no_worker_and_no_peer() {
    let mut cluster = joined(3, 710);
    let (before, _) = cluster.add_worker(2, 8000);
    cluster.until("worker everywhere", LIMIT, agree);
    let mut watch = Watch::new(&cluster);
    cluster.skew(2, -30 * HOUR_MS);
    watch.run(&mut cluster, 10 * SECOND);
    let (later, ack) = cluster.add_worker(0, 8001);
    assert!(ack.replicated);
    watch.run(&mut cluster, 30 * SECOND);
    assert!(cluster.view(2).worker(&before).is_some());
    assert!(cluster.view(2).worker(&later).is_none());
    cluster.skew(2, 0);
    let taken = cluster.until("one registry", LIMIT, agree);
    println!("30 h behind: one registry {taken:?} after the clock was right");
    assert!(taken <= 6 * SECOND, "{taken:?}");
    watch.run(&mut cluster, 20 * SECOND);
    assert_eq!(watch.liveness_changes(), 0, "{:?}", watch.liveness);
    assert!(whole(&cluster));
    let view = cluster.view(2);
    assert!(view.worker(&before).is_some() && view.worker(&later).is_some());
    assert_eq!(
        strikes(&cluster),
        [0, 0, 1],
        "for what came as a push, once"
    );
}

/// X02: a replica restarts with its clock an hour back, after its process ended or after it left. It is accepted within
/// two seconds, in a generation above the former one.
#[test]
fn a_restart_with_an_older_clock_is_accepted() {
    for (seed, has_left) in [(703, false), (707, true)] {
        restart_with_an_older_clock(seed, has_left);
    }
}

fn restart_with_an_older_clock(seed: u64, has_left: bool) {
    let mut cluster = joined(3, seed);
    spread(&mut cluster, 0, 8000);
    let former = generation(&cluster, 2);
    if has_left {
        cluster.call(2, |agent| async move { agent.shutdown().await });
    }
    cluster.kill(2);
    cluster.run(3 * SECOND);
    cluster.skew(2, -HOUR_MS);
    cluster.restart(2);
    let taken = cluster.until("accepted", LIMIT, |cluster| {
        cluster.running().len() == 3 && whole(cluster)
    });
    assert!(taken <= 2 * SECOND, "{taken:?}");
    assert!(generation(&cluster, 2) > former);
    let mut watch = Watch::new(&cluster);
    watch.run(&mut cluster, 20 * SECOND);
    assert_eq!(watch.liveness_changes(), 0, "{:?}", watch.liveness);
}

/// A replica runs with its clock two days ahead and is killed; the clock is set right, and it starts again. Nobody asks it
/// to start above the generation of those days, which it would not do, and it is let in once its former connections ended.
#[test]
fn a_restart_after_a_clock_far_ahead_is_accepted() {
    let mut cluster = joined(3, 708);
    let is_back = |cluster: &Cluster| cluster.running().len() == 3 && whole(cluster);
    for skew in [48 * HOUR_MS, 0] {
        cluster.kill(2);
        cluster.skew(2, skew);
        cluster.restart(2);
        let taken = cluster.until("accepted", LIMIT, is_back);
        println!("clock {skew} ms ahead: accepted after {taken:?}");
        let ahead = generation(&cluster, 2).saturating_sub(START_MS) / HOUR_MS.unsigned_abs();
        assert_eq!(ahead >= 48, skew > 0, "{ahead} h");
    }
    cluster.run(10 * SECOND);
    assert!(whole(&cluster));
    nobody_offended(&cluster);
}

/// R03: one replica pauses for ten and for thirty seconds, and then goes on: the others see it as dead
/// meanwhile, it takes the changes, and its own outdated view brings nothing back.
#[test]
fn a_paused_replica_catches_up() {
    for (seed, seconds) in [(704, 10), (705, 30)] {
        let mut cluster = joined(3, seed);
        let (gone, _) = cluster.add_worker(2, 8000);
        cluster.until("worker everywhere", LIMIT, agree);
        cluster.pause(2);
        let mut watch = Watch::new(&cluster);
        watch.run(&mut cluster, 5 * SECOND);
        assert_eq!((cluster.live(0), cluster.live(1)), (2, 2));
        assert!(cluster.remove_worker(0, &gone).replicated);
        let (kept, _) = cluster.add_worker(1, 8001);
        cluster.run((seconds - 5) * SECOND);
        cluster.resume(2);
        let taken = cluster.until("equal digests", LIMIT, agree);
        assert!(taken <= 2 * SECOND, "{taken:?}");
        let alive = cluster.until("all alive again", LIMIT, whole);
        assert!(alive <= 3 * SECOND, "{alive:?}");
        let ledger = Ledger {
            kept: [kept].into(),
            gone: [gone].into(),
            ..Ledger::default()
        };
        ledger.check(&cluster);
        cluster.run(10 * SECOND);
        assert!(whole(&cluster));
        ledger.check(&cluster);
    }
}

/// X04: the host of all replicas sleeps for thirty seconds.
#[test]
fn all_paused_together_go_on_together() {
    let mut cluster = joined(5, 706);
    let (kept, _) = cluster.add_worker(0, 8000);
    cluster.until("worker everywhere", LIMIT, agree);
    let mut watch = Watch::new(&cluster);
    (0..5).for_each(|at| cluster.pause(at));
    watch.run(&mut cluster, 30 * SECOND);
    (0..5).for_each(|at| cluster.resume(at));
    // The views from before the pause still show all as alive; three seconds later this must be true again.
    watch.run(&mut cluster, 3 * SECOND);
    assert!(whole(&cluster), "{:?}", watch.liveness);
    let evicted = watch.liveness_changes();
    watch.run(&mut cluster, 20 * SECOND);
    println!(
        "X04: 30 s of sleep, {evicted} changes of liveness in the 3 s after it, {} in all, ring {}",
        watch.liveness_changes(),
        watch.rings
    );
    assert_eq!(watch.rings, 0);
    assert_eq!(watch.liveness_changes(), 0, "{:?}", watch.liveness);
    nobody_offended(&cluster);
    Ledger {
        kept: [kept].into(),
        ..Ledger::default()
    }
    .check(&cluster);
}

fn generation(cluster: &Cluster, of: usize) -> u64 {
    let view = cluster.view(0);
    let name = format!("r{of}");
    let mut replicas = view.replicas().iter();
    replicas
        .find(|seen| seen.id.as_str() == name)
        .map_or(0, |seen| seen.generation)
}
