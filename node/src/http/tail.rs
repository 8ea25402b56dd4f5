//! The end of what passes in pieces, which is not kept for its last bytes.

/// The last bytes of what has passed, at most so many. Without any it needs no memory.
#[derive(Debug, Default)]
pub struct Tail<const BYTES: usize>(Vec<u8>);

impl<const BYTES: usize> Tail<BYTES> {
    /// The next piece passes.
    pub fn keep(&mut self, piece: &[u8]) {
        let last = &piece[piece.len().saturating_sub(BYTES)..];
        let excess = (self.0.len() + last.len()).saturating_sub(BYTES);
        self.0.drain(..excess);
        self.0.extend_from_slice(last);
    }

    /// What is kept.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEPT_BYTES: usize = 4 * 1024;

    proptest! {
        #[test]
        fn the_last_bytes_are_kept_however_they_come(
            sizes in prop::collection::vec(0..2 * KEPT_BYTES, 0..6),
        ) {
            let all: Vec<u8> = (0..sizes.iter().sum()).map(|at| (at % 251) as u8).collect();
            let (mut tail, mut rest) = (Tail::<KEPT_BYTES>::default(), &all[..]);
            for size in sizes {
                let (piece, after) = rest.split_at(size);
                tail.keep(piece);
                rest = after;
            }
            prop_assert_eq!(tail.bytes(), &all[all.len().saturating_sub(KEPT_BYTES)..]);
        }
    }
}
