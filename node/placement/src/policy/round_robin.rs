//! `round_robin`: the usable workers one after the other, weights apart. `draw` counts the requests.

use super::{Reason, fleet::Fleet};

pub(super) fn choose(fleet: &Fleet<'_>, draw: u64) -> (usize, Reason) {
    let usable = fleet.usable_indices().count() as u64;
    let turn = draw.checked_rem(usable).expect("somebody is usable");
    let worker = fleet
        .usable_indices()
        .zip(0_u64..)
        .find(|&(_, place)| place == turn)
        .expect("turn is below the count");
    (worker.0, Reason::RoundRobin)
}
