//! Own changes on their way to peers: pushed at once, and those that come while others are under way together.
//!
//! A change is confirmed once one peer has all of it. Each push costs every peer a stream, a merge and an answer,
//! whatever is in it; without this, a thousand workers that are added at once would be a thousand of each.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::core::{Core, Net};
use crate::config::CONFIRM_WITHIN;
use crate::registry::Entry;
use crate::wire::{Message, chunks};

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

/// What one writer wrote, and how it hears how many peers have it.
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

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Each change under the lock is whole before anything could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pushes entries to every connected peer; returns how many confirmed all of them until the first had, or none
/// within [`CONFIRM_WITHIN`] of their push. What was not confirmed goes on on its way.
pub(super) async fn push(core: &Arc<Core>, entries: Vec<Entry>) -> usize {
    let Some(net) = &core.net else {
        return 0;
    };
    let (confirmed, answer) = oneshot::channel();
    if core.pushes.add(Change { entries, confirmed }) {
        let core = core.clone();
        net.transport.spawn(async move {
            while let (Some(net), Some(changes)) = (&core.net, core.pushes.take()) {
                push_together(net, changes).await;
            }
        });
    }
    // Nobody answers if the transport ends meanwhile.
    answer.await.unwrap_or(0)
}

async fn push_together(net: &Net, changes: Vec<Change>) {
    let (mut entries, mut writers) = (Vec::new(), Vec::new());
    for change in changes {
        entries.extend(change.entries);
        writers.push(change.confirmed);
    }
    let mut confirmed_by = usize::MAX;
    for piece in chunks(entries) {
        confirmed_by = confirmed_by.min(push_piece(net, piece).await);
    }
    for writer in writers {
        // Whoever asked may have gone.
        let _ = writer.send(confirmed_by);
    }
}

async fn push_piece(net: &Net, entries: Vec<Entry>) -> usize {
    let message = Arc::new(Message::RegistryPush(entries));
    let linked = net.transport.linked();
    let (confirm, mut confirmations) = mpsc::channel(linked.len().max(1));
    for peer in linked {
        let (transport, message, confirm) =
            (net.transport.clone(), message.clone(), confirm.clone());
        net.transport.spawn(async move {
            if let Ok(answer) = transport.request(&peer, &message).await
                && answer
                    .iter()
                    .any(|received| matches!(received.message, Some(Message::PushAck { .. })))
            {
                // Nobody listens any more once the first confirmation was taken.
                let _ = confirm.try_send(());
            }
        });
    }
    drop(confirm);
    match timeout(CONFIRM_WITHIN, confirmations.recv()).await {
        Ok(Some(())) => 1 + std::iter::from_fn(|| confirmations.try_recv().ok()).count(),
        _ => 0,
    }
}
