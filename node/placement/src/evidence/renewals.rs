//! How many entries the records of one second renew beyond those that they name.
//!
//! A record also renews what comes before it in its chain, so that all replicas forget in the same order. So a few bytes
//! ask for hundreds of renewals, and what limits a sender's bytes does not limit those. Here those of a second are limited,
//! for all records together: of senders nothing is known here. What one renewal takes, which grows with the holders of
//! its mark, is not looked at.

/// So many renewals in a second are made as records ask for them: by two thousand records of the longest chains, or by
/// some fifteen thousand of prompts of 8,000 tokens.
pub(super) const RENEWALS_MAX: u32 = 512 * 1_024;

/// The renewals of the current second.
#[derive(Clone, Debug, Default)]
pub(super) struct Renewals {
    second: u32,
    /// Grows beyond the limit, too.
    pub(super) made: u32,
}

impl Renewals {
    /// An entry was renewed, and so it was before in the second `before`. Whether what comes before it in its chain is
    /// renewed now, too: beyond the limit not again within the second. So a flood keeps no chain from being renewed, and
    /// makes at most one more renewal of each entry.
    pub(super) fn go_on(&mut self, second: u32, before: u32) -> bool {
        if self.second != second {
            *self = Self { second, made: 0 };
        }
        self.made = self.made.saturating_add(1);
        self.made <= RENEWALS_MAX || before != second
    }
}
