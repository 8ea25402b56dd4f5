//! An agent on loopback, and what others tell it of workers' caches.

use std::ops::Deref;

use grapevine_gossip::evidence::EvidenceEvent;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::running::{LIMIT, Running};

/// An agent and the evidence that it receives.
pub(crate) struct Listening {
    running: Running,
    pub(crate) events: mpsc::Receiver<EvidenceEvent>,
}

impl Deref for Listening {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl Listening {
    /// From now on.
    pub(crate) fn to(running: Running) -> Self {
        let events = running.agent.evidence();
        Self { running, events }
    }

    /// The next event for which `wanted` gives a value.
    pub(crate) async fn receives<T>(
        &mut self,
        what: &str,
        wanted: impl Fn(&EvidenceEvent) -> Option<T>,
    ) -> T {
        let next = async {
            loop {
                let heard = self.events.recv().await.expect("the agent runs");
                if let Some(value) = wanted(&heard) {
                    return value;
                }
            }
        };
        let found = timeout(LIMIT, next).await;
        found.unwrap_or_else(|_| panic!("{} never heard {what}", self.agent.replica()))
    }
}
