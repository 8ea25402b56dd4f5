//! The states that a scenario waits for in samples of the replicas.

use crate::chaos::record::{ReplicaSample, ReplicaState, Sample, Seen};
use crate::chaos::scenario::Sight;

impl Sight {
    pub(super) fn is_seen(&self, sample: &Sample) -> bool {
        match self {
            Self::Agreed { workers } => {
                let well = running(sample).all(|replica| {
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

/// Every replica that runs has answered, and has no request in progress. Where none runs, nobody can say that.
pub(super) fn is_idle(sample: &Sample) -> bool {
    let mut running = running(sample).peekable();
    running.peek().is_some()
        && running.all(|replica| {
            let seen = replica.seen.as_ref();
            seen.is_some_and(|seen| seen.in_flight == 0)
        })
}

/// A paused or starting replica is among them, and reports nothing; a stopped one does not count.
fn running(sample: &Sample) -> impl Iterator<Item = &ReplicaSample> {
    let all = sample.replicas.iter();
    all.filter(|replica| replica.state != ReplicaState::Stopped)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Replicas by their state and by the requests in progress on them, where they answer.
    fn sample(replicas: &[(ReplicaState, Option<u64>)]) -> Sample {
        let replica = |&(state, in_flight): &(ReplicaState, Option<u64>)| ReplicaSample {
            name: "r".into(),
            state,
            seen: in_flight.map(|in_flight| Seen {
                ready: true,
                ring: "a".into(),
                registry: "a".into(),
                workers: 1,
                live_peers: 0,
                isolated: false,
                in_flight,
            }),
            pid: None,
            rss_bytes: None,
            open_files: None,
            cpu_s: None,
        };
        Sample {
            at_ms: 0,
            replicas: replicas.iter().map(replica).collect(),
            agreement: None,
            agreement_idle: None,
        }
    }

    #[test]
    fn replicas_are_idle_when_all_that_run_say_so() {
        use ReplicaState::{Silent, Stopped, Up};
        assert!(is_idle(&sample(&[(Up, Some(0)), (Up, Some(0))])));
        assert!(is_idle(&sample(&[(Up, Some(0)), (Stopped, None)])));
        assert!(!is_idle(&sample(&[(Up, Some(0)), (Up, Some(1))])));
        assert!(!is_idle(&sample(&[(Up, Some(0)), (Silent, None)])));
        assert!(!is_idle(&sample(&[(Stopped, None)])), "nobody runs");
        assert!(!is_idle(&sample(&[])), "nobody was seen");
    }
}
