//! `random`: one worker drawn by weight. The baseline that every other policy has to beat.

use super::{Reason, fleet::Fleet};

pub(super) fn choose(fleet: &Fleet<'_>, draw: u64) -> (usize, Reason) {
    (
        draw_by_weight(fleet, draw, |_| true).expect("somebody is usable"),
        Reason::Random,
    )
}

/// The accepted usable worker on whose stretch `draw` falls, stretches as long as weights.
pub(super) fn draw_by_weight(
    fleet: &Fleet<'_>,
    draw: u64,
    accepts: impl Fn(usize) -> bool,
) -> Option<usize> {
    let stretches = || {
        fleet
            .usable_indices()
            .filter(|&index| accepts(index))
            .map(|index| (index, u64::from(fleet.weight(index))))
    };
    let total: u64 = stretches().map(|(_, weight)| weight).sum();
    let mut left = draw.checked_rem(total)?;
    stretches().find_map(|(index, weight)| {
        if left < weight {
            return Some(index);
        }
        left -= weight;
        None
    })
}
