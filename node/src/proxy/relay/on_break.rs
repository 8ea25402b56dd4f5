//! What the relay knows of a stream that can go on elsewhere. Who looks for the next worker, and how, is the business of
//! [`failover`](crate::proxy::failover), which begins with the stages before the relay.

use std::fmt::Debug;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::cluster::RecordedPlacement;
use crate::proxy::continuation::{Continuation, Reason};
use crate::proxy::deaths::Sign;
use crate::proxy::record::Record;
use crate::upstream::answer::Begun;
use crate::upstream::{InFlight, Worker};

/// What becomes of a stream whose worker breaks off.
#[derive(Debug)]
pub enum OnBreak {
    /// It ends.
    End,
    /// It ends, although failover was wanted.
    Refused(Reason),
    /// It goes on elsewhere.
    Move(Box<dyn Movable>),
}

/// A stream that can go on elsewhere.
pub trait Movable: Debug + Send {
    /// What the client has read.
    fn continuation(&mut self) -> &mut Continuation;

    /// The worker broke off. Gives the bytes that were all that was missing, or begins to look for another
    /// worker.
    ///
    /// `ended`: the worker, if it ended, and how that is known. `record`: the request's.
    ///
    /// # Errors
    /// Why the stream cannot go on.
    fn leave(
        &mut self,
        ended: Option<(&Arc<Worker>, Sign)>,
        record: &mut Record,
    ) -> Result<Option<Bytes>, Reason>;

    /// Is another worker being looked for?
    fn is_moving(&self) -> bool;

    /// The worker that was found.
    ///
    /// # Errors
    /// Why there is none.
    fn poll_moved(&mut self, cx: &mut Context<'_>) -> Poll<Result<Moved, Reason>>;
}

/// A worker that goes on with the answer.
#[derive(Debug)]
pub struct Moved {
    /// Its answer.
    pub begun: Box<Begun>,
    /// The request's weight on it.
    pub in_flight: InFlight,
    /// Why it was chosen.
    pub reason: &'static str,
    /// What placement recorded.
    pub recorded: Option<RecordedPlacement>,
    /// Workers that were asked, this one included.
    pub attempts: u32,
}
