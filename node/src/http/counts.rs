//! The token counts of an answer that is no stream of events, while it passes in pieces: it is neither kept nor parsed for
//! three numbers. They stand at its end, or before the results of a rerank, or have behind them what the client asked for,
//! such as the ids of a long prompt's tokens.

use super::sse::{FIRST_USAGE, USAGE, Usage, usage_of};
use super::tail::Tail;

/// Bytes that are kept from the last mention of counts on; the counts have some hundred.
const KEPT_BYTES: usize = 1024;
/// The longest part of a mention that may stand before or behind a seam.
const PART_BYTES: usize = USAGE.len() - 1;

/// What has been seen of one answer. It keeps no more than [`KEPT_BYTES`].
#[derive(Debug, Default)]
pub struct Counts {
    /// From the last mention on; empty before the first.
    kept: Vec<u8>,
    /// Where a mention may lie in two pieces or more.
    seam: Tail<{ 2 * PART_BYTES }>,
}

impl Counts {
    /// The next piece passes. It is searched from its front, which is by far the faster way.
    pub fn look(&mut self, piece: &[u8]) {
        let (first, rest) = piece.split_at(piece.len().min(PART_BYTES));
        self.seam.keep(first);
        match FIRST_USAGE.find(self.seam.bytes()) {
            // Also where that is the one that is known: no more than this has come since.
            Some(at) => begin(&mut self.kept, &self.seam.bytes()[at..]),
            None => go_on(&mut self.kept, first),
        }
        go_on(&mut self.kept, rest);
        if let Some(at) = FIRST_USAGE.find_iter(piece).last() {
            begin(&mut self.kept, &piece[at..]);
        }
        self.seam.keep(rest);
    }

    /// The counts that were mentioned last; none where those are none.
    pub fn usage(&self) -> Option<Usage> {
        usage_of(&self.kept)
    }
}

fn begin(kept: &mut Vec<u8>, mention: &[u8]) {
    kept.clear();
    kept.extend_from_slice(&mention[..mention.len().min(KEPT_BYTES)]);
}

fn go_on(kept: &mut Vec<u8>, piece: &[u8]) {
    if !kept.is_empty() {
        let room = KEPT_BYTES - kept.len();
        kept.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Of a prompt that is repeated the answer has the same words escaped.
        #[test]
        fn the_last_counts_are_found_however_they_come(
            before in 0..2 * KEPT_BYTES,
            behind in 0..2 * KEPT_BYTES,
            cuts in prop::collection::vec((0..5 * KEPT_BYTES, 0..12_usize), 0..12),
        ) {
            let (first, last) = ("1,".repeat(before), ",2".repeat(behind));
            let answer = format!(
                r#"{{"usage":{{"prompt_tokens":1}},"ids":[{first}1],"usage":{{"prompt_tokens":7}},"text":"\"usage\":{{","ids":[2{last}]}}"#
            );
            let answer = answer.as_bytes();
            // Some of the pieces are shorter than a mention.
            let mut cuts: Vec<_> = cuts.into_iter().flat_map(|(at, size)| [at, at + size]).collect();
            cuts.push(answer.len());
            cuts.sort_unstable();
            let (mut counts, mut done) = (Counts::default(), 0);
            for cut in cuts {
                let cut = cut.min(answer.len());
                counts.look(&answer[done..cut]);
                done = cut;
            }
            prop_assert_eq!(counts.usage().map(|usage| usage.prompt_tokens), Some(7));
            prop_assert!(counts.kept.len() <= KEPT_BYTES);
        }
    }

    #[test]
    fn a_mention_may_be_cut_anywhere() {
        let answer = br#"{"data":[],"usage":{"prompt_tokens":7},"x":[0.5,0.25]}"#;
        for size in 1..answer.len() {
            let mut counts = Counts::default();
            answer.chunks(size).for_each(|piece| counts.look(piece));
            let usage = counts.usage().map(|usage| usage.prompt_tokens);
            assert_eq!(usage, Some(7), "{size}");
        }
    }
}
