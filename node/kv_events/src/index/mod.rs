//! Block → who has it, for all publishers and tiers.
//!
//! Most blocks have one holder, and stand in a [`table`] with it; those with several have a set of bits. Holders have
//! small numbers. One that is closed loses its number, so that forgetting a million blocks costs nothing; its entries are
//! swept in the following steps, and then the number is free for another. What is allocated is counted, and bounded by
//! [`Limits`]: beyond them new blocks are refused, and what is known stays true but is not everything.

mod search;
mod sets;
mod table;

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use self::sets::Sets;
use self::table::Table;
use crate::{BlockHash, Tier};

pub use self::search::{Match, Search};
pub use self::table::PARTS;

/// What the index may hold at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all tables and sets. Default 256 MiB, some 12 million blocks of one holder.
    pub bytes: usize,
    /// Holders, closed ones that are not swept yet included. Default 4,096.
    pub holders: usize,
    /// Blocks with further copies at the same holder. Default 65,536. What is beyond counts as one copy.
    pub copies: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 256 << 20,
            holders: 4_096,
            copies: 1 << 16,
        }
    }
}

/// One who holds blocks, until it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    number: u16,
    /// Tells holders of one number apart.
    generation: u32,
}

impl Holder {
    /// Below [`Limits::holders`]; another holder may have it when this one is closed.
    pub fn number(self) -> usize {
        self.number.into()
    }

    /// Both numbers in one, never 0: to be kept where one word is read and written at once.
    pub fn bits(self) -> u64 {
        u64::from(self.generation) << 16 | u64::from(self.number)
    }
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreResult {
    /// It was not there.
    Stored,
    /// A further copy of it.
    Copy,
    /// There is no room, or the holder is closed.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Free,
    Open,
    /// So many parts are still to be swept.
    Closed(usize),
}

#[derive(Clone, Debug)]
struct Slot {
    life: Life,
    generation: u32,
    /// Blocks by tier.
    held: [u32; Tier::ALL.len()],
    /// Sum of what [`weigh`] says of them.
    digest: u64,
}

impl Slot {
    fn add(&mut self, tier: Tier, block: BlockHash) {
        self.held[tier as usize] += 1;
        self.digest = self.digest.wrapping_add(weigh(tier, block));
    }

    fn take(&mut self, tier: Tier, block: BlockHash) {
        self.held[tier as usize] -= 1;
        self.digest = self.digest.wrapping_sub(weigh(tier, block));
    }
}

/// A block's part of a digest: XXH3 of its tier's number and its name, little-endian.
fn weigh(tier: Tier, block: BlockHash) -> u64 {
    let mut bytes = [tier as u8; 9];
    bytes[1..].copy_from_slice(&block.0.to_le_bytes());
    xxh3_64(&bytes)
}

/// The digest of these blocks, as [`Index::digest`] has it of what a holder has.
pub fn digest_of(blocks: impl IntoIterator<Item = (Tier, BlockHash)>) -> u64 {
    let parts = blocks.into_iter().map(|(tier, block)| weigh(tier, block));
    parts.fold(0, u64::wrapping_add)
}

/// The first of these is one set, the others are holders by number.
const SET: u32 = 1 << 31;

/// Who holds a block, as a table has it.
enum Holders {
    One(u16),
    Set(u32),
}

impl Holders {
    fn of(value: u32) -> Self {
        if value & SET != 0 {
            Self::Set(value & !SET)
        } else {
            Self::One((value - 1) as u16)
        }
    }

    fn one(number: u16) -> u32 {
        u32::from(number) + 1
    }
}

/// How many hold a block.
#[derive(Clone, Copy)]
enum Holding {
    Nobody,
    One(u16),
    Several,
}

/// The index.
#[derive(Debug)]
pub struct Index {
    limits: Limits,
    tiers: [Table; Tier::ALL.len()],
    sets: Sets,
    slots: Vec<Slot>,
    /// Bits of the open ones.
    open: Vec<u64>,
    /// Further copies, by holder, tier and block.
    copies: BTreeMap<(u16, Tier, BlockHash), u32>,
    /// Closed ones that are not swept.
    closed: usize,
    /// The part to be swept next.
    next_part: usize,
}

impl Index {
    /// An empty one; `seed` is drawn at random by those who do not trust publishers.
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self {
            limits,
            tiers: [(); Tier::ALL.len()].map(|()| Table::new(seed)),
            sets: Sets::new(),
            slots: Vec::new(),
            open: vec![0],
            copies: BTreeMap::new(),
            closed: 0,
            next_part: 0,
        }
    }

    /// What it may hold.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        let tables: usize = self.tiers.iter().map(Table::bytes).sum();
        // An entry of the map and its share of the map's nodes.
        tables + self.sets.bytes() + self.copies.len() * 48
    }

    /// Blocks in all tiers, each counted once however many have it. Blocks of holders that are closed count until they
    /// are swept.
    pub fn blocks(&self) -> usize {
        self.tiers.iter().map(Table::len).sum()
    }

    /// Blocks of a holder in a tier; 0 for one that is closed.
    pub fn held(&self, holder: Holder, tier: Tier) -> u32 {
        if self.is_open(holder) {
            self.slots[usize::from(holder.number)].held[tier as usize]
        } else {
            0
        }
    }

    /// A number that is equal wherever a holder has the same blocks in the same tiers; 0 for nothing.
    pub fn digest(&self, holder: Holder) -> u64 {
        if self.is_open(holder) {
            self.slots[usize::from(holder.number)].digest
        } else {
            0
        }
    }

    /// Whether a holder has a block in a tier.
    pub fn has(&self, holder: Holder, tier: Tier, block: BlockHash) -> bool {
        let value = self.tiers[tier as usize].get(block);
        self.is_open(holder)
            && value != 0
            && match Holders::of(value) {
                Holders::One(number) => number == holder.number,
                Holders::Set(set) => sets::contains(self.sets.bits(set), holder.number),
            }
    }

    /// Gives what open holders have in one of the [`PARTS`] parts to `visit`: the holder's number, the tier, the block.
    /// Nobody else has to wait for all parts.
    pub fn visit(&self, part: usize, mut visit: impl FnMut(usize, Tier, BlockHash)) {
        for (tier, table) in Tier::ALL.into_iter().zip(&self.tiers) {
            for (block, value) in table.part(part) {
                match Holders::of(value) {
                    Holders::One(number) => {
                        if sets::contains(&self.open, number) {
                            visit(number.into(), tier, block);
                        }
                    }
                    Holders::Set(set) => {
                        let holders = sets::all(self.sets.bits(set));
                        holders
                            .filter(|number| sets::contains(&self.open, *number))
                            .for_each(|number| visit(number.into(), tier, block));
                    }
                }
            }
        }
    }

    /// Adds to `counts`, by the holder's number, the blocks of one of the [`PARTS`] parts that nobody else has, each once in
    /// whatever tiers.
    pub fn count_alone(&self, part: usize, counts: &mut Vec<u32>) {
        for (tier, table) in self.tiers.iter().enumerate() {
            for (block, value) in table.part(part) {
                let Holding::One(number) = self.holding(value) else {
                    continue;
                };
                let others = self.tiers.iter().enumerate();
                let mut others = others.filter(|(other, _)| *other != tier);
                let is_alone = others.all(|(other, table)| match self.holding(table.get(block)) {
                    Holding::Nobody => true,
                    // Counted in the fastest tier.
                    Holding::One(same) => same == number && other > tier,
                    Holding::Several => false,
                });
                if is_alone {
                    let at = usize::from(number);
                    if counts.len() <= at {
                        counts.resize(at + 1, 0);
                    }
                    counts[at] += 1;
                }
            }
        }
    }

    /// The open ones among the holders that a value stands for.
    fn holding(&self, value: u32) -> Holding {
        if value == 0 {
            return Holding::Nobody;
        }
        match Holders::of(value) {
            Holders::One(number) if sets::contains(&self.open, number) => Holding::One(number),
            Holders::One(_) => Holding::Nobody,
            Holders::Set(set) => {
                let holders = sets::all(self.sets.bits(set));
                let mut open = holders.filter(|number| sets::contains(&self.open, *number));
                match (open.next(), open.next()) {
                    (None, _) => Holding::Nobody,
                    (Some(one), None) => Holding::One(one),
                    _ => Holding::Several,
                }
            }
        }
    }

    /// Blocks of which a holder has several copies, and how many further ones.
    pub fn copies(&self, holder: Holder) -> impl Iterator<Item = (Tier, BlockHash, u32)> + '_ {
        let first = (holder.number, Tier::Gpu, BlockHash(0));
        let copies = self.copies.range(first..);
        copies
            .take_while(move |((number, ..), _)| *number == holder.number && self.is_open(holder))
            .map(|((_, tier, block), copies)| (*tier, *block, *copies))
    }

    /// A new holder; none while there are as many as there may be.
    pub fn open(&mut self) -> Option<Holder> {
        if self.slots.len() >= self.limits.holders && self.closed > 0 {
            self.sweep(PARTS);
        }
        let free = self.slots.iter().position(|slot| slot.life == Life::Free);
        let number = match free {
            Some(number) => number,
            None => self.add_slot()?,
        };
        let slot = &mut self.slots[number];
        slot.life = Life::Open;
        slot.generation = slot.generation.wrapping_add(1);
        slot.held = [0; Tier::ALL.len()];
        slot.digest = 0;
        let holder = Holder {
            number: number as u16,
            generation: slot.generation,
        };
        sets::add(&mut self.open, holder.number);
        Some(holder)
    }

    fn add_slot(&mut self) -> Option<usize> {
        let number = self.slots.len();
        if number >= self.limits.holders.min(usize::from(u16::MAX)) {
            return None;
        }
        let words = number / 64 + 1;
        if words > self.sets.words() {
            let greater = self.sets.bytes_with(words) - self.sets.bytes();
            if self.bytes() + greater > self.limits.bytes {
                return None;
            }
            self.sets.widen(words);
            self.open.resize(words, 0);
        }
        self.slots.push(Slot {
            life: Life::Free,
            generation: 0,
            held: [0; Tier::ALL.len()],
            digest: 0,
        });
        Some(number)
    }

    /// Forgets everything of a holder.
    pub fn close(&mut self, holder: Holder) {
        if !self.is_open(holder) {
            return;
        }
        sets::take_out(&mut self.open, holder.number);
        self.slots[usize::from(holder.number)].life = Life::Closed(PARTS);
        self.closed += 1;
        let first = (holder.number, Tier::Gpu, BlockHash(0));
        let mut own = self.copies.split_off(&first);
        let mut others = own.split_off(&(holder.number + 1, Tier::Gpu, BlockHash(0)));
        self.copies.append(&mut others);
    }

    /// A block of a holder. What closed holders had makes room before it is refused.
    pub fn store(&mut self, holder: Holder, tier: Tier, block: BlockHash) -> StoreResult {
        let result = self.try_store(holder, tier, block);
        if result != StoreResult::Full || self.closed == 0 {
            return result;
        }
        self.sweep(PARTS);
        self.try_store(holder, tier, block)
    }

    fn try_store(&mut self, holder: Holder, tier: Tier, block: BlockHash) -> StoreResult {
        if !self.is_open(holder) {
            return StoreResult::Full;
        }
        let number = holder.number;
        let bytes = self.bytes();
        let sets_growth = self.sets.growth();
        let table = &mut self.tiers[tier as usize];
        let Some(value) = table.get_mut(block) else {
            if bytes + table.growth(block) > self.limits.bytes {
                return StoreResult::Full;
            }
            table.insert(block, Holders::one(number));
            self.slots[usize::from(number)].add(tier, block);
            return StoreResult::Stored;
        };
        match Holders::of(*value) {
            Holders::One(one) if one == number => {
                self.count_copies(number, tier, block, 1);
                return StoreResult::Copy;
            }
            Holders::One(one) if sets::contains(&self.open, one) => {
                if bytes + sets_growth > self.limits.bytes {
                    return StoreResult::Full;
                }
                *value = SET | self.sets.pair(one, number);
            }
            Holders::One(_) => *value = Holders::one(number),
            Holders::Set(set) => {
                let bits = self.sets.bits_mut(set);
                if sets::contains(bits, number) {
                    self.count_copies(number, tier, block, 1);
                    return StoreResult::Copy;
                }
                sets::add(bits, number);
            }
        }
        self.slots[usize::from(number)].add(tier, block);
        StoreResult::Stored
    }

    /// So many further copies of a block that a holder has. Of one that it does not have nothing is noted.
    pub fn store_copies(&mut self, holder: Holder, tier: Tier, block: BlockHash, more: u32) {
        if self.has(holder, tier, block) {
            self.count_copies(holder.number, tier, block, more);
        }
    }

    fn count_copies(&mut self, number: u16, tier: Tier, block: BlockHash, more: u32) {
        let has_room = self.copies.len() < self.limits.copies;
        match self.copies.get_mut(&(number, tier, block)) {
            Some(copies) => *copies = copies.saturating_add(more),
            None if has_room && more > 0 => drop(self.copies.insert((number, tier, block), more)),
            None => {}
        }
    }

    /// A copy of a block is gone. One that is not there changes nothing.
    pub fn remove(&mut self, holder: Holder, tier: Tier, block: BlockHash) {
        if !self.is_open(holder) {
            return;
        }
        let number = holder.number;
        if !self.copies.is_empty()
            && let Some(copies) = self.copies.get_mut(&(number, tier, block))
        {
            *copies -= 1;
            if *copies == 0 {
                self.copies.remove(&(number, tier, block));
            }
            return;
        }
        let table = &mut self.tiers[tier as usize];
        let Some(value) = table.get_mut(block) else {
            return;
        };
        match Holders::of(*value) {
            Holders::One(one) if one == number => table.remove(block),
            Holders::One(_) => return,
            Holders::Set(set) => {
                let bits = self.sets.bits_mut(set);
                if !sets::contains(bits, number) {
                    return;
                }
                sets::take_out(bits, number);
                if let Some(only) = sets::only(bits) {
                    *value = Holders::one(only);
                    self.sets.free(set);
                }
            }
        }
        self.slots[usize::from(number)].take(tier, block);
    }

    /// Removes what closed holders left in so many of its 256 parts; nothing while none is closed.
    pub fn sweep(&mut self, parts: usize) {
        for _ in 0..parts {
            if self.closed == 0 {
                return;
            }
            let (open, sets) = (&self.open, &mut self.sets);
            for table in &mut self.tiers {
                table.sweep(self.next_part, |value| sweep_value(value, open, sets));
            }
            self.next_part = (self.next_part + 1) % PARTS;
            for slot in &mut self.slots {
                slot.life = match slot.life {
                    Life::Closed(1) => {
                        self.closed -= 1;
                        Life::Free
                    }
                    Life::Closed(left) => Life::Closed(left - 1),
                    life => life,
                };
            }
        }
    }

    fn is_open(&self, holder: Holder) -> bool {
        let slot = self.slots.get(usize::from(holder.number));
        slot.is_some_and(|slot| slot.life == Life::Open && slot.generation == holder.generation)
    }
}

fn sweep_value(value: &mut u32, open: &[u64], sets: &mut Sets) {
    match Holders::of(*value) {
        Holders::One(number) => {
            if !sets::contains(open, number) {
                *value = 0;
            }
        }
        Holders::Set(set) => {
            let bits = sets.bits_mut(set);
            for (word, open) in bits.iter_mut().zip(open) {
                *word &= open;
            }
            let left = sets::only(bits);
            if left.is_some() || bits.iter().all(|word| *word == 0) {
                *value = left.map_or(0, Holders::one);
                sets.free(set);
            }
        }
    }
}
