//! Host tier behind a worker's prefix cache: a copy of every block that was computed, in order of use, as an offloading
//! connector keeps it.

use std::collections::{BTreeMap, HashMap};

use super::changes::{Change, Changes};

/// Least recently used blocks, bounded.
#[derive(Debug)]
pub(super) struct HostTier {
    capacity: usize,
    stamps: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
    /// What happens to its blocks.
    pub(super) changes: Changes,
}

impl HostTier {
    /// A tier of `capacity` blocks; 0 keeps nothing.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            stamps: HashMap::new(),
            order: BTreeMap::new(),
            clock: 0,
            changes: Changes::default(),
        }
    }

    pub(super) fn contains(&self, block: u64) -> bool {
        self.stamps.contains_key(&block)
    }

    /// Records that these blocks were computed or read, the tail as the least recent.
    pub(super) fn touch(&mut self, chain: &[u64]) {
        if self.capacity == 0 {
            return;
        }
        for (at, &block) in chain.iter().enumerate().rev() {
            self.clock += 1;
            if let Some(before) = self.stamps.insert(block, self.clock) {
                self.order.remove(&before);
            } else {
                let parent = at.checked_sub(1).map(|before| chain[before]);
                self.changes.note(Change::Stored {
                    parent,
                    block,
                    owner: u64::MAX,
                });
            }
            self.order.insert(self.clock, block);
            if self.order.len() > self.capacity {
                let (_, oldest) = self.order.pop_first().expect("above its capacity");
                self.stamps.remove(&oldest);
                self.changes.note(Change::Removed(oldest));
            }
        }
    }
}
