//! Which workers this replica probes: two replicas probe each, the others rely on their reports.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::Agent;
use grapevine_placement::duty;

use super::worker::Worker;

/// Knows the other replicas.
pub struct Duty(pub Arc<Agent>);

impl fmt::Debug for Duty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Duty").field(self.0.replica()).finish()
    }
}

impl Duty {
    /// Whether this replica probes a worker now; `interval`: between two probes.
    ///
    /// A replica that knows nothing good of a worker probes it itself: its own verdict ends with its own probes. So
    /// does one that received a bad claim: requests that wait there move at another's claim only where something here
    /// agrees.
    pub fn is_ours(&self, worker: &Worker, interval: Duration) -> bool {
        let verdict = worker.health.claim();
        if verdict.is_none_or(|(claim, _)| claim.is_bad()) || worker.health.look().is_doubted {
            return true;
        }
        let view = self.0.view();
        let ready = view
            .replicas()
            .iter()
            .filter(|seen| seen.live && seen.ready);
        duty(
            worker.id.as_str(),
            self.0.replica().as_str(),
            ready.map(|seen| seen.id.as_str()),
            interval,
            worker.health.good_sign_age(),
        )
    }
}
