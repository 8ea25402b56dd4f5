//! Marks: the links of a chain at which contents and heat are tracked.
//!
//! A link every 64 tokens is too many to remember and to gossip, so every few hundred tokens one becomes a mark.
//! The choice looks at the prefix alone, never at what follows: prompts share marks as far as they share text.
//! Ends of messages are preferred, because that is where the next turn of a conversation parts from this one.

use super::Link;

/// Most marks of one key: what one evidence record holds. About 250,000 tokens of running text.
pub const MARKS_MAX: usize = 256;

/// From so many marks on, tokens from one to the next. Fine at first, where short prompts differ; coarse where a
/// few hundred tokens are a small part.
const STEPS: [(usize, u32); 3] = [(128, 2_048), (16, 512), (0, 128)];
/// An end of a message is a mark after this part of a step.
const END_SHARE: u32 = 4;
/// Unit of the size in the low byte of a mark.
const UNIT_TOKENS: u32 = 16;

/// Tokens that a mark adds to the mark before it, as its low byte says: a multiple of 16, rounded up, at most 4,080.
pub fn added_tokens(mark: u64) -> u32 {
    (mark & 0xff) as u32 * UNIT_TOKENS
}

/// The marks of a chain that is being built.
#[derive(Debug, Default)]
pub(super) struct Marks(Vec<Link>);

impl Marks {
    /// Looks at the next link; `end`: it ends a message or another section.
    pub(super) fn pass(&mut self, link: Link, end: bool) {
        let count = self.0.len();
        let added = link.tokens - self.0.last().map_or(0, |mark| mark.tokens);
        let (_, step) = STEPS
            .into_iter()
            .find(|&(from, _)| count >= from)
            .expect("the last step is from 0");
        if count == MARKS_MAX || added < if end { step / END_SHARE } else { step } {
            return;
        }
        let size = added.div_ceil(UNIT_TOKENS).min(0xff);
        self.0.push(Link {
            hash: link.hash & !0xff | u64::from(size),
            tokens: link.tokens,
        });
    }

    pub(super) fn into_vec(self) -> Vec<Link> {
        self.0
    }
}
