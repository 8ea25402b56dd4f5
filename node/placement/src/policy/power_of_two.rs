//! `power_of_two`: two workers drawn by weight, the less loaded one taken. Mitzenmacher 2001.

use super::{Reason, fleet::Fleet, least_request::crowd, random};

pub(super) fn choose(fleet: &Fleet<'_>, draw: u64) -> (usize, Reason) {
    let first = random::draw_by_weight(fleet, draw & u64::from(u32::MAX), |_| true)
        .expect("somebody is usable");
    let second = random::draw_by_weight(fleet, draw >> 32, |index| index != first);
    let worker = match second {
        Some(second) if crowd(fleet, second) < crowd(fleet, first) => second,
        _ => first,
    };
    (worker, Reason::PowerOfTwo)
}
