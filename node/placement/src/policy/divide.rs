//! Divide: does one worker take all of a request, or does a pair, one of which computes the prompt? Pure.
//!
//! A pair keeps prompts away from the answers of others, and pays a transfer for that. So a prompt of which little is
//! to be computed stays whole. And where workers that do both stand beside the pairs, neither may drown while the other
//! is idle: a request leaves the pairs once their queue of prompts makes its first token come too much later. Both
//! times are expectations from load and rates that all replicas share, so replicas choose the same way.

use std::time::Duration;

use super::Decision;

/// When a request is not divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divide {
    /// Prompts with at most so many tokens to compute stay whole; 0: none for that.
    pub short_prompt_tokens: u32,
    /// How much later than on a worker that does both the first token from a pair may be expected.
    pub wait_for_pair: Duration,
}

impl Divide {
    /// Whether so few tokens to compute are not worth a transfer.
    pub fn is_short(&self, tokens: u32) -> bool {
        self.short_prompt_tokens > 0 && tokens <= self.short_prompt_tokens
    }

    /// Whether a worker that does both is to take it, given where its prompt would be computed there and in a pair.
    pub fn is_sooner_whole(&self, whole: &Decision, prefill: &Decision) -> bool {
        let whole = whole.first_token.saturating_add(self.wait_for_pair);
        prefill.first_token > whole
    }
}
