//! The moment at which a frame counts: one for all replicas, its sender included.
//!
//! Pure. Frames reach each replica after another time, and load that counts as soon as it comes parts the replicas for as
//! long as the last of them waits for it. So a frame says when it was sent and how long it is to be held: long enough
//! that nearly all have it by then, also where it was lost once and came with the next. Whoever gets it later takes it
//! at once.
//!
//! Clocks of two replicas share no zero. The one of a sender is learned from its frames ([`PeerClock`]): the frame that
//! came soonest after it was sent took the shortest way, which is half of the shortest round trip.

use std::time::{Duration, Instant};

use super::frame::Moment;
use crate::recent_least::RecentLeast;

/// The longest that a frame is held, whatever it says: a quarter of a second old, load counts less for everybody.
const HOLD_MAX: Duration = Duration::from_millis(250);
/// Longest way to a peer for which the others wait. Who is farther takes frames when they come.
const WAY_MAX: Duration = Duration::from_millis(100);
/// What a frame may need besides its way: the next look, in whose frame it is repeated if it was lost, and what busy
/// machines add.
const HOLD_MARGIN: Duration = Duration::from_millis(8);

/// How long a replica with these ways to its peers has its frames held: as long as the farthest needs, but for those
/// that are too far to wait for. Without peers not at all.
pub(super) fn hold(ways: impl Iterator<Item = Duration>) -> Duration {
    let (mut peers, mut farthest) = (0, Duration::ZERO);
    for way in ways {
        peers += 1;
        if way <= WAY_MAX {
            farthest = farthest.max(way);
        }
    }
    if peers == 0 {
        return Duration::ZERO;
    }
    farthest + HOLD_MARGIN
}

/// The clock of a peer, as its frames show it.
#[derive(Debug)]
pub(super) struct PeerClock {
    first: (u64, Instant),
    /// Microseconds by which a frame came later, after it was sent, than the first one; the least.
    soonest: RecentLeast<i64>,
}

impl PeerClock {
    pub(super) fn new(moment: Moment, now: Instant) -> Self {
        Self {
            first: (moment.sent_us, now),
            soonest: RecentLeast::new(0, now),
        }
    }

    /// Its zero by our clock, if the shortest way from its sender takes `way`; `None` for a clock that lies.
    pub(super) fn zero(&self, way: Duration) -> Option<Instant> {
        let (first_sent, first_came) = self.first;
        let sent =
            i128::from(self.soonest.get()) - i128::from(first_sent) - way.as_micros() as i128;
        let micros = Duration::from_micros(u64::try_from(sent.unsigned_abs()).ok()?);
        match sent < 0 {
            true => first_came.checked_sub(micros),
            false => first_came.checked_add(micros),
        }
    }

    /// How long a frame that came now is still to be held, if the shortest way from its sender takes `way`.
    pub(super) fn wait(&mut self, moment: Moment, way: Duration, now: Instant) -> Duration {
        let (first_sent, first_came) = self.first;
        let sent = moment.sent_us.wrapping_sub(first_sent) as i64;
        let came = now.saturating_duration_since(first_came).as_micros() as i64;
        let late = came.saturating_sub(sent);
        self.soonest.add(late, now);
        let late = late.saturating_sub(self.soonest.get());
        let late = Duration::from_micros(u64::try_from(late).unwrap_or(0));
        let hold = Duration::from_micros(moment.hold_us.into()).min(HOLD_MAX);
        hold.saturating_sub(late.saturating_add(way))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn moment(sent_ms: u64) -> Moment {
        Moment {
            sent_us: 7_000_000 + sent_ms * 1_000,
            hold_us: 10_000,
        }
    }

    #[test]
    fn all_who_wait_for_a_frame_take_it_at_one_moment() {
        let zero = tokio::time::Instant::now().into_std();
        // Two receivers, 1 and 4 ms away, of frames that take up to 5 ms longer.
        for way in [1, 4] {
            let mut clock = PeerClock::new(moment(0), zero + (way + 3) * MS);
            // The first was late, which shows as soon as another is not.
            for (sent, longer) in [(0, 3), (20, 0), (40, 5), (60, 2), (12_000, 1), (30_000, 4)] {
                let came = zero + MS * (sent + way + longer);
                let wait = clock.wait(moment(sent.into()), way * MS, came);
                if sent > 0 && sent < 12_000 {
                    assert_eq!(came + wait, zero + MS * (sent + 10), "{way} {sent}");
                    let of_clock = zero.checked_sub(Duration::from_secs(7));
                    assert_eq!(clock.zero(way * MS), of_clock, "{way} {sent}");
                }
            }
        }
    }

    #[test]
    fn who_is_too_late_does_not_wait() {
        let zero = tokio::time::Instant::now().into_std();
        let mut clock = PeerClock::new(moment(0), zero);
        assert_eq!(clock.wait(moment(0), 20 * MS, zero), Duration::ZERO);
        let late = clock.wait(moment(5), Duration::ZERO, zero + 500 * MS);
        assert_eq!(late, Duration::ZERO);
    }

    #[test]
    fn a_clock_that_lies_holds_nothing_for_long() {
        let zero = tokio::time::Instant::now().into_std();
        for (first, second) in [(0, u64::MAX), (u64::MAX, 0), (0, 1 << 63), (5, 4)] {
            let lie = |sent_us| Moment {
                sent_us,
                hold_us: u32::MAX,
            };
            let mut clock = PeerClock::new(lie(first), zero);
            for at in [0, 1, 60_000] {
                let wait = clock.wait(lie(second), Duration::ZERO, zero + MS * at);
                assert!(wait <= HOLD_MAX);
                let _ = clock.zero(Duration::ZERO); // does not panic
            }
        }
    }

    #[test]
    fn a_clock_that_drifts_is_followed() {
        let zero = tokio::time::Instant::now().into_std();
        let mut clock = PeerClock::new(moment(0), zero);
        for second in 0..600 {
            // Ours is faster by 100 millionths.
            let came = zero + Duration::from_micros(second * 1_000_100);
            let wait = clock.wait(moment(second * 1_000), Duration::ZERO, came);
            assert!(wait > 7 * MS, "{second} s: {wait:?}");
        }
    }

    #[test]
    fn the_farthest_sets_the_hold_but_for_those_too_far() {
        for (ways, expected) in [
            (&[][..], None),
            (&[1, 40, 3], Some(40)),
            (&[1, 200], Some(1)),
            (&[200], Some(0)),
        ] {
            let hold = hold(ways.iter().map(|&ms| ms * MS));
            let expected = expected.map_or(Duration::ZERO, |ms: u32| ms * MS + HOLD_MARGIN);
            assert_eq!(hold, expected, "{ways:?}");
        }
    }
}
