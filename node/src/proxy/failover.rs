//! Finds another worker for a stream whose worker broke off.
//!
//! Opted in by `x-grapevine-failover`, by the model, or for all. What the client has read and what the next
//! worker is asked for is the business of [`continuation`](super::continuation); the relay passes the bytes. The
//! next worker is placed and asked by the same stages as the first one, is one that this stream has not been on,
//! and takes a place in the retry budget until its first token.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use grapevine_gossip::worker::WorkerId;
use grapevine_placement::NoWorker;
use http::HeaderMap;
use tokio::time::{Instant, sleep};

use super::budget::Loan;
use super::continuation::{Ask, Continuation, Next, Reason, Room};
use super::dispatch::Dispatch;
use super::retry::{self, AttemptPlan, Exhausted};
use super::stages::asked::{Asked, with_room};
use super::stages::placed::{Placed, Sent};
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::cluster::{Pool, RecordedPlacement};
use crate::config::{FailoverConfig, ModelConfig};
use crate::http::headers;
use crate::live::Live;
use crate::upstream::attempt::{Begun, Outgoing};
use crate::upstream::failure::Failure;
use crate::upstream::{InFlight, Worker};

/// Between two looks at a full budget.
const BUDGET_LOOK: Duration = Duration::from_millis(20);

/// Which streams go on elsewhere.
#[derive(Debug)]
pub struct Failovers {
    config: Live<FailoverConfig>,
    models: HashMap<String, bool>,
}

impl Failovers {
    /// As configured, for all and for single models.
    pub fn new(config: Live<FailoverConfig>, models: &[ModelConfig]) -> Self {
        let said = |model: &ModelConfig| Some((model.name.clone(), model.failover?));
        Self {
            config,
            models: models.iter().filter_map(said).collect(),
        }
    }

    /// How far a stream may move.
    pub(super) fn config(&self) -> &Live<FailoverConfig> {
        &self.config
    }

    /// The request's own word, else the model's, else that for all.
    ///
    /// # Errors
    /// 400 for a header that is neither `on` nor `off`.
    pub fn wanted(&self, head: &HeaderMap, model: &str) -> Result<bool, ApiError> {
        match head.get(headers::FAILOVER).map(|value| value.as_bytes()) {
            Some(b"on") => Ok(true),
            Some(b"off") => Ok(false),
            Some(_) => Err(ApiError::new(
                ErrorKind::InvalidRequest,
                "the header x-grapevine-failover is `on` or `off`",
            )),
            None => Ok(self
                .models
                .get(model)
                .copied()
                .unwrap_or_else(|| self.config.look().enabled)),
        }
    }
}

/// What becomes of a stream whose worker breaks off.
#[derive(Debug)]
pub enum OnBreak {
    /// It ends.
    End,
    /// It ends, although failover was wanted.
    Refused(Reason),
    /// It goes on elsewhere.
    Move(Box<Failover>),
}

/// A stream that can go on elsewhere.
pub struct Failover {
    /// What the client has read.
    pub continuation: Continuation,
    dispatch: Arc<Dispatch>,
    asked: Arc<Asked>,
    /// Workers that this stream was on or tried to be on.
    tried: Vec<WorkerId>,
    moves: u32,
    search: Option<Search>,
}

type Search = Pin<Box<dyn Future<Output = (Vec<WorkerId>, Result<Moved, Reason>)> + Send>>;

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

impl OnBreak {
    /// For a stream that was asked for with failover and has begun on this worker.
    pub(super) fn of(dispatch: &Arc<Dispatch>, asked: Box<Asked>, worker: WorkerId) -> Self {
        let ask = match Ask::read(asked.endpoint(), asked.body_at_worker()) {
            None => return Self::End,
            Some(Err(reason)) => return Self::Refused(reason),
            Some(Ok(ask)) => ask,
        };
        let room = Room {
            text_bytes: dispatch.failover.look().text_bytes.as_usize(),
            event_bytes: dispatch.event_bytes(),
        };
        Self::Move(Box::new(Failover {
            continuation: Continuation::new(ask, room),
            dispatch: Arc::clone(dispatch),
            asked: Arc::from(asked),
            tried: vec![worker],
            moves: 0,
            search: None,
        }))
    }
}

impl Failover {
    /// The worker broke off. Gives the bytes that were all that was missing, or begins to look for another
    /// worker.
    ///
    /// `ended`: the worker, if its connection ended.
    ///
    /// # Errors
    /// Why the stream cannot go on.
    pub fn leave(&mut self, ended: Option<&Arc<Worker>>) -> Result<Option<Bytes>, Reason> {
        if let Some(worker) = ended {
            self.asked.broke_on(&self.dispatch, worker);
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
        let number = self.moves;
        self.search = Some(Box::pin(async move {
            let found = search(&dispatch, &asked, body, number, &mut tried).await;
            (tried, found)
        }));
        Ok(None)
    }

    /// Is another worker being looked for?
    pub fn is_moving(&self) -> bool {
        self.search.is_some()
    }

    /// The worker that was found.
    pub fn poll_moved(&mut self, cx: &mut Context<'_>) -> Poll<Result<Moved, Reason>> {
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
    body: Bytes,
    number: u32,
    tried: &mut Vec<WorkerId>,
) -> Result<Moved, Reason> {
    if asked.is_condemned(dispatch).await {
        return Err(Reason::QueryOfDeath);
    }
    let loan = place_in_budget(dispatch).await.ok_or(Reason::Budget)?;
    // The fleet may have changed since the stream began.
    let pool = dispatch.cluster.fleet().pool(asked.pool().model());
    let pool = pool.map(Pool::in_use);
    let mut plan = ToNext {
        dispatch,
        asked,
        pool: pool.ok_or(Reason::NoWorker)?,
        outgoing: asked.continued(body, number),
        tried,
        reason: "",
        recorded: None,
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
        Err(Exhausted::Failed(_)) => {
            loan.spend();
            return Err(Reason::Refused);
        }
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
            recorded: plan.recorded,
            attempts: plan.attempts,
        }),
        // Such as a 400 for a template that takes no unfinished message: any other worker says the same.
        None => {
            plan.take_back();
            Err(Reason::Refused)
        }
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
    attempts: u32,
}

impl ToNext<'_> {
    fn take_back(&mut self) {
        if let Some(recorded) = self.recorded.take() {
            self.dispatch.cluster.cache_view().retract(recorded);
        }
    }
}

impl AttemptPlan for ToNext<'_> {
    type Placed = Placed;
    type Answer = Sent;

    async fn place_first(&mut self, passed_over: &mut Vec<usize>) -> Result<Placed, Exhausted> {
        let admission = &self.dispatch.admission;
        let waits_by = admission.ask_again(self.asked.waits_by, self.asked.deadline());
        let pool = Arc::clone(&self.pool);
        // The stream has begun: what it waits for now is no queue before its answer.
        let (placed, _) = with_room(admission, waits_by, &pool, || self.place(passed_over)).await;
        placed
    }

    fn place(&mut self, passed_over: &mut Vec<usize>) -> Result<Placed, NoWorker> {
        let members = self.pool.members().iter().enumerate();
        let was_on = members.filter(|(_, member)| self.tried.contains(&member.worker.id));
        for (index, _) in was_on {
            if !passed_over.contains(&index) {
                passed_over.push(index);
            }
        }
        let (placed, recorded) = self.asked.choose(self.dispatch, &self.pool, passed_over)?;
        self.tried.push(placed.worker().id.clone());
        self.reason = placed.reason();
        self.recorded = recorded;
        Ok(placed)
    }

    fn is_last_resort(placed: &Placed) -> bool {
        placed.is_last_resort()
    }

    async fn send(&mut self, placed: Placed, attempt: u32) -> Result<Sent, Failure> {
        self.attempts = attempt;
        let deadline = self.asked.deadline();
        let (worker, begun) = (Arc::clone(placed.worker()), Instant::now());
        let result = placed
            .send(self.dispatch, &self.outgoing, deadline, attempt)
            .await;
        if let Err(failure) = &result {
            self.take_back();
            self.asked.failed_on(self.dispatch, &worker, begun, failure);
        }
        result
    }

    async fn is_condemned(&mut self) -> bool {
        self.asked.is_condemned(self.dispatch).await
    }
}

/// A worker that dies takes many streams with it, so a place in the budget is waited for: they move a share at
/// a time. None when none becomes free within the limit for first tokens.
async fn place_in_budget(dispatch: &Dispatch) -> Option<Loan> {
    let by = Instant::now() + dispatch.timeouts.look().first_token;
    loop {
        if let Some(loan) = dispatch.budget.lend() {
            return Some(loan);
        }
        if Instant::now() >= by {
            return None;
        }
        sleep(BUDGET_LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_decides_then_the_model_then_the_setting_for_all() {
        let rules = |enabled| {
            let config = FailoverConfig {
                enabled,
                ..FailoverConfig::default()
            };
            let model = |name: &str, failover| ModelConfig {
                name: name.to_owned(),
                failover,
                ..ModelConfig::default()
            };
            let models = [
                model("yes", Some(true)),
                model("no", Some(false)),
                model("other", None),
            ];
            Failovers::new(config.into(), &models)
        };
        let head = |value: Option<&str>| {
            let mut head = HeaderMap::new();
            if let Some(value) = value {
                head.insert(headers::FAILOVER, value.parse().expect("a value"));
            }
            head
        };
        for (enabled, header, model, expected) in [
            (false, None, "unknown", false),
            (true, None, "other", true),
            (false, None, "yes", true),
            (true, None, "no", false),
            (false, Some("on"), "no", true),
            (true, Some("off"), "yes", false),
        ] {
            let wanted = rules(enabled).wanted(&head(header), model);
            let what = format!("{enabled} {header:?} {model}");
            assert_eq!(wanted.expect("good"), expected, "{what}");
        }
        let error = rules(false).wanted(&head(Some("yes")), "m");
        assert_eq!(error.expect_err("neither").kind.status(), 400);
    }
}
