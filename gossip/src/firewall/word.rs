//! A replica's own word, and how far hearsay about it counts.
//!
//! Pure.

use std::time::Instant;

use super::parse::Standing;
use crate::config::ROUND;

/// A replica's last word about itself.
#[derive(Clone, Copy)]
pub(super) struct Word {
    pub(super) heartbeat: u64,
    pub(super) version: u64,
    pub(super) at: Instant,
}

impl Word {
    /// Cuts hearsay down to what the replica has said itself and surely done since.
    ///
    /// It makes at least one heartbeat a round, so nobody can put it ahead of itself: its own next word
    /// is news again. One that is silent still lives by hearsay, which rises with time.
    pub(super) fn cut(&self, standing: &mut Standing<'_>, now: Instant) {
        let rounds = self.since_ms(now) / ROUND_MS;
        standing.heartbeat = standing
            .heartbeat
            .min(self.heartbeat.saturating_add(rounds));
        standing.version = standing.version.min(self.version + self.ahead(now));
        standing.collected = standing.collected.min(standing.version);
    }

    /// Whether hearsay about keys up to `version` counts: only while the replica itself is not heard.
    pub(super) fn leaves_room(&self, version: u64, now: Instant) -> bool {
        self.since_ms(now) >= SPEAKS_FOR_ITSELF_MS && version <= self.version + self.ahead(now)
    }

    /// How many versions it can have written since.
    fn ahead(&self, now: Instant) -> u64 {
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
