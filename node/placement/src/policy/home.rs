//! Home by heat and structure: which link of the chain names the home, and among which workers.
//!
//! In real traffic the first thousand tokens are often the same for everybody, so no fixed part of a prompt can name
//! its home. Walk down the marks instead: while a prefix is hot it belongs to a set of workers, chosen by rendezvous
//! inside its parent's set; the first cool mark names the home inside the last set. Marks lie at ends of messages,
//! so group and session part where their messages do. A session that the client names replaces the cool mark.

use super::{PolicySettings, View};
use crate::{key::Key, order::Order, ring::Ring};

/// Where a prompt belongs.
pub(super) struct Home {
    /// Hash that names the home.
    pub(super) hash: u64,
    /// For each member, tokens of the prompt that it shares as one of a hot prefix's workers; empty if nothing is hot.
    shared: Vec<u32>,
    /// Tokens that the members of the innermost set share.
    pub(super) inner_tokens: u32,
}

impl Home {
    /// By the hash alone.
    pub(super) fn plain(hash: u64) -> Self {
        Self {
            hash,
            shared: Vec::new(),
            inner_tokens: 0,
        }
    }

    /// Walks down the marks of a prompt.
    pub(super) fn of(settings: &PolicySettings, view: View<'_>, key: &Key) -> Self {
        let mut home = Self::plain(key.session().unwrap_or(key.home()));
        let (ring, share) = (view.ring, settings.heat.share.get());
        let mut set: Vec<usize> = Vec::new();
        let mut width = ring.len();
        for mark in key.marks() {
            if key.session().is_none() {
                home.hash = mark.hash;
            }
            let Some(wanted) = view.hot.width(key.model(), mark.hash, ring.len(), share) else {
                break;
            };
            if home.shared.is_empty() {
                home.shared = vec![0; ring.len()];
                set = (0..ring.len()).collect();
            }
            if wanted < width {
                width = wanted;
                narrow(ring, mark.hash, &mut set, width);
            }
            for &member in &set {
                home.shared[member] = mark.tokens;
            }
            home.inner_tokens = mark.tokens;
        }
        home
    }

    /// Tokens of the prompt that a member holds because they are hot.
    pub(super) fn shared_tokens(&self, member: usize) -> u32 {
        self.shared.get(member).copied().unwrap_or(0)
    }

    /// Whether a member belongs to the innermost set.
    pub(super) fn contains(&self, member: usize) -> bool {
        self.shared.is_empty() || self.shared[member] == self.inner_tokens
    }

    /// First accepted member in order, those of the innermost set before all others.
    pub(super) fn first(
        &self,
        order: &Order<'_>,
        accepts: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        order
            .first(|member| self.contains(member) && accepts(member))
            .or_else(|| order.first(accepts))
    }
}

/// Keeps the `width` members of the best scores for a link.
fn narrow(ring: &Ring, link: u64, set: &mut Vec<usize>, width: usize) {
    let Some(order) = ring.order(link) else {
        return;
    };
    let mut scored: Vec<_> = set
        .iter()
        .map(|&member| (order.score(member), member))
        .collect();
    scored.select_nth_unstable_by(width - 1, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    set.clear();
    set.extend(scored[..width].iter().map(|&(_, member)| member));
}
