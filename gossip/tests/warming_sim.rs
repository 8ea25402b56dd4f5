//! Warm-ups and restarts of workers between real agents on a simulated network.
//!
//! Simulated seconds: the test asks what holds, not how fast.

#[path = "common/network.rs"]
mod network;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grapevine_gossip::config::{Facts, GossipConfig};
use grapevine_gossip::identity::{self, Identity};
use grapevine_gossip::view::View;
use grapevine_gossip::worker::{RawWorker, Source, State, WorkerId, WorkerSpec};
use grapevine_gossip::{Agent, Metrics};
use turmoil::Sim;

use network::SimNetwork;

const PORT: u16 = 30_002;
const REPLICAS: usize = 3;
/// Process start of the worker, in seconds since 1970.
const STARTED: u64 = 1_700_000_000;
const WARM_UP: Duration = Duration::from_secs(20);

/// What the replicas see, and what they are to do.
#[derive(Default)]
struct Stage {
    views: [Option<Arc<View>>; REPLICAS],
    ready: [bool; REPLICAS],
    is_adding: bool,
    is_restarted: bool,
}

type Shared = Arc<Mutex<Stage>>;

fn with<T>(shared: &Shared, look: impl FnOnce(&mut Stage) -> T) -> T {
    look(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}

fn name(at: usize) -> String {
    format!("r{at}")
}

fn worker() -> WorkerId {
    "http://10.0.0.1:8000".parse().expect("valid")
}

/// Replica 0 adds the worker and warms it; every replica that is told so notices the restart.
async fn replica(at: usize, identity: Identity, shared: Shared) -> turmoil::Result {
    let config = GossipConfig {
        advertise: Some(format!("{}:{PORT}", name(at))),
        seeds: (0..REPLICAS)
            .map(|seed| format!("{}:{PORT}", name(seed)))
            .collect(),
        ..GossipConfig::new(([0, 0, 0, 0], PORT).into(), Facts::default())
    };
    let network = Arc::new(SimNetwork { seed: at as u64 });
    let agent = Agent::start_on(network, config, identity, |_| 1.0, Metrics::default()).await?;
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    let (mut is_added, mut is_told) = (false, false);
    loop {
        tick.tick().await;
        let (adding, restarted) = with(&shared, |stage| {
            stage.views[at] = Some(agent.view());
            stage.ready[at] = *agent.ready().borrow();
            (stage.is_adding && at == 0, stage.is_restarted)
        });
        if adding && !is_added {
            is_added = true;
            let mut raw = RawWorker::at(worker().as_str());
            let until_ms = agent.hybrid_ms() + WARM_UP.as_millis() as u64;
            raw.state = State::Warming { until_ms };
            agent
                .put_worker(worker(), Source::Admin, WorkerSpec::new(raw)?)
                .await?;
        }
        if restarted && !is_told {
            is_told = true;
            agent.restarted(&worker(), STARTED).await?;
        }
    }
}

fn run(sim: &mut Sim<'_>, time: Duration, until: impl Fn() -> bool, what: &str) {
    let end = sim.elapsed() + time;
    while !until() {
        assert!(sim.elapsed() < end, "{what}");
        sim.step().expect("no host fails");
    }
}

/// State and epoch of the worker at the replicas `from..`, if all of them agree on everything.
fn agreed(shared: &Shared, from: usize) -> Option<(State, u64, bool)> {
    with(shared, |stage| {
        let views: Option<Vec<_>> = stage.views[from..].iter().cloned().collect();
        let views = views?;
        let is_equal = |view: &Arc<View>| {
            view.workers() == views[0].workers()
                && view.registry() == views[0].registry()
                && view.workers_digest() == views[0].workers_digest()
        };
        let found = views[0].worker(&worker())?;
        let said = (
            found.spec.state(),
            found.spec.epoch(),
            found.warming.is_some(),
        );
        views.iter().all(is_equal).then_some(said)
    })
}

#[test]
fn a_dead_warmer_keeps_no_worker_out() {
    let mut sim = turmoil::Builder::new()
        .tick_duration(Duration::from_millis(5))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(20))
        .simulation_duration(Duration::from_secs(300))
        .udp_capacity(4096)
        .rng_seed(7)
        .build();
    let shared = Shared::default();
    let authority = identity::create("sim").expect("authority");
    for at in 0..REPLICAS {
        let leaf = identity::issue(&authority.cert_pem, &authority.key_pem, "sim", &name(at));
        let leaf = leaf.expect("leaf");
        let identity = Identity::from_pem(
            "sim",
            &name(at),
            &authority.cert_pem,
            &leaf.cert_pem,
            &leaf.key_pem,
        )
        .expect("identity");
        let shared = shared.clone();
        sim.host(name(at), move || {
            replica(at, identity.clone(), shared.clone())
        });
    }
    let all_ready = || with(&shared, |stage| stage.ready.iter().all(|ready| *ready));
    run(&mut sim, Duration::from_secs(30), all_ready, "ready");
    with(&shared, |stage| stage.is_adding = true);
    let is_warming = || matches!(agreed(&shared, 0), Some((State::Warming { .. }, 0, true)));
    run(
        &mut sim,
        Duration::from_secs(10),
        is_warming,
        "the warm-up is known",
    );
    let begun = sim.elapsed();
    sim.crash(name(0));

    // All that are left notice the restart at once: one epoch, the same ring, still warming.
    with(&shared, |stage| stage.is_restarted = true);
    let is_told = || {
        matches!(
            agreed(&shared, 1),
            Some((State::Warming { .. }, STARTED, true))
        )
    };
    run(
        &mut sim,
        Duration::from_secs(10),
        is_told,
        "the restart is known",
    );

    let is_active = || agreed(&shared, 1) == Some((State::Active, STARTED, false));
    run(&mut sim, WARM_UP, is_active, "the end of the warm-up");
    // Real time passes a little while simulated seconds do: the wall clock is the real one.
    assert!(sim.elapsed() - begun > WARM_UP / 2, "not before its end");
}
