//! Warm-ups and restarts of workers between real agents on a simulated network.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use grapevine_gossip::identity::Identity;
use grapevine_gossip::view::View;
use grapevine_gossip::worker::{RawWorker, Source, State, WorkerSpec};

use crate::simulated::{self, identities, name, network, run, with, worker};

const REPLICAS: usize = 3;
const SEED: u64 = 7;
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

/// Replica 0 adds the worker and warms it; every replica that the stage asks to notices the restart.
async fn replica(at: usize, identity: Identity, shared: Shared) -> turmoil::Result {
    let agent = simulated::start(at, 0..REPLICAS, identity, 0).await?;
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
    let mut sim = network(SEED);
    let shared = Shared::default();
    for (at, identity) in identities(REPLICAS).into_iter().enumerate() {
        let shared = shared.clone();
        sim.host(name(at), move || {
            replica(at, identity.clone(), shared.clone())
        });
    }
    let all_ready = || with(&shared, |stage| stage.ready.iter().all(|ready| *ready));
    run(&mut sim, SEED, Duration::from_secs(30), all_ready, "ready");
    with(&shared, |stage| stage.is_adding = true);
    let is_warming = || matches!(agreed(&shared, 0), Some((State::Warming { .. }, 0, true)));
    run(
        &mut sim,
        SEED,
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
        SEED,
        Duration::from_secs(10),
        is_told,
        "the restart is known",
    );

    let is_active = || agreed(&shared, 1) == Some((State::Active, STARTED, false));
    run(&mut sim, SEED, WARM_UP, is_active, "the end of the warm-up");
    // Real time passes a little while simulated seconds do: the wall clock is the real one.
    assert!(sim.elapsed() - begun > WARM_UP / 2, "not before its end");
}
