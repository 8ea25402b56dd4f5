//! What one replica claims of a worker, and how far others believe it.
//!
//! A claim can lower a worker's rank at the replicas that receive it, never take it away: otherwise a replica with a
//! broken network would take healthy workers from the others.

named! {
    /// What a replica found out about a worker by itself; the best first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Claim {
        /// Answers probes, or delivers tokens.
        Good = "good",
        /// Refused or dropped a connection, and no probe has passed since.
        Unreachable = "unreachable",
        /// Fails its probes.
        Unhealthy = "unhealthy",
        /// Takes requests and delivers no token.
        Stalled = "stalled",
        /// Fails requests: the breaker is not closed.
        Ejected = "ejected",
    }
}

impl Claim {
    /// Whether it speaks against the worker.
    pub const fn is_bad(self) -> bool {
        !matches!(self, Self::Good)
    }
}

/// Whether a replica is believed that calls `bad` of a pool's workers bad: not when they are more than half. Then
/// the trouble is likelier its own, and if it is not, all replicas will find out.
///
/// A single worker shows nothing of that: it is all of its pool whenever it is bad, and may be one of many in another.
pub const fn is_believable(bad: usize, pool: usize) -> bool {
    pool <= 1 || bad * 2 <= pool
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_doubts_most_is_doubted() {
        for (bad, pool, believed) in [
            (0, 0, true),
            (0, 3, true),
            (1, 1, true),
            (1, 2, true),
            (2, 4, true),
            (3, 4, false),
        ] {
            assert_eq!(is_believable(bad, pool), believed, "{bad} of {pool}");
        }
    }

    #[test]
    fn labels_are_distinct() {
        let mut labels = Claim::ALL.map(Claim::as_str);
        labels.sort_unstable();
        assert!(labels.windows(2).all(|two| two[0] != two[1]));
        assert_eq!(Claim::ALL.iter().filter(|claim| claim.is_bad()).count(), 4);
    }
}
