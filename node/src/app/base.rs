//! What every builder starts from.

use std::sync::Arc;

use grapevine_gossip::Agent;
use tokio_util::task::TaskTracker;

use crate::all_metrics::AllMetrics;
use crate::config::Config;
use crate::shutdown::{Phase, Shutdown};

/// The configuration, and what is there before any other part.
#[derive(Clone, Copy)]
pub(super) struct Base<'a> {
    pub(super) config: &'a Config,
    pub(super) replica: &'a str,
    pub(super) agent: &'a Arc<Agent>,
    pub(super) metrics: &'a Arc<AllMetrics>,
    pub(super) shutdown: &'a Shutdown,
}

impl Base<'_> {
    /// Where this replica is between start and end.
    pub(super) fn phase(&self) -> Phase {
        self.shutdown.phase()
    }

    /// Tasks that end with the replica.
    pub(super) fn tasks(&self) -> &TaskTracker {
        self.shutdown.background()
    }
}
