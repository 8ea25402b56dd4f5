//! A prompt that is computed, on its way to a decode worker.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grapevine_placement::AttemptOutcome;
use grapevine_transfer::Half;
use tokio::time::{Instant, timeout};

use crate::proxy::division::LeftBlocks;
use crate::upstream::failure::Failure;
use crate::upstream::{InFlight, Worker};

/// How long after a decode worker was told of a prompt its blocks count on the prefill worker, where nothing says that they
/// were fetched. They mostly were within some tens of milliseconds: 13,000 tokens of an 8B model are 1.7 GB, which takes
/// 70 ms at 200 Gb/s. The rest is for a decode worker that has others to begin first.
const FETCHED_BY: Duration = Duration::from_secs(1);

/// A prompt that a prefill worker has computed.
#[derive(Debug)]
pub(super) struct Computed {
    /// What it says about it.
    pub(super) answer: Bytes,
    /// When that was there.
    pub(super) at: Instant,
    pub(super) half: Arc<Half>,
    /// Its place in the pool of prefill workers.
    pub(super) index: usize,
    /// The transfer ids of the request come from it.
    pub(super) random: u128,
    worker: Arc<Worker>,
    in_flight: Option<InFlight>,
    left: Arc<LeftBlocks>,
    /// A decode worker has been told of it: if it is not to have it, it says so to the prefill worker.
    is_offered: bool,
}

impl Computed {
    /// One whose answer has begun: its part on the prefill worker is done, and what remains is the room that its blocks
    /// take there.
    pub(super) fn begun(
        mut in_flight: InFlight,
        (half, index): (Arc<Half>, usize),
        random: u128,
        left: &Arc<LeftBlocks>,
    ) -> Self {
        in_flight.prefilled();
        in_flight.delivered();
        in_flight.holds_prompt();
        Self {
            answer: Bytes::new(),
            at: Instant::now(),
            half,
            index,
            random,
            worker: Arc::clone(in_flight.worker()),
            in_flight: Some(in_flight),
            left: Arc::clone(left),
            is_offered: false,
        }
    }

    /// The worker that computed it.
    pub(super) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// A decode worker is told of it.
    pub(super) fn offer(&mut self) {
        self.is_offered = true;
    }

    /// Waits for the answer of the decode worker that was told of it. One that is not `streamed` says nothing before it is
    /// whole, long after the blocks were fetched; what it shows of the prefill worker is known only then.
    pub(super) async fn until<T>(
        &mut self,
        answered: impl Future<Output = T>,
        streamed: bool,
    ) -> T {
        let mut answered = pin!(answered);
        if !streamed {
            if let Ok(answered) = timeout(FETCHED_BY, &mut answered).await {
                return answered;
            }
            if let Some(in_flight) = &mut self.in_flight {
                in_flight.holds_nothing();
            }
        }
        answered.await
    }

    /// The decode worker never got the request.
    pub(super) fn not_offered(mut self) -> Self {
        self.is_offered = false;
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.holds_prompt();
        }
        self
    }

    /// A decode worker has it, or took nothing; what that shows of the prefill worker.
    pub(super) fn ends(mut self, outcome: AttemptOutcome) {
        if let Some(mut in_flight) = self.in_flight.take() {
            in_flight.end(outcome);
        }
    }

    /// Its answer began and did not come whole, whatever becomes of its blocks; nothing came since `answered`.
    pub(super) fn failed(&mut self, why: &Failure, answered: Instant) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.fail(why, why.verdict(), answered);
        }
    }

    /// No decode worker will fetch it, and the prefill worker does not know.
    pub(super) fn leave(mut self) {
        self.is_offered = false;
    }
}

impl Drop for Computed {
    fn drop(&mut self) {
        if let Some(in_flight) = self.in_flight.take()
            && !self.is_offered
        {
            self.left.leave(in_flight);
        }
    }
}
