//! Whom a starting replica asks for the registry, and when those that start as well are all that there are. Pure.
//!
//! One that starts has nothing but its configuration to give. Taken for the cluster, it would hide what the others have
//! added, drained and removed, and all evidence about workers that no configuration names would be left out for good.

use std::collections::HashSet;
use std::time::Duration;

use crate::config::{ALONE_AFTER, TOGETHER_AFTER};
use crate::replica::ReplicaId;

/// What came of asking the connected peers so far.
#[derive(Debug, Default)]
pub(super) struct Asked {
    under_way: HashSet<ReplicaId>,
    /// Gave what they have, and have met nobody either.
    newcomers: HashSet<ReplicaId>,
    /// Did not give it at least once.
    failed: HashSet<ReplicaId>,
}

/// How asking one peer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It gave all of the cluster's.
    Taken,
    /// It gave what it has, and is no cluster.
    Newcomer,
    Failed,
}

impl Asked {
    /// The peer to ask now, of those connected. Whoever failed waits for the others: one that hangs, or whose registry is
    /// refused, must not be asked for ever. Among the rest those that take requests come first, for they have it.
    pub(super) fn next(
        &mut self,
        linked: &[ReplicaId],
        is_ready: impl Fn(&ReplicaId) -> bool,
    ) -> Option<ReplicaId> {
        let is_open =
            |id: &&ReplicaId| !self.under_way.contains(*id) && !self.newcomers.contains(*id);
        let rank = |id: &&ReplicaId| match self.failed.contains(*id) {
            true => 2,
            false => u8::from(!is_ready(id)),
        };
        let next = linked.iter().filter(is_open).min_by_key(rank)?.clone();
        self.under_way.insert(next.clone());
        Some(next)
    }

    pub(super) fn ended(&mut self, peer: &ReplicaId, how: Ended) {
        self.under_way.remove(peer);
        match how {
            Ended::Taken => {}
            Ended::Newcomer => drop(self.newcomers.insert(peer.clone())),
            Ended::Failed => drop(self.failed.insert(peer.clone())),
        }
    }

    /// Whether this replica and connected ones that start as well are the cluster, after `waited` since the start.
    /// `is_everybody`: each seed was asked, and no known replica is without a connection. That is waited for only as long as
    /// for any peer at all, since of a cluster that starts some may be dead.
    pub(super) fn are_newcomers_all(
        &self,
        linked: &[ReplicaId],
        is_everybody: bool,
        waited: Duration,
    ) -> bool {
        let is_new = |id: &ReplicaId| self.newcomers.contains(id);
        let is_asked = |id: &ReplicaId| is_new(id) || self.failed.contains(id);
        if waited >= ALONE_AFTER {
            linked.iter().any(is_new) && linked.iter().all(is_asked)
        } else {
            let is_time = waited >= TOGETHER_AFTER && is_everybody;
            is_time && !linked.is_empty() && linked.iter().all(is_new)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids<const N: usize>(names: [&str; N]) -> [ReplicaId; N] {
        names.map(|name| name.parse().expect("valid"))
    }

    #[test]
    fn who_takes_requests_is_asked_first_and_who_failed_last() {
        let linked = ids(["new", "old", "other"]);
        let [new, old, other] = &linked;
        let mut asked = Asked::default();
        let next = |asked: &mut Asked| asked.next(&linked, |id| id == old);
        assert_eq!(next(&mut asked).as_ref(), Some(old));
        asked.ended(old, Ended::Failed);
        assert_eq!(next(&mut asked).as_ref(), Some(new));
        assert_eq!(next(&mut asked).as_ref(), Some(other));
        assert_eq!(next(&mut asked).as_ref(), Some(old));
        assert_eq!(next(&mut asked), None, "each is being asked");
        asked.ended(new, Ended::Newcomer);
        asked.ended(other, Ended::Failed);
        assert_eq!(next(&mut asked).as_ref(), Some(other));
        assert_eq!(next(&mut asked), None, "a newcomer has given what it has");
    }

    #[test]
    fn newcomers_are_all_once_everybody_was_asked() {
        let linked = ids(["a", "b"]);
        let [a, b] = &linked;
        let mut asked = Asked::default();
        assert!(!asked.are_newcomers_all(&[], true, ALONE_AFTER));
        asked.ended(a, Ended::Newcomer);
        assert!(
            !asked.are_newcomers_all(&linked, true, TOGETHER_AFTER),
            "b may be old"
        );
        assert!(!asked.are_newcomers_all(&linked, true, ALONE_AFTER));
        asked.ended(b, Ended::Newcomer);
        assert!(!asked.are_newcomers_all(&linked, true, Duration::ZERO));
        assert!(!asked.are_newcomers_all(&linked, false, TOGETHER_AFTER));
        assert!(asked.are_newcomers_all(&linked, true, TOGETHER_AFTER));
        assert!(asked.are_newcomers_all(&linked, false, ALONE_AFTER));
    }

    /// Else one broken replica would keep all of a cluster that starts from being ready.
    #[test]
    fn one_that_cannot_give_its_registry_is_not_waited_for() {
        let linked = ids(["a", "b"]);
        let [a, b] = &linked;
        let mut asked = Asked::default();
        asked.ended(b, Ended::Failed);
        assert!(
            !asked.are_newcomers_all(&linked, true, ALONE_AFTER),
            "nobody gave any"
        );
        asked.ended(a, Ended::Newcomer);
        assert!(!asked.are_newcomers_all(&linked, true, TOGETHER_AFTER));
        assert!(asked.are_newcomers_all(&linked, true, ALONE_AFTER));
    }
}
