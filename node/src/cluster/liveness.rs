//! Since when each replica is what it is seen to be, for people.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grapevine_gossip::ReplicaId;
use grapevine_gossip::view::{ReplicaInfo, View};
use tokio::time::Instant;

/// Alive, ready, leaving.
type Seen = (bool, bool, bool);

/// Since when each replica is seen as it is now. Follows every view, so it has as many as that.
#[derive(Debug, Default)]
pub struct Liveness(Mutex<BTreeMap<ReplicaId, (Seen, Instant)>>);

impl Liveness {
    /// There is a new view.
    pub(super) fn follow(&self, view: &View) {
        let now = Instant::now();
        let mut known = self.known();
        let before = std::mem::take(&mut *known);
        let replicas = view.replicas().iter().map(|replica| {
            let seen = seen(replica);
            let since = before.get(&replica.id);
            let since = since.filter(|(before, _)| *before == seen);
            (replica.id.clone(), (seen, since.map_or(now, |of| of.1)))
        });
        *known = replicas.collect();
    }

    /// For how long a replica has been seen as it is; none of one that no followed view has so.
    pub fn lasts(&self, replica: &ReplicaInfo) -> Option<Duration> {
        let known = self.known();
        let (state, since) = known.get(&replica.id)?;
        (*state == seen(replica)).then(|| since.elapsed())
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<ReplicaId, (Seen, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seen(replica: &ReplicaInfo) -> Seen {
    (replica.live, replica.ready, replica.leaving)
}
