//! Which replica hears which, as every one of them tells: `GET /links`, and what of it is wrong.
//!
//! A replica's own row is what it knows by itself; rows of others are parts of their peer states, so there is none of a
//! replica that is not heard here.

use std::time::{Duration, Instant};

use grapevine_gossip::ReplicaId;
use grapevine_gossip::peer_state::{PeerStates, UNHEARD_AFTER};
use grapevine_gossip::view::{ReplicaInfo, View};
use serde::Serialize;

use super::Admin;

/// `GET /links`. No larger than the greatest cluster: 256 rows of 256.
#[derive(Debug, Serialize)]
pub(super) struct LinksView {
    replica: String,
    /// Live replicas, by id.
    links: Vec<LinkRow>,
}

#[derive(Debug, Serialize)]
struct LinkRow {
    replica: String,
    /// Every other live replica, by id; null where this one does not tell whom it hears: it is not heard here, or its
    /// release is too old.
    hears: Option<Vec<LinkView>>,
}

#[derive(Debug, Serialize)]
struct LinkView {
    replica: String,
    /// Milliseconds since its latest report of load, when that was told; null where it is not heard.
    ago_ms: Option<u64>,
}

/// A replica that does not hear another one, though both live.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub(super) struct Unheard {
    /// Who does not hear.
    replica: String,
    /// Whom.
    other: String,
}

/// Pairs of `GET /cluster`; `GET /links` has all of them.
const UNHEARD_SHOWN: usize = 64;
/// Whoever came so lately was not heard by everybody yet, and is not missed.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

impl Admin {
    pub(super) fn describe_links(&self) -> LinksView {
        let (view, told) = (self.agent.view(), self.told());
        let live = || view.replicas().iter().filter(|replica| replica.live);
        let row = |of: &ReplicaInfo| {
            let others = live().filter(|other| other.id != of.id);
            let hears = others.map(|other| {
                let ago = told.hears(&of.id, &other.id)?;
                Some(LinkView {
                    replica: other.id.to_string(),
                    ago_ms: ago.map(|ago| u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)),
                })
            });
            LinkRow {
                replica: of.id.to_string(),
                hears: hears.collect(),
            }
        };
        LinksView {
            replica: self.replica.clone(),
            links: live().map(row).collect(),
        }
    }

    /// Live replicas that this one does not hear.
    pub(super) fn count_unheard(&self) -> i64 {
        let view = self.agent.view();
        count_unheard(&self.settled(&view), &self.told()) as i64
    }

    pub(super) fn describe_unheard(&self, view: &View) -> Vec<Unheard> {
        unheard(&self.settled(view), &self.told())
    }

    /// Replicas that every other one is to hear.
    fn settled<'a>(&self, view: &'a View) -> Vec<&'a ReplicaId> {
        let liveness = self.cluster.liveness();
        let is_settled = |replica: &&ReplicaInfo| {
            let lasts = liveness.lasts(replica);
            replica.live && !replica.leaving && lasts.is_some_and(|lasts| lasts >= SETTLED_AFTER)
        };
        let settled = view.replicas().iter().filter(is_settled);
        settled.map(|replica| &replica.id).collect()
    }

    fn told(&self) -> Told {
        Told {
            own: self.agent.replica().clone(),
            heard: self.agent.heard(),
            states: self.agent.peer_states(),
            now: tokio::time::Instant::now().into_std(),
        }
    }
}

/// What there is to know of who hears whom.
struct Told {
    own: ReplicaId,
    heard: Vec<(ReplicaId, Duration)>,
    states: std::sync::Arc<PeerStates>,
    now: Instant,
}

impl Told {
    /// How long ago `of` heard `other`: `Some(None)` where it does not, none where it does not tell.
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

/// Those of these that one does not hear.
fn unheard_by<'a>(
    of: &'a ReplicaId,
    replicas: &'a [&'a ReplicaId],
    told: &'a Told,
) -> impl Iterator<Item = &'a ReplicaId> {
    let others = replicas.iter().copied().filter(move |other| *other != of);
    others.filter(move |other| told.hears(of, other) == Some(None))
}

/// Pairs of these that do not hear each other, in the order of their ids; the first [`UNHEARD_SHOWN`].
fn unheard(replicas: &[&ReplicaId], told: &Told) -> Vec<Unheard> {
    let pairs = replicas.iter().flat_map(|of| {
        unheard_by(of, replicas, told).map(|other| Unheard {
            replica: of.to_string(),
            other: other.to_string(),
        })
    });
    pairs.take(UNHEARD_SHOWN).collect()
}

/// How many of these this replica does not hear; none while it is not one of them.
fn count_unheard(replicas: &[&ReplicaId], told: &Told) -> usize {
    match replicas.contains(&&told.own) {
        true => unheard_by(&told.own, replicas, told).count(),
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
            replica: id(name),
            received: now,
            health: Vec::new(),
            usage: Vec::new(),
            quarantine: Vec::new(),
            quarantine_received: now,
            paces: Vec::new(),
            sightings: Vec::new(),
            heard,
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
        let settled: Vec<_> = ids.iter().collect();
        let found = unheard(&settled, &told);
        let found: Vec<_> = found
            .iter()
            .map(|of| (of.replica.as_str(), of.other.as_str()))
            .collect();
        let expected = [("r1", "r4"), ("r2", "r3"), ("r2", "r4"), ("r3", "r4")];
        assert_eq!(found, expected);
        assert_eq!(unheard(&settled[..1], &told), []);
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
        let settled: Vec<_> = ids.iter().collect();
        assert_eq!(unheard(&settled, &told).len(), UNHEARD_SHOWN);
        assert_eq!(count_unheard(&settled, &told), 11);
        // It came a moment ago: nobody is expected to be heard yet.
        assert_eq!(count_unheard(&settled[..11], &told), 0);
    }
}
