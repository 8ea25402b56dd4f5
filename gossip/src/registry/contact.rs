//! Time with and without the cluster: what tombstones live by, and when a map is too old.
//!
//! A live peer is not the cluster: it may have been away itself, or have begun a moment ago. So each says in its exchanges
//! how long it was without the cluster, and whoever exchanges with it was so for no longer; one that was away passes on to
//! all that copy its map that they may hold what others removed.
//!
//! Nobody can tell a part that was cut off from what is left of a cluster. So after a day together the replicas of a part
//! take themselves for the cluster: this is the limit of what is promised (`node/OPERATIONS.md`, Partition).

use std::time::Duration;

use super::RETENTION;

/// A replica without any contact for this long may hold workers whose tombstones the others have
/// dropped. An hour less than [`RETENTION`], because a tombstone may have been on its way when
/// contact was lost.
pub const ISOLATION_MAX: Duration = RETENTION.saturating_sub(Duration::from_secs(60 * 60));

/// Claimed by who has met nobody yet, and by nobody else: too long, so that no peer that was away itself takes its nearly
/// empty map for what the cluster knows.
const MET_NOBODY: Duration = ISOLATION_MAX;
/// Least claim of who was away.
const AWAY: Duration = ISOLATION_MAX.saturating_add(Duration::from_millis(1));
/// New replicas are a cluster after so long together. Until then they meet one that is there already, if there is one.
const FOUNDED_AFTER: Duration = Duration::from_secs(10);
/// Replicas that know of no better are the cluster after so long together.
const PART_MAX: Duration = RETENTION;

/// Adds up time with at least one live peer, and time without.
#[derive(Clone, Debug, Default)]
pub struct Contact {
    /// How long it was without the cluster; `None` before it has met anybody.
    alone: Option<Duration>,
    /// Time with live peers since it was without the cluster first, or since its start.
    together: Duration,
}

impl Contact {
    /// Accounts for `elapsed`, about a second, during which `live_peers` were live. Returns how much
    /// of it was contact, to be given to [`Registry::advance`](super::Registry::advance).
    ///
    /// Measure `elapsed` with a monotonic clock, and pass 0 peers for a gap far longer than a second:
    /// a process that was paused received nothing. Time that this clock did not see is passed so, too.
    pub fn add(&mut self, live_peers: usize, elapsed: Duration) -> Duration {
        if live_peers == 0 {
            if let Some(alone) = &mut self.alone {
                if alone.is_zero() {
                    self.together = Duration::ZERO;
                }
                *alone = alone.saturating_add(elapsed);
            }
            return Duration::ZERO;
        }
        self.together = self.together.saturating_add(elapsed);
        if self.together >= PART_MAX && self.alone.is_some() {
            self.alone = Some(Duration::ZERO);
        }
        elapsed
    }

    /// Time without the cluster, as it goes into every sync request and response, and into every snapshot.
    pub fn claimed(&self) -> Duration {
        match self.alone {
            None => MET_NOBODY,
            Some(alone) if alone >= ISOLATION_MAX => alone.max(AWAY),
            Some(alone) => alone,
        }
    }

    /// Whether this replica belongs to no cluster yet.
    pub fn has_met_nobody(&self) -> bool {
        self.alone.is_none()
    }

    /// Whether this is the claim of who has met nobody yet.
    pub fn is_of_nobody(claimed: Duration) -> bool {
        claimed == MET_NOBODY
    }

    /// Whether removals may have been forgotten elsewhere that this replica missed.
    ///
    /// Never before the first exchange: what a replica holds then, it has declared itself.
    pub fn is_away(&self) -> bool {
        self.alone.is_some_and(|alone| alone >= ISOLATION_MAX)
    }

    /// What to do on meeting a peer that claims to have been alone for so long.
    pub fn reunion(&self, peer_alone: Duration) -> Reunion {
        match self.alone {
            Some(alone) => Reunion::of(alone, peer_alone),
            None => Reunion::Merge,
        }
    }

    /// The registry of a peer that claims to have been alone for so long was taken in.
    pub fn synced(&mut self, peer_alone: Duration) {
        let of_peer = (!Self::is_of_nobody(peer_alone)).then_some(peer_alone);
        self.alone = match (self.alone, of_peer) {
            (None, None) if self.together < FOUNDED_AFTER => None,
            (None, None) => Some(Duration::ZERO),
            (Some(alone), Some(of_peer)) => Some(alone.min(of_peer)),
            (alone, of_peer) => alone.or(of_peer),
        };
    }
}

/// What a replica does with its map when it meets a peer again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reunion {
    /// Neither side can have forgotten a removal that the other missed: merge.
    Merge,
    /// We were away for longer than tombstones live while the peer was not: start over
    /// ([`Registry::start_over`](super::Registry::start_over)) and take the peer's map, before
    /// anything of ours is pushed.
    StartOver,
    /// The same the other way round: take nothing from the peer until it has started over.
    PeerStartsOver,
}

impl Reunion {
    /// Decides by how long both sides were alone.
    ///
    /// If the peer was alone as long, it forgot nothing meanwhile (tombstones age by contact
    /// only), and two replicas that both dropped their maps would lose everything.
    fn of(own_alone: Duration, peer_alone: Duration) -> Self {
        match (own_alone >= ISOLATION_MAX, peer_alone >= ISOLATION_MAX) {
            (true, false) => Self::StartOver,
            (false, true) => Self::PeerStartsOver,
            _ => Self::Merge,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);

    /// A replica of a cluster that was alone for so long.
    fn alone_for(alone: Duration) -> Contact {
        let mut contact = Contact::default();
        contact.synced(Duration::ZERO);
        contact.add(0, alone);
        contact
    }

    #[test]
    fn only_time_with_peers_is_contact() {
        let mut contact = Contact::default();
        assert_eq!(contact.add(2, SECOND), SECOND);
        assert_eq!(contact.add(0, SECOND), Duration::ZERO);
        assert_eq!(contact.add(0, SECOND), Duration::ZERO);
        assert_eq!(contact.add(1, SECOND), SECOND);
        contact.synced(Duration::ZERO);
        contact.add(0, SECOND);
        assert_eq!(contact.claimed(), SECOND);
        contact.synced(Duration::ZERO);
        assert_eq!(contact.claimed(), Duration::ZERO);
    }

    #[test]
    fn who_has_met_nobody_is_taken_for_no_cluster() {
        let mut new = Contact::default();
        assert_eq!(new.claimed(), ISOLATION_MAX);
        new.add(0, 2 * ISOLATION_MAX);
        assert_eq!(new.claimed(), ISOLATION_MAX);
        assert!(!new.is_away(), "what it holds is its own");
        for peer in [Duration::ZERO, ISOLATION_MAX] {
            assert_eq!(new.reunion(peer), Reunion::Merge);
        }
        new.synced(Duration::ZERO);
        new.add(0, ISOLATION_MAX);
        assert!(new.is_away());
        assert_eq!(new.reunion(Duration::ZERO), Reunion::StartOver);
        let newcomer = Contact::default().claimed();
        assert_eq!(new.reunion(newcomer), Reunion::Merge);
    }

    /// Two that start at once must not be taken for a cluster by a third that was away and that they are about to meet.
    #[test]
    fn new_replicas_are_a_cluster_after_a_while_together() {
        let mut new = Contact::default();
        new.synced(MET_NOBODY);
        assert_eq!(new.claimed(), MET_NOBODY);
        new.add(1, FOUNDED_AFTER);
        new.synced(MET_NOBODY);
        assert_eq!(new.claimed(), Duration::ZERO);
        assert_eq!(
            alone_for(25 * HOUR).reunion(new.claimed()),
            Reunion::StartOver
        );
    }

    #[test]
    fn who_copies_from_a_replica_that_was_away_was_away() {
        let mut away = alone_for(25 * HOUR);
        let mut new = Contact::default();
        new.synced(away.claimed());
        new.add(1, SECOND);
        away.add(1, SECOND);
        away.synced(new.claimed());
        for of_part in [&away, &new] {
            assert_eq!(of_part.reunion(Duration::ZERO), Reunion::StartOver);
        }
        new.synced(Duration::ZERO);
        assert_eq!(new.claimed(), Duration::ZERO);
    }

    #[test]
    fn two_that_were_away_are_no_cluster_when_they_meet() {
        let (mut a, mut b) = (alone_for(25 * HOUR), alone_for(26 * HOUR));
        a.synced(b.claimed());
        b.synced(a.claimed());
        assert_eq!([a.claimed(), b.claimed()], [25 * HOUR; 2]);
        // Nor does anybody hide it who has met nobody.
        a.synced(MET_NOBODY);
        assert!(a.is_away() && b.is_away());
    }

    /// Else all replicas of a cluster whose network failed for a day would be away for ever, and times alone would add up.
    #[test]
    fn after_a_day_together_a_part_is_the_cluster() {
        for before in [HOUR, 25 * HOUR] {
            let mut contact = alone_for(before);
            contact.add(1, PART_MAX - SECOND);
            assert_eq!(contact.claimed(), before);
            contact.add(1, SECOND);
            assert_eq!(contact.claimed(), Duration::ZERO);
            contact.add(0, SECOND);
            contact.add(1, SECOND);
            assert_eq!(contact.claimed(), SECOND, "the day begins anew");
        }
    }

    #[test]
    fn only_the_side_that_was_away_starts_over() {
        let long = ISOLATION_MAX;
        let short = ISOLATION_MAX - Duration::from_millis(1);
        assert_eq!(Reunion::of(long, Duration::ZERO), Reunion::StartOver);
        assert_eq!(Reunion::of(long, short), Reunion::StartOver);
        assert_eq!(Reunion::of(long, long), Reunion::Merge);
        assert_eq!(Reunion::of(short, Duration::ZERO), Reunion::Merge);
        assert_eq!(Reunion::of(Duration::ZERO, long), Reunion::PeerStartsOver);
    }
}
