//! Replicas that start at the same time, on a simulated network: beside old ones, and as a whole cluster.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use grapevine_gossip::Agent;
use grapevine_gossip::evidence::{Evidence, EvidenceEvent};
use grapevine_gossip::worker::{RawWorker, Source, WorkerSpec};
use turmoil::Sim;

use crate::simulated::{identities, name, network, pass, run, start, with, worker};

/// Prefixes that an old replica knows of.
const BELIEVED: u64 = 500;

/// What is seen of one replica.
#[derive(Clone, Debug, Default)]
struct Notes {
    is_ready: bool,
    /// Whether it knew the worker when it became ready.
    began_with_worker: bool,
    taken: BTreeSet<u64>,
}

#[derive(Default)]
struct Stage {
    /// Newcomers start now.
    is_time: bool,
    notes: Vec<Notes>,
}

type Shared = Arc<Mutex<Stage>>;

fn believed() -> Vec<Evidence> {
    let one = |link| Evidence {
        worker: worker(),
        epoch: 0,
        links: vec![link],
    };
    (0..BELIEVED).map(one).collect()
}

/// Follows the agent of a replica.
async fn note(at: usize, agent: &Agent, shared: &Shared) {
    let (mut events, mut ready) = (agent.evidence(), agent.ready());
    loop {
        let is_ready = with(shared, |stage| stage.notes[at].is_ready);
        tokio::select! {
            Some(heard) = events.recv() => if let EvidenceEvent::Evidence { evidence, .. } = heard {
                with(shared, |stage| stage.notes[at].taken.extend(evidence.links));
            },
            Ok(_) = ready.wait_for(|ready| *ready), if !is_ready => with(shared, |stage| {
                stage.notes[at].is_ready = true;
                stage.notes[at].began_with_worker = agent.view().worker(&worker()).is_some();
            }),
        }
    }
}

/// Hosts that all ask `seeds_of` them. Those of `new` start when it is time, the others at once; the first is the one that
/// was told of the worker, and knows what it holds.
fn cluster(
    seed: u64,
    replicas: usize,
    new: Range<usize>,
    seeds_of: impl Fn(usize) -> Range<usize>,
) -> (Sim<'static>, Shared) {
    let mut sim = network(seed);
    let stage = Stage {
        notes: vec![Notes::default(); replicas],
        ..Stage::default()
    };
    let shared = Arc::new(Mutex::new(stage));
    for (at, identity) in identities(replicas).into_iter().enumerate() {
        let (shared, seeds, is_new) = (shared.clone(), seeds_of(at), new.contains(&at));
        sim.host(name(at), move || {
            let (identity, shared, seeds) = (identity.clone(), shared.clone(), seeds.clone());
            async move {
                let mut tick = tokio::time::interval(Duration::from_millis(10));
                while is_new && !with(&shared, |stage| stage.is_time) {
                    tick.tick().await;
                }
                let agent = start(at, seeds, identity, seed).await?;
                if at == 0 {
                    agent.serve_evidence(Arc::new(believed));
                    let spec = WorkerSpec::new(RawWorker::at(worker().as_str()))?;
                    agent.put_worker(worker(), Source::Admin, spec).await?;
                }
                note(at, &agent, &shared).await;
                Ok(())
            }
        });
    }
    (sim, shared)
}

fn is_ready(shared: &Shared, mut which: Range<usize>) -> bool {
    with(shared, |stage| which.all(|at| stage.notes[at].is_ready))
}

/// One that starts has only its configuration to give, in which no worker is, and no evidence. All but the last newcomer
/// know of nobody but that one: the old ones are found through it. One old replica alone has met nobody either.
#[test]
fn two_that_start_beside_old_ones_begin_with_what_those_know() {
    for (seed, old) in [(1, 1), (2, 2), (3, 1), (4, 2)] {
        let replicas = old + 2;
        let last = replicas - 1;
        let seeds_of = |at| match (old..last).contains(&at) {
            true => last..replicas,
            false => 0..replicas,
        };
        let (mut sim, shared) = cluster(seed, replicas, old..replicas, seeds_of);
        let limit = Duration::from_secs(60);
        run(&mut sim, seed, limit, || is_ready(&shared, 0..old), "ready");
        // From then on two that began together are a cluster.
        pass(&mut sim, Duration::from_secs(20));
        with(&shared, |stage| stage.is_time = true);
        let new = || is_ready(&shared, old..replicas);
        run(&mut sim, seed, limit, new, "newcomers ready");
        pass(&mut sim, Duration::from_secs(5));
        with(&shared, |stage| {
            for (at, notes) in stage.notes.iter().enumerate().skip(old) {
                let what = format!("seed {seed}: r{at} beside {old}");
                assert!(notes.began_with_worker, "{what}: without the worker");
                assert_eq!(notes.taken.len() as u64, BELIEVED, "{what}: evidence");
            }
        });
    }
}

/// Nobody has anything that the others would have to wait for.
#[test]
fn a_whole_cluster_that_starts_at_once_is_soon_ready() {
    let readiness = |replicas, seeds: Range<usize>, seed| {
        let (mut sim, shared) = cluster(seed, replicas, replicas..replicas, |_| seeds.clone());
        if seeds.end > replicas {
            sim.host(name(replicas), std::future::pending::<turmoil::Result>);
        }
        let all = || is_ready(&shared, 0..replicas);
        let limit = Duration::from_secs(60);
        run(&mut sim, seed, limit, all, "ready");
        sim.elapsed()
    };
    for (seed, replicas) in [(1, 2), (2, 3), (3, 8)] {
        let after = readiness(replicas, 0..replicas, seed);
        println!("{replicas} replicas: all ready after {after:?}");
        assert!(after < Duration::from_secs(2), "{replicas}: {after:?}");
    }
    // One is dead: no longer than one that is alone.
    let after = readiness(3, 0..4, 4);
    println!("3 of 4 replicas: all ready after {after:?}");
    assert!(after < Duration::from_secs(3), "{after:?}");
}
