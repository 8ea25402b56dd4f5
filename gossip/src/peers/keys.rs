//! Which keys of one replica are known: bounded over all messages, not only within one.
//!
//! Pure.

use std::collections::BTreeSet;

/// The keys that a replica claimed itself, and those that only others reported of it.
///
/// They are counted apart: what an honest peer carries of a replica may be what that one told only this peer, and must be held
/// neither against the carrier nor, later, against the replica.
#[derive(Default)]
pub(crate) struct Keys {
    own: BTreeSet<Box<str>>,
    told: BTreeSet<Box<str>>,
}

impl Keys {
    /// Takes the keys that a replica claims itself; false, and no more of them, if there are too many.
    pub(crate) fn claim<'a>(&mut self, keys: impl Iterator<Item = &'a str>) -> bool {
        for key in keys {
            if self.own.contains(key) {
                continue;
            }
            if self.own.len() == KEYS_MAX {
                return false;
            }
            self.told.remove(key);
            self.own.insert(key.into());
        }
        true
    }

    /// Takes the keys that another replica reports of it; none of them, and false, if they would be too many with its own.
    pub(crate) fn tell<'a>(&mut self, keys: impl Iterator<Item = &'a str>) -> bool {
        let is_new = |key: &&str| !self.own.contains(*key) && !self.told.contains(*key);
        let new: BTreeSet<&str> = keys.filter(is_new).collect();
        let fits = self.own.len() + self.told.len() + new.len() <= KEYS_MAX;
        if fits {
            self.told.extend(new.into_iter().map(Box::from));
        }
        fits
    }
}

/// Most keys that one replica may claim, and that others may bring it to.
pub(crate) const KEYS_MAX: usize = 64;
