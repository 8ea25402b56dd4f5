//! Many replicas, many workers, and their cost: G10, G15, growth with N.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::invariants::{agree, nobody_offended};
use crate::probe::{LIMIT, SECOND, count, death_seen, joined, quantile, setting, spread, whole};

/// Default sizes; `SIM_STORM=50`, `SIM_OVERSIZE=64` and `SIM_GROWTH=64` run the whole rows, for an optimised
/// build.
const STORM: u64 = 20;
const OVERSIZE: u64 = 3;
const GROWTH: u64 = 8;
const WORKERS: u16 = 1000;
/// Planes of `gossip_bytes_total`.
const PLANES: [&str; 8] = [
    "handshake",
    "gossip",
    "registry",
    "load",
    "evidence",
    "heat",
    "dry_run",
    "bulletin",
];

/// G10: all start at once; within five seconds all know all, and then gossip is cheap.
#[test]
fn a_join_storm_settles_in_five_seconds() {
    let size = usize::try_from(setting("SIM_STORM", STORM)).expect("some");
    let mut cluster = Cluster::start(size, 601, &["r0", "r1", "r2"]);
    let taken = cluster.until_joined(LIMIT);
    assert!(taken <= 5 * SECOND, "{taken:?}");
    cluster.run(2 * SECOND);
    let cost = Cost::over(&mut cluster, 3);
    println!("G10: {size} replicas joined in {taken:?}; then {cost}");
    assert!(cost.bytes() <= 100_000 * size as u64 / 20, "{cost}");
    nobody_offended(&cluster);
}

/// G15: a thousand workers reach every replica within five seconds, in messages below their limits.
#[test]
fn a_thousand_workers_converge() {
    let size = usize::try_from(setting("SIM_OVERSIZE", OVERSIZE)).expect("some");
    let mut cluster = joined(size, 602);
    let added = cluster.call(size - 1, |agent| async move {
        use grapevine_gossip::worker::{RawWorker, Source, WorkerSpec};
        let puts = (0..WORKERS).map(|number| {
            let url = format!("http://worker-{number}.example:8000");
            let spec = WorkerSpec::new(RawWorker::at(url)).expect("spec");
            let agent = agent.clone();
            async move {
                agent
                    .put_worker(spec.default_id(), Source::Admin, spec)
                    .await
            }
        });
        let mut added = 0;
        for put in puts.collect::<Vec<_>>() {
            added += usize::from(put.await.is_ok());
        }
        added
    });
    assert_eq!(added, usize::from(WORKERS));
    let taken = cluster.until("a thousand workers everywhere", LIMIT, |cluster| {
        agree(cluster) && cluster.view(0).workers().len() == usize::from(WORKERS)
    });
    println!("G15: {size} replicas, {WORKERS} workers: equal {taken:?} after the last was added");
    assert!(taken <= 5 * SECOND, "{taken:?}");
    for at in 0..size {
        let lost = cluster.counted(at, "gossip_dropped_total{reason=\"too_long");
        assert!(lost.is_empty(), "r{at}: {lost:?}");
    }
    nobody_offended(&cluster);
    // A replica that starts now gets all of them at once.
    cluster.kill(0);
    cluster.run(SECOND);
    cluster.restart(0);
    let taken = cluster.until("a newcomer has them too", LIMIT, |cluster| {
        cluster.running().len() == size && whole(cluster)
    });
    println!("G15: a newcomer has them {taken:?} after its start");
    assert!(taken <= 5 * SECOND, "{taken:?}");
}

/// Prints a table for the documents: the cost of a cluster as it grows.
#[test]
fn growth() {
    let largest = setting("SIM_GROWTH", GROWTH);
    println!(
        "| N | join | change p50 | change max | kill seen | idle bytes/s | idle messages/s | busy bytes/s | busy messages/s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut idle_of = Vec::new();
    for size in [3, 8, 16, 32, 64]
        .into_iter()
        .filter(|size| *size <= largest)
    {
        let size = usize::try_from(size).expect("small");
        let mut cluster = Cluster::start(size, 603, &["r0", "r1"]);
        let join = cluster.until_joined(LIMIT);
        let changes: Vec<_> = (0..5)
            .map(|number| spread(&mut cluster, usize::from(number) % size, 8000 + number))
            .collect();
        cluster.run(2 * SECOND);
        let idle = Cost::over(&mut cluster, 3);
        for at in 0..size {
            make_busy(&mut cluster, at);
        }
        cluster.run(SECOND);
        let busy = Cost::over(&mut cluster, 2);
        let kill = death_seen(&mut cluster, size - 1);
        println!(
            "| {size} | {join:?} | {:?} | {:?} | {kill:?} | {} | {} | {} | {} |",
            quantile(&changes, 0.5),
            quantile(&changes, 1.0),
            idle.bytes(),
            idle.messages(),
            busy.bytes(),
            busy.messages(),
        );
        println!("idle {idle}\nbusy {busy}");
        assert!(join <= 5 * SECOND, "{join:?}");
        assert!(quantile(&changes, 1.0) <= SECOND, "{changes:?}");
        let seen_within = if size <= 8 { 3 } else { 4 };
        assert!(kill <= seen_within * SECOND, "{kill:?}");
        idle_of.push((size as u64, idle.bytes()));
        nobody_offended(&cluster);
    }
    // A replica's idle bytes grow with N, not faster: digests have an entry for each replica, and a
    // heartbeat goes to each.
    let (small, large) = (idle_of[0], idle_of[idle_of.len() - 1]);
    assert!(large.1 * small.0 <= 2 * small.1 * large.0, "{idle_of:?}");
}

/// One replica's own load changes fifty times a second from now on.
fn make_busy(cluster: &mut Cluster, at: usize) {
    cluster.call(at, |agent| async move {
        let id = agent.view().workers()[0].id.clone();
        let cell = agent.load().cell(&id);
        let load = grapevine_gossip::load::Load {
            requests: 1,
            prefill_tokens: 500,
            context_tokens: 2000,
        };
        tokio::spawn(async move {
            loop {
                cell.add(load);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    });
}

/// Traffic of one replica in a second, by plane.
struct Cost {
    planes: Vec<(&'static str, u64, u64)>,
}

impl Cost {
    /// Measures the middle replica for so many seconds.
    fn over(cluster: &mut Cluster, seconds: u32) -> Self {
        let at = cluster.size() / 2;
        let read = |cluster: &Cluster| {
            PLANES.map(|plane| {
                let sum = |what: &str| {
                    let name = format!("gossip_{what}_total{{direction=\"out\",plane=\"{plane}\"");
                    count(cluster, at, &name)
                };
                (sum("bytes"), sum("frames"))
            })
        };
        let before = read(cluster);
        cluster.run(seconds * SECOND);
        let after = read(cluster);
        let rate = |at: usize| {
            let seconds = u64::from(seconds);
            (
                PLANES[at],
                (after[at].0 - before[at].0) / seconds,
                (after[at].1 - before[at].1) / seconds,
            )
        };
        Self {
            planes: (0..PLANES.len()).map(rate).collect(),
        }
    }

    /// Payload bytes a second.
    fn bytes(&self) -> u64 {
        self.planes.iter().map(|(_, bytes, _)| bytes).sum()
    }

    /// Messages a second.
    fn messages(&self) -> u64 {
        self.planes.iter().map(|(_, _, messages)| messages).sum()
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} B/s, {} messages/s a replica:",
            self.bytes(),
            self.messages()
        )?;
        for (plane, bytes, messages) in self.planes.iter().filter(|(_, _, messages)| *messages > 0)
        {
            write!(f, " {plane} {bytes} B {messages};")?;
        }
        Ok(())
    }
}
