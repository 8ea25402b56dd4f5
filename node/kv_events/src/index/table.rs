//! A hash table from blocks to 32 bits, in many small parts.
//!
//! 12 bytes an entry, linear probing, and no pointer: a look-up is one line of memory in most cases. Parts grow one at a
//! time and by a quarter, so that no insertion waits for a large copy and few places are empty. Names of blocks are
//! hashes already; they are mixed with a seed all the same, since whoever publishes them could choose them.

use crate::BlockHash;

/// Parts of an index, a power of two. A block stays in its part.
pub const PARTS: usize = 256;
/// Size of an entry in bytes.
pub(super) const ENTRY_BYTES: usize = size_of::<Entry>();
const PLACES_MIN: usize = 16;
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// An entry is empty where its value is 0.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    low: u32,
    high: u32,
    value: u32,
}

impl Entry {
    fn new(block: BlockHash, value: u32) -> Self {
        Self {
            low: block.0 as u32,
            high: (block.0 >> 32) as u32,
            value,
        }
    }

    fn block(self) -> BlockHash {
        BlockHash(u64::from(self.high) << 32 | u64::from(self.low))
    }
}

#[derive(Clone, Debug, Default)]
struct Part {
    entries: Vec<Entry>,
    used: usize,
}

/// Where a block belongs.
#[derive(Clone, Copy)]
struct Place {
    part: usize,
    /// Spread over 32 bits.
    spread: u32,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    seed: u64,
    parts: Vec<Part>,
    used: usize,
    places: usize,
}

impl Table {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            parts: vec![Part::default(); PARTS],
            used: 0,
            places: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Bytes of all entries, empty ones too.
    pub(super) fn bytes(&self) -> usize {
        self.places * ENTRY_BYTES
    }

    /// The block's value; 0 for one that is not there.
    pub(super) fn get(&self, block: BlockHash) -> u32 {
        let place = self.place(block);
        let part = &self.parts[place.part];
        let found = part.find(block, place.spread);
        found.map_or(0, |at| part.entries[at].value)
    }

    /// The values of some blocks, as [`Table::get`] has each. The first place of all of them is read before any is looked
    /// at, so that their lines of memory are waited for together.
    pub(super) fn get_some<const N: usize>(&self, blocks: &[BlockHash], values: &mut [u32; N]) {
        let mut firsts = [(Entry::default(), 0, 0); N];
        for (first, block) in firsts.iter_mut().zip(blocks) {
            let place = self.place(*block);
            let part = &self.parts[place.part];
            let home = part.home(place.spread);
            // A part without places has nothing.
            let entry = part.entries.get(home).copied().unwrap_or_default();
            *first = (entry, place.part, home);
        }
        for ((value, (first, part, home)), block) in values.iter_mut().zip(firsts).zip(blocks) {
            *value = if first.value == 0 || first.block() == *block {
                first.value
            } else {
                let part = &self.parts[part];
                let found = part.find_from(*block, part.after(home));
                found.map_or(0, |at| part.entries[at].value)
            };
        }
    }

    pub(super) fn get_mut(&mut self, block: BlockHash) -> Option<&mut u32> {
        let place = self.place(block);
        let part = &mut self.parts[place.part];
        let at = part.find(block, place.spread)?;
        Some(&mut part.entries[at].value)
    }

    /// Bytes by which an insertion of this block would make the table greater.
    pub(super) fn growth(&self, block: BlockHash) -> usize {
        let part = &self.parts[self.place(block).part];
        part.grown().saturating_sub(part.entries.len()) * ENTRY_BYTES
    }

    /// Inserts a block that is not there; `value` is not 0.
    pub(super) fn insert(&mut self, block: BlockHash, value: u32) {
        let place = self.place(block);
        let places = self.parts[place.part].grown();
        self.resize(place.part, places);
        self.parts[place.part].put(Entry::new(block, value), place.spread);
        self.used += 1;
    }

    pub(super) fn remove(&mut self, block: BlockHash) {
        let place = self.place(block);
        let part = &mut self.parts[place.part];
        if let Some(at) = part.find(block, place.spread) {
            part.take_out(at, |block| spread(self.seed, block).spread);
            self.used -= 1;
        }
    }

    /// Blocks and values of a part.
    pub(super) fn part(&self, part: usize) -> impl Iterator<Item = (BlockHash, u32)> + '_ {
        let used = self.parts[part].entries.iter();
        used.filter(|entry| entry.value != 0)
            .map(|entry| (entry.block(), entry.value))
    }

    /// Gives every value of a part to `change`, which may change it, and removes those that become 0. A part that few are
    /// left in becomes smaller.
    pub(super) fn sweep(&mut self, part: usize, mut change: impl FnMut(&mut u32)) {
        let seed = self.seed;
        let swept = &mut self.parts[part];
        let mut at = 0;
        let mut removed = 0;
        // What is moved into the place of a removed one comes from behind, or has been seen, from the beginning.
        while at < swept.entries.len() {
            let entry = &mut swept.entries[at];
            if entry.value != 0 {
                change(&mut entry.value);
                if entry.value == 0 {
                    // Any value, so that it counts as used until it is out.
                    entry.value = u32::MAX;
                    swept.take_out(at, |block| spread(seed, block).spread);
                    removed += 1;
                    continue;
                }
            }
            at += 1;
        }
        self.used -= removed;
        let part_used = self.parts[part].used;
        if part_used * 4 < self.parts[part].entries.len() {
            self.resize(part, (part_used * 3 / 2).max(PLACES_MIN));
        }
    }

    fn resize(&mut self, part: usize, places: usize) {
        let old = &mut self.parts[part];
        if places == old.entries.len() {
            return;
        }
        let entries = std::mem::replace(&mut old.entries, vec![Entry::default(); places]);
        self.places = self.places - entries.len() + places;
        old.used = 0;
        for entry in entries.into_iter().filter(|entry| entry.value != 0) {
            old.put(entry, spread(self.seed, entry.block()).spread);
        }
    }

    fn place(&self, block: BlockHash) -> Place {
        spread(self.seed, block)
    }
}

fn spread(seed: u64, block: BlockHash) -> Place {
    let product = u128::from(block.0 ^ seed) * u128::from(MIX ^ seed.rotate_left(32) | 1);
    let mixed = (product as u64) ^ ((product >> 64) as u64);
    Place {
        part: (mixed >> 56) as usize % PARTS,
        spread: mixed as u32,
    }
}

impl Part {
    /// Places that it has once another entry is in.
    fn grown(&self) -> usize {
        let places = self.entries.len();
        if (self.used + 1) * 4 <= places * 3 {
            places
        } else {
            (places + places / 4).max(PLACES_MIN)
        }
    }

    fn home(&self, spread: u32) -> usize {
        ((u64::from(spread) * self.entries.len() as u64) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() {
            0
        } else {
            at + 1
        }
    }

    fn find(&self, block: BlockHash, spread: u32) -> Option<usize> {
        if self.entries.is_empty() {
            return None;
        }
        self.find_from(block, self.home(spread))
    }

    /// From a place on; there is one.
    fn find_from(&self, block: BlockHash, mut at: usize) -> Option<usize> {
        // A quarter of the places is empty, so this ends.
        loop {
            let entry = self.entries[at];
            if entry.value == 0 {
                return None;
            }
            if entry.block() == block {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    fn put(&mut self, entry: Entry, spread: u32) {
        let mut at = self.home(spread);
        while self.entries[at].value != 0 {
            at = self.after(at);
        }
        self.entries[at] = entry;
        self.used += 1;
    }

    /// Takes an entry out and moves those behind it that would not be found any more.
    fn take_out(&mut self, at: usize, spread_of: impl Fn(BlockHash) -> u32) {
        let (mut hole, mut next) = (at, self.after(at));
        while self.entries[next].value != 0 {
            let home = self.home(spread_of(self.entries[next].block()));
            // Whether its home is not behind the hole, on the way from the hole to where it stands.
            let is_reachable = if hole <= next {
                home <= hole || home > next
            } else {
                home <= hole && home > next
            };
            if is_reachable {
                self.entries[hole] = self.entries[next];
                hole = next;
            }
            next = self.after(next);
        }
        self.entries[hole] = Entry::default();
        self.used -= 1;
    }
}
