//! Own changes on their way to peers: pushed at once, and those that come while others are under way together.
//!
//! A change is confirmed once one peer has all of it. Each push costs every peer a stream, a merge and an answer,
//! whatever is in it; without this, a thousand workers that are added at once would be a thousand of each.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::config::CONFIRM_WITHIN;
use crate::driver::{Driver, Net};
use crate::registry::Entry;
use crate::replica::ReplicaId;
use crate::transport::Transport;
use crate::wire::{Message, Received, chunks};

/// Pushes at once. More than one, so that a peer that is silent for a moment holds up few others.
const UNDER_WAY_MAX: usize = 4;

/// Changes that wait for their push.
#[derive(Default)]
pub(super) struct Pushes(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    changes: Vec<Change>,
    under_way: usize,
}

/// What one writer wrote, and how it learns how many peers have it.
struct Change {
    entries: Vec<Entry>,
    confirmed: oneshot::Sender<usize>,
}

impl Pushes {
    /// Takes a change. True if the caller is to start a task that pushes.
    fn add(&self, change: Change) -> bool {
        let mut waiting = self.lock();
        waiting.changes.push(change);
        let starts = waiting.under_way < UNDER_WAY_MAX;
        waiting.under_way += usize::from(starts);
        starts
    }

    /// All that waits; with nothing, the task that asks is over.
    fn take(&self) -> Option<Vec<Change>> {
        let mut waiting = self.lock();
        if waiting.changes.is_empty() {
            waiting.under_way -= 1;
            return None;
        }
        Some(std::mem::take(&mut waiting.changes))
    }

    /// Drops all that waits: its writers learn that nobody confirmed it.
    fn clear(&self) {
        self.lock().changes.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Each change under the lock is whole before anything could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pushes entries to every connected peer; returns how many confirmed all of them until the first had, or 0 if none had
/// within [`CONFIRM_WITHIN`] of their push, or the transport is closed. What was not confirmed goes on on its way.
pub(super) async fn push(driver: &Driver, pushes: &Arc<Pushes>, entries: Vec<Entry>) -> usize {
    let Some(net) = driver.net() else {
        return 0;
    };
    let (confirmed, answer) = oneshot::channel();
    if pushes.add(Change { entries, confirmed }) {
        let (driver, pushes) = (driver.clone(), pushes.clone());
        net.transport.spawn(async move {
            while let (Some(net), Some(changes)) = (driver.net(), pushes.take()) {
                push_together(net, changes).await;
            }
        });
    }
    let confirmed_by = net.transport.until_closed(answer).await;
    if confirmed_by.is_none() {
        // The tasks that would push it have ended with the transport.
        pushes.clear();
    }
    confirmed_by.and_then(Result::ok).unwrap_or(0)
}

async fn push_together(net: &Net, changes: Vec<Change>) {
    let (mut entries, mut writers) = (Vec::new(), Vec::new());
    for change in changes {
        entries.extend(change.entries);
        writers.push(change.confirmed);
    }
    let confirmed_by = push_pieces(net, chunks(entries)).await;
    for writer in writers {
        // The writer may have gone.
        let _ = writer.send(confirmed_by);
    }
}

/// Pushes all pieces to every connected peer, to each of them one after the other; how many have all of them when the
/// first one has. One limit for all pieces: a writer waits no longer for being one of many.
async fn push_pieces(net: &Net, pieces: Vec<Vec<Entry>>) -> usize {
    let pieces: Arc<[Message]> = pieces.into_iter().map(Message::RegistryPush).collect();
    let linked = net.transport.linked();
    let (confirm, mut confirmations) = mpsc::channel(linked.len().max(1));
    for peer in linked {
        let (transport, pieces, confirm) = (net.transport.clone(), pieces.clone(), confirm.clone());
        net.transport.spawn(async move {
            for piece in &*pieces {
                // What it lacks it gets by anti-entropy.
                if !is_confirmed(&transport, &peer, piece).await {
                    return;
                }
            }
            // Nobody listens any more once the first confirmation was taken.
            let _ = confirm.try_send(());
        });
    }
    drop(confirm);
    match timeout(CONFIRM_WITHIN, confirmations.recv()).await {
        Ok(Some(())) => 1 + std::iter::from_fn(|| confirmations.try_recv().ok()).count(),
        _ => 0,
    }
}

/// Whether a peer confirms that it has this piece.
async fn is_confirmed(transport: &Transport, peer: &ReplicaId, piece: &Message) -> bool {
    let answer = transport.request(peer, piece).await;
    let is_ack = |received: &Received| matches!(received.message, Some(Message::PushAck(_)));
    answer.is_ok_and(|answer| answer.iter().any(is_ack))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{LIMIT, agent, becomes_ready, spec};
    use crate::worker::Source;

    use super::*;

    /// The tasks that push have ended; a writer must not wait for them for ever, nor leave its change behind.
    #[tokio::test]
    async fn a_change_after_the_end_is_answered() {
        let agent = agent().await;
        becomes_ready(&agent, true).await;
        agent.shutdown().await;
        for port in 8000..8002 {
            let spec = spec(port);
            let put = agent.put_worker(spec.default_id(), Source::Admin, spec);
            let ack = timeout(LIMIT, put).await.expect("answered").expect("room");
            assert_eq!((ack.confirmed_by, ack.replicated), (0, false));
        }
        assert!(agent.0.pushes.lock().changes.is_empty());
    }
}
