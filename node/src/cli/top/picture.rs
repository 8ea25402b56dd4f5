//! What a replica answered, all that one view needs. Pure.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::view::View;
use crate::cli::events::Event;
use crate::shown::rows;
use crate::shown::summary::{Summary, summary};

/// Answers of the admin API at one moment. What a view does not need is null.
#[derive(Debug, Clone)]
pub(super) struct Picture {
    /// `GET /cluster`.
    pub(super) cluster: Value,
    /// Every row of `GET /workers`.
    pub(super) workers: Vec<Value>,
    /// `GET /links`.
    pub(super) links: Value,
    /// `GET /ring`.
    pub(super) rings: Value,
    /// `GET /history`, of what was asked for.
    pub(super) history: Value,
    /// What every replica that answers has seen, oldest first.
    pub(super) events: Vec<Event>,
    /// Replicas that were not asked for events, and why.
    pub(super) not_asked: Vec<String>,
    /// Where this was asked.
    pub(super) asked: String,
    /// What is to be known of the asking: another replica than the one before.
    pub(super) notice: Option<String>,
    /// When.
    pub(super) at: Instant,
}

impl Picture {
    pub(super) fn headline(&self) -> Summary {
        summary(&self.cluster, &self.workers)
    }

    pub(super) fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// Lines that a view would fill with it, beside what is around its lists.
    pub(super) fn rows_of(&self, view: View) -> usize {
        let replicas = rows(&self.cluster, "replicas").len();
        match view {
            View::Overview => replicas + self.workers.len(),
            View::Replicas => 2 * replicas,
            View::Workers => self.workers.len(),
            View::Rings => {
                let pools = rows(&self.rings, "pools").iter();
                pools.map(|pool| 3 + rows(pool, "workers").len()).sum()
            }
            View::Hour | View::Agreement => 0,
            View::Events => self.events.len() + self.not_asked.len(),
        }
    }
}
