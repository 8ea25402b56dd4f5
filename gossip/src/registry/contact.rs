//! Time with and without other replicas: what tombstones live by, and when a map is too old.

use std::time::Duration;

use super::RETENTION;

/// A replica without any contact for this long may hold workers whose tombstones the others have
/// dropped. An hour less than [`RETENTION`], because a tombstone may have been on its way when
/// contact was lost.
pub const ISOLATION_MAX: Duration = RETENTION.saturating_sub(Duration::from_secs(60 * 60));

/// Adds up time with at least one live peer, and time without.
#[derive(Clone, Debug, Default)]
pub struct Contact {
    alone: Duration,
    has_met: bool,
}

impl Contact {
    /// Accounts for `elapsed`, about a second, during which `live_peers` were live. Returns how much
    /// of it was contact, to be given to [`Registry::advance`](super::Registry::advance).
    ///
    /// Measure `elapsed` with a monotonic clock, and pass 0 peers for a gap far longer than a second:
    /// a process that was paused received nothing.
    pub fn add(&mut self, live_peers: usize, elapsed: Duration) -> Duration {
        if live_peers > 0 {
            return elapsed;
        }
        self.alone += elapsed;
        Duration::ZERO
    }

    /// Time without contact since the last [`synced`](Self::synced), as it goes into every sync request and response.
    ///
    /// Who has met nobody yet says that it was away for too long: no peer that was away itself is to take its nearly
    /// empty map for what the cluster knows.
    pub fn claimed(&self) -> Duration {
        if self.has_met {
            self.alone
        } else {
            self.alone.max(ISOLATION_MAX)
        }
    }

    /// Whether removals may have been forgotten elsewhere that this replica missed.
    ///
    /// Never before the first exchange: what a replica holds then, it has declared itself.
    pub fn is_away(&self) -> bool {
        self.has_met && self.alone >= ISOLATION_MAX
    }

    /// What to do on meeting a peer that claims to have been alone for so long.
    pub fn reunion(&self, peer_alone: Duration) -> Reunion {
        if self.has_met {
            Reunion::of(self.alone, peer_alone)
        } else {
            Reunion::Merge
        }
    }

    /// An exchange of registries with a peer has ended well.
    pub fn synced(&mut self) {
        self.alone = Duration::ZERO;
        self.has_met = true;
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

    #[test]
    fn only_time_with_peers_is_contact() {
        let second = Duration::from_secs(1);
        let mut contact = Contact::default();
        assert_eq!(contact.add(2, second), second);
        assert_eq!(contact.add(0, second), Duration::ZERO);
        assert_eq!(contact.add(0, second), Duration::ZERO);
        assert_eq!(contact.add(1, second), second);
        contact.synced();
        contact.add(0, second);
        assert_eq!(contact.claimed(), second);
        contact.synced();
        assert_eq!(contact.claimed(), Duration::ZERO);
    }

    #[test]
    fn who_has_met_nobody_is_taken_for_no_cluster() {
        let mut new = Contact::default();
        assert_eq!(new.claimed(), ISOLATION_MAX);
        new.add(0, 2 * ISOLATION_MAX);
        assert!(!new.is_away(), "what it holds is its own");
        for peer in [Duration::ZERO, ISOLATION_MAX] {
            assert_eq!(new.reunion(peer), Reunion::Merge);
        }
        new.synced();
        new.add(0, ISOLATION_MAX);
        assert!(new.is_away());
        assert_eq!(new.reunion(Duration::ZERO), Reunion::StartOver);
        let newcomer = Contact::default().claimed();
        assert_eq!(new.reunion(newcomer), Reunion::Merge);
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
