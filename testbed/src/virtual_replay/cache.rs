//! A worker's prefix cache: blocks in the accelerator, and a host tier behind it.
//!
//! The first tier is the fake worker's: whole blocks, contiguous from the start, least recently used first and the
//! tail of a chain before its head. The host tier keeps a copy of every block that was computed, in order of use, as
//! an offloading connector does; a hit there is copied back instead of computed.

use std::collections::{BTreeMap, HashMap};

/// Blocks found for a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Hit {
    /// In the accelerator.
    pub(super) device: usize,
    /// Behind those, on the host.
    pub(super) host: usize,
}

/// Least recently used blocks, bounded.
#[derive(Debug)]
pub(super) struct HostTier {
    capacity: usize,
    stamps: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
}

impl HostTier {
    /// A tier of so many blocks; none keeps nothing.
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

    /// These blocks were computed or read, the tail least lately.
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
