//! Host tier behind a worker's prefix cache: a copy of every block that was computed, in order of use, as an offloading
//! connector keeps it.

use std::collections::{BTreeMap, HashMap};

/// Least recently used blocks, bounded.
#[derive(Debug)]
pub(super) struct HostTier {
    capacity: usize,
    stamps: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
}

impl HostTier {
    /// A tier of `capacity` blocks; 0 keeps nothing.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            stamps: HashMap::new(),
            order: BTreeMap::new(),
            clock: 0,
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
        for &block in chain.iter().rev() {
            self.clock += 1;
            if let Some(before) = self.stamps.insert(block, self.clock) {
                self.order.remove(&before);
            }
            self.order.insert(self.clock, block);
            if self.order.len() > self.capacity {
                let (_, oldest) = self.order.pop_first().expect("above its capacity");
                self.stamps.remove(&oldest);
            }
        }
    }
}
