//! Time with and without other replicas: what tombstones live by, and when a map is too old.

use std::time::{Duration, Instant};

use super::RETENTION;

/// A replica without any contact for this long may hold workers whose tombstones the others have
/// dropped. An hour less than [`RETENTION`], because a tombstone may have been on its way when
/// contact was lost.
pub const ISOLATION_MAX: Duration = RETENTION.saturating_sub(Duration::from_secs(60 * 60));

/// A longer gap between two observations means that this process was paused; that was no contact.
const OBSERVATION_GAP_MAX: Duration = Duration::from_secs(10);

/// Adds up time with at least one live peer, and time without.
#[derive(Clone, Debug)]
pub struct Contact {
    observed_at: Instant,
    alone: Duration,
}

impl Contact {
    /// Starts with no time of either kind.
    pub fn new(now: Instant) -> Self {
        Self {
            observed_at: now,
            alone: Duration::ZERO,
        }
    }

    /// Accounts for the time since the last call. Returns how much of it was contact, to be given
    /// to [`Registry::advance`](super::Registry::advance). Call it about once a second.
    pub fn observe(&mut self, live_peers: usize, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.observed_at);
        self.observed_at = now;
        if live_peers == 0 || elapsed > OBSERVATION_GAP_MAX {
            self.alone += elapsed;
            Duration::ZERO
        } else {
            elapsed
        }
    }

    /// Time without contact since the last [`synced`](Self::synced); goes into every sync request
    /// and response.
    pub fn alone(&self) -> Duration {
        self.alone
    }

    /// An exchange of registries with a peer has ended well.
    pub fn synced(&mut self) {
        self.alone = Duration::ZERO;
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
}

impl Reunion {
    /// Decides by how long both sides were [`alone`](Contact::alone).
    ///
    /// If the peer was alone as long, it forgot nothing meanwhile (tombstones age by contact
    /// only), and two replicas that both dropped their maps would lose everything.
    pub fn of(own_alone: Duration, peer_alone: Duration) -> Self {
        if own_alone >= ISOLATION_MAX && peer_alone < ISOLATION_MAX {
            Self::StartOver
        } else {
            Self::Merge
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_with_peers_is_contact() {
        let start = tokio::time::Instant::now().into_std();
        let at = |s| start + Duration::from_secs(s);
        let mut contact = Contact::new(start);
        assert_eq!(contact.observe(2, at(1)), Duration::from_secs(1));
        assert_eq!(contact.observe(0, at(4)), Duration::ZERO);
        assert_eq!(contact.alone(), Duration::from_secs(3));
        // Paused for a minute: whatever the last roster said, nobody was heard.
        assert_eq!(contact.observe(2, at(64)), Duration::ZERO);
        assert_eq!(contact.alone(), Duration::from_secs(63));
        contact.synced();
        assert_eq!(contact.alone(), Duration::ZERO);
    }

    #[test]
    fn only_the_side_that_was_away_starts_over() {
        let long = ISOLATION_MAX;
        let short = ISOLATION_MAX - Duration::from_millis(1);
        assert_eq!(Reunion::of(long, Duration::ZERO), Reunion::StartOver);
        assert_eq!(Reunion::of(long, short), Reunion::StartOver);
        assert_eq!(Reunion::of(long, long), Reunion::Merge);
        assert_eq!(Reunion::of(short, Duration::ZERO), Reunion::Merge);
        assert_eq!(Reunion::of(Duration::ZERO, long), Reunion::Merge);
    }
}
