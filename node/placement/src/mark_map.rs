//! A table by mark. Where one is walked through, its order must show nowhere.
//!
//! Marks are hashes already, but other replicas and clients choose them: by a hash that they know they could choose
//! thousands that lie in one place, and each look would pass all of them. So positions depend on a seed that each process
//! draws for itself; nothing else does.

#![allow(
    clippy::disallowed_types,
    reason = "what is made of a walk does not depend on its order"
)]

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::LazyLock,
};

/// Values by mark.
pub(crate) type MarkMap<V> = HashMap<u64, V, MarkHash>;

/// The same for all tables of the process.
static OF_PROCESS: LazyLock<MarkHash> = LazyLock::new(|| {
    let random = RandomState::new();
    MarkHash::seeded([0_u64, 1].map(|draw| random.hash_one(draw)))
});

/// Gives a mark its position: both halves of one product, folded, so that every bit counts in every other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkHash {
    seed: u64,
    factor: u64,
}

impl MarkHash {
    fn seeded([seed, factor]: [u64; 2]) -> Self {
        // An even factor would lose a bit.
        let factor = factor | 1;
        Self { seed, factor }
    }
}

impl Default for MarkHash {
    fn default() -> Self {
        *OF_PROCESS
    }
}

impl BuildHasher for MarkHash {
    type Hasher = MarkHasher;

    #[inline]
    fn build_hasher(&self) -> MarkHasher {
        MarkHasher {
            hash: *self,
            position: 0,
        }
    }
}

/// One mark on its way to its position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkHasher {
    hash: MarkHash,
    position: u64,
}

impl Hasher for MarkHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.position
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    #[inline]
    fn write_u64(&mut self, mark: u64) {
        let MarkHash { seed, factor } = self.hash;
        let product = u128::from(mark ^ seed) * u128::from(factor);
        self.position = product as u64 ^ (product >> 64) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: usize = 4_096;

    /// Of as many places as there are marks, the most marks that share one; by the low bits, as the table does it.
    fn crowd(hash: MarkHash, mark: impl Fn(u64) -> u64) -> usize {
        let mut places = vec![0; MARKS];
        for number in 0..MARKS as u64 {
            places[hash.hash_one(mark(number)) as usize % MARKS] += 1;
        }
        places.into_iter().max().expect("there are places")
    }

    #[test]
    fn marks_that_somebody_chose_do_not_lie_together() {
        // Low bits; behind the size; with equal high halves; with equal low halves; high bits.
        let families: [fn(u64) -> u64; 5] = [
            |number| number,
            |number| (number << 8) | 0xff,
            |number| (0x1234_5678 << 32) | (number << 8) | 2,
            |number| (number << 32) | 2,
            |number| (number << 52) | 2,
        ];
        // Any draws do; the fullest of so many places has 6 to 8 marks where marks are thrown in blindly.
        for seed in 1..=16_u64 {
            let draws = [1, 2].map(|draw| xxhash_rust::xxh3::xxh3_64_with_seed(&[draw], seed));
            for (family, mark) in families.into_iter().enumerate() {
                let most = crowd(MarkHash::seeded(draws), mark);
                assert!(
                    most <= 24,
                    "family {family}, seed {seed}: {most} in one place"
                );
            }
        }
    }

    #[test]
    fn positions_differ_by_the_seed() {
        let position = |seed| MarkHash::seeded([seed, 0x9e37_79b9_7f4a_7c15]).hash_one(7_u64);
        assert_ne!(position(1), position(2));
    }
}
