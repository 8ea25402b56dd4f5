//! Faults at random, then quiet: a faults phase that may do anything, a heal phase that must converge.

use std::time::Duration;

use crate::chance;
use crate::cluster::Cluster;
use crate::invariants::{Ledger, agree};

/// Schedules in one run of the test, unless `SIM_SCHEDULES` asks for more; each is about 30 simulated
/// seconds.
const SCHEDULES: u64 = 12;
const FIRST: u64 = 1000;
const STEPS: usize = 14;
const LIMIT: Duration = Duration::from_secs(20);

/// G14: whatever happened, two seconds of quiet (here with a margin) bring agreement; no removed
/// worker is back, no confirmed one is lost.
#[test]
fn random_schedules_end_in_agreement() {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().expect("a number"))
    };
    match number("SIM_SEED") {
        Some(seed) => schedule(seed),
        None => (FIRST..FIRST + number("SIM_SCHEDULES").unwrap_or(SCHEDULES)).for_each(schedule),
    }
}

fn schedule(seed: u64) {
    let mut cluster = Cluster::start(4, seed, &["r0", "r1", "r2"]);
    cluster.until_joined(LIMIT);
    let mut ledger = Ledger::default();
    let mut port = 8000;
    // One death at a time, and one in all: what two replicas hold must then survive.
    let mut dead = None;
    let mut has_died = false;
    for _ in 0..STEPS {
        match chance::below(9) {
            0..=2 => {
                let running = cluster.running();
                let at = running[chance::below(running.len())];
                port += 1;
                let (id, ack) = cluster.add_worker(at, port);
                if ack.replicated {
                    ledger.kept.insert(id)
                } else {
                    ledger.unsure.insert(id)
                };
            }
            3 => remove_one(&mut cluster, &mut ledger),
            4 => {
                let alone = chance::below(cluster.size());
                let others: Vec<_> = (0..cluster.size()).filter(|&at| at != alone).collect();
                cluster.cut(&[alone], &others);
            }
            5 => {
                let (from, to) = (chance::below(cluster.size()), chance::below(cluster.size()));
                if from != to {
                    cluster.cut_oneway(from, to);
                }
            }
            6 => cluster.lose([0.0, 0.1, 0.3][chance::below(3)]),
            7 => cluster.heal(),
            _ if !has_died => {
                let victim = chance::below(cluster.size());
                cluster.kill(victim);
                dead = Some(victim);
                has_died = true;
            }
            _ => {
                if let Some(victim) = dead.take() {
                    cluster.restart(victim);
                }
            }
        }
        cluster.run(Duration::from_millis(200 + chance::next() % 2500));
    }
    if let Some(victim) = dead {
        cluster.restart(victim);
    }
    cluster.lose(0.0);
    cluster.heal();
    cluster.until("agreement in the quiet", LIMIT, |cluster| {
        cluster.running().len() == cluster.size()
            && (0..cluster.size())
                .all(|at| cluster.is_ready(at) && cluster.live(at) == cluster.size())
            && agree(cluster)
    });
    ledger.check(&cluster);
}

/// Removes a worker through a replica that knows it.
fn remove_one(cluster: &mut Cluster, ledger: &mut Ledger) {
    let candidates: Vec<_> = ledger.kept.iter().cloned().collect();
    if candidates.is_empty() {
        return;
    }
    let id = candidates[chance::below(candidates.len())].clone();
    let knows = |at: &usize| cluster.view(*at).worker(&id).is_some();
    let Some(at) = cluster.running().into_iter().find(knows) else {
        return;
    };
    let ack = cluster.remove_worker(at, &id);
    ledger.kept.remove(&id);
    if ack.replicated {
        ledger.gone.insert(id)
    } else {
        ledger.unsure.insert(id)
    };
}
