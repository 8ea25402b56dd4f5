//! A replica's own heartbeat, and how far other replicas' claims about it count.
//!
//! Pure.

use std::time::{Duration, Instant};

use crate::config::ROUND;

/// The last that a replica reported about itself.
#[derive(Clone, Copy)]
pub(crate) struct OwnHeartbeat {
    pub(crate) heartbeat: u64,
    pub(crate) version: u64,
    pub(crate) at: Instant,
    /// Heartbeats that it makes in a second.
    pub(crate) pace: u64,
}

/// How fast the heartbeat of a replica rises in its own messages: with each message that it takes, so 20 to 50
/// times a second.
pub(crate) struct HeartbeatPace {
    per_s: u64,
    /// Where this measurement began.
    from: Option<(u64, Instant)>,
}

impl OwnHeartbeat {
    /// Heartbeats that it has made by now if it lives: at its own pace for a while, later one a round at least.
    pub(crate) fn surely(&self, now: Instant) -> u64 {
        let since_ms = self.since_ms(now);
        let paced_ms = since_ms.min(PACED_FOR_MS);
        let made = self.pace * paced_ms / 1000 + (since_ms - paced_ms) / ROUND_MS;
        self.heartbeat.saturating_add(made)
    }

    /// Whether it can have written keys up to `version` since, and what others say of them may be news.
    pub(crate) fn leaves_room(&self, version: u64, now: Instant) -> bool {
        self.since_ms(now) >= SPEAKS_FOR_ITSELF_MS && version <= self.version + self.ahead(now)
    }

    /// How many versions it can have written since.
    pub(crate) fn ahead(&self, now: Instant) -> u64 {
        (self.since_ms(now) / 1000)
            .saturating_mul(VERSIONS_PER_S)
            .min(AHEAD_MAX)
    }

    fn since_ms(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.at).as_millis();
        u64::try_from(since).unwrap_or(u64::MAX)
    }
}

impl HeartbeatPace {
    /// Nothing measured yet: one heartbeat a round.
    pub(crate) fn new() -> Self {
        Self {
            per_s: PACE_MIN,
            from: None,
        }
    }

    /// Takes what the replica reports itself; returns its pace.
    pub(crate) fn measure(&mut self, heartbeat: u64, now: Instant) -> u64 {
        let (said, at) = *self.from.get_or_insert((heartbeat, now));
        let ms = u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX);
        if ms >= MEASURED_OVER_MS {
            let made = heartbeat.saturating_sub(said).min(NUMBER_MAX);
            self.per_s = (made * 1000 / ms).clamp(PACE_MIN, PACE_MAX);
            self.from = Some((heartbeat, now));
        }
        self.per_s
    }
}

/// A replica makes at least one heartbeat in this time.
const ROUND_MS: u64 = ROUND.as_millis() as u64;
/// A replica that sent something in this time speaks for itself: in a cluster of 16 each pair exchanges
/// messages every half second, and 99 times in 100 within this.
const SPEAKS_FOR_ITSELF_MS: u64 = 2000;
pub(crate) const SPEAKS_FOR_ITSELF: Duration = Duration::from_millis(SPEAKS_FOR_ITSELF_MS);
/// Key versions that a replica can write in a second: one for each change of the worker set and its ring.
const VERSIONS_PER_S: u64 = 250;
/// However long a replica is silent: so nobody honest holds more of a replica than this beyond what that one wrote, and who
/// claims more of it lies. A replica goes past such a claim each ten seconds at most, which takes centuries to [`NUMBER_MAX`].
pub(crate) const AHEAD_MAX: u64 = 64 * VERSIONS_PER_S;
/// No counter of an honest replica gets here in a century.
pub(crate) const NUMBER_MAX: u64 = 1 << 48;
const PACE_MIN: u64 = 1000 / ROUND_MS;
/// Twice what a replica of a large cluster makes.
const PACE_MAX: u64 = 100;
/// Shorter measurements mean little for messages that come in bursts.
const MEASURED_OVER_MS: u64 = 2000;
/// A pace that fell meanwhile must not put a replica far ahead of itself. In a cluster of 64 a pair exchanges
/// messages each two seconds, and 99 times in 100 within this.
const PACED_FOR_MS: u64 = 10_000;
