//! A tenant's requests at this replica, and what is known of those at the others.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use grapevine_gossip::Agent;
use grapevine_gossip::peer_state::TenantUse;

use super::metrics::{TenantMetrics, TenantSeries};
use super::secret;

/// A client with several keys, which share prefixes, limits and a share of the queue.
#[derive(Debug)]
pub struct Tenant {
    name: Arc<str>,
    number: u64,
    /// Requests at this replica, waiting ones included.
    requests: AtomicU32,
    /// Of these, requests that wait to be admitted.
    waiting: AtomicU32,
    series: TenantSeries,
}

/// What the rest of the cluster does: limits of the whole cluster are divided and counted by it.
pub trait OthersUse: fmt::Debug + Send + Sync {
    /// Requests of a tenant at all other replicas together, waiting or in flight, by its number.
    fn requests(&self, tenant: u64) -> u32;

    /// Replicas that take traffic, this one included; at least 1.
    fn ready_replicas(&self) -> u32;
}

/// A request's place among those of its tenant; given back on drop.
#[derive(Debug)]
pub struct Seat {
    tenant: Arc<Tenant>,
    waits: bool,
}

impl Tenant {
    pub(super) fn new(name: &str, metrics: &TenantMetrics) -> Self {
        let name: Arc<str> = name.into();
        Self {
            number: secret::number_of(&name),
            requests: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            series: metrics.series(&name),
            name,
        }
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its number, the same on every replica and in every release.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its requests at this replica.
    pub fn in_use(&self) -> TenantUse {
        let waiting = self.waiting.load(Ordering::Relaxed);
        TenantUse {
            tenant: self.number,
            in_flight: self
                .requests
                .load(Ordering::Relaxed)
                .saturating_sub(waiting),
            queued: waiting,
        }
    }

    /// Counts one more request, which waits, and says how many there are with it.
    pub fn enter(self: &Arc<Self>) -> (Seat, u32) {
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.series.requests.inc();
        let seat = Seat {
            tenant: Arc::clone(self),
            waits: true,
        };
        (seat, before + 1)
    }

    /// Counts a request that was turned away.
    pub fn refused(&self, reason: &'static str) {
        self.series.refused(reason);
    }
}

impl Seat {
    /// The request is in.
    pub fn admitted(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.tenant.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.admitted();
        self.tenant.requests.fetch_sub(1, Ordering::Relaxed);
        self.tenant.series.requests.dec();
    }
}

/// What gossip reports of the others, some 50 ms late: for so long their counts may be exceeded.
pub struct Gossiped(pub Arc<Agent>);

impl fmt::Debug for Gossiped {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Gossiped").field(self.0.replica()).finish()
    }
}

impl OthersUse for Gossiped {
    fn requests(&self, tenant: u64) -> u32 {
        let others = self.0.peer_states().others_usage(tenant);
        others.in_flight.saturating_add(others.queued)
    }

    fn ready_replicas(&self) -> u32 {
        let view = self.0.view();
        let others = view
            .replicas()
            .iter()
            .filter(|replica| replica.ready && replica.live && replica.id != *self.0.replica());
        1 + u32::try_from(others.count()).unwrap_or(u32::MAX - 1)
    }
}
