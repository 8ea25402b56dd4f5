//! The end of what passes in pieces: token counts stand there, and an answer is not kept for three numbers.

/// Bytes that are kept. The counts of an answer have some hundred, and little follows them.
const KEPT_BYTES: usize = 4 * 1024;

/// The last bytes of what has passed. Without any it needs no memory.
#[derive(Debug, Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    /// The next piece passes.
    pub fn keep(&mut self, piece: &[u8]) {
        let last = &piece[piece.len().saturating_sub(KEPT_BYTES)..];
        let excess = (self.0.len() + last.len()).saturating_sub(KEPT_BYTES);
        self.0.drain(..excess);
        self.0.extend_from_slice(last);
    }

    /// What is kept, at most the last 4 KiB.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_last_bytes_are_kept_however_they_come(
            sizes in prop::collection::vec(0..2 * KEPT_BYTES, 0..6),
        ) {
            let all: Vec<u8> = (0..sizes.iter().sum()).map(|at| (at % 251) as u8).collect();
            let (mut tail, mut rest) = (Tail::default(), &all[..]);
            for size in sizes {
                let (piece, after) = rest.split_at(size);
                tail.keep(piece);
                rest = after;
            }
            prop_assert_eq!(tail.bytes(), &all[all.len().saturating_sub(KEPT_BYTES)..]);
        }
    }
}
