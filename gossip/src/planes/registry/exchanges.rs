//! Anti-entropy: the peers with which registries are compared, and the exchanges that are under way. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::futile_syncs::{FutileSyncs, Pair};
use super::settling::Settling;
use crate::config::SYNC_EVERY;
use crate::facts::fact;
use crate::plane::Surroundings;
use crate::registry::Entry;
use crate::replica::ReplicaId;

/// Exchanges with peers, and what is known of former ones.
pub(super) struct Exchanges {
    under_way: BTreeMap<ReplicaId, Exchange>,
    /// Exchanges after which the registries still differed.
    futile: FutileSyncs,
    settling: Settling,
    /// When the last one was begun for no reason.
    last: Instant,
}

/// An exchange: a question, its answer, and pushes of what the peer lacks, one after the other.
struct Exchange {
    /// The digests for whose sake it was begun, if that is why.
    differing: Option<Pair>,
    /// What the peer lacks and was not pushed yet.
    missing: VecDeque<Vec<Entry>>,
}

/// What follows an answer.
pub(super) enum Step {
    /// It was of no exchange that is under way.
    None,
    /// The next piece of what the peer lacks.
    Push(Vec<Entry>),
    /// The exchange is over.
    Ended,
}

impl Exchanges {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            under_way: BTreeMap::new(),
            futile: FutileSyncs::default(),
            settling: Settling::new(now),
            last: now,
        }
    }

    /// The peers to compare registries with in this round, `ours` being the digest of our own; besides, the number of peers
    /// that report another one. Those that are returned are under way from now on.
    pub(super) fn begin(
        &mut self,
        around: &Surroundings,
        ours: &str,
        now: Instant,
    ) -> (Vec<ReplicaId>, usize) {
        let is_linked = |id: &ReplicaId| around.links.iter().any(|link| link.peer == *id);
        let live = around.seen.others.iter().filter(|seen| seen.live);
        let differing = live.filter(|seen| is_linked(&seen.id)).filter_map(|seen| {
            let theirs = seen.fact(fact::REGISTRY);
            let pair = || Pair {
                ours: ours.to_owned(),
                theirs: theirs.to_owned(),
            };
            (!theirs.is_empty() && theirs != ours).then(|| (seen.id.clone(), pair()))
        });
        let mut differing: Vec<_> = differing.collect();
        let count = differing.len();
        if !self.settling.compares(ours, count > 0, now) {
            differing.clear();
        }
        self.futile.retain(is_linked);
        differing.retain(|(id, pair)| self.futile.is_worth_it(id, pair, now, SYNC_EVERY));
        let mut partners: Vec<_> = differing
            .into_iter()
            .map(|(id, pair)| (id, Some(pair)))
            .collect();
        // Once in a while with any peer: a digest may be equal by accident, or a liar may have sent it.
        if now.saturating_duration_since(self.last) >= SYNC_EVERY {
            self.last = now;
            let at = around.seen.draw.checked_rem(around.links.len() as u64);
            let anybody = at.and_then(|at| around.links.get(at as usize));
            partners.extend(anybody.map(|link| (link.peer.clone(), None)));
        }
        let begun = partners.into_iter().filter_map(|(peer, differing)| {
            if self.under_way.contains_key(&peer) {
                return None;
            }
            let exchange = Exchange {
                differing,
                missing: VecDeque::new(),
            };
            self.under_way.insert(peer.clone(), exchange);
            Some(peer)
        });
        (begun.collect(), count)
    }

    /// What the peer was found to lack.
    pub(super) fn lacks(&mut self, peer: &ReplicaId, missing: Vec<Vec<Entry>>) {
        if let Some(exchange) = self.under_way.get_mut(peer) {
            exchange.missing = missing.into();
        }
    }

    /// Nothing of the peer's answer may be used: it will be the same a moment later.
    pub(super) fn refused(&mut self, peer: &ReplicaId, now: Instant) {
        self.futile.refused(peer, now);
    }

    pub(super) fn is_under_way(&self, peer: &ReplicaId) -> bool {
        self.under_way.contains_key(peer)
    }

    /// A question of an exchange was answered well, or not.
    pub(super) fn next(&mut self, peer: &ReplicaId, is_well: bool, now: Instant) -> Step {
        let Some(exchange) = self.under_way.get_mut(peer) else {
            return Step::None;
        };
        if is_well && let Some(piece) = exchange.missing.pop_front() {
            return Step::Push(piece);
        }
        let ended = self.under_way.remove(peer);
        if is_well && let Some(pair) = ended.and_then(|exchange| exchange.differing) {
            self.futile.exchanged(peer, pair, now);
        }
        Step::Ended
    }

    /// Whether anything of this peer is remembered.
    #[cfg(test)]
    pub(super) fn remembers(&self, peer: &ReplicaId) -> bool {
        let Self {
            under_way,
            futile,
            settling: _,
            last: _,
        } = self;
        under_way.contains_key(peer) || futile.remembers(peer)
    }

    /// What is known of this peer goes; an answer of it that still comes is of no exchange.
    pub(super) fn left(&mut self, peer: &ReplicaId) {
        self.under_way.remove(peer);
        self.futile.retain(|id| id != peer);
    }
}
