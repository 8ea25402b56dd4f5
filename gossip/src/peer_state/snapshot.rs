//! What the other replicas publish now.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{AGE_MAX, HealthClaim, Heard, Pace, Quarantined, Sighting, TenantUse};
use crate::replica::ReplicaId;
use crate::worker::WorkerId;

/// The newest peer state of each other replica that renews it. Immutable; a new one is made for every
/// change, and no later than 250 ms after a peer state grew too old.
#[derive(Clone, Debug, Default)]
pub struct PeerStates {
    /// Sorted by replica.
    pub(super) peers: Vec<Arc<ReceivedState>>,
}

/// The peer state of one other replica.
#[derive(Debug)]
pub struct ReceivedState {
    /// Whose it is.
    pub replica: ReplicaId,
    /// When its claims about workers came; without any, when something of it came.
    pub received: Instant,
    /// Rising by worker. Claims about workers that are not in the view, or about a former life of
    /// one, are left out.
    pub health: Vec<HealthClaim>,
    /// Rising by tenant.
    pub usage: Vec<TenantUse>,
    /// Requests that no worker is to get, with their ages when they came; [`ReceivedState::quarantined`] gives those of
    /// now.
    pub quarantine: Vec<Quarantined>,
    /// When these came: the parts of a peer state travel apart.
    pub quarantine_received: Instant,
    /// Rising by worker.
    pub paces: Vec<Pace>,
    /// Rising by source and worker.
    pub sightings: Vec<Sighting>,
    /// Which replicas it hears, rising by replica, with the instant at which that came; none of a release that does not
    /// tell.
    pub heard: Option<(Instant, Vec<Heard>)>,
}

impl PeerStates {
    /// One for each replica whose state is renewed, sorted by id.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = &ReceivedState> {
        self.peers.iter().map(|peer| &**peer)
    }

    /// What all other replicas together have in hand for a tenant. Costs one binary search for each
    /// of them.
    pub fn others_usage(&self, tenant: u64) -> TenantUse {
        let mut sum = TenantUse {
            tenant,
            ..TenantUse::default()
        };
        for peer in &self.peers {
            if let Ok(at) = peer.usage.binary_search_by_key(&tenant, |used| used.tenant) {
                sum.add(peer.usage[at]);
            }
        }
        sum
    }

    /// How fast a worker answers the others: the sums of each that sent some. Costs one binary search for each of them.
    pub fn paces_of(&self, worker: u64) -> impl Iterator<Item = [f32; 6]> {
        self.peers.iter().filter_map(move |peer| {
            let at = peer.paces.binary_search_by_key(&worker, |pace| pace.worker);
            Some(peer.paces[at.ok()?].sums)
        })
    }

    /// The claims of the others about a worker: the replica, its claim, and how long ago it found out.
    pub fn claims_on(
        &self,
        worker: &WorkerId,
    ) -> impl Iterator<Item = (&ReplicaId, &HealthClaim, Duration)> {
        let now = tokio::time::Instant::now().into_std();
        self.peers.iter().filter_map(move |peer| {
            let at = peer
                .health
                .binary_search_by(|claim| claim.worker.cmp(worker));
            let claim = &peer.health[at.ok()?];
            Some((&peer.replica, claim, peer.age(claim, now)))
        })
    }
}

impl FromIterator<ReceivedState> for PeerStates {
    /// Of what came from elsewhere than the network, as in tests: one for each replica, each in its
    /// order.
    fn from_iter<T: IntoIterator<Item = ReceivedState>>(peers: T) -> Self {
        let mut peers: Vec<_> = peers.into_iter().map(Arc::new).collect();
        peers.sort_by(|a, b| a.replica.cmp(&b.replica));
        Self { peers }
    }
}

impl ReceivedState {
    /// That of a replica that was heard at this moment and says nothing.
    pub fn silent(replica: ReplicaId, received: Instant) -> Self {
        Self {
            replica,
            received,
            health: Vec::new(),
            usage: Vec::new(),
            quarantine: Vec::new(),
            quarantine_received: received,
            paces: Vec::new(),
            sightings: Vec::new(),
            heard: None,
        }
    }

    /// How long before `now` the replica found out what it claims.
    pub fn age(&self, claim: &HealthClaim, now: Instant) -> Duration {
        claim.age + now.saturating_duration_since(self.received)
    }

    /// How long ago it heard another replica, at `now`: `Some(None)` where it does not hear it, none where it does not
    /// report whom it hears.
    pub fn hears(&self, other: &ReplicaId, now: Instant) -> Option<Option<Duration>> {
        let (received, heard) = self.heard.as_ref()?;
        let Ok(at) = heard.binary_search_by(|of| of.replica.cmp(other)) else {
            return Some(None);
        };
        let of = &heard[at];
        let age = of.age + now.saturating_duration_since(*received);
        Some((!of.is_silent()).then_some(age))
    }

    /// Requests that no worker is to get, each with its age at `now`, up to [`AGE_MAX`].
    pub fn quarantined(&self, now: Instant) -> impl Iterator<Item = Quarantined> {
        let since = now.saturating_duration_since(self.quarantine_received);
        self.quarantine.iter().map(move |entry| Quarantined {
            age: entry.age.saturating_add(since).min(AGE_MAX),
            ..*entry
        })
    }
}
