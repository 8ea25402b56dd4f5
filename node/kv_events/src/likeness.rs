//! Which engines compute block hashes alike, and who is right where they do not.
//!
//! A block that two engines tell of proves that they do: its hash covers the block and all before it. A text that became
//! other blocks only speaks against it: the text may have become something else, as with a date in a template. So engines
//! that share a block are of one kind for good, and kinds are apart from the fourth contradiction on. Of two kinds that are
//! apart the one with more engines is right, of equal ones that of the least name; the others are odd. This follows from
//! what was heard, in whatever order, so all who hear the same conclude the same.

use std::collections::{BTreeMap, BTreeSet};

/// Texts that became other blocks, from which on two kinds are apart.
const APART: u8 = 4;
/// Engines that are remembered to be of another's kind. Beyond it those that are gone are forgotten: what they taught says
/// nothing any more of those that tell of it, too, until these share a block.
const SAME_MAX: usize = 1 << 16;
/// Pairs of kinds that are remembered. Beyond them those are forgotten of which nobody is heard, and then contradictions of
/// further pairs are not counted.
const PAIRS_MAX: usize = 4_096;

/// What is known of engines; each has a number of its own, which nobody has again.
#[derive(Debug, Default)]
pub struct Likeness {
    /// By number: another engine of the same kind, or itself. Those that are gone stay, for what they taught does.
    same: BTreeMap<u32, u32>,
    /// Names of those that are heard.
    heard: BTreeMap<u32, String>,
    /// Contradictions of pairs of kinds, the lesser number first.
    against: BTreeMap<(u32, u32), u8>,
}

impl Likeness {
    /// An engine is heard, of a name that is the same for all who hear it.
    pub fn add(&mut self, engine: u32, name: &str) {
        self.heard.insert(engine, name.to_owned());
    }

    /// It is not heard any more.
    pub fn remove(&mut self, engine: u32) {
        self.heard.remove(&engine);
    }

    /// The kind of an engine: one number for all of a kind, until another kind joins it.
    pub fn kind(&self, engine: u32) -> u32 {
        let mut kind = engine;
        while let Some(next) = self.same.get(&kind) {
            kind = *next;
        }
        kind
    }

    /// Two engines told of the same block. Whether that was news.
    pub fn share(&mut self, one: u32, other: u32) -> bool {
        let (one, other) = (self.kind(one), self.kind(other));
        if one == other {
            return false;
        }
        let (kept, gone) = (one.min(other), one.max(other));
        if self.same.len() >= SAME_MAX {
            self.forget_gone();
        }
        self.same.insert(gone, kept);
        let is_of_gone = |pair: &(u32, u32)| pair.0 == gone || pair.1 == gone;
        let moved: Vec<_> = self.against.keys().copied().filter(is_of_gone).collect();
        for pair in moved {
            let count = self.against.remove(&pair).unwrap_or(0);
            let other = if pair.0 == gone { pair.1 } else { pair.0 };
            if other != kept {
                self.count(kept, other, count);
            }
        }
        true
    }

    fn forget_gone(&mut self) {
        let heard = self
            .heard
            .keys()
            .map(|engine| (*engine, self.kind(*engine)));
        self.same = heard.filter(|(engine, kind)| engine != kind).collect();
    }

    /// Engines that are remembered, but for the first of each kind.
    pub fn remembered(&self) -> usize {
        self.same.len()
    }

    /// A text became other blocks at one than at the other. Whether their kinds are apart from now on.
    pub fn contradict(&mut self, one: u32, other: u32) -> bool {
        let (one, other) = (self.kind(one), self.kind(other));
        one != other && self.count(one, other, 1)
    }

    fn count(&mut self, one: u32, other: u32, times: u8) -> bool {
        let pair = (one.min(other), one.max(other));
        if self.against.len() >= PAIRS_MAX && !self.against.contains_key(&pair) {
            let heard: BTreeSet<_> = self.heard.keys().map(|of| self.kind(*of)).collect();
            self.against
                .retain(|(one, other), _| heard.contains(one) && heard.contains(other));
            if self.against.len() >= PAIRS_MAX {
                return false;
            }
        }
        let count = self.against.entry(pair).or_default();
        let was_apart = *count >= APART;
        *count = count.saturating_add(times);
        !was_apart && *count >= APART
    }

    /// Kinds that are apart, in pairs.
    pub fn apart(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let pairs = self.against.iter().filter(|(_, count)| **count >= APART);
        pairs.map(|(pair, _)| *pair)
    }

    /// Somebody else knows that these are apart.
    pub fn take_over(&mut self, one: u32, other: u32) {
        let (one, other) = (self.kind(one), self.kind(other));
        if one != other {
            self.count(one, other, APART);
        }
    }

    /// The engines, of those that are heard, that compute hashes otherwise than those that are right.
    pub fn odd(&self) -> BTreeSet<u32> {
        let mut weights: BTreeMap<u32, (usize, &str)> = BTreeMap::new();
        for (engine, name) in &self.heard {
            let (count, least) = weights.entry(self.kind(*engine)).or_insert((0, name));
            *count += 1;
            *least = (*least).min(name);
        }
        let mut odd = BTreeSet::new();
        for (one, other) in self.apart() {
            if let (Some(of_one), Some(of_other)) = (weights.get(&one), weights.get(&other)) {
                let is_one_right = (of_one.0, of_other.1) > (of_other.0, of_one.1);
                odd.insert(if is_one_right { other } else { one });
            }
        }
        let heard = self.heard.keys().copied();
        heard
            .filter(|engine| odd.contains(&self.kind(*engine)))
            .collect()
    }
}
