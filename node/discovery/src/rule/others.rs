//! Replicas whose word about the source is missing although they did not leave. Pure.
//!
//! One that is cut off may still see what this replica does not see, and cannot say so. Were it taken for agreeing, both
//! sides of a cut would take out each other's workers, and all of them would be gone where the two meet again.

use std::collections::BTreeMap;
use std::time::Duration;

use grapevine_gossip::ReplicaId;
use grapevine_gossip::view::ReplicaInfo;
use tokio::time::Instant;

use super::statement::PeerStatement;

/// A replica that is alive and says nothing cannot see the source, and has no word. But what it said ends after three
/// seconds, and large clusters take as long to see that somebody is dead: for so long it may be either.
const UNDECIDED: Duration = Duration::from_secs(2);

/// The other replicas that saw the source.
#[derive(Debug, Default)]
pub(super) struct Others(BTreeMap<ReplicaId, Other>);

#[derive(Clone, Copy, Debug)]
struct Other {
    /// When it last stated that it sees the source.
    heard: Instant,
    is_seeing: bool,
    is_live: bool,
}

impl Others {
    /// Takes in what the others state, and which of them live. Who was lost is forgotten after `contest`: it may have died
    /// for good.
    pub(super) fn look(
        &mut self,
        peers: &[PeerStatement],
        replicas: &[ReplicaInfo],
        contest: Duration,
        now: Instant,
    ) {
        for other in self.0.values_mut() {
            other.is_seeing = false;
        }
        let seeing = peers.iter().filter(|peer| peer.statement.is_seeing);
        let other = Other {
            heard: now,
            is_seeing: true,
            is_live: true,
        };
        self.0
            .extend(seeing.map(|peer| (peer.replica.clone(), other)));
        self.0.retain(|id, other| {
            if other.is_seeing {
                return true;
            }
            let silent = now.saturating_duration_since(other.heard);
            match replicas.iter().find(|replica| replica.id == *id) {
                Some(replica) if replica.leaving => return false,
                Some(replica) => other.is_live = replica.live,
                // It left. One that died without a word is forgotten by gossip after a minute, and not here.
                None if other.is_live => return false,
                None => {}
            }
            silent < if other.is_live { UNDECIDED } else { contest }
        });
    }

    /// How many may see it and cannot say so.
    pub(super) fn unheard(&self) -> usize {
        self.0.values().filter(|other| !other.is_seeing).count()
    }

    /// When the first of them is forgotten, unless it is heard again.
    pub(super) fn next_forgotten(&self, contest: Duration) -> Option<Instant> {
        let unheard = self.0.values().filter(|other| !other.is_seeing);
        let until = |other: &Other| other.heard + if other.is_live { UNDECIDED } else { contest };
        unheard.map(until).min()
    }
}
