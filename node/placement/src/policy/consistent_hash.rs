//! `consistent_hash`: session, user or prefix names the home; load is not looked at.

use super::{Reason, fleet::Fleet};

pub(super) fn choose(fleet: &Fleet<'_>, holder: usize) -> (usize, Reason) {
    (holder, fleet.why_not_home(holder))
}
