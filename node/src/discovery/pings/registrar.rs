//! From a ping to the registry: a lease, as by `grapevine register`.

use std::sync::Arc;

use grapevine_gossip::worker::{Labels, RawWorker, Role, WorkerError, WorkerSpec};
use grapevine_transfer::ping::{Ping, Side};

use super::Register;
use crate::config::allow::HostRefused;
use crate::discovery::{LeaseError, Leases};
use crate::upstream::Connector;
use crate::upstream::address::{Address, AddressError};

/// Why a worker that pings is not registered.
#[derive(Debug, thiserror::Error)]
pub enum NotRegistered {
    /// Its address is none of a worker.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// Its address cannot be dialled.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The settings do not allow its host.
    #[error(transparent)]
    Host(#[from] HostRefused),
    /// The registry did not take it.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// Registers workers that ping.
pub struct LeaseRegistrar {
    /// Leases that pings renew.
    pub leases: Arc<Leases>,
    /// Which hosts may be workers.
    pub connector: Arc<Connector>,
}

impl Register for LeaseRegistrar {
    async fn register(&self, ping: Ping) -> Result<(), NotRegistered> {
        let mut raw = RawWorker::at(ping.url);
        raw.role = match ping.side {
            Side::Prefill => Role::Prefill,
            Side::Decode => Role::Decode,
        };
        let spec = WorkerSpec::new(raw)?;
        let labels = Labels::new(ping.labels)?;
        Address::of(&spec)?;
        self.connector.allow().host(spec.url().host())?;
        let id = spec.default_id();
        self.leases.renew(&id, spec, labels, None).await?;
        Ok(())
    }
}
