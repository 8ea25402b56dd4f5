//! What every builder starts from.

use std::sync::Arc;

use grapevine_gossip::Agent;
use tokio_util::task::TaskTracker;

use super::changes::Changes;
use crate::all_metrics::AllMetrics;
use crate::config::Config;
use crate::live::Live;
use crate::shutdown::{Phase, Shutdown};

/// The configuration, and what is there before any other part.
#[derive(Clone, Copy)]
pub(super) struct Base<'a> {
    pub(super) config: &'a Config,
    pub(super) replica: &'a str,
    pub(super) agent: &'a Arc<Agent>,
    pub(super) metrics: &'a Arc<AllMetrics>,
    pub(super) shutdown: &'a Shutdown,
    /// What is done when the configuration is read again.
    pub(super) changes: &'a Changes,
}

impl Base<'_> {
    /// Where this replica is between start and end.
    pub(super) fn phase(&self) -> Phase {
        self.shutdown.phase()
    }

    /// A value made from the configuration, which follows it.
    pub(super) fn live<T: Send + Sync + 'static>(
        &self,
        of: impl Fn(&Config) -> T + Send + Sync + 'static,
    ) -> Live<T> {
        self.changes.live(self.config, of)
    }

    /// Tasks that end with the replica.
    pub(super) fn tasks(&self) -> &TaskTracker {
        self.shutdown.background()
    }
}
