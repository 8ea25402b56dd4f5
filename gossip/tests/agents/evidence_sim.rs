//! Evidence between real agents on a simulated network that loses packets and cuts replicas off.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use grapevine_gossip::evidence::{Evidence, EvidenceEvent, HeatReport};
use grapevine_gossip::identity::Identity;

use crate::simulated::{
    cut_off_first, identities, lose, name, network, pass, run, start_with_worker, with, worker,
};

const REPLICAS: usize = 4;

/// What one replica sent and received.
#[derive(Default)]
struct Notes {
    is_ready: bool,
    told: u64,
    /// How often each link of each sender was received.
    heard: BTreeMap<String, BTreeMap<u64, u32>>,
    heat: BTreeMap<String, u64>,
    lost: usize,
}

/// What the replicas do now.
#[derive(Default)]
struct Stage {
    is_talking: bool,
    notes: [Notes; REPLICAS],
}

type Shared = Arc<Mutex<Stage>>;

async fn replica(at: usize, identity: Identity, seed: u64, shared: Shared) -> turmoil::Result {
    let agent = start_with_worker(at, identity, seed).await?;
    let mut events = agent.evidence();
    let ready = agent.ready();
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    loop {
        tokio::select! {
            Some(heard) = events.recv() => with(&shared, |stage| note(&mut stage.notes[at], heard)),
            _ = tick.tick() => {
                let link = with(&shared, |stage| {
                    let is_talking = stage.is_talking;
                    let notes = &mut stage.notes[at];
                    notes.is_ready = *ready.borrow();
                    notes.told += u64::from(is_talking);
                    is_talking.then(|| notes.told - 1)
                });
                if let Some(link) = link {
                    agent.send_evidence(Evidence { worker: worker(), epoch: 0, links: vec![link] });
                    agent.send_heat(HeatReport { version: link, ..HeatReport::default() });
                }
            }
        }
    }
}

fn note(notes: &mut Notes, heard: EvidenceEvent) {
    let from = heard.from().to_string();
    match heard {
        EvidenceEvent::Evidence { evidence, .. } => {
            let counts = notes.heard.entry(from).or_default();
            *counts.entry(evidence.links[0]).or_default() += 1;
        }
        EvidenceEvent::Heat { report, .. } => {
            notes.heat.insert(from, report.version);
        }
        EvidenceEvent::Gone { .. } => {
            notes.heat.remove(&from);
        }
        EvidenceEvent::Lost { .. } => notes.lost += 1,
        EvidenceEvent::Retraction { .. } => {}
    }
}

/// Every replica received everything of every other, and the latest heat.
fn is_complete(stage: &Stage) -> bool {
    (0..REPLICAS).all(|at| {
        let notes = &stage.notes[at];
        let others = (0..REPLICAS).filter(|&other| other != at);
        others.into_iter().all(|other| {
            let (from, told) = (name(other), stage.notes[other].told);
            let heard = notes.heard.get(&from).map_or(0, BTreeMap::len);
            heard as u64 == told && notes.heat.get(&from) == Some(&(told - 1))
        })
    })
}

#[test]
fn evidence_survives_loss_and_a_cut() {
    for seed in 1..=2 {
        let mut sim = network(seed);
        let shared = Shared::default();
        for (at, identity) in identities(REPLICAS).into_iter().enumerate() {
            let shared = shared.clone();
            sim.host(name(at), move || {
                replica(at, identity.clone(), seed, shared.clone())
            });
        }
        let all_ready = || {
            with(&shared, |stage| {
                stage.notes.iter().all(|notes| notes.is_ready)
            })
        };
        run(&mut sim, seed, Duration::from_secs(60), all_ready, "ready");
        pass(&mut sim, Duration::from_secs(5)); // every pair is connected
        with(&shared, |stage| stage.is_talking = true);
        pass(&mut sim, Duration::from_secs(2));
        lose(&mut sim, REPLICAS, 0.2);
        pass(&mut sim, Duration::from_secs(10));
        // Longer than a connection lives, shorter than gaps are asked for.
        cut_off_first(&mut sim, REPLICAS, true);
        pass(&mut sim, Duration::from_secs(7));
        cut_off_first(&mut sim, REPLICAS, false);
        lose(&mut sim, REPLICAS, 0.0);
        pass(&mut sim, Duration::from_secs(2));
        with(&shared, |stage| stage.is_talking = false);
        let complete = || with(&shared, |stage| is_complete(stage));
        run(
            &mut sim,
            seed,
            Duration::from_secs(60),
            complete,
            "complete",
        );
        with(&shared, |stage| {
            for notes in &stage.notes {
                assert_eq!(notes.lost, 0, "seed {seed}: lost something");
                let mut counts = notes.heard.values().flat_map(BTreeMap::values);
                assert!(counts.all(|count| *count == 1), "seed {seed}: heard twice");
                assert!(notes.told > 900, "seed {seed}: {} told", notes.told);
            }
        });
    }
}
