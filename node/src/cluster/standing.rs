//! How workers stand, as placement sees them.

use grapevine_placement::{Candidate, Standing};

use super::pool::PoolMember;
use crate::upstream::Worker;
use crate::upstream::health::Look;

/// A worker as a request sees it that is about what it holds, and for which its engine computes nothing.
pub(super) fn without_a_place(member: &PoolMember) -> Candidate {
    let (worker, look) = (&member.worker, member.look());
    let at_cap = worker.pause().is_some();
    Candidate {
        standing: standing(worker, look, at_cap),
        at_cap,
        ..Candidate::default()
    }
}

/// How a worker stands that is not drained.
pub(super) fn standing(worker: &Worker, look: Look, at_cap: bool) -> Standing {
    if !look.is_usable {
        bad_standing(worker, look)
    } else if at_cap {
        Standing::Full
    } else if look.is_doubted {
        Standing::Doubted
    } else {
        Standing::Usable
    }
}

/// How a worker stands that is not to be used.
fn bad_standing(worker: &Worker, look: Look) -> Standing {
    if look.is_unreachable || worker.refuses() {
        Standing::Unreachable
    } else if look.is_resting {
        Standing::Resting
    } else {
        Standing::Unhealthy
    }
}

/// Whether nothing more may be sent there: its own limit, or what it asked for.
pub(super) fn is_at_cap(member: &PoolMember, requests: f64) -> bool {
    let is_full = |max| requests >= f64::from(max);
    member.max_in_flight.is_some_and(is_full) || member.glance.pause().is_some()
}
