//! Home by heat and structure: which link of the chain names the home, and among which workers.
//!
//! In real traffic the first thousand tokens are often the same for all requests, so no fixed part of a prompt can name
//! its home. Walk down the marks instead: while a prefix is hot it belongs to a set of workers, chosen by rendezvous
//! inside its parent's set; the first cool mark names the home inside the last set. Marks lie at ends of messages,
//! so group and session part where their messages do. A session that the client names replaces the cool mark.

use super::{Policy, PolicySettings, View};
use crate::{key::Key, order::Order, ring::Ring};

/// Where a prompt belongs.
pub(super) struct Home {
    /// Hash that names the home.
    pub(super) hash: u64,
    /// For each member, tokens of the prompt that it shares as one of a hot prefix's workers; empty if nothing is hot.
    shared: Vec<u32>,
    /// The innermost set; empty if that is all members.
    inner: Vec<usize>,
    /// Tokens that the members of the innermost set share.
    pub(super) inner_tokens: u32,
}

impl Home {
    /// By the hash alone.
    fn plain(hash: u64) -> Self {
        Self {
            hash,
            shared: Vec::new(),
            inner: Vec::new(),
            inner_tokens: 0,
        }
    }

    /// Where a key belongs for the policy of these settings.
    pub(super) fn of(settings: &PolicySettings, view: View<'_>, key: &Key) -> Self {
        match settings.policy {
            Policy::ConsistentHash => Self::plain(key.consistent()),
            _ => Self::by_heat(settings, view, key),
        }
    }

    /// Walks down the marks of a prompt.
    fn by_heat(settings: &PolicySettings, view: View<'_>, key: &Key) -> Self {
        let mut home = Self::plain(key.session().unwrap_or(key.home()));
        let (ring, share) = (view.ring, settings.heat.share.get());
        let mut set: Vec<usize> = Vec::new();
        let mut width = ring.len();
        let everybody = ring.len();
        for mark in key.marks() {
            if key.session().is_none() {
                home.hash = mark.hash;
            }
            let Some(wanted) = view.hot.width(key.model(), mark.hash, ring.len(), share) else {
                break;
            };
            if wanted < width {
                // Once for each set and not for each mark: a long prefix that all share has many.
                home.share(&set, everybody);
                if width == everybody {
                    set = (0..everybody).collect();
                }
                width = wanted;
                narrow(ring, mark.hash, &mut set, width);
            }
            home.inner_tokens = mark.tokens;
        }
        home.share(&set, everybody);
        if !set.is_empty() {
            home.inner = (0..everybody).filter(|&m| home.contains(m)).collect();
        }
        home
    }

    /// All of a set share what is hot so far. An empty `set` stands for all members, before the first was narrowed.
    fn share(&mut self, set: &[usize], everybody: usize) {
        if self.inner_tokens == 0 {
            return;
        }
        if set.is_empty() {
            self.shared = vec![self.inner_tokens; everybody];
        }
        self.shared.resize(everybody, 0);
        for &member in set {
            self.shared[member] = self.inner_tokens;
        }
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
        let inner = (!self.inner.is_empty()).then(|| {
            let members = self.inner.iter().copied();
            order.first_of(members, |member| self.contains(member) && accepts(member))
        });
        inner.flatten().or_else(|| order.first(accepts))
    }
}

/// Keeps the `width` members of the best scores for a link.
fn narrow(ring: &Ring, link: u64, set: &mut Vec<usize>, width: usize) {
    if let Some(order) = ring.order(link) {
        order.keep_best(set, width);
    }
}
