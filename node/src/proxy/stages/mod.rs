//! The states of a request up to its commit. Each is made from the one before and by nothing else, and owns
//! what the request holds there, so that dropping it, in whatever way a request ends, releases that.
//!
//! | state | what is known | holds |
//! |---|---|---|
//! | [`Accepted`](accepted::Accepted) | the head; the endpoint is one of the workers' | the unread body |
//! | [`Admitted`](accepted::Admitted) | this replica has room to read it | a permit, in the record |
//! | [`Read`](read::Read) | the body, what to ask of placement | bytes of the body's budget |
//! | [`Looked`](read::Looked) | whether the response cache has an answer | the same |
//! | [`Asked`](asked::Asked) | that its model has room | a place in the retry budget's count |
//! | [`Placed`](placed::Placed) | one worker | its weight on that worker |
//! | [`Sent`](placed::Sent) | that worker's answer, held back | the connection, within the answer |
//! | [`Won`](won::Won) | it may be shown | all of these |
//!
//! `attempt` has the states between placed and sent: connecting, and waiting for what may be shown.
//! [`Won::commit`](won::Won::commit) is the only way to a client's first byte.

pub(super) mod accepted;
pub(super) mod asked;
mod outgoing;
pub(super) mod placed;
pub(super) mod read;
mod session;
pub(super) mod won;
