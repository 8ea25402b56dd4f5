//! Changes of one worker, one after the other.
//!
//! `PATCH` reads a description, changes a part of it and writes the whole. Of two that did so at once the later one would
//! undo the earlier one, and both callers would be told that theirs was made. That holds for callers of one replica; of two
//! changes through two replicas within the time that news take, the later one counts as a whole.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use grapevine_gossip::worker::WorkerId;
use tokio::sync::{Mutex, MutexGuard};

/// As many changes as this may be under way at once; ids share them by their hashes.
const LANES: usize = 64;

/// Who may change which worker.
#[derive(Debug)]
pub struct Turns([Mutex<()>; LANES]);

impl Default for Turns {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Turns {
    /// Waits until nobody else changes one of these workers; nobody does as long as what is returned lives.
    pub(super) async fn of<'a>(
        &self,
        workers: impl IntoIterator<Item = &'a WorkerId>,
    ) -> Vec<MutexGuard<'_, ()>> {
        let lane = |id: &WorkerId| {
            let mut hasher = DefaultHasher::new();
            id.hash(&mut hasher);
            hasher.finish() as usize % LANES
        };
        // In one order for all, so that two lists do not wait for each other.
        let lanes: BTreeSet<usize> = workers.into_iter().map(lane).collect();
        let mut turns = Vec::with_capacity(lanes.len());
        for lane in lanes {
            turns.push(self.0[lane].lock().await);
        }
        turns
    }
}
