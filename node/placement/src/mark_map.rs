//! A table whose keys are hashes already: marks of prompts. Where one is walked through, its order must show nowhere.

#![allow(
    clippy::disallowed_types,
    reason = "what is made of a walk does not depend on its order"
)]

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// Values by mark.
pub(crate) type MarkMap<V> = HashMap<u64, V, BuildHasherDefault<MarkHasher>>;

/// Marks are hashes: their own bits spread them well enough.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MarkHasher(u64);

impl Hasher for MarkHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, mark: u64) {
        // The low byte is a size; the table takes its position from the low bits.
        self.0 = mark.rotate_left(32);
    }
}
