//! Real agents on a simulated network: hosts `r0`, `r1` and so on, and steps of simulated time.
//!
//! Simulated seconds: a test asks what holds, not how fast. A failure names its seed.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grapevine_gossip::config::{Facts, GossipConfig};
use grapevine_gossip::identity::{self, Identity};
use grapevine_gossip::worker::{RawWorker, WorkerId, WorkerSpec};
use grapevine_gossip::{Agent, Metrics, StartError};
use turmoil::Sim;

use crate::network::SimNetwork;

const PORT: u16 = 30_002;

/// The host of a replica.
pub(crate) fn name(at: usize) -> String {
    format!("r{at}")
}

/// The one worker of these tests.
pub(crate) fn worker() -> WorkerId {
    "http://10.0.0.1:8000".parse().expect("valid")
}

/// What the replicas and the test share.
pub(crate) fn with<S, T>(shared: &Mutex<S>, look: impl FnOnce(&mut S) -> T) -> T {
    look(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A network without hosts, whose packets take 1 to 20 ms.
pub(crate) fn network(seed: u64) -> Sim<'static> {
    turmoil::Builder::new()
        .tick_duration(Duration::from_millis(5))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(20))
        .simulation_duration(Duration::from_secs(600))
        .udp_capacity(4096)
        .rng_seed(seed)
        .build()
}

/// Certificates of one authority for replicas `r0` and on.
pub(crate) fn identities(replicas: usize) -> Vec<Identity> {
    let authority = identity::create("sim").expect("authority");
    let (cert, key) = (&authority.cert_pem, &authority.key_pem);
    let identity = |at| {
        let leaf = identity::issue(cert, key, "sim", &name(at)).expect("leaf");
        Identity::from_pem("sim", &name(at), cert, &leaf.cert_pem, &leaf.key_pem).expect("identity")
    };
    (0..replicas).map(identity).collect()
}

/// Starts the agent of a replica on the host where this is called; it asks `seeds` for the cluster.
pub(crate) async fn start(
    at: usize,
    seeds: Range<usize>,
    identity: Identity,
    seed: u64,
) -> Result<Agent, StartError> {
    let address = |at| format!("{}:{PORT}", name(at));
    let config = GossipConfig {
        advertise: Some(address(at)),
        seeds: seeds.map(address).collect(),
        ..GossipConfig::new(([0, 0, 0, 0], PORT).into(), Facts::default())
    };
    let network = Arc::new(SimNetwork {
        seed: seed + at as u64,
    });
    Agent::start_on(network, config, identity, |_| 1.0, Metrics::default()).await
}

/// The same, asking the first replica, with [`worker`] in its configuration.
pub(crate) async fn start_with_worker(
    at: usize,
    identity: Identity,
    seed: u64,
) -> turmoil::Result<Agent> {
    let agent = start(at, 0..1, identity, seed).await?;
    agent.configure(worker(), WorkerSpec::new(RawWorker::at(worker().as_str()))?)?;
    Ok(agent)
}

/// Steps until it is so; fails after so much simulated time.
pub(crate) fn run(
    sim: &mut Sim<'_>,
    seed: u64,
    time: Duration,
    until: impl Fn() -> bool,
    what: &str,
) {
    let end = sim.elapsed() + time;
    while !until() {
        assert!(sim.elapsed() < end, "seed {seed}: {what}");
        sim.step().expect("no host fails");
    }
}

/// Steps for so much simulated time.
pub(crate) fn pass(sim: &mut Sim<'_>, time: Duration) {
    let end = sim.elapsed() + time;
    while sim.elapsed() < end {
        sim.step().expect("no host fails");
    }
}

/// Every link loses this share of its packets, in both directions.
pub(crate) fn lose(sim: &mut Sim<'_>, replicas: usize, share: f64) {
    for a in 0..replicas {
        for b in (0..replicas).filter(|&b| b != a) {
            sim.set_link_fail_rate(name(a), name(b), share);
        }
    }
}

/// Cuts the first replica off from all others, or ends that.
pub(crate) fn cut_off_first(sim: &mut Sim<'_>, replicas: usize, is_cut: bool) {
    for other in 1..replicas {
        match is_cut {
            true => sim.partition(name(0), name(other)),
            false => sim.repair(name(0), name(other)),
        }
    }
}
