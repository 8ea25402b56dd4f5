//! Loss, delay, reordering, duplicates and damage on every link: G04, G05, G12 in packets.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::invariants::{Ledger, agree, nobody_offended};
use crate::network::Link;
use crate::probe::{LIMIT, SECOND, Watch, death_seen, joined, quantile, setting, spread, whole};

/// Replicas and simulated seconds in which none may be declared dead by mistake; `SIM_LOSS_SECONDS` sets more
/// seconds.
const REPLICAS: usize = 16;
const CALM: u64 = 15;
/// Pairs of these, of 240, of which one takes the other for dead within a minute while half of all packets are lost. 1.3
/// were measured.
const MISTAKEN_A_MINUTE: f64 = 16.0;
/// Changes whose spread through the cluster is measured.
const CHANGES: u16 = 20;
/// Kills, each in a cluster of its own.
const KILLS: u64 = 9;

/// G04: with a fifth of packets lost a change takes at most a second (p99), and a kill is noticed within 2.5
/// s; with half lost, two seconds and 3.5. One kill is one draw: of 40 with a fifth lost, a tenth took 2.6 or 2.8 s.
/// So the middle one of several is judged by the row, and the slowest by half a second more.
#[test]
fn changes_and_deaths_are_known_in_time_under_loss() {
    for (loss, change, death, seed) in [(0.2, 1000, 2500, 201), (0.5, 2000, 3500, 211)] {
        let mut found = Vec::new();
        for seed in seed..seed + KILLS {
            let mut cluster = joined(5, seed);
            lose(&cluster, loss);
            cluster.run(20 * SECOND);
            if found.is_empty() {
                let taken = changes(&mut cluster);
                let (p50, p99) = (quantile(&taken, 0.5), quantile(&taken, 0.99));
                println!("G04 {loss}: change p50 {p50:?} p99 {p99:?}");
                assert!(p99 <= Duration::from_millis(change), "{taken:?}");
            }
            found.push(death_seen(&mut cluster, 4));
            nobody_offended(&cluster);
        }
        println!("G04 {loss}: kills seen by all {found:?}");
        assert!(
            quantile(&found, 0.5) <= Duration::from_millis(death),
            "{found:?}"
        );
        assert!(
            quantile(&found, 1.0) <= Duration::from_millis(death + 500),
            "{found:?}"
        );
    }
}

/// G04: 16 replicas that lose a fifth of all packets declare none of them dead. With half lost, one takes another one for
/// dead now and then (in 12 of 40 runs of 15 s with other seeds one did, in one of them two), and hears it again.
#[test]
fn sixteen_replicas_under_loss_declare_nobody_dead() {
    let seconds = u32::try_from(setting("SIM_LOSS_SECONDS", CALM)).expect("a few");
    for (loss, seed) in [(0.2, 203), (0.5, 213)] {
        let mut cluster = joined(REPLICAS, seed);
        lose(&cluster, loss);
        let mut watch = Watch::new(&cluster);
        watch.run(&mut cluster, seconds * SECOND);
        println!(
            "G04: {REPLICAS} replicas, {seconds} s at {loss} lost: {} changes of liveness, {:?}",
            watch.liveness_changes(),
            cluster.link_faults().tally()
        );
        if loss < 0.5 {
            assert_eq!(watch.liveness_changes(), 0, "{:?}", watch.liveness);
        } else {
            let most = MISTAKEN_A_MINUTE * f64::from(seconds.max(15)) / 60.0;
            let mistaken = watch.liveness.len() as f64;
            assert!(mistaken <= most, "{:?}", watch.liveness);
            cluster.until("all are heard again", LIMIT, whole);
        }
        nobody_offended(&cluster);
    }
}

/// G05: 50 to 350 ms on every packet, drawn anew for each, and a third of them twice. Every step checks that
/// no generation goes back.
#[test]
fn late_reordered_and_doubled_packets_do_no_harm() {
    let mut cluster = joined(5, 205);
    cluster.link_faults().everywhere(Link {
        delay: Duration::from_millis(50),
        jitter: Duration::from_millis(300),
        duplicates: 0.3,
        ..Link::default()
    });
    cluster.run(10 * SECOND);
    let mut watch = Watch::new(&cluster);
    watch.run(&mut cluster, 120 * SECOND);
    assert_eq!(watch.liveness_changes(), 0, "{:?}", watch.liveness);
    let taken = changes(&mut cluster);
    let found = death_seen(&mut cluster, 4);
    println!(
        "G05: change p50 {:?} p99 {:?}, kill seen by all {found:?}, {:?}",
        quantile(&taken, 0.5),
        quantile(&taken, 0.99),
        cluster.link_faults().tally()
    );
    assert!(quantile(&taken, 0.99) <= SECOND);
    assert!(found <= 4 * SECOND, "{found:?}");
    cluster.restart(4);
    cluster.until("whole again", LIMIT, |cluster| {
        cluster.running().len() == 5 && whole(cluster)
    });
    nobody_offended(&cluster);
}

/// G05: a change that overtakes the one before it does not undo it.
#[test]
fn no_change_goes_back_when_packets_overtake_each_other() {
    let mut cluster = joined(4, 206);
    cluster.link_faults().everywhere(Link {
        delay: Duration::from_millis(50),
        jitter: Duration::from_millis(300),
        duplicates: 0.3,
        ..Link::default()
    });
    let mut kept = std::collections::BTreeSet::new();
    let mut gone = std::collections::BTreeSet::new();
    for number in 8000..8010 {
        let (id, _) = cluster.add_worker(usize::from(number) % 4, number);
        cluster.until("seen by another", LIMIT, |cluster| {
            cluster
                .view(usize::from(number + 1) % 4)
                .worker(&id)
                .is_some()
        });
        if number % 2 == 0 {
            cluster.remove_worker(usize::from(number + 1) % 4, &id);
            gone.insert(id);
        } else {
            kept.insert(id);
        }
    }
    let taken = cluster.until("agreement", LIMIT, agree);
    assert!(taken <= 2 * SECOND, "{taken:?}");
    let ledger = Ledger {
        kept,
        gone,
        ..Ledger::default()
    };
    for _ in 0..50 {
        ledger.check(&cluster);
        cluster.run(SECOND / 10);
    }
}

/// G12: a packet with a flipped bit is a lost packet. `any_bit_flip_in_any_message_is_refused` in the gossip
/// crate tests frames below the encryption.
#[test]
fn flipped_bits_change_nothing() {
    let mut cluster = joined(4, 207);
    let (kept, _) = cluster.add_worker(0, 8000);
    cluster.until("worker everywhere", LIMIT, agree);
    cluster.link_faults().everywhere(Link {
        flips: 0.2,
        ..Link::default()
    });
    let mut watch = Watch::new(&cluster);
    watch.run(&mut cluster, 60 * SECOND);
    let tally = cluster.link_faults().tally();
    println!("G12: {tally:?}");
    assert!(tally.flipped > 1000, "{tally:?}");
    assert_eq!(watch.liveness_changes(), 0, "{:?}", watch.liveness);
    assert_eq!(watch.rings, 0);
    let (second, _) = cluster.add_worker(1, 8001);
    let taken = cluster.until("worker everywhere", LIMIT, |cluster| {
        agree(cluster) && cluster.view(3).worker(&second).is_some()
    });
    assert!(taken <= SECOND, "{taken:?}");
    assert!((0..4).all(|at| {
        cluster
            .counted(at, "gossip_dropped_total{reason=\"unreadable")
            .is_empty()
    }));
    Ledger {
        kept: [kept, second].into(),
        ..Ledger::default()
    }
    .check(&cluster);
}

fn lose(cluster: &Cluster, loss: f64) {
    cluster.link_faults().everywhere(Link {
        loss,
        ..Link::default()
    });
}

/// Times until every replica has a change, the call included.
fn changes(cluster: &mut Cluster) -> Vec<Duration> {
    (0..CHANGES)
        .map(|number| {
            let from = usize::from(number) % cluster.size();
            let taken = spread(cluster, from, 8100 + number);
            cluster.run(SECOND / 5);
            taken
        })
        .collect()
}
