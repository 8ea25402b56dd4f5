//! Which failed requests a fault excuses. Pure.
//!
//! A killed replica excuses the requests that it was serving. A worker that is killed or paused excuses
//! answers of which a part had reached the client. A paused replica excuses requests that wait longer than
//! their clients do. No other fault excuses anything.

use super::fault::{Fault, Node};
use super::record::FailedRequest;

/// A request sent within this time after the fault may have met the dying connection; times of windows are
/// not finer.
const GRACE_MS: u64 = 1_000;

/// One fault's excuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Excuse {
    fault: String,
    from_ms: u64,
    /// `None`: the fault is still there.
    until_ms: Option<u64>,
    what: Taken,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Taken {
    /// Every request on this replica.
    Replica(String),
    /// Requests that did not end in time on this replica.
    Waiting(String),
    /// Answers that had begun on this worker.
    Begun(String),
}

impl Excuse {
    /// The excuse that a fault gives when it is injected now into the node of this name, if it gives one.
    pub(crate) fn of(fault: &Fault, name: &str, now_ms: u64) -> Option<Self> {
        let name = name.to_owned();
        let at_once = Some(now_ms);
        let (until_ms, what) = match fault {
            Fault::Kill(Node::Replica(_)) => (at_once, Taken::Replica(name)),
            Fault::Kill(Node::Worker(_)) => (at_once, Taken::Begun(name)),
            Fault::Terminate(Node::Worker(_))
            | Fault::Pause(Node::Worker(_))
            | Fault::Freeze(_) => (None, Taken::Begun(name)),
            Fault::Pause(Node::Replica(_)) | Fault::Starve { .. } => (None, Taken::Waiting(name)),
            _ => return None,
        };
        Some(Self {
            fault: fault.to_string(),
            from_ms: now_ms,
            until_ms,
            what,
        })
    }

    /// The fault of this text was repaired now.
    pub(crate) fn end(&mut self, fault: &str, now_ms: u64) {
        if self.fault == fault {
            self.until_ms.get_or_insert(now_ms);
        }
    }

    /// Does the fault excuse this failure?
    pub(crate) fn covers(&self, failure: &FailedRequest) -> bool {
        let until = self.until_ms.unwrap_or(u64::MAX);
        let meanwhile = failure.failed_ms.saturating_add(GRACE_MS) >= self.from_ms
            && failure.sent_ms <= until.saturating_add(GRACE_MS);
        // Without a head the replica is unknown; the time alone decides.
        let is_on = |name: &String| failure.replica.as_ref().is_none_or(|on| on == name);
        meanwhile
            && match &self.what {
                Taken::Replica(name) => is_on(name),
                Taken::Waiting(name) => failure.kind == "timeout" && is_on(name),
                Taken::Begun(name) => failure.begun && failure.worker.as_ref() == Some(name),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(sent_ms: u64, failed_ms: u64, replica: Option<&str>, kind: &str) -> FailedRequest {
        FailedRequest {
            sent_ms,
            failed_ms,
            begun: true,
            replica: replica.map(str::to_owned),
            worker: Some("w1".to_owned()),
            kind: kind.to_owned(),
        }
    }

    fn excuse(fault: Fault, name: &str) -> Excuse {
        Excuse::of(&fault, name, 10_000).expect("it excuses something")
    }

    #[test]
    fn a_killed_replica_takes_what_was_on_it() {
        let killed = excuse(Fault::Kill(Node::Replica(1)), "r1");
        for (failure, covered) in [
            (failure(9_000, 10_100, Some("r1"), "cut"), true),
            (failure(9_000, 10_100, None, "closed_before_head"), true),
            (failure(9_000, 10_100, Some("r2"), "cut"), false),
            (failure(12_000, 12_100, Some("r1"), "cut"), false),
            (failure(12_000, 12_100, None, "connect"), false),
            (failure(8_000, 8_900, Some("r1"), "cut"), false),
        ] {
            assert_eq!(killed.covers(&failure), covered, "{failure:?}");
        }
    }

    #[test]
    fn a_worker_takes_only_answers_that_had_begun_on_it() {
        let frozen = excuse(Fault::Freeze(1), "w1");
        let begun = failure(11_000, 16_000, Some("r1"), "error_event_500");
        assert!(frozen.covers(&begun));
        let not_begun = FailedRequest {
            begun: false,
            ..begun.clone()
        };
        let elsewhere = FailedRequest {
            worker: Some("w2".to_owned()),
            ..begun.clone()
        };
        assert!(!frozen.covers(&not_begun) && !frozen.covers(&elsewhere));
        let mut thawed = frozen.clone();
        thawed.end("another", 10_500);
        assert!(thawed.covers(&begun), "it was not this one that ended");
        thawed.end(&Fault::Freeze(1).to_string(), 9_900);
        assert!(!thawed.covers(&begun), "it was sent after the end");
    }

    #[test]
    fn a_pause_excuses_waiting_alone_and_a_cut_nothing() {
        let paused = excuse(Fault::Pause(Node::Replica(2)), "r2");
        assert!(paused.covers(&failure(11_000, 50_000, None, "timeout")));
        assert!(!paused.covers(&failure(11_000, 50_000, Some("r2"), "cut")));
        assert_eq!(Excuse::of(&Fault::Heal, "r1", 0), None);
        assert_eq!(
            Excuse::of(&Fault::FillDisk(Node::Replica(1)), "r1", 0),
            None
        );
    }
}
