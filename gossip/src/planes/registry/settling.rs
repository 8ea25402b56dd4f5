//! When registries whose digests differ are compared. Pure: `now` is an argument.
//!
//! What changed just now is on its way, here and there: comparing meanwhile would send nearly everything. But a registry
//! that never stops changing is compared all the same, now and then.

use std::time::{Duration, Instant};

use crate::config::ROUND;

/// A registry that never stops changing is compared this often.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);

/// What is known of the latest changes and comparisons.
#[derive(Debug)]
pub(super) struct Settling {
    /// Our registry's digest, and since when it is that.
    own: String,
    changed: Instant,
    /// When no digest differed, or those that did were compared.
    compared: Instant,
}

impl Settling {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            own: String::new(),
            changed: now,
            compared: now,
        }
    }

    /// Whether to compare now with those that differ. Call it each round with our digest, and with whether any other
    /// one differs: if none does, all have been compared.
    pub(super) fn compares(&mut self, own: &str, differs: bool, now: Instant) -> bool {
        if self.own != own {
            own.clone_into(&mut self.own);
            self.changed = now;
        }
        let is_recent = |at, within| now.saturating_duration_since(at) < within;
        let settles = is_recent(self.changed, ROUND) && is_recent(self.compared, SETTLES_WITHIN);
        if !differs || !settles {
            self.compared = now;
        }
        !settles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::start;

    #[test]
    fn a_change_after_a_long_agreement_has_a_round_to_arrive() {
        let (mut settling, begun) = (Settling::new(start()), start());
        for round in 0..50 {
            settling.compares("a", false, begun + round * ROUND);
        }
        let now = begun + 50 * ROUND;
        assert!(!settling.compares("b", true, now), "just changed");
        let soon = now + ROUND - Duration::from_millis(1);
        assert!(!settling.compares("b", true, soon));
        assert!(settling.compares("b", true, now + ROUND));
    }

    #[test]
    fn one_that_never_stops_changing_is_compared_each_second() {
        let (mut settling, begun) = (Settling::new(start()), start());
        let step = ROUND / 2;
        let rounds = SETTLES_WITHIN.as_millis() / step.as_millis() * 10;
        let compared = (0..rounds as u32).filter(|round| {
            let digest = round.to_string();
            settling.compares(&digest, true, begun + *round * step)
        });
        let compared = compared.count();
        assert!((9..=10).contains(&compared), "{compared} times in 10 s");
    }
}
