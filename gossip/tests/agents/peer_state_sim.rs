//! Peer states between real agents on a simulated network that loses packets and cuts replicas off.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use grapevine_gossip::identity::Identity;
use grapevine_gossip::peer_state::{Claim, HealthClaim, PeerState, TenantUse};

use crate::simulated::{
    cut_off_first, identities, lose, name, network, pass, run, start_with_worker, with, worker,
};

const REPLICAS: usize = 4;
const TENANT: u64 = 7;

/// What one replica published last, and reads of the others.
#[derive(Default)]
struct Notes {
    published: u32,
    /// Claim and count by sender.
    read: BTreeMap<String, (Option<Claim>, u32)>,
    sum: u32,
    /// A count that is lower than one read of the same sender before, which only counts up.
    went_back: bool,
}

/// What the replicas do now.
#[derive(Default)]
struct Stage {
    is_counting: bool,
    notes: [Notes; REPLICAS],
}

type Shared = Arc<Mutex<Stage>>;

fn claim_of(count: u32) -> Claim {
    Claim::ALL[count as usize % Claim::ALL.len()]
}

async fn replica(at: usize, identity: Identity, seed: u64, shared: Shared) -> turmoil::Result {
    let agent = start_with_worker(at, identity, seed).await?;
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    loop {
        tick.tick().await;
        let count = with(&shared, |stage| {
            let is_counting = stage.is_counting;
            let notes = &mut stage.notes[at];
            notes.published += u32::from(is_counting);
            notes.published
        });
        if count > 0 {
            agent.publish_state(PeerState {
                health: vec![HealthClaim {
                    worker: worker(),
                    epoch: 0,
                    claim: claim_of(count),
                    age: Duration::ZERO,
                }],
                usage: vec![TenantUse {
                    tenant: TENANT,
                    in_flight: count,
                    queued: 0,
                }],
                ..PeerState::default()
            });
        }
        let states = agent.peer_states();
        let read: BTreeMap<_, _> = states
            .peers()
            .map(|peer| {
                let claim = peer.health.first().map(|said| said.claim);
                let count = peer.usage.first().map_or(0, |used| used.in_flight);
                (peer.replica.to_string(), (claim, count))
            })
            .collect();
        with(&shared, |stage| {
            let notes = &mut stage.notes[at];
            notes.went_back |= read.iter().any(|(from, (_, count))| {
                // Nothing at all is what a silent one has; then it is there again with a higher one.
                let before = notes.read.get(from).map_or(0, |(_, count)| *count);
                *count > 0 && *count < before
            });
            notes.sum = states.others_usage(TENANT).in_flight;
            notes.read = read;
        });
    }
}

/// Everybody reads what everybody else published last.
fn is_agreed(stage: &Stage) -> bool {
    (0..REPLICAS).all(|at| {
        let notes = &stage.notes[at];
        let others = (0..REPLICAS).filter(|&other| other != at);
        let read = others.map(|other| {
            let published = stage.notes[other].published;
            let is_read =
                notes.read.get(&name(other)) == Some(&(Some(claim_of(published)), published));
            is_read.then_some(published)
        });
        read.sum::<Option<u32>>() == Some(notes.sum)
    })
}

#[test]
fn peer_states_survive_loss_and_silence_ends_them() {
    for seed in 1..=2 {
        let mut sim = network(seed);
        let shared = Shared::default();
        for (at, identity) in identities(REPLICAS).into_iter().enumerate() {
            let shared = shared.clone();
            sim.host(name(at), move || {
                replica(at, identity.clone(), seed, shared.clone())
            });
        }
        let is = |look: fn(&Stage) -> bool| {
            let shared = shared.clone();
            move || with(&shared, |stage| look(stage))
        };
        let minute = Duration::from_secs(60);
        with(&shared, |stage| stage.is_counting = true);
        let all = is(|stage| {
            stage
                .notes
                .iter()
                .all(|notes| notes.read.len() == REPLICAS - 1)
        });
        run(&mut sim, seed, minute, all, "everybody is heard");
        lose(&mut sim, REPLICAS, 0.2);
        pass(&mut sim, Duration::from_secs(5));
        // Longer than a silent replica counts.
        cut_off_first(&mut sim, REPLICAS, true);
        let silent = is(|stage| {
            let others = &stage.notes[1..];
            stage.notes[0].read.is_empty()
                && others.iter().all(|notes| !notes.read.contains_key("r0"))
        });
        run(
            &mut sim,
            seed,
            minute,
            silent,
            "the one cut off counts no more",
        );
        let others_go_on = is(|stage| {
            let others = &stage.notes[1..];
            others.iter().all(|notes| notes.read.len() == REPLICAS - 2)
        });
        run(
            &mut sim,
            seed,
            minute,
            others_go_on,
            "the others still count",
        );
        cut_off_first(&mut sim, REPLICAS, false);
        pass(&mut sim, Duration::from_secs(2));
        with(&shared, |stage| stage.is_counting = false);
        run(&mut sim, seed, minute, is(is_agreed), "agreed");
        with(&shared, |stage| {
            for notes in &stage.notes {
                assert!(!notes.went_back, "seed {seed}: an older word counted");
                assert!(
                    notes.published > 300,
                    "seed {seed}: {} published",
                    notes.published
                );
            }
        });
    }
}
