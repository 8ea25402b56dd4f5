//! Entries of a prefix index: (mark, worker) pairs, found by mark, ordered by use for each worker.
//!
//! One slab with two intrusive lists through it: the holders of a mark, and each worker's entries from the most to
//! the least recently used. An entry more or less takes some steps in a tree of all workers' numbers of entries. Every
//! other operation but the walk over a mark's holders takes constant time.

use super::{
    entry::{IndexEntry, NONE, Place},
    holders::Holders,
    lengths::Lengths,
};
use crate::key::added_tokens;

/// No second: one that no index lives to see.
const NEVER: u32 = u32::MAX;
/// No mark: a mark's low byte says how many tokens it adds, and none adds nothing.
pub(super) const ROOT: u64 = 0;

/// A worker's entries, linked from the most to the least recently used.
#[derive(Clone, Copy, Debug)]
struct RecencyList {
    newest: u32,
    oldest: u32,
    tokens: u64,
}

impl Default for RecencyList {
    fn default() -> Self {
        Self {
            newest: NONE,
            oldest: NONE,
            tokens: 0,
        }
    }
}

/// All entries.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    holders: Holders,
    entries: Vec<IndexEntry>,
    free: Vec<u32>,
    lists: Vec<RecencyList>,
    /// Entries of each of them.
    lengths: Lengths,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Makes room for a worker's entries.
    pub(super) fn add_list(&mut self) {
        self.lists.push(RecencyList::default());
        self.lengths.add_list();
    }

    /// Tokens under a worker's entries.
    pub(super) fn tokens(&self, slot: u32) -> u64 {
        self.lists[slot as usize].tokens
    }

    /// The worker with the most entries; of several the one with the highest slot.
    pub(super) fn fullest(&self) -> Option<u32> {
        self.lengths.longest()
    }

    /// A worker's least recently used entry.
    pub(super) fn oldest(&self, slot: u32) -> Option<&IndexEntry> {
        self.entries.get(self.lists[slot as usize].oldest as usize)
    }

    /// A worker's entries, the most recently used first.
    pub(super) fn newest_first(&self, slot: u32) -> impl Iterator<Item = &IndexEntry> {
        let mut at = self.lists[slot as usize].newest;
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.older;
            Some(entry)
        })
    }

    /// Entries of a mark, one per holder.
    #[inline]
    pub(super) fn holders(&self, mark: u64) -> impl Iterator<Item = &IndexEntry> {
        let mut at = self.holders.first(mark);
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.holders.next;
            Some(entry)
        })
    }

    /// The worker's entry of a mark is its newest now, by another replica's word (`is_told`) or a request of its own; answers
    /// what it was before, if it was there.
    pub(super) fn touch(
        &mut self,
        slot: u32,
        (mark, parent): (u64, u64),
        (second, used): (u32, u64),
        is_told: bool,
    ) -> Option<IndexEntry> {
        let requests = u16::from(!is_told);
        if let Some(index) = self.find(slot, mark) {
            let before = self.use_again(index, second, used);
            let entry = &mut self.entries[index as usize];
            entry.requests = before.requests.saturating_add(requests);
            entry.is_told |= is_told;
            if parent != ROOT {
                entry.parent = parent;
            }
            return Some(before);
        }
        let entry = IndexEntry {
            mark,
            parent,
            slot,
            second,
            used,
            renewed: NEVER,
            requests,
            is_told,
            holders: Place::NOWHERE,
            newer: NONE,
            older: NONE,
        };
        let index = if let Some(index) = self.free.pop() {
            self.entries[index as usize] = entry;
            index
        } else {
            self.entries.push(entry);
            u32::try_from(self.entries.len() - 1).expect("the index's limit fits")
        };
        self.holders.add(&mut self.entries, index);
        self.link_newest(index);
        self.lists[slot as usize].tokens += u64::from(added_tokens(mark));
        self.lengths.grow(slot);
        None
    }

    /// The worker's entry of a mark, if it is there, is its newest now, since a record names what follows it; answers what
    /// it was before.
    pub(super) fn renew(
        &mut self,
        slot: u32,
        mark: u64,
        second: u32,
        used: u64,
    ) -> Option<IndexEntry> {
        let index = self.find(slot, mark)?;
        let before = self.use_again(index, second, used);
        let entry = &mut self.entries[index as usize];
        (entry.renewed, entry.is_told) = (second, true);
        Some(before)
    }

    /// Makes an entry the newest of its worker; answers what it was before.
    fn use_again(&mut self, index: u32, second: u32, used: u64) -> IndexEntry {
        let before = self.entries[index as usize];
        self.unlink(index);
        let entry = &mut self.entries[index as usize];
        (entry.second, entry.used) = (second, used);
        self.link_newest(index);
        before
    }

    pub(super) fn remove(&mut self, slot: u32, mark: u64) -> Option<IndexEntry> {
        let index = self.find(slot, mark)?;
        let entry = self.entries[index as usize];
        self.drop_entry(index);
        Some(entry)
    }

    /// A worker's entry of a mark.
    pub(super) fn get(&self, slot: u32, mark: u64) -> Option<&IndexEntry> {
        self.find(slot, mark)
            .map(|index| &self.entries[index as usize])
    }

    /// An own request with a worker's entry was given up; the last of them takes along what nobody else told of. Answers what
    /// comes before it in its chain, and whether it is gone.
    pub(super) fn give_up(&mut self, slot: u32, mark: u64) -> Option<(u64, bool)> {
        let index = self.find(slot, mark)?;
        let entry = &mut self.entries[index as usize];
        // A count that is full stays: nobody knows any more how many there were.
        if (1..u16::MAX).contains(&entry.requests) {
            entry.requests -= 1;
        }
        let parent = entry.parent;
        let is_gone = self.drop_unwanted(index);
        Some((parent, is_gone))
    }

    /// Another replica takes back what it told of a worker's entry. Own requests keep it: then that replica, and others, do
    /// not know it any more, and the entry is answered.
    pub(super) fn untell(&mut self, slot: u32, mark: u64) -> Option<&IndexEntry> {
        let index = self.find(slot, mark)?;
        let was_told = std::mem::replace(&mut self.entries[index as usize].is_told, false);
        let is_kept = !self.drop_unwanted(index);
        (is_kept && was_told).then(|| &self.entries[index as usize])
    }

    fn drop_unwanted(&mut self, index: u32) -> bool {
        let IndexEntry {
            requests, is_told, ..
        } = self.entries[index as usize];
        let is_unwanted = requests == 0 && !is_told;
        if is_unwanted {
            self.drop_entry(index);
        }
        is_unwanted
    }

    /// Removes a worker's least recently used entry and answers its mark.
    pub(super) fn pop_oldest(&mut self, slot: u32) -> Option<u64> {
        let mark = self.oldest(slot)?.mark;
        self.drop_entry(self.lists[slot as usize].oldest);
        Some(mark)
    }

    fn find(&self, slot: u32, mark: u64) -> Option<u32> {
        self.holders.find(&self.entries, slot, mark)
    }

    fn drop_entry(&mut self, index: u32) {
        self.unlink(index);
        self.holders.remove(&mut self.entries, index);
        let IndexEntry { mark, slot, .. } = self.entries[index as usize];
        self.lists[slot as usize].tokens -= u64::from(added_tokens(mark));
        self.lengths.shrink(slot);
        self.free.push(index);
    }

    /// Puts an entry on top of its worker's list.
    fn link_newest(&mut self, index: u32) {
        let slot = self.entries[index as usize].slot;
        let list = &mut self.lists[slot as usize];
        let below = std::mem::replace(&mut list.newest, index);
        if below == NONE {
            list.oldest = index;
        } else {
            self.entries[below as usize].newer = index;
        }
        let entry = &mut self.entries[index as usize];
        (entry.newer, entry.older) = (NONE, below);
    }

    fn unlink(&mut self, index: u32) {
        let IndexEntry {
            slot, newer, older, ..
        } = self.entries[index as usize];
        let list = &mut self.lists[slot as usize];
        if newer == NONE {
            list.newest = older;
        } else {
            self.entries[newer as usize].older = older;
        }
        let list = &mut self.lists[slot as usize];
        if older == NONE {
            list.oldest = newer;
        } else {
            self.entries[older as usize].newer = newer;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// So many that they are not passed one by one.
    const SLOTS: u32 = 24;

    proptest! {
        #[test]
        fn holders_are_those_of_a_plain_model(
            steps in prop::collection::vec((0_u8..8, 0..SLOTS, 1_u64..4), 0..400)
        ) {
            let (mut table, mut plain) = (Table::default(), BTreeMap::new());
            (0..SLOTS).for_each(|_| table.add_list());
            for (used, (step, slot, mark)) in (0_u64..).zip(steps) {
                let mark = mark << 8 | 1;
                match step {
                    0..=4 => {
                        table.touch(slot, (mark, ROOT), (0, used), false);
                        plain.insert((mark, slot), used);
                    }
                    5 | 6 => {
                        let removed = table.remove(slot, mark).map(|entry| entry.used);
                        prop_assert_eq!(removed, plain.remove(&(mark, slot)));
                    }
                    _ => {
                        let oldest = plain.iter().filter(|((_, of), _)| *of == slot);
                        let oldest = oldest.min_by_key(|(_, used)| **used);
                        let oldest = oldest.map(|(key, _)| *key);
                        prop_assert_eq!(table.pop_oldest(slot), oldest.map(|(mark, _)| mark));
                        oldest.map(|key| plain.remove(&key));
                    }
                }
                for mark in (1_u64..4).map(|mark| mark << 8 | 1) {
                    let mut holders: Vec<_> = table.holders(mark).map(|of| (of.slot, of.used)).collect();
                    holders.sort_unstable();
                    let expected = plain.range((mark, 0)..(mark + 1, 0));
                    let expected: Vec<_> = expected.map(|((_, slot), used)| (*slot, *used)).collect();
                    prop_assert_eq!(&holders, &expected);
                    for slot in 0..SLOTS {
                        let found = table.get(slot, mark).map(|entry| entry.used);
                        prop_assert_eq!(found, plain.get(&(mark, slot)).copied());
                    }
                }
            }
            prop_assert_eq!(table.len(), plain.len());
        }
    }
}
