//! `sticky`: a session stays at its home; a request without one goes round.

use super::{Reason, fleet::Fleet, round_robin};

pub(super) fn choose(fleet: &Fleet<'_>, draw: u64) -> (usize, Reason) {
    // An explicit session is the key's home hash, so the fleet's order is the session's.
    if fleet.key.session().is_none() {
        return round_robin::choose(fleet, draw);
    }
    match fleet.first_usable() {
        (worker, Reason::Home) => (worker, Reason::Sticky),
        elsewhere => elsewhere,
    }
}
