//! Prefix cache of one worker: finite blocks, whole-block hits, the least recently used block is evicted
//! first.
//!
//! Pure. A copy of vLLM's block pool as seen from outside: a block is *private* while it is being
//! computed, *cached* once its content is known, *pinned* while a running sequence uses it. Only
//! cached blocks that nobody pins are evicted, the tail of a chain before its head, because a chain
//! that lost its head is worth nothing.
//!
//! Invariants (property-tested in `engine`): `used <= capacity`; a hit is a contiguous run of
//! cached blocks from the start of a chain; releasing every lease brings `used` back to 0.

use std::collections::{BTreeMap, HashMap};

use super::changes::{Change, Changes};

/// Blocks that one sequence holds. Give it back to [`BlockCache::release`]; a lease that is merely
/// dropped keeps its blocks occupied.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// Cached blocks that this sequence pins, in chain order.
    pinned: Vec<u64>,
    /// Blocks without a known content: not computed yet, partial, or a second copy.
    private: usize,
    /// Which sequence.
    pub(super) owner: u64,
}

#[derive(Debug)]
struct Cached {
    pins: u32,
    /// Key in `evictable` while `pins` is 0.
    stamp: u64,
}

/// The pool. All counts are blocks.
#[derive(Debug)]
pub(crate) struct BlockCache {
    capacity: usize,
    cached: HashMap<u64, Cached>,
    /// Unpinned cached blocks, oldest stamp first.
    evictable: BTreeMap<u64, u64>,
    private: usize,
    stamp: u64,
    /// What happens to its blocks.
    pub(super) changes: Changes,
}

impl BlockCache {
    /// An empty pool of `capacity` blocks.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            cached: HashMap::new(),
            evictable: BTreeMap::new(),
            private: 0,
            stamp: 0,
            changes: Changes::default(),
        }
    }

    /// All that is cached, in no order.
    pub(crate) fn blocks(&self) -> Vec<u64> {
        self.cached.keys().copied().collect()
    }

    /// Length of the longest prefix of `chain` that is cached.
    pub(crate) fn matched(&self, chain: &[u64]) -> usize {
        chain
            .iter()
            .take_while(|hash| self.cached.contains_key(hash))
            .count()
    }

    /// Whether this block is cached.
    pub(crate) fn contains(&self, block: u64) -> bool {
        self.cached.contains_key(&block)
    }

    /// Blocks that running sequences occupy.
    pub(crate) fn used(&self) -> usize {
        self.cached.len() - self.evictable.len() + self.private
    }

    /// Pins the cached prefix of `reusable` and reserves the rest of `blocks` for the sequence.
    ///
    /// Returns the lease and the number of blocks hit, or `None`, with nothing changed, when the
    /// running sequences leave too little room.
    pub(crate) fn admit(&mut self, reusable: &[u64], blocks: usize) -> Option<(Lease, usize)> {
        let hits = self.matched(reusable);
        let newly_pinned = reusable[..hits]
            .iter()
            .filter(|hash| self.cached[hash].pins == 0)
            .count();
        let private = blocks.saturating_sub(hits);
        if self.used() + newly_pinned + private > self.capacity {
            return None;
        }
        for hash in &reusable[..hits] {
            self.pin(*hash);
        }
        self.private += private;
        self.evict_to_fit();
        let pinned = reusable[..hits].to_vec();
        let lease = Lease {
            pinned,
            private,
            owner: 0,
        };
        Some((lease, hits))
    }

    /// The next private block of `lease` now has the content `hash` and can be hit by others.
    ///
    /// When another sequence stored the same content first, this copy stays private, as in vLLM.
    #[cfg(test)]
    pub(crate) fn store(&mut self, lease: &mut Lease, hash: u64) {
        self.store_behind(lease, None, hash);
    }

    /// The same, of a block behind another one.
    pub(crate) fn store_behind(&mut self, lease: &mut Lease, parent: Option<u64>, hash: u64) {
        if lease.private == 0 || self.cached.contains_key(&hash) {
            return;
        }
        lease.private -= 1;
        self.private -= 1;
        self.cached.insert(hash, Cached { pins: 1, stamp: 0 });
        lease.pinned.push(hash);
        self.changes.note(Change::Stored {
            parent,
            block: hash,
            owner: lease.owner,
        });
    }

    /// Ends a lease: private blocks are free, cached ones become evictable, tail first.
    pub(crate) fn release(&mut self, lease: Lease) {
        self.private -= lease.private;
        for hash in lease.pinned.into_iter().rev() {
            let block = self
                .cached
                .get_mut(&hash)
                .expect("a pinned block is never evicted");
            block.pins -= 1;
            if block.pins == 0 {
                self.stamp += 1;
                block.stamp = self.stamp;
                self.evictable.insert(block.stamp, hash);
            }
        }
    }

    /// Evicts every block that no sequence uses.
    pub(crate) fn clear(&mut self) {
        for hash in std::mem::take(&mut self.evictable).into_values() {
            self.cached.remove(&hash);
            self.changes.note(Change::Removed(hash));
        }
    }

    fn pin(&mut self, hash: u64) {
        let block = self
            .cached
            .get_mut(&hash)
            .expect("matched blocks are cached");
        if block.pins == 0 {
            self.evictable.remove(&block.stamp);
        }
        block.pins += 1;
    }

    fn evict_to_fit(&mut self) {
        while self.cached.len() + self.private > self.capacity {
            let (_, hash) = self
                .evictable
                .pop_first()
                .expect("admit checked that unpinned blocks suffice");
            self.cached.remove(&hash);
            self.changes.note(Change::Removed(hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(cache: &mut BlockCache, chain: &[u64]) -> Lease {
        let (mut lease, hits) = cache.admit(chain, chain.len()).expect("room");
        for hash in &chain[hits..] {
            cache.store(&mut lease, *hash);
        }
        lease
    }

    #[test]
    fn a_hit_is_contiguous_from_the_start() {
        let mut cache = BlockCache::new(8);
        let lease = fill(&mut cache, &[1, 2, 3]);
        cache.release(lease);
        assert_eq!(cache.matched(&[1, 2, 3, 4]), 3);
        assert_eq!(cache.matched(&[1, 9, 3]), 1);
        assert_eq!(cache.matched(&[2, 3]), 2); // a chain hash names its whole prefix; the caller starts at the root
        assert_eq!(cache.matched(&[9, 1, 2]), 0);
    }

    #[test]
    fn the_tail_of_the_oldest_chain_is_evicted_first() {
        let mut cache = BlockCache::new(4);
        let old = fill(&mut cache, &[1, 2]);
        cache.release(old);
        let young = fill(&mut cache, &[3, 4]);
        cache.release(young);
        let newest = fill(&mut cache, &[5]);
        assert_eq!(cache.matched(&[1, 2]), 1, "2 went, 1 stayed");
        assert_eq!(cache.matched(&[3, 4]), 2);
        cache.release(newest);
        assert_eq!(cache.used(), 0);
    }

    #[test]
    fn a_hit_makes_a_chain_young_again() {
        let mut cache = BlockCache::new(4);
        for chain in [[1, 2], [3, 4], [1, 2]] {
            let lease = fill(&mut cache, &chain);
            cache.release(lease);
        }
        let lease = fill(&mut cache, &[5, 6]);
        assert_eq!(cache.matched(&[1, 2]), 2);
        assert_eq!(cache.matched(&[3, 4]), 0);
        cache.release(lease);
    }

    #[test]
    fn what_is_in_use_is_not_evicted_and_admission_waits() {
        let mut cache = BlockCache::new(4);
        let lease = fill(&mut cache, &[1, 2, 3]);
        assert!(cache.admit(&[7, 8], 2).is_none());
        assert_eq!(
            (cache.used(), cache.matched(&[1, 2, 3])),
            (3, 3),
            "a refusal changes nothing"
        );
        cache.release(lease);
        assert!(cache.admit(&[7, 8], 2).is_some());
    }

    #[test]
    fn a_second_copy_stays_private_and_is_freed() {
        let mut cache = BlockCache::new(8);
        let (mut first, _) = cache.admit(&[1], 1).expect("room");
        let (mut second, _) = cache.admit(&[1], 1).expect("room");
        cache.store(&mut first, 1);
        cache.store(&mut second, 1);
        assert_eq!(cache.used(), 2);
        cache.release(first);
        assert_eq!(cache.used(), 1);
        cache.release(second);
        assert_eq!((cache.used(), cache.matched(&[1])), (0, 1));
    }
}
