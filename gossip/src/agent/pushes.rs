//! Own changes on their way to peers: pushed at once, and those that come while others are under way together.
//!
//! A change is confirmed once one peer has all of it. Each push costs every peer a stream, a merge and an answer,
//! whatever is in it; without this, a thousand workers that are added at once would be a thousand of each. And a peer bans
//! who pushes too often: changes that are written one after the other go together, too, once they come faster than that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use crate::budget::Budget;
use crate::config::CONFIRM_WITHIN;
use crate::driver::{Driver, Net};
use crate::peers::PUSH_PACE;
use crate::registry::Entry;
use crate::replica::ReplicaId;
use crate::transport::Transport;
use crate::wire::{Message, Received, chunks};

/// Pushes at once. More than one, so that a peer that is silent for a moment holds up few others.
const UNDER_WAY_MAX: usize = 4;
/// How often it is looked whether peers take another push.
const PACE_LOOK: Duration = Duration::from_millis(4);

/// Changes that wait for their push.
#[derive(Default)]
pub(super) struct Pushes(Mutex<Waiting>);

struct Waiting {
    changes: Vec<Change>,
    under_way: usize,
    /// What peers take of one replica.
    pace: Budget,
}

impl Default for Waiting {
    fn default() -> Self {
        let (per_s, burst) = PUSH_PACE;
        Self {
            changes: Vec::new(),
            under_way: 0,
            pace: Budget::new(per_s, burst, now()),
        }
    }
}

/// What a task that pushes does next.
enum Next {
    /// To push these.
    Push(Vec<Change>),
    /// To look again in a moment: what is written meanwhile goes with what waits.
    Wait,
    /// Nothing: it is over.
    End,
}

/// What one writer wrote, and how it learns how many peers have it.
struct Change {
    entries: Vec<Entry>,
    confirmed: oneshot::Sender<usize>,
}

impl Pushes {
    /// Takes a change. True if the caller is to start a task that pushes.
    fn add(&self, change: Change) -> bool {
        let mut waiting = self.0.lock();
        waiting.changes.push(change);
        let starts = waiting.under_way < UNDER_WAY_MAX;
        waiting.under_way += usize::from(starts);
        starts
    }

    /// All that waits, once peers take it; with nothing, the task that asks is over.
    fn next(&self, now: Instant) -> Next {
        let mut waiting = self.0.lock();
        if waiting.changes.is_empty() {
            waiting.under_way -= 1;
            return Next::End;
        }
        if !waiting.pace.is_open(now) {
            return Next::Wait;
        }
        Next::Push(std::mem::take(&mut waiting.changes))
    }

    /// So many frames are pushed now.
    fn spend(&self, frames: usize) {
        self.0.lock().pace.spend(frames);
    }

    /// Drops all that waits: its writers learn that nobody confirmed it.
    fn clear(&self) {
        self.0.lock().changes.clear();
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
            while let Some(net) = driver.net() {
                match pushes.next(now()) {
                    Next::Push(changes) => push_together(net, &pushes, changes).await,
                    Next::Wait => sleep(PACE_LOOK).await,
                    Next::End => return,
                }
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

async fn push_together(net: &Net, pushes: &Pushes, changes: Vec<Change>) {
    let (mut entries, mut writers) = (Vec::new(), Vec::new());
    for change in changes {
        entries.extend(change.entries);
        writers.push(change.confirmed);
    }
    let pieces = chunks(entries);
    pushes.spend(pieces.len());
    let confirmed_by = push_pieces(net, pieces).await;
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

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
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
        assert!(agent.0.pushes.0.lock().changes.is_empty());
    }

    /// Written one after the other, a thousand a second: each goes at once as long as peers take it so, then some together.
    #[test]
    fn many_changes_in_a_row_are_no_flood() {
        let pushes = Pushes::default();
        let (mut now, mut frames, mut waiting) = (now(), 0, 0);
        let (per_s, burst) = PUSH_PACE;
        const SECONDS: u32 = 60;
        for written in 0..1000 * SECONDS {
            let (confirmed, _) = oneshot::channel();
            let entries = Vec::new();
            pushes.add(Change { entries, confirmed });
            waiting += 1;
            match pushes.next(now) {
                Next::Push(changes) => {
                    assert_eq!(changes.len(), std::mem::take(&mut waiting));
                    frames += 1;
                    pushes.spend(1);
                }
                Next::Wait => assert!(written > burst && waiting <= 4, "{waiting} wait"),
                Next::End => panic!("something waits"),
            }
            now += Duration::from_millis(1);
        }
        let allowed = burst + per_s * SECONDS;
        assert!((allowed - 10..=allowed + 1).contains(&frames), "{frames}");
    }
}
