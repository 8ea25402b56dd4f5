//! How much of a chain of blocks each holder has, from its beginning without a hole.

use super::sets::{self, contains};
use super::{Holder, Holders, Index, Life};
use crate::{BlockHash, Tier};

/// Blocks that are looked up before any of them is used: their lines of memory are waited for together.
const AHEAD: usize = 32;

/// What one holder has of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Who.
    pub holder: Holder,
    /// Blocks from the beginning, each in one tier at least; at least 1.
    pub blocks: u32,
    /// Of these, in the fastest tier that has them, by the order of [`Tier::ALL`].
    pub by_tier: [u32; Tier::ALL.len()],
}

/// Room for a search, to be used again.
#[derive(Debug, Default)]
pub struct Search {
    /// Holders that have everything so far.
    active: Vec<u64>,
    /// What a table has for a block of the only one of them; 0 while there are several.
    alone: u32,
    /// Who has one block, in any tier.
    any: Vec<u64>,
    /// Who has it in the tiers before.
    faster: Vec<u64>,
    /// Blocks by slower tiers and holder.
    slower: Vec<[u32; 2]>,
    matches: Vec<Match>,
}

impl Index {
    /// For each holder that has the chain's first block, how much it has; in no particular order that callers may rely on,
    /// but always the same for the same steps before.
    pub fn search<'s>(&self, chain: &[BlockHash], search: &'s mut Search) -> &'s [Match] {
        search.matches.clear();
        if chain.is_empty() {
            return &search.matches;
        }
        search.active.clear();
        search.alone = 0;
        search.active.extend_from_slice(&self.open);
        let has_slower = self.tiers[1..].iter().any(|table| table.len() > 0);
        search.slower.clear();
        if has_slower {
            search.slower.resize(self.slots.len(), [0; 2]);
        }
        let mut done = 0;
        let mut values = [[0; AHEAD]; Tier::ALL.len()];
        for blocks in chain.chunks(AHEAD) {
            for (table, values) in self.tiers.iter().zip(&mut values) {
                if table.len() > 0 {
                    table.get_some(blocks, values);
                }
            }
            let [gpu, host, storage] = &values;
            let by_tiers = gpu.iter().zip(host).zip(storage).take(blocks.len());
            for ((gpu, host), storage) in by_tiers {
                let by_tier = [*gpu, *host, *storage];
                let goes_on = if has_slower {
                    self.step_tiers(by_tier, done, search)
                } else {
                    self.step(by_tier[0], done, search)
                };
                if !goes_on {
                    return &search.matches;
                }
                done += 1;
            }
        }
        for number in sets::all(&search.active) {
            let found = self.found(number, done, &search.slower);
            search.matches.push(found);
        }
        &search.matches
    }

    /// A block that lies on GPUs alone. Whether anybody has all blocks so far.
    fn step(&self, value: u32, done: u32, search: &mut Search) -> bool {
        if value == 0 {
            self.leave_all(done, search);
            return false;
        }
        if value == search.alone {
            return true;
        }
        match Holders::of(value) {
            Holders::One(number) => {
                let is_active = contains(&search.active, number);
                if is_active {
                    sets::take_out(&mut search.active, number);
                }
                self.leave_all(done, search);
                if is_active {
                    sets::add(&mut search.active, number);
                    search.alone = value;
                }
                is_active
            }
            Holders::Set(set) => {
                let bits = self.sets.bits(set);
                let mut left = 0;
                for (at, bits) in bits.iter().enumerate() {
                    let gone = search.active[at] & !bits;
                    if gone != 0 {
                        self.leave(at, gone, done, search);
                    }
                    search.active[at] &= bits;
                    left |= search.active[at];
                }
                left != 0
            }
        }
    }

    /// A block that may lie anywhere.
    fn step_tiers(&self, by_tier: [u32; Tier::ALL.len()], done: u32, search: &mut Search) -> bool {
        search.any.clear();
        search.any.resize(self.open.len(), 0);
        for (tier, value) in by_tier.into_iter().enumerate() {
            if value == 0 {
                continue;
            }
            search.faster.clear();
            search.faster.extend_from_slice(&search.any);
            match Holders::of(value) {
                Holders::One(number) => sets::add(&mut search.any, number),
                Holders::Set(set) => {
                    let bits = self.sets.bits(set);
                    search.any.iter_mut().zip(bits).for_each(|(a, b)| *a |= b);
                }
            }
            if tier > 0 {
                for at in 0..search.any.len() {
                    let new = search.any[at] & !search.faster[at] & search.active[at];
                    for bit in sets::all(&[new]) {
                        let number = at * 64 + usize::from(bit);
                        search.slower[number][tier - 1] += 1;
                    }
                }
            }
        }
        let mut left = 0;
        for at in 0..search.active.len() {
            let gone = search.active[at] & !search.any[at];
            if gone != 0 {
                self.leave(at, gone, done, search);
            }
            search.active[at] &= search.any[at];
            left |= search.active[at];
        }
        left != 0
    }

    fn leave_all(&self, done: u32, search: &mut Search) {
        for at in 0..search.active.len() {
            let gone = std::mem::take(&mut search.active[at]);
            self.leave(at, gone, done, search);
        }
    }

    /// Holders that have no more than the blocks so far.
    fn leave(&self, at: usize, gone: u64, done: u32, search: &mut Search) {
        if done == 0 {
            return;
        }
        for bit in sets::all(&[gone]) {
            let number = (at * 64) as u16 + bit;
            let found = self.found(number, done, &search.slower);
            search.matches.push(found);
        }
    }

    fn found(&self, number: u16, blocks: u32, slower: &[[u32; 2]]) -> Match {
        let slot = &self.slots[usize::from(number)];
        debug_assert_eq!(slot.life, Life::Open);
        let slower = slower.get(usize::from(number)).copied().unwrap_or([0; 2]);
        let [host, storage] = slower;
        Match {
            holder: Holder {
                number,
                generation: slot.generation,
            },
            blocks,
            by_tier: [blocks - host - storage, host, storage],
        }
    }
}
