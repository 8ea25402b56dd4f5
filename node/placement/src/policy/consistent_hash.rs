//! `consistent_hash`: session, user or prefix names the home; load is not looked at.

use super::{Reason, fleet::Fleet};

pub(super) fn choose(fleet: &Fleet<'_>) -> (usize, Reason) {
    fleet.first_usable()
}
