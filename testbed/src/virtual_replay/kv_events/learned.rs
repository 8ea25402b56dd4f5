//! Which blocks a text becomes, as far as a router that has no tokenizer has seen it.
//!
//! It hears which blocks the whole prompt of a request became, and its answer, so it knows them again where they begin
//! a later prompt. Inside of a prompt it does not know which block ends where in the text, except where another one has
//! left it: what two requests share is then known to the block.
//!
//! Blocks stand for text here: equal ids are equal prefixes of both.

use std::collections::{HashMap, HashSet, VecDeque};

/// What one replica has learned.
#[derive(Debug, Default)]
pub(super) struct Learned {
    /// Chains of which the events are on their way, with the time when they are here.
    expected: VecDeque<(u64, Vec<u64>)>,
    /// The block that was first seen to follow each.
    next: HashMap<u64, u64>,
    /// Blocks at which a place in a text is known.
    places: HashSet<u64>,
}

impl Learned {
    /// From `at_us` on, in µs, it is known that a whole text became these blocks; not before what was expected earlier.
    pub(super) fn expect(&mut self, at_us: u64, chain: &[u64]) {
        let last_us = self.expected.back().map_or(0, |&(at, _)| at);
        self.expected
            .push_back((at_us.max(last_us), chain.to_vec()));
    }

    pub(super) fn catch_up(&mut self, now_us: u64) {
        while self.expected.front().is_some_and(|&(at, _)| at <= now_us) {
            let (_, chain) = self.expected.pop_front().expect("there is a first one");
            self.learn(&chain);
        }
    }

    fn learn(&mut self, chain: &[u64]) {
        self.places.extend(chain.last());
        for pair in chain.windows(2) {
            let next = *self.next.entry(pair[0]).or_insert(pair[1]);
            if next != pair[1] {
                self.places.insert(pair[0]);
            }
        }
    }

    /// So many leading blocks of this prompt are known.
    pub(super) fn known(&self, chain: &[u64]) -> usize {
        let place = chain.iter().rposition(|block| self.places.contains(block));
        place.map_or(0, |place| place + 1)
    }
}
