//! Peers with which an exchange of registries has just been in vain: two digests differed before it, and the same two
//! still do.
//!
//! It comes from an entry that one side cannot hold, such as one of a later release that an earlier one leaves out.
//! Anti-entropy would then repeat itself in every round, for as long as the two run. So it would with a peer of whose
//! answer nothing may be used, whatever it reports, such as one whose clock is days ahead. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::replica::ReplicaId;

/// Digests that an exchange left as they were: ours, and the one that the peer reported of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) ours: String,
    pub(super) theirs: String,
}

/// The latest exchange with each peer, and the digests that it left, unless all of it was refused. Bounded by the number of
/// replicas.
#[derive(Debug, Default)]
pub(super) struct FutileSyncs(BTreeMap<ReplicaId, (Option<Pair>, Instant)>);

impl FutileSyncs {
    /// An exchange that began with these digests has ended well.
    pub(super) fn exchanged(&mut self, peer: &ReplicaId, pair: Pair, now: Instant) {
        self.0.insert(peer.clone(), (Some(pair), now));
    }

    /// Nothing of what a peer answered may be used.
    pub(super) fn refused(&mut self, peer: &ReplicaId, now: Instant) {
        self.0.insert(peer.clone(), (None, now));
    }

    /// Whether another exchange may bring something: the digests are not those of the last one, or that was `pause` ago.
    pub(super) fn is_worth_it(
        &self,
        peer: &ReplicaId,
        pair: &Pair,
        now: Instant,
        pause: Duration,
    ) -> bool {
        self.0.get(peer).is_none_or(|(last, at)| {
            let is_another = last.as_ref().is_some_and(|last| last != pair);
            is_another || now.saturating_duration_since(*at) >= pause
        })
    }

    /// Whether anything of this peer is remembered.
    #[cfg(test)]
    pub(super) fn remembers(&self, peer: &ReplicaId) -> bool {
        self.0.contains_key(peer)
    }

    /// Forgets peers that are gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&ReplicaId) -> bool) {
        self.0.retain(|peer, _| is_there(peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);

    #[test]
    #[allow(
        clippy::disallowed_methods,
        reason = "an instant to start from; no test waits"
    )]
    fn an_exchange_in_vain_is_not_repeated_before_something_changes() {
        let (peer, other): (ReplicaId, ReplicaId) =
            ("r2".parse().expect("id"), "r3".parse().expect("id"));
        let pair = |ours: &str, theirs: &str| Pair {
            ours: ours.to_owned(),
            theirs: theirs.to_owned(),
        };
        let now = Instant::now();
        let mut futile = FutileSyncs::default();
        let worth = |futile: &FutileSyncs, peer: &ReplicaId, pair: Pair, later: Duration| {
            futile.is_worth_it(peer, &pair, now + later, PAUSE)
        };
        assert!(worth(&futile, &peer, pair("a", "b"), Duration::ZERO));
        futile.exchanged(&peer, pair("a", "b"), now);
        let soon = PAUSE - Duration::from_millis(1);
        assert!(!worth(&futile, &peer, pair("a", "b"), soon));
        assert!(worth(&futile, &peer, pair("a", "c"), Duration::ZERO));
        assert!(worth(&futile, &peer, pair("c", "b"), Duration::ZERO));
        assert!(worth(&futile, &other, pair("a", "b"), Duration::ZERO));
        assert!(worth(&futile, &peer, pair("a", "b"), PAUSE));
        futile.refused(&peer, now);
        assert!(!worth(&futile, &peer, pair("a", "c"), soon));
        assert!(worth(&futile, &peer, pair("a", "b"), PAUSE));
        futile.retain(|id| *id == other);
        assert!(worth(&futile, &peer, pair("a", "b"), Duration::ZERO));
    }
}
