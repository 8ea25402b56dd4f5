//! A replica's own word, and how far hearsay about it counts.
//!
//! Pure.

use std::time::Instant;

use crate::config::ROUND;

/// A replica's last word about itself.
#[derive(Clone, Copy)]
pub(super) struct Word {
    pub(super) heartbeat: u64,
    pub(super) version: u64,
    pub(super) at: Instant,
}

impl Word {
    /// Heartbeats that it has made for sure by now: at least one a round since it was last heard.
    pub(super) fn surely(&self, now: Instant) -> u64 {
        let rounds = self.since_ms(now) / ROUND_MS;
        self.heartbeat.saturating_add(rounds)
    }

    /// Whether hearsay about keys up to `version` counts: only while the replica itself is not heard.
    pub(super) fn leaves_room(&self, version: u64, now: Instant) -> bool {
        self.since_ms(now) >= SPEAKS_FOR_ITSELF_MS && version <= self.version + self.ahead(now)
    }

    /// How many versions it can have written since.
    pub(super) fn ahead(&self, now: Instant) -> u64 {
        (self.since_ms(now) / 1000)
            .saturating_mul(VERSIONS_PER_S)
            .min(NUMBER_MAX)
    }

    fn since_ms(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.at).as_millis();
        u64::try_from(since).unwrap_or(u64::MAX)
    }
}

/// A replica makes at least one heartbeat in this time.
const ROUND_MS: u64 = ROUND.as_millis() as u64;
/// A replica that said something in this time speaks for itself: in a cluster of 16 each pair exchanges
/// messages every half second, and 99 times in 100 within this.
const SPEAKS_FOR_ITSELF_MS: u64 = 2000;
/// Key versions that a replica can write in a second: one for each change of the worker set and its ring.
const VERSIONS_PER_S: u64 = 250;
/// No counter of an honest replica gets here in a century.
pub(super) const NUMBER_MAX: u64 = 1 << 48;
