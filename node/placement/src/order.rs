//! Order: all workers of a key, best first. Home by the ring, the rest by weighted rendezvous.
//!
//! The ring's next neighbours would send a dead home's keys to few heirs (one takes 13 % with 160 points at
//! 16 workers); rendezvous scores spread them over all, by weight. In rings above [`SCORED_MAX`] members the
//! 16 distinct successors come first, so that a home near by is found without scoring thousands.
//! Lazy: a score is computed when a comparison needs it, and its logarithm only where the score may win.
//!
//! Invariants, each a test of that name: `order_is_a_permutation`, `heirs_of_a_dead_worker_are_spread_evenly`,
//! `removal_moves_only_its_keys`.
//!
//! Thaler and Ravishankar 1998; weighted scores: -weight / ln(hash), Schindelhauer and Schomaker 2005.

use std::cmp::Ordering;

use crate::{
    logarithm::{least_negative_ln_unit, negative_ln_unit},
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

impl Ring {
    /// Order of all members for `hash`; none in an empty ring.
    pub fn order(&self, hash: u64) -> Option<Order<'_>> {
        let home = self.successor(hash)?;
        Some(Order::new(self, hash, home))
    }
}

impl<'a> Order<'a> {
    fn new(ring: &'a Ring, hash: u64, home: usize) -> Self {
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
    pub fn home(&self) -> usize {
        self.home
    }

    /// First member in the order that `accepts` accepts. Without allocation.
    pub fn first(&self, accepts: impl Fn(usize) -> bool) -> Option<usize> {
        self.first_of(0..self.ring.len(), accepts)
    }

    /// The same where `accepts` accepts only some of `members`, in any order.
    pub(crate) fn first_of(
        &self,
        members: impl Iterator<Item = usize>,
        accepts: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        if accepts(self.home) {
            return Some(self.home);
        }
        let near = self.near().iter().map(|&index| index as usize);
        self.best(near.filter(|&index| accepts(index)))
            .or_else(|| self.best(members.filter(|&index| accepts(index))))
    }

    /// All members, best first.
    pub fn to_vec(&self) -> Vec<usize> {
        let mut ranked: Vec<_> = (0..self.ring.len())
            .map(|index| (self.tier(index), self.score(index), index))
            .collect();
        ranked.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        ranked.into_iter().map(|(_, _, index)| index).collect()
    }

    /// Best score among `indices`; the earlier id where scores are equal.
    fn best(&self, indices: impl Iterator<Item = usize>) -> Option<usize> {
        let mut best: Option<(f64, usize)> = None;
        for index in indices {
            let lot = self.lot(index);
            if best.is_some_and(|best| lot.least() > best.0) {
                continue;
            }
            let next = (lot.score(), index);
            if best.is_none_or(|best| earlier(&next, &best) == Ordering::Less) {
                best = Some(next);
            }
        }
        best.map(|(_, index)| index)
    }

    /// Keeps those of `indices` with the `count` best scores, in any order; all of them if there are no more.
    pub(crate) fn keep_best(&self, indices: &mut Vec<usize>, count: usize) {
        if count == 0 || count >= indices.len() {
            indices.truncate(count);
            return;
        }
        let mut lots: Vec<_> = indices.iter().map(|&i| (self.lot(i).least(), i)).collect();
        // None of the best scores more than the worst of any `count` members, so take some that are cheap to name.
        lots.select_nth_unstable_by(count - 1, earlier);
        let some = lots[..count].iter().map(|&(_, index)| self.score(index));
        let worst = some.fold(0.0, f64::max);
        let may_win = lots.iter().filter(|(least, _)| *least <= worst);
        let mut scored: Vec<_> = may_win
            .map(|&(_, index)| (self.score(index), index))
            .collect();
        scored.select_nth_unstable_by(count - 1, earlier);
        indices.clear();
        indices.extend(scored[..count].iter().map(|&(_, index)| index));
    }

    fn score(&self, index: usize) -> f64 {
        self.lot(index).score()
    }

    fn lot(&self, index: usize) -> Lot {
        Lot {
            hash: pair(&self.ring.settings, self.ring.marks[index], self.hash),
            weight: self.ring.weight(index).thousandths().into(),
        }
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

/// What a member has drawn for a key. Smaller scores are earlier.
#[derive(Clone, Copy)]
struct Lot {
    hash: u64,
    weight: f64,
}

impl Lot {
    /// -ln(hash) / weight: an exponential race, won in proportion to the weights.
    fn score(self) -> f64 {
        negative_ln_unit(self.hash) / self.weight
    }

    /// Not above the score.
    fn least(self) -> f64 {
        least_negative_ln_unit(self.hash) / self.weight
    }
}

/// By score; the earlier id where scores are equal.
fn earlier(a: &(f64, usize), b: &(f64, usize)) -> Ordering {
    a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ring::Member, ring::RingSettings, weight::Weight};

    #[test]
    fn who_is_left_unscored_is_not_among_the_best() {
        let member = |index: u32| Member {
            id: format!("w{index:04}"),
            // From a thousandth to a hundred, most of them equal.
            weight: Weight::from_thousandths(match index % 7 {
                0 => 1 + index * 97 % 100_000,
                _ => 1_000,
            })
            .expect("in range"),
        };
        let ring = Ring::build(&RingSettings::default(), (0..300).map(member)).expect("distinct");
        for key in 0..200_u64 {
            let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let order = ring.order(hash).expect("not empty");
            let mut all: Vec<_> = (0..ring.len()).map(|i| (order.score(i), i)).collect();
            all.sort_unstable_by(earlier);
            assert_eq!(order.best(0..ring.len()), Some(all[0].1));
            for count in [1, 2, 64, 299, 300, 301] {
                let mut kept: Vec<_> = (0..ring.len()).rev().collect();
                order.keep_best(&mut kept, count);
                kept.sort_unstable();
                let mut best: Vec<_> = all.iter().take(count).map(|&(_, index)| index).collect();
                best.sort_unstable();
                assert_eq!(kept, best, "{count} for {hash:#x}");
            }
        }
    }
}
