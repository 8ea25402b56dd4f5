//! The states that a scenario waits for in samples of the replicas.

use crate::chaos::record::{ReplicaSample, ReplicaState, Sample, Seen};
use crate::chaos::scenario::Sight;

impl Sight {
    pub(super) fn is_seen(&self, sample: &Sample) -> bool {
        // A paused or starting replica reports nothing; a stopped one does not count.
        let mut running = sample
            .replicas
            .iter()
            .filter(|replica| replica.state != ReplicaState::Stopped);
        match self {
            Self::Agreed { workers } => {
                let well = running.all(|replica| {
                    let seen = replica.seen.as_ref();
                    seen.is_some_and(|seen| seen.ready && seen.workers == *workers as u64)
                });
                well && sample.rings().len() == 1 && sample.registries().len() == 1
            }
            Self::Peers { replica, alive } => {
                seen_of(sample, *replica).is_some_and(|seen| seen.live_peers == *alive)
            }
            Self::Alone { replica } => seen_of(sample, *replica).is_some_and(|seen| seen.isolated),
            Self::Apart => sample.rings().len() > 1,
        }
    }
}

fn seen_of(sample: &Sample, replica: usize) -> Option<&Seen> {
    sample.replicas.get(replica - 1)?.seen.as_ref()
}

impl std::fmt::Display for Sight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Agreed { workers } => {
                write!(f, "all replicas hold the same ring of {workers} workers")
            }
            Self::Peers { replica, alive } => {
                write!(f, "replica {replica} sees {alive} others alive")
            }
            Self::Alone { replica } => write!(f, "replica {replica} reports that it is alone"),
            Self::Apart => f.write_str("the cut is in effect: both sides hold different rings"),
        }
    }
}

/// What the replicas report, in one line.
pub(super) fn short(sample: &Sample) -> String {
    let one = |replica: &ReplicaSample| match &replica.seen {
        None => format!("{} {:?}", replica.name, replica.state),
        Some(seen) => format!(
            "{} {} ring {} of {} workers, {} peers, {} in flight",
            replica.name,
            if seen.ready { "ready" } else { "not ready" },
            seen.ring,
            seen.workers,
            seen.live_peers,
            seen.in_flight
        ),
    };
    sample
        .replicas
        .iter()
        .map(one)
        .collect::<Vec<_>>()
        .join("; ")
}
