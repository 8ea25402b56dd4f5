//! Which replicas do not hear each other, though both live.

use std::sync::Arc;
use std::time::{Duration, Instant};

use grapevine_gossip::peer_state::{PeerStates, UNHEARD_AFTER};
use grapevine_gossip::view::{ReplicaInfo, View};
use grapevine_gossip::{Agent, ReplicaId};

use super::Liveness;

/// Pairs that are told.
const PAIRS_MAX: usize = 64;
/// Whoever came so lately was not heard by everybody yet, and is not missed.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Who hears whom at one moment, as every replica tells. A replica's own part is what it knows by itself; those of others
/// are parts of their peer states, so there is none of a replica that is not heard here.
pub struct Hearing<'a> {
    /// Replicas that every other one is to hear, by id.
    settled: Vec<&'a ReplicaId>,
    told: Told,
}

impl<'a> Hearing<'a> {
    /// As it is now; `view`: the replicas.
    pub fn now(agent: &Agent, liveness: &Liveness, view: &'a View) -> Self {
        let is_settled = |replica: &&ReplicaInfo| {
            let lasts = liveness.lasts(replica);
            replica.live && !replica.leaving && lasts.is_some_and(|lasts| lasts >= SETTLED_AFTER)
        };
        let settled = view.replicas().iter().filter(is_settled);
        Self {
            settled: settled.map(|replica| &replica.id).collect(),
            told: Told {
                own: agent.replica().clone(),
                heard: agent.heard(),
                states: agent.peer_states(),
                now: tokio::time::Instant::now().into_std(),
            },
        }
    }

    /// How long ago `of` heard `other`: `Some(None)` where it does not, none where it does not tell.
    pub fn hears(&self, of: &ReplicaId, other: &ReplicaId) -> Option<Option<Duration>> {
        self.told.hears(of, other)
    }

    /// Live replicas that this one does not hear; none while it came just now.
    pub fn unheard_here(&self) -> impl Iterator<Item = &'a ReplicaId> {
        let own = &self.told.own;
        let of = self.settled.iter().copied().find(|id| *id == own);
        of.into_iter().flat_map(|of| self.unheard_by(of))
    }

    /// Live replicas, each with another one that it does not hear, by their ids; the first 64.
    pub fn unheard(&self) -> impl Iterator<Item = (&'a ReplicaId, &'a ReplicaId)> {
        let all = self.settled.iter().copied();
        let pairs = all.flat_map(|of| self.unheard_by(of).map(move |other| (of, other)));
        pairs.take(PAIRS_MAX)
    }

    fn unheard_by(&self, of: &'a ReplicaId) -> impl Iterator<Item = &'a ReplicaId> {
        let others = self
            .settled
            .iter()
            .copied()
            .filter(move |other| *other != of);
        others.filter(move |other| self.told.hears(of, other) == Some(None))
    }
}

/// What there is to know of it.
struct Told {
    own: ReplicaId,
    heard: Vec<(ReplicaId, Duration)>,
    states: Arc<PeerStates>,
    now: Instant,
}

impl Told {
    fn hears(&self, of: &ReplicaId, other: &ReplicaId) -> Option<Option<Duration>> {
        if *of == self.own {
            let heard = self.heard.iter().find(|(id, _)| id == other);
            let ago = heard.map(|(_, ago)| *ago);
            return Some(ago.filter(|ago| *ago < UNHEARD_AFTER));
        }
        let mut peers = self.states.peers();
        peers
            .find(|peer| peer.replica == *of)?
            .hears(other, self.now)
    }
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::peer_state::{Heard, ReceivedState};

    use super::*;

    fn id(name: &str) -> ReplicaId {
        name.parse().expect("an id")
    }

    fn tells(name: &str, heard: Option<&[(&str, u64)]>, now: Instant) -> ReceivedState {
        let heard = heard.map(|heard| {
            let of = |(name, age_ms): &(&str, u64)| Heard {
                replica: id(name),
                age: Duration::from_millis(*age_ms),
            };
            (now, heard.iter().map(of).collect())
        });
        ReceivedState {
            heard,
            ..ReceivedState::silent(id(name), now)
        }
    }

    #[test]
    fn a_replica_that_does_not_hear_another_one_is_found_and_one_that_does_not_tell_is_not_accused()
    {
        let now = tokio::time::Instant::now().into_std();
        let states = [
            tells("r2", Some(&[("r1", 200), ("r3", 3_000)]), now),
            tells("r3", Some(&[("r1", 200), ("r2", 200)]), now),
            tells("r4", None, now),
        ];
        let told = Told {
            own: id("r1"),
            heard: vec![
                (id("r2"), Duration::from_millis(50)),
                (id("r3"), Duration::from_millis(50)),
                (id("r4"), UNHEARD_AFTER),
            ],
            states: Arc::new(states.into_iter().collect()),
            now,
        };
        let ids = ["r1", "r2", "r3", "r4"].map(id);
        let mut hearing = Hearing {
            settled: ids.iter().collect(),
            told,
        };
        let found: Vec<_> = hearing
            .unheard()
            .map(|(of, other)| (of.as_str(), other.as_str()))
            .collect();
        let expected = [("r1", "r4"), ("r2", "r3"), ("r2", "r4"), ("r3", "r4")];
        assert_eq!(found, expected);
        hearing.settled.truncate(1);
        assert_eq!(hearing.unheard().next(), None);
    }

    #[test]
    fn whom_this_replica_does_not_hear_is_counted_however_many_others_hear_nobody() {
        let now = tokio::time::Instant::now().into_std();
        let ids: Vec<_> = (10..22).map(|number| id(&format!("r{number}"))).collect();
        let (own, others) = ids.split_last().expect("some");
        let states = others.iter().map(|of| tells(of.as_str(), Some(&[]), now));
        let told = Told {
            own: own.clone(),
            heard: Vec::new(),
            states: Arc::new(states.collect()),
            now,
        };
        let mut hearing = Hearing {
            settled: ids.iter().collect(),
            told,
        };
        assert_eq!(hearing.unheard().count(), PAIRS_MAX);
        assert_eq!(hearing.unheard_here().count(), 11);
        // It came a moment ago: nobody is expected to be heard yet.
        hearing.settled.truncate(11);
        assert_eq!(hearing.unheard_here().count(), 0);
    }
}
