//! What every builder starts from.

use std::sync::Arc;

use grapevine_gossip::Agent;
use tokio::task::JoinHandle;

use super::changes::Changes;
use crate::all_metrics::AllMetrics;
use crate::config::Config;
use crate::live::Live;
use crate::shutdown::{Phase, Shutdown};
use crate::standing::Standing;

/// The configuration, and what is there before any other part.
#[derive(Clone, Copy)]
pub(super) struct Base<'a> {
    pub(super) config: &'a Config,
    pub(super) replica: &'a str,
    pub(super) agent: &'a Arc<Agent>,
    pub(super) metrics: &'a Arc<AllMetrics>,
    pub(super) shutdown: &'a Shutdown,
    /// Tasks that end with the replica.
    pub(super) standing: &'a Standing,
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

    /// Starts a task that ends with the replica; operators read its name where a panic ended it.
    pub(super) fn run<F>(&self, name: &'static str, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.standing.run(name, task)
    }
}
