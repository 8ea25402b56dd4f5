//! Finds another worker for a stream whose worker broke off.
//!
//! Which streams may, [`Failovers`](super::continuation::Failovers) say. What the client has read and what the next
//! worker is asked for is the business of [`continuation`](super::continuation); the relay passes the bytes. The
//! next worker is placed and asked by the same stages as the first one, is one that this stream has not been on,
//! and takes a place in the retry budget until its first token.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use grapevine_gossip::worker::WorkerId;
use grapevine_placement::NoWorker;
use tokio::time::{Instant, sleep};

use super::budget::{Budget, Loan};
use super::continuation::{Ask, Continuation, Next, Reason, Room};
use super::deaths::Sign;
use super::dispatch::Dispatch;
use super::doubts::Doubts;
use super::pauses::Reach;
use super::record::Record;
use super::relay::{Movable, Moved, OnBreak};
use super::retry::{self, Attempt, AttemptPlan, Exhausted};
use super::stages::asked::{Asked, WaitsForRoom, with_room};
use super::stages::placed::{Placed, Sent};
use crate::cluster::{Pool, RecordedPlacement};
use crate::upstream::Worker;
use crate::upstream::failure::Failure;
use crate::upstream::outgoing::Outgoing;

/// Between two looks at a full budget.
const BUDGET_LOOK: Duration = Duration::from_millis(20);

/// A stream that can go on elsewhere.
struct Failover {
    /// What the client has read.
    continuation: Continuation,
    dispatch: Arc<Dispatch>,
    asked: Arc<Asked>,
    /// Workers that this stream was on or tried to be on.
    tried: Vec<WorkerId>,
    moves: u32,
    search: Option<Search>,
}

type Search = Pin<Box<dyn Future<Output = (Vec<WorkerId>, Result<Moved, Reason>)> + Send>>;

/// What becomes of a stream that was asked for with failover and has begun on this worker.
pub(super) fn on_break(dispatch: &Arc<Dispatch>, asked: Box<Asked>, worker: WorkerId) -> OnBreak {
    let ask = match Ask::read(asked.endpoint(), asked.body_at_worker()) {
        None => return OnBreak::End,
        Some(Err(reason)) => return OnBreak::Refused(reason),
        Some(Ok(ask)) => ask,
    };
    let room = Room {
        text_bytes: dispatch.failover.look().text_bytes.as_usize(),
        event_bytes: dispatch.event_bytes(),
    };
    OnBreak::Move(Box::new(Failover {
        continuation: Continuation::new(ask, room),
        dispatch: Arc::clone(dispatch),
        asked: Arc::from(asked),
        tried: vec![worker],
        moves: 0,
        search: None,
    }))
}

impl Movable for Failover {
    fn continuation(&mut self) -> &mut Continuation {
        &mut self.continuation
    }

    fn leave(
        &mut self,
        ended: Option<(&Arc<Worker>, Sign)>,
        record: &mut Record,
    ) -> Result<Option<Bytes>, Reason> {
        if let Some((worker, sign)) = ended {
            self.asked.broke_on(&self.dispatch, worker, sign);
        }
        let body = match self.continuation.go_on()? {
            Next::End(bytes) => return Ok(Some(bytes)),
            Next::Ask(body) => body,
        };
        if self.moves >= self.dispatch.failover.look().max {
            return Err(Reason::Limit);
        }
        self.moves += 1;
        let (dispatch, asked) = (Arc::clone(&self.dispatch), Arc::clone(&self.asked));
        let mut tried = std::mem::take(&mut self.tried);
        let mut outgoing = asked.continued(body, self.moves);
        record.moves(&mut outgoing.headers);
        self.search = Some(Box::pin(async move {
            let found = search(&dispatch, &asked, outgoing, &mut tried).await;
            (tried, found)
        }));
        Ok(None)
    }

    fn is_moving(&self) -> bool {
        self.search.is_some()
    }

    fn poll_moved(&mut self, cx: &mut Context<'_>) -> Poll<Result<Moved, Reason>> {
        let Some(search) = &mut self.search else {
            return Poll::Pending;
        };
        let (tried, found) = ready!(search.as_mut().poll(cx));
        self.search = None;
        self.tried = tried;
        Poll::Ready(found)
    }
}

impl fmt::Debug for Failover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The continuation holds the client's text.
        f.debug_struct("Failover")
            .field("moves", &self.moves)
            .field("tried", &self.tried)
            .finish_non_exhaustive()
    }
}

/// Asks one worker after the other until one begins to answer.
async fn search(
    dispatch: &Dispatch,
    asked: &Asked,
    outgoing: Outgoing,
    tried: &mut Vec<WorkerId>,
) -> Result<Moved, Reason> {
    if asked.is_condemned(dispatch).await {
        return Err(Reason::QueryOfDeath);
    }
    let within = dispatch.timeouts.look().first_token;
    let loan = place_in_budget(&dispatch.budget, within).await;
    let loan = loan.ok_or(Reason::Budget)?;
    // The fleet may have changed since the stream began.
    let before = asked.pool_arc();
    let changed = asked.changed_from(before, &dispatch.cluster);
    let changed = changed.map_err(|_| Reason::NoWorker)?;
    let mut plan = ToNext {
        dispatch,
        asked,
        pool: changed.unwrap_or_else(|| Arc::clone(before)),
        outgoing,
        tried,
        reason: "",
        recorded: None,
        doubts: Doubts::new(&dispatch.metrics.attempts),
        attempts: 0,
    };
    let sent = match retry::run(
        &mut plan,
        &asked.retry_policy(dispatch, &dispatch.retry.now()),
    )
    .await
    {
        Ok(sent) => sent,
        Err(Exhausted::Unplaced(_) | Exhausted::TurnedAway(_)) => return Err(Reason::NoWorker),
        // No worker is to blame, and the token is not spent.
        Err(Exhausted::Failed(Failure::OutOfTime)) => return Err(Reason::OutOfTime),
        Err(Exhausted::Failed(_)) => {
            loan.spend();
            return Err(Reason::Refused);
        }
        Err(Exhausted::Quarantined(_)) => return Err(Reason::QueryOfDeath),
        Err(Exhausted::Condemned) => {
            loan.spend();
            return Err(Reason::QueryOfDeath);
        }
    };
    match sent.into_stream() {
        Some((begun, in_flight)) => Ok(Moved {
            begun,
            in_flight,
            reason: plan.reason,
            recorded: plan.recorded.take(),
            attempts: plan.attempts,
        }),
        // Such as a 400 for a template that takes no unfinished message: any other worker says the same.
        None => Err(Reason::Refused),
    }
}

/// The way of a broken stream to a worker that it was not on yet.
struct ToNext<'a> {
    dispatch: &'a Dispatch,
    asked: &'a Asked,
    pool: Arc<Pool>,
    outgoing: Outgoing,
    tried: &'a mut Vec<WorkerId>,
    /// Why the last worker was chosen.
    reason: &'static str,
    /// What placement recorded of it.
    recorded: Option<RecordedPlacement>,
    doubts: Doubts<'a>,
    attempts: u32,
}

impl ToNext<'_> {
    /// Workers of its pool that the stream was on, or tried to be on: they are not asked again.
    fn passed_over(&self) -> Vec<usize> {
        let members = self.pool.members().iter().enumerate();
        let was_on = members.filter(|(_, member)| self.tried.contains(&member.worker.id));
        was_on.map(|(index, _)| index).collect()
    }

    /// Takes the workers of now: the fleet may have changed while it waited.
    /// Errors: nobody serves its model any more.
    fn look_anew(&mut self) -> Result<(), NoWorker> {
        let changed = self.asked.changed_from(&self.pool, &self.dispatch.cluster);
        if let Some(now) = changed.map_err(|_| NoWorker::Empty)? {
            self.pool = now;
        }
        Ok(())
    }

    fn place_now(&mut self) -> Result<Box<Placed>, NoWorker> {
        self.look_anew()?;
        let mut passed_over = self.passed_over();
        let (placed, recorded) = self
            .asked
            .choose(self.dispatch, &self.pool, &mut passed_over)?;
        self.tried.push(placed.worker().id.clone());
        self.reason = placed.reason();
        self.recorded = recorded;
        Ok(placed)
    }

    fn take_back(&mut self) {
        if let Some(recorded) = self.recorded.take() {
            self.dispatch.cluster.cache_view().retract(recorded);
        }
    }
}

/// The client may leave while the prompt waits there.
impl Drop for ToNext<'_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

impl WaitsForRoom for ToNext<'_> {
    /// It waits with those alone that may have the same workers.
    fn reach(&self) -> Reach {
        let not_for_it = [self.passed_over(), self.asked.other_ranks(&self.pool)].concat();
        Reach::new(Arc::clone(&self.pool), not_for_it)
    }
}

impl AttemptPlan for ToNext<'_> {
    type Placed = Box<Placed>;
    type Answer = Sent;

    async fn place_first(&mut self) -> Result<Box<Placed>, Exhausted> {
        let admission = &self.dispatch.admission;
        let waits_by = admission.ask_again(self.asked.waits_by, self.asked.deadline());
        // The stream has begun: what it waits for now is no queue before its answer, and no request is refused by it.
        with_room(self, admission, waits_by, None).await.0
    }

    fn place(&mut self) -> Result<Box<Placed>, Exhausted> {
        self.asked.is_let_through(self.dispatch)?;
        self.place_now().map_err(Exhausted::Unplaced)
    }

    fn is_last_resort(placed: &Box<Placed>) -> bool {
        placed.is_last_resort()
    }

    async fn send(&mut self, placed: Box<Placed>, attempt: Attempt) -> Result<Sent, Failure> {
        self.attempts = attempt.number;
        let deadline = self.asked.deadline();
        let (worker, begun) = (Arc::clone(placed.worker()), Instant::now());
        self.doubts.tries(begun, placed.likely_computed());
        let doubts = &mut self.doubts;
        let result = placed
            .send(self.dispatch, &self.outgoing, deadline, attempt, doubts)
            .await;
        match &result {
            Ok(sent) => self.doubts.answered(sent.answer.status()),
            Err(failure) => {
                self.take_back();
                self.asked.failed_on(self.dispatch, &worker, begun, failure);
            }
        }
        result
    }

    async fn is_condemned(&mut self) -> bool {
        self.asked.is_condemned(self.dispatch).await
    }
}

/// A worker that dies takes many streams with it, so a place in the budget is waited for: they move a share at
/// a time. None when none becomes free in that time, and at once of a budget that never lends: the client of a broken stream
/// hears nothing while it waits.
async fn place_in_budget(budget: &Arc<Budget>, within: Duration) -> Option<Loan> {
    let by = Instant::now() + within;
    loop {
        if let Some(loan) = budget.lend() {
            return Some(loan);
        }
        if budget.lends_nothing() || Instant::now() >= by {
            return None;
        }
        sleep(BUDGET_LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RetryConfig;

    const WITHIN: Duration = Duration::from_secs(60);

    fn budget(share: f64, floor: u32) -> Arc<Budget> {
        let config = RetryConfig {
            budget: share,
            budget_floor: floor,
            ..RetryConfig::default()
        };
        Arc::new(Budget::new(config.into()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_budget_that_never_lends_is_not_waited_for() {
        let begun = Instant::now();
        assert!(place_in_budget(&budget(0.0, 0), WITHIN).await.is_none());
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_budget_is_waited_for() {
        let budget = budget(0.0, 1);
        let lent = budget.lend().expect("the floor");
        let begun = Instant::now();
        assert!(place_in_budget(&budget, WITHIN).await.is_none());
        assert!(begun.elapsed() >= WITHIN);
        drop(lent);
        assert!(place_in_budget(&budget, WITHIN).await.is_some());
        // Requests may pay in what is missing.
        let none_yet = self::budget(0.2, 0);
        let begun = Instant::now();
        assert!(place_in_budget(&none_yet, WITHIN).await.is_none());
        assert!(begun.elapsed() >= WITHIN);
    }
}
