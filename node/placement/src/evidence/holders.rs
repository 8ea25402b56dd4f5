//! The entries of each mark, one for each worker that holds it.
//!
//! A list through the entries, the latest first; and for a mark that many workers hold, as a system prompt's, a table by
//! worker beside it: to find or drop an entry of it, the others are not passed.

use super::entry::{IndexEntry, NONE, Place};
use crate::mark_map::MarkMap;

/// So many holders are passed one by one; that takes no longer than a look into a table.
const FEW: u32 = 8;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Holders {
    /// Never walked through, and so are those below.
    lists: MarkMap<List>,
    /// Of marks with more than [`FEW`] holders: entries by worker.
    crowds: MarkMap<MarkMap<u32>>,
}

/// The holders of a mark.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    len: u32,
}

impl Holders {
    /// The latest entry of a mark, or [`NONE`].
    #[inline]
    pub(super) fn first(&self, mark: u64) -> u32 {
        self.lists.get(&mark).map_or(NONE, |list| list.first)
    }

    /// A worker's entry of a mark.
    pub(super) fn find(&self, entries: &[IndexEntry], slot: u32, mark: u64) -> Option<u32> {
        let list = self.lists.get(&mark)?;
        if list.len > FEW {
            return self.crowds[&mark].get(&slot.into()).copied();
        }
        let mut at = list.first;
        while let Some(entry) = entries.get(at as usize) {
            if entry.slot == slot {
                return Some(at);
            }
            at = entry.holders.next;
        }
        None
    }

    /// Takes in an entry that is in no list; its worker has no other one of its mark.
    pub(super) fn add(&mut self, entries: &mut [IndexEntry], index: u32) {
        let IndexEntry { mark, slot, .. } = entries[index as usize];
        let none = List {
            first: NONE,
            len: 0,
        };
        let list = self.lists.entry(mark).or_insert(none);
        let next = std::mem::replace(&mut list.first, index);
        list.len += 1;
        entries[index as usize].holders = Place { next, before: NONE };
        if let Some(next) = entries.get_mut(next as usize) {
            next.holders.before = index;
        }
        if list.len == FEW + 1 {
            let mut crowd = MarkMap::default();
            let mut at = index;
            while let Some(entry) = entries.get(at as usize) {
                crowd.insert(entry.slot.into(), at);
                at = entry.holders.next;
            }
            self.crowds.insert(mark, crowd);
        } else if list.len > FEW
            && let Some(crowd) = self.crowds.get_mut(&mark)
        {
            crowd.insert(slot.into(), index);
        }
    }

    /// Takes an entry out of the list of its mark.
    pub(super) fn remove(&mut self, entries: &mut [IndexEntry], index: u32) {
        let IndexEntry {
            mark,
            slot,
            holders: Place { next, before },
            ..
        } = entries[index as usize];
        let list = self.lists.get_mut(&mark);
        let list = list.expect("an entry is in the list of its mark");
        list.len -= 1;
        if let Some(next) = entries.get_mut(next as usize) {
            next.holders.before = before;
        }
        match entries.get_mut(before as usize) {
            Some(before) => before.holders.next = next,
            None => list.first = next,
        }
        match list.len {
            0 => drop(self.lists.remove(&mark)),
            FEW => drop(self.crowds.remove(&mark)),
            len if len > FEW => {
                let crowd = self.crowds.get_mut(&mark);
                crowd
                    .expect("a mark that many hold has one")
                    .remove(&slot.into());
            }
            _ => {}
        }
    }
}
