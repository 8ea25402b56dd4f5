//! The states of a request up to its commit. Each is made from the one before and by nothing else, and owns
//! what the request holds there, so that dropping it, in whatever way a request ends, releases that.
//!
//! | state | what is known | holds |
//! |---|---|---|
//! | [`Accepted`] | the head; the endpoint is one of the workers' | the unread body |
//! | `Admitted` | this replica has room to read it | a permit, in the record |
//! | [`Asked`] | the body, what to ask of placement, that its model has room | bytes of the body's budget, a place in the retry budget's count |
//! | [`Placed`] | one worker | its weight on that worker |
//! | [`Sent`] | that worker's answer, held back | the connection, within the answer |
//! | [`Won`] | it may be shown | all of these |
//!
//! `attempt` has the states between placed and sent: connecting, and waiting for what may be shown.
//! [`Won::commit`] is the only way to a client's first byte.

mod accepted;
mod asked;
mod placed;
mod won;

pub(super) use accepted::{Accepted, Source};
pub(super) use asked::{Asked, with_room};
pub(super) use placed::{Placed, Sent};
pub(super) use won::{Shown, Won};
