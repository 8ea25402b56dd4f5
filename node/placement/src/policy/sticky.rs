//! `sticky`: a session stays at its home; a request without one goes round.

use super::{Reason, fleet::Fleet, round_robin};

pub(super) fn choose(fleet: &Fleet<'_>, holder: usize, draw: u64) -> (usize, Reason) {
    // An explicit session is the key's home hash, so the fleet's order is the session's.
    if fleet.key.session().is_none() {
        return round_robin::choose(fleet, draw);
    }
    match fleet.why_not_home(holder) {
        Reason::Home => (holder, Reason::Sticky),
        reason => (holder, reason),
    }
}
