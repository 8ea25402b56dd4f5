//! One publisher's events, applied to the index.
//!
//! vLLM tells of each physical copy of a block, so a block that was stored twice is gone when it was removed twice; the
//! index counts that. Hybrid models tell of each of their cache groups: followed is the first group with full attention,
//! since blocks of the others say nothing about how long a prefix is.
//!
//! Which group that is, and how many tokens a block has, is said by events of the GPU alone. What connectors tell of other
//! media lacks both, or names pieces of another size (`OffloadingConnector`: 0 tokens, or those of its chunks; LMCache:
//! those of its chunks, by hashes of its own).
//!
//! A request with `kv_cache_report_mode: full` makes vLLM repeat stores of blocks that have no further copy. Such a block
//! counts as held until the publisher is forgotten: what placement makes of it is corrected by the cached tokens that
//! answers report.

use crate::batch::{Batch, Event, Removed, Stored};
use crate::index::{Holder, Index, StoreResult};
use crate::{BlockHash, Tier};

/// What is known of a publisher's blocks, as of the last batch that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// Nothing.
    Unknown,
    /// Some of them. None that it does not have.
    Partial,
    /// All of them.
    Whole,
}

impl Knowledge {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Unknown, Self::Partial, Self::Whole];

    /// Its name in metrics and in the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Partial => "partial",
            Self::Whole => "whole",
        }
    }
}

/// What a batch came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Blocks that were stored.
    pub stored: u64,
    /// Blocks that were removed.
    pub removed: u64,
    /// Times that everything was removed.
    pub cleared: u64,
    /// Blocks for which the index has no room.
    pub refused: u64,
    /// Blocks of groups that are not followed, and pieces of another size.
    pub other_groups: u64,
    /// Events of unknown types.
    pub unknown: u64,
}

/// One publisher.
#[derive(Debug)]
pub struct Publisher {
    /// Its place in the index, while something is known.
    holder: Option<Holder>,
    knowledge: Knowledge,
    /// The group that is followed.
    group: Option<u32>,
    /// Tokens of a block on the GPU, as it says.
    block_tokens: u32,
    /// Its process told of blocks that are followed elsewhere than on the GPU.
    is_beyond_gpu: bool,
}

impl Default for Publisher {
    fn default() -> Self {
        Self {
            holder: None,
            knowledge: Knowledge::Unknown,
            group: None,
            block_tokens: 0,
            is_beyond_gpu: false,
        }
    }
}

impl Publisher {
    /// One of which somebody else knows everything since its first batch, or some of it; its blocks are still to be
    /// [put](Publisher::put) in.
    pub fn behind(is_whole: bool, group: Option<u32>, block_tokens: u32) -> Self {
        let mut publisher = Self {
            group,
            block_tokens,
            ..Self::default()
        };
        publisher.begin(is_whole);
        publisher
    }

    /// What is known of its blocks.
    pub fn knowledge(&self) -> Knowledge {
        self.knowledge
    }

    /// Its place in the index; another one after each [`Publisher::forget`].
    pub fn holder(&self) -> Option<Holder> {
        self.holder
    }

    /// Tokens of a block, as it says; 0 before its first block.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// The cache group that is followed; none before its first block.
    pub fn group(&self) -> Option<u32> {
        self.group
    }

    /// Whether an event is about blocks that are followed, after the batch that it came in was applied.
    pub fn follows(&self, event: &Stored) -> bool {
        let is_of_size =
            event.tier == Tier::Gpu || [0, self.block_tokens].contains(&event.block_tokens);
        self.group == Some(event.group) && is_of_size
    }

    /// What comes is a process's first batch, or a later one.
    pub fn begin(&mut self, is_first: bool) {
        self.knowledge = if is_first {
            Knowledge::Whole
        } else {
            Knowledge::Partial
        };
    }

    /// Nothing is known any more.
    pub fn forget(&mut self, index: &mut Index) {
        if let Some(holder) = self.holder.take() {
            index.close(holder);
        }
        self.knowledge = Knowledge::Unknown;
        self.group = None;
        self.block_tokens = 0;
        self.is_beyond_gpu = false;
    }

    /// A batch came whose events cannot be read: what it stored and removed is not known.
    pub fn unreadable(&mut self, index: &mut Index) {
        let (group, block_tokens) = (self.group, self.block_tokens);
        let is_beyond_gpu = self.is_beyond_gpu;
        self.forget(index);
        // The process is the same.
        (self.group, self.block_tokens) = (group, block_tokens);
        self.is_beyond_gpu = is_beyond_gpu;
        self.knowledge = Knowledge::Partial;
    }

    /// Applies a batch.
    pub fn apply(&mut self, batch: &Batch, index: &mut Index) -> Applied {
        let mut applied = Applied {
            unknown: batch.unknown_events as u64,
            ..Applied::default()
        };
        for event in &batch.events {
            match event {
                Event::Stored(event) => self.store(event, index, &mut applied),
                Event::Removed(event) => self.remove(event, index, &mut applied),
                Event::Cleared => {
                    self.clear(index);
                    applied.cleared += 1;
                }
            }
        }
        applied
    }

    /// The GPU's cache is empty. What a connector keeps elsewhere goes only where that was asked for, of which nothing is
    /// said: some of it may be there, also where it is not known any more what.
    fn clear(&mut self, index: &mut Index) {
        let mut is_all = self.knowledge == Knowledge::Whole || !self.is_beyond_gpu;
        if let Some(holder) = self.holder.take() {
            is_all &= [Tier::Host, Tier::Storage]
                .into_iter()
                .all(|tier| index.held(holder, tier) == 0);
            index.close(holder);
        }
        self.knowledge = if is_all {
            Knowledge::Whole
        } else {
            Knowledge::Partial
        };
    }

    fn store(&mut self, event: &Stored, index: &mut Index, applied: &mut Applied) {
        let blocks = event.hashes.len() as u64;
        let is_gpu = event.tier == Tier::Gpu;
        if is_gpu && self.group.is_none() && event.is_full_attention {
            self.group = Some(event.group);
        }
        if !self.follows(event) {
            applied.other_groups += blocks;
            return;
        }
        if is_gpu {
            self.block_tokens = event.block_tokens;
        }
        let stored = self.put(event.tier, &event.hashes, index);
        applied.stored += stored;
        applied.refused += blocks - stored;
    }

    /// It holds these blocks, or further copies of them. How many of them the index had room for.
    pub fn put(&mut self, tier: Tier, blocks: &[BlockHash], index: &mut Index) -> u64 {
        let Some(holder) = self.holder.or_else(|| index.open()) else {
            self.knowledge = Knowledge::Partial;
            return 0;
        };
        self.holder = Some(holder);
        self.is_beyond_gpu |= tier != Tier::Gpu;
        let mut stored = 0;
        for block in blocks {
            match index.store(holder, tier, *block) {
                StoreResult::Stored | StoreResult::Copy => stored += 1,
                StoreResult::Full => self.knowledge = Knowledge::Partial,
            }
        }
        stored
    }

    /// So many further copies of a block that it holds. Of one that it does not hold nothing is noted.
    pub fn put_copies(&mut self, tier: Tier, block: BlockHash, more: u32, index: &mut Index) {
        if let Some(holder) = self.holder {
            index.store_copies(holder, tier, block, more);
        }
    }

    fn remove(&mut self, event: &Removed, index: &mut Index, applied: &mut Applied) {
        let blocks = event.hashes.len() as u64;
        if self.group.is_some_and(|group| group != event.group) {
            applied.other_groups += blocks;
            return;
        }
        applied.removed += blocks;
        let Some(holder) = self.holder else {
            return;
        };
        for hash in &event.hashes {
            // One that is not known was stored before we listened, or refused.
            index.remove(holder, event.tier, *hash);
        }
    }
}
