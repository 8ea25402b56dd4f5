//! Hybrid logical clock: stamps that order registry writes of replicas whose wall clocks differ.
//!
//! Pure. `now_ms` (Unix time in milliseconds) is an argument; nothing here reads a clock.
//!
//! Why not wall clocks: with a skew of seconds, last-writer-wins by wall clock lets an old add beat
//! the removal that followed it. Why not plain counters: a replica that restarts with an empty
//! memory must be able to add a worker again over an old removal, before it has received the counter.
//!
//! Rules: a clock never goes back; whatever was observed is exceeded by the next own stamp; a stamp
//! from the future is taken over, never refused by this clock (refusing makes replicas diverge).
//! How far ahead a stamp is, and what follows from it, is [`Drift`]. One exception: a clock that leads by more than any
//! other replica takes begins anew ([`Clock::begin_anew`]), for nobody has the stamps that it would go back behind.
//!
//! Kulkarni et al. 2014, "Logical Physical Clocks".

use std::time::Duration;

/// Above this lead over our wall clock a stamp raises an alarm; it is merged all the same.
pub const DRIFT_ALARM: Duration = Duration::from_secs(60);

/// Above this lead over our wall clock nothing with such a stamp is merged (the rule is the same on
/// every replica, so no honest one carries it on, except to one whose clock is behind its own).
pub const DRIFT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Above this lead a stamp quarantines its sender: honest clocks differ by less than an hour.
pub const DRIFT_QUARANTINE: Duration = DRIFT_MAX.saturating_add(Duration::from_secs(60 * 60));

const COUNTER_BITS: u32 = 16;
const MS_MAX: u64 = u64::MAX >> COUNTER_BITS;

/// One point in hybrid time: 48 bits of Unix milliseconds, 16 bits of counter, ordered as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// Before every written stamp. Workers from the configuration file start here, so that
    /// any explicit change wins over them.
    pub const ZERO: Self = Self(0);

    /// The first stamp of millisecond `now_ms`; a time beyond the year 10,889 saturates.
    pub fn at_ms(now_ms: u64) -> Self {
        Self(now_ms.min(MS_MAX) << COUNTER_BITS)
    }

    /// The stamp with this number, as it was sent or stored. Every number is a stamp.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The number that travels.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The part in Unix milliseconds.
    pub fn ms(self) -> u64 {
        self.0 >> COUNTER_BITS
    }
}

/// Source of this replica's stamps.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    last: Stamp,
}

impl Clock {
    /// A stamp for a write made now: later than all given or observed before, and not before
    /// `now_ms`. A full counter runs over into the milliseconds. At the very end of the number
    /// range stamps stop growing instead of wrapping.
    pub fn tick(&mut self, now_ms: u64) -> Stamp {
        self.last = Stamp(self.last.0.saturating_add(1)).max(Stamp::at_ms(now_ms));
        self.last
    }

    /// The latest stamp given or observed.
    pub fn latest(&self) -> Stamp {
        self.last
    }

    /// Goes on behind this stamp, the greatest that is left. Only for a clock that led by so much that no replica took what
    /// it stamped.
    pub fn begin_anew(&mut self, behind: Stamp) {
        self.last = behind;
    }

    /// Takes note of a stamp from elsewhere: the next [`tick`](Self::tick) exceeds it.
    pub fn observe(&mut self, remote: Stamp) {
        self.last = self.last.max(remote);
    }
}

/// What the lead of a stamp over our wall clock calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// At most [`DRIFT_ALARM`] ahead: clocks differ a little everywhere.
    Within,
    /// More than [`DRIFT_ALARM`] ahead: merge, and report it.
    Alarm(Duration),
    /// More than [`DRIFT_MAX`] ahead: leave it out, and hold it against nobody. Whoever sends it may have taken it from a
    /// liar that aimed at the difference of two clocks.
    TooFar(Duration),
    /// More than [`DRIFT_QUARANTINE`] ahead: merge nothing from this sender. The verdict ends by
    /// itself when our clock comes near enough.
    Quarantine(Duration),
}

impl Drift {
    /// Judges `stamp` by our wall clock; a stamp from the past is always within.
    pub fn of(stamp: Stamp, now_ms: u64) -> Self {
        let lead = Duration::from_millis(stamp.ms().saturating_sub(now_ms));
        match lead {
            lead if lead > DRIFT_QUARANTINE => Self::Quarantine(lead),
            lead if lead > DRIFT_MAX => Self::TooFar(lead),
            lead if lead > DRIFT_ALARM => Self::Alarm(lead),
            _ => Self::Within,
        }
    }

    /// Whether a stamp is left out where the wall clock says `now_ms`.
    pub fn is_too_far(stamp: Stamp, now_ms: u64) -> bool {
        matches!(
            Self::of(stamp, now_ms),
            Self::TooFar(_) | Self::Quarantine(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn full_counter_runs_over_into_milliseconds() {
        let mut clock = Clock::default();
        clock.observe(Stamp::from_bits((5 << COUNTER_BITS) | 0xffff));
        assert_eq!(clock.tick(5), Stamp::at_ms(6));
    }

    #[test]
    fn end_of_range_saturates() {
        let mut clock = Clock::default();
        clock.observe(Stamp::from_bits(u64::MAX));
        assert_eq!(clock.tick(u64::MAX).bits(), u64::MAX);
        assert_eq!(Stamp::at_ms(u64::MAX).ms(), MS_MAX);
    }

    #[test]
    fn drift_table() {
        let now = 1_000_000;
        let alarm = DRIFT_ALARM.as_millis() as u64;
        let greatest = DRIFT_MAX.as_millis() as u64;
        let quarantine = DRIFT_QUARANTINE.as_millis() as u64;
        let check = |ahead: u64, expected: Drift| {
            assert_eq!(Drift::of(Stamp::at_ms(now + ahead), now), expected);
        };
        check(0, Drift::Within);
        check(alarm, Drift::Within);
        check(
            alarm + 1,
            Drift::Alarm(DRIFT_ALARM + Duration::from_millis(1)),
        );
        check(greatest, Drift::Alarm(DRIFT_MAX));
        check(
            greatest + 1,
            Drift::TooFar(DRIFT_MAX + Duration::from_millis(1)),
        );
        check(quarantine, Drift::TooFar(DRIFT_QUARANTINE));
        check(
            quarantine + 1,
            Drift::Quarantine(DRIFT_QUARANTINE + Duration::from_millis(1)),
        );
        assert_eq!(Drift::of(Stamp::ZERO, now), Drift::Within);
    }

    proptest! {
        /// Whatever the wall clock does, own stamps rise and exceed all that was observed.
        #[test]
        fn stamps_grow_causally(steps in prop::collection::vec((any::<bool>(), 0..u64::MAX >> 1), 1..100)) {
            let mut clock = Clock::default();
            let mut greatest = Stamp::ZERO;
            for (receive, number) in steps {
                if receive {
                    clock.observe(Stamp::from_bits(number));
                    greatest = greatest.max(Stamp::from_bits(number));
                } else {
                    let stamp = clock.tick(number >> COUNTER_BITS);
                    prop_assert!(stamp > greatest);
                    prop_assert!(stamp >= Stamp::at_ms(number >> COUNTER_BITS));
                    greatest = stamp;
                }
            }
        }
    }
}
