//! Order: all workers of a key, best first. Home by the ring, the rest by weighted rendezvous.
//!
//! The ring's next neighbours would send a dead home's keys to few heirs (one takes 13 % with 160 points at
//! 16 workers); rendezvous scores spread them over all, by weight. In rings above [`SCORED_MAX`] members the
//! 16 distinct successors come first, so that a home near by is found without scoring thousands.
//! Lazy: a score is computed when a comparison needs it.
//!
//! Invariants, each a test of that name: `order_is_a_permutation`, `heirs_of_a_dead_worker_are_spread_evenly`,
//! `removal_moves_only_its_keys`.
//!
//! Thaler and Ravishankar 1998; weighted scores: -weight / ln(hash), Schindelhauer and Schomaker 2005.

use std::cmp::Ordering;

use crate::{
    logarithm::negative_ln_unit,
    ring::{Ring, pair},
};

/// Largest ring whose members are all scored as equals.
pub const SCORED_MAX: usize = 1_000;
/// Distinct successors that come first in a larger ring.
const NEAR: usize = 16;
/// Points walked at most to find them: a worker of great weight may own long runs.
const NEAR_WALK_MAX: usize = 1_024;

/// The order of a ring's members for one key.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    ring: &'a Ring,
    hash: u64,
    home: usize,
    near: [u32; NEAR],
    near_len: usize,
}

impl<'a> Order<'a> {
    pub(crate) fn new(ring: &'a Ring, hash: u64, home: usize) -> Self {
        let mut order = Self {
            ring,
            hash,
            home,
            near: [0; NEAR],
            near_len: 0,
        };
        if ring.len() > SCORED_MAX {
            order.walk();
        }
        order
    }

    /// Index of the home.
    #[must_use]
    pub fn home(&self) -> usize {
        self.home
    }

    /// First member in the order that `accepts` accepts. Without allocation.
    #[must_use]
    pub fn first(&self, accepts: impl Fn(usize) -> bool) -> Option<usize> {
        if accepts(self.home) {
            return Some(self.home);
        }
        let near = self.near().iter().map(|&index| index as usize);
        self.best(near.filter(|&index| accepts(index)))
            .or_else(|| self.best((0..self.ring.len()).filter(|&index| accepts(index))))
    }

    /// All members, best first.
    #[must_use]
    pub fn to_vec(&self) -> Vec<usize> {
        let mut ranked: Vec<_> = (0..self.ring.len())
            .map(|index| (self.tier(index), self.score(index), index))
            .collect();
        ranked.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        ranked.into_iter().map(|(_, _, index)| index).collect()
    }

    /// Best score among `indices`; the earlier id where scores are equal.
    fn best(&self, indices: impl Iterator<Item = usize>) -> Option<usize> {
        indices
            .map(|index| (self.score(index), index))
            .reduce(|best, next| {
                if next.0.total_cmp(&best.0).then(next.1.cmp(&best.1)) == Ordering::Less {
                    next
                } else {
                    best
                }
            })
            .map(|(_, index)| index)
    }

    /// -ln(hash) / weight, smaller is earlier: an exponential race, won in proportion to the weights.
    pub(crate) fn score(&self, index: usize) -> f64 {
        let unit = negative_ln_unit(pair(&self.ring.settings, self.ring.marks[index], self.hash));
        unit / f64::from(self.ring.members()[index].weight.thousandths())
    }

    fn tier(&self, index: usize) -> u8 {
        if index == self.home {
            0
        } else if self.near().iter().any(|&near| near as usize == index) {
            1
        } else {
            2
        }
    }

    fn near(&self) -> &[u32] {
        &self.near[..self.near_len]
    }

    /// Collects the distinct successors behind the home.
    fn walk(&mut self) {
        let start = self.ring.successor_point(self.hash);
        let owners = self.ring.owners[start..]
            .iter()
            .chain(&self.ring.owners[..start]);
        for &owner in owners.take(NEAR_WALK_MAX) {
            if self.near_len == NEAR {
                return;
            }
            if owner as usize != self.home && !self.near().contains(&owner) {
                self.near[self.near_len] = owner;
                self.near_len += 1;
            }
        }
    }
}
