//! What one replica claims of a worker, and how far others believe it.
//!
//! A claim can lower a worker's rank at the replicas that receive it, never take it away: otherwise a replica with a
//! broken network would take healthy workers from the others.

/// What a replica found out about a worker by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Answers probes, or delivers tokens.
    Good,
    /// Refused or dropped a connection, and no probe has passed since.
    Unreachable,
    /// Fails its probes.
    Unhealthy,
    /// Takes requests and delivers no token.
    Stalled,
    /// Fails requests: the breaker is not closed.
    Ejected,
}

impl Claim {
    /// All claims, the best first.
    pub const ALL: [Self; 5] = [
        Self::Good,
        Self::Unreachable,
        Self::Unhealthy,
        Self::Stalled,
        Self::Ejected,
    ];

    /// Whether it speaks against the worker.
    pub const fn is_bad(self) -> bool {
        !matches!(self, Self::Good)
    }

    /// Label in metrics and the admin API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Unreachable => "unreachable",
            Self::Unhealthy => "unhealthy",
            Self::Stalled => "stalled",
            Self::Ejected => "ejected",
        }
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
