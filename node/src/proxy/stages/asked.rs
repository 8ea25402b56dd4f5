//! A request whose body is read, and its way to a worker.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grapevine_placement::{Decision, Key, NoWorker};
use tokio::time::Instant;

use super::placed::{Others, Placed, Sent};
use crate::admission::{Admission, Ask, Unplaced};
use crate::api::{ApiError, Endpoint};
use crate::cluster::quarantine::{BodyId, KnownBy};
use crate::cluster::{Cluster, Pool, RecordedPlacement};
use crate::config::RetryConfig;
use crate::http::headers;
use crate::http::worker_body::WorkerBody;
use crate::proxy::body::HeldBody;
use crate::proxy::budget::Counted;
use crate::proxy::deaths::{Company, Sign};
use crate::proxy::dispatch::Dispatch;
use crate::proxy::division::{Division, Way};
use crate::proxy::doubts::Doubts;
use crate::proxy::pauses::Reach;
use crate::proxy::realtime::Session;
use crate::proxy::record::Record;
use crate::proxy::retry::{Attempt, AttemptPlan, Exhausted, RetryPolicy};
use crate::proxy::routing_query::RoutingQuery;
use crate::proxy::session_id::name_text;
use crate::tenants::Tenant;
use crate::upstream::failure::Failure;
use crate::upstream::outgoing::Outgoing;
use crate::upstream::{InFlight, Worker};

/// A request whose body is read: what to ask of placement, and what to send.
#[derive(Debug)]
pub(in crate::proxy) struct Asked {
    pub(super) query: RoutingQuery,
    pub(super) outgoing: Outgoing,
    pub(super) body: HeldBody,
    /// What others know its body by.
    pub(super) known: KnownBy,
    pub(super) endpoint: Endpoint,
    pub(super) deadline: Option<Instant>,
    /// The client wants to know about the placement.
    pub(super) explained: bool,
    /// Its place among those that wait.
    pub(in crate::proxy) waits_by: Ask,
    /// A stream goes on elsewhere if its worker fails.
    pub(super) failover: bool,
    /// Whether it can be divided; none where the workers of its model take whole requests only.
    pub(super) division: Option<Division>,
    /// The number of its key's tenant, where there are keys.
    pub(super) tenant: Option<u64>,
    /// It has looked for a worker before: the fleet may be another one since.
    pub(super) has_looked: bool,
    /// How long it took to read what it asks for.
    pub(in crate::proxy) thought: Duration,
    /// Workers that ended while they had it.
    pub(super) company: Company,
    /// What it has of a WebSocket session, if it is one.
    pub(super) session: Option<Session>,
    pub(super) _counted: Counted,
}

/// The way of a request to a worker.
#[derive(Debug)]
pub(in crate::proxy) struct ToWorker<'a> {
    pub(super) asked: &'a mut Asked,
    pub(super) dispatch: &'a Dispatch,
    pub(super) record: &'a mut Record,
    /// Workers of its pool that are not asked, or not again.
    pub(in crate::proxy) tried: Vec<usize>,
    pub(super) doubts: Doubts<'a>,
}

impl Asked {
    /// Where the model's workers are, and which of them it may have, alone or as a pair.
    pub(in crate::proxy) fn pool(&self) -> Reach {
        let reach = self.reach(&[]);
        match self.division {
            Some(Division::Halves(_)) => reach.but_prefill(Vec::new()),
            Some(_) | None => reach,
        }
    }

    /// The workers that it may have, without those that it has tried.
    pub(in crate::proxy) fn reach(&self, tried: &[usize]) -> Reach {
        let pool = &self.query.pool;
        let mut but = match &self.query.holder {
            Some(holder) => {
                let members = pool.members().iter().enumerate();
                let others = members.filter(|(_, member)| member.worker.id != *holder);
                others.map(|(index, _)| index).collect()
            }
            None => self.other_ranks(pool),
        };
        but.extend_from_slice(tried);
        let reach = Reach::new(Arc::clone(pool), but);
        match self.query.holder {
            Some(_) => reach.of_holder(),
            None => reach,
        }
    }

    /// Workers of this pool, by index, that its client does not want.
    pub(in crate::proxy) fn other_ranks(&self, pool: &Pool) -> Vec<usize> {
        self.query.other_ranks(pool)
    }

    /// Where the model's workers are.
    pub(in crate::proxy) fn pool_arc(&self) -> &Arc<Pool> {
        &self.query.pool
    }

    /// The pool that it is to look in now, where that is another one than before. None at its first look.
    /// Errors: nobody serves its model any more.
    pub(in crate::proxy) fn changed_pool(
        &mut self,
        cluster: &Cluster,
    ) -> Result<Option<Arc<Pool>>, Exhausted> {
        if !std::mem::replace(&mut self.has_looked, true) {
            return Ok(None);
        }
        let changed = self.changed_from(&self.query.pool, cluster);
        changed.map_err(Exhausted::TurnedAway)
    }

    /// The pool to look in now, where that is another one than this: workers came, left or are drained while it waited, or
    /// an attempt was under way.
    ///
    /// A pool whose workers take another part of requests is none for it: what it asks for was not looked at for that.
    /// Errors: nobody serves its model any more.
    pub(in crate::proxy) fn changed_from(
        &self,
        before: &Arc<Pool>,
        cluster: &Cluster,
    ) -> Result<Option<Arc<Pool>>, ApiError> {
        let now = self.query.pool_now(cluster)?;
        let is_another = !Arc::ptr_eq(before, &now) && before.role() == now.role();
        Ok(is_another.then_some(now))
    }

    /// From now on it looks in this pool.
    pub(in crate::proxy) fn looks_in(&mut self, pool: Arc<Pool>) {
        self.query.pool = pool;
    }

    /// Its prompt, as placement sees it.
    pub(in crate::proxy) fn key(&self) -> &Key {
        &self.query.key
    }

    /// What a worker that takes all of it gets.
    pub(in crate::proxy) fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    /// Whether it goes to one worker or to two.
    /// Errors: see [`Division::way`].
    pub(in crate::proxy) fn way(&self, dispatch: &Dispatch) -> Result<Option<Way>, ApiError> {
        let transfer = dispatch.transfer.now();
        let is_short = transfer.divide().is_short(self.query.key.prompt_tokens());
        let pool = &self.query.pool;
        let way = |division: &Division| division.way(pool, transfer.decode_alone, is_short);
        self.division.as_ref().map(way).transpose()
    }

    /// What its retries have to keep to.
    pub(in crate::proxy) fn retry_policy<'a>(
        &self,
        dispatch: &'a Dispatch,
        config: &'a RetryConfig,
    ) -> RetryPolicy<'a> {
        RetryPolicy {
            config,
            budget: &dispatch.budget,
            repeatable: self.outgoing.repeatable,
            repeatable_if_refused: self.query.queued,
            deadline: self.deadline,
        }
    }

    /// Its way to a worker.
    pub(in crate::proxy) fn attempt_plan<'a>(
        &'a mut self,
        dispatch: &'a Dispatch,
        record: &'a mut Record,
    ) -> ToWorker<'a> {
        ToWorker {
            asked: self,
            dispatch,
            record,
            tried: Vec::new(),
            doubts: Doubts::new(&dispatch.metrics.attempts),
        }
    }

    /// An engine has to compute for it: else it is about what its worker holds, and takes no place there.
    pub(in crate::proxy) fn computes(&self) -> bool {
        self.endpoint != Endpoint::Response
    }

    /// A good answer is an engine's work, for this request.
    pub(in crate::proxy) fn is_of_engine(&self) -> bool {
        self.endpoint.traits().computes && !self.query.queued
    }

    /// Its endpoint.
    pub(in crate::proxy) fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// An attempt on this worker failed, which had the request since `begun`.
    pub(in crate::proxy) fn failed_on(
        &self,
        dispatch: &Dispatch,
        worker: &Arc<Worker>,
        begun: Instant,
        why: &Failure,
    ) {
        let had = (begun, || self.body_id());
        self.company.failed(&dispatch.deaths, worker, had, why);
    }

    /// The worker of its stream broke off.
    pub(in crate::proxy) fn broke_on(&self, dispatch: &Dispatch, worker: &Arc<Worker>, sign: Sign) {
        let body = self.body_id();
        self.company.broke(&dispatch.deaths, worker, sign, body);
    }

    fn body_id(&self) -> BodyId {
        let path = self.outgoing.target.path();
        self.known.id(path, &self.body.bytes)
    }

    /// Whether so many workers ended while they had it that no other is to get it. Marks it once, everywhere.
    ///
    /// Never of a request without a body (a WebSocket handshake, a question about a response): there is nothing in it
    /// that could end an engine, and nothing by which others could know it.
    pub(in crate::proxy) async fn is_condemned(&self, dispatch: &Dispatch) -> bool {
        if self.body.bytes.is_empty() {
            return false;
        }
        let (deaths, marks) = (&dispatch.deaths, &dispatch.metrics.marks);
        let most = dispatch.retry.look().deaths_max.get() as usize;
        let connect = dispatch.timeouts.look().connect;
        let condemned =
            self.company
                .is_condemned(deaths, || self.body_id(), (most, connect), marks);
        let Some(workers) = condemned.await else {
            return false;
        };
        let path = self.outgoing.target.path();
        let marked = dispatch
            .quarantine
            .mark(path, &self.body.bytes, &self.known);
        let (hash, displaced) = marked.unwrap_or_default();
        let metrics = &dispatch.metrics;
        metrics.marks.query_of_death("found");
        if displaced {
            metrics.refusals.limit_reached("quarantine");
        }
        let workers: Vec<&str> = workers.iter().map(|worker| &*worker.label).collect();
        let id = self.outgoing.headers.get(headers::REQUEST_ID);
        let id = id.map(|id| String::from_utf8_lossy(id.as_bytes()));
        tracing::warn!(
            request_id = id.as_deref().unwrap_or_default(),
            body = hash,
            path,
            ?workers,
            "workers ended while they had this request: it is sent to no other"
        );
        true
    }

    /// Asked just before a worker is chosen for it: since it was read, or was sent to another, workers may have ended with
    /// a request like it.
    /// Errors: they have: no worker gets it.
    pub(in crate::proxy) fn is_let_through(&self, dispatch: &Dispatch) -> Result<(), Exhausted> {
        let path = self.outgoing.target.path();
        let left = dispatch
            .quarantine
            .holds(path, &self.body.bytes, &self.known);
        let Some(left) = left else {
            return Ok(());
        };
        dispatch.metrics.marks.query_of_death("refused");
        Err(Exhausted::Quarantined(left))
    }

    /// What it waits by for a worker; `again`: one refused it, so that it is as if it had just arrived, however long that
    /// took.
    pub(in crate::proxy) fn waits_by(&self, admission: &Admission, again: bool) -> Ask {
        match again {
            false => self.waits_by,
            true => admission.ask_again(self.waits_by, self.deadline),
        }
    }

    /// The end of the whole request.
    pub(in crate::proxy) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The body that its worker gets, in one piece.
    pub(in crate::proxy) fn body_at_worker(&self) -> Bytes {
        self.outgoing.body.to_bytes()
    }

    /// What the worker gets that goes on with the answer after `number` others broke off.
    pub(in crate::proxy) fn continued(&self, body: Bytes, number: u32) -> Outgoing {
        let mut headers = self.outgoing.headers.clone();
        headers.insert(headers::CONTINUATION, number.into());
        // What is behind the prompt now is no part of it, so that its blocks are not to be learned as such.
        name_text(None, &mut headers);
        Outgoing {
            method: self.outgoing.method.clone(),
            target: self.outgoing.target.clone(),
            headers,
            body: WorkerBody::unchanged(body),
            stream: true,
            upgrade: None,
            repeatable: true,
            keeps_key: self.outgoing.keeps_key,
            one_value: false,
        }
    }

    /// Chooses a worker of a pool that is not in `tried`, puts it there, and counts the request on it. The
    /// second value is what placement recorded.
    /// Errors: no worker is left that may take it.
    pub(in crate::proxy) fn choose(
        &self,
        dispatch: &Dispatch,
        pool: &Arc<Pool>,
        tried: &mut Vec<usize>,
    ) -> Result<(Box<Placed>, Option<RecordedPlacement>), NoWorker> {
        let other_ranks = self.other_ranks(pool);
        let is_judged = self.endpoint.is_judged() && !self.query.queued;
        let begin = match (self.computes(), is_judged) {
            (true, true) => InFlight::begin,
            (true, false) => InFlight::begin_unjudged,
            (false, _) => InFlight::begin_weightless,
        };
        self.choose_but(dispatch, pool, tried, &other_ranks, begin)
    }

    /// Chooses a worker of one half of the model's workers. `strangers`: those of them that are not to have it either;
    /// `begin`: how it counts there.
    /// Errors: no worker is left that may take it.
    pub(in crate::proxy) fn choose_but(
        &self,
        dispatch: &Dispatch,
        pool: &Arc<Pool>,
        tried: &mut Vec<usize>,
        strangers: &[usize],
        begin: impl Fn(&Arc<Worker>, &Decision) -> Option<InFlight>,
    ) -> Result<(Box<Placed>, Option<RecordedPlacement>), NoWorker> {
        let (cluster, metrics) = (&dispatch.cluster, &dispatch.metrics);
        let before = tried.len();
        loop {
            let key = &self.query.key;
            let placed = if let Some(holder) = &self.query.holder {
                cluster.place_at(pool, key, holder, tried, self.computes())
            } else {
                cluster.place(pool, key, tried, strangers)
            };
            // One whose breaker had its trial already was not asked: a request that waits may have it later.
            let placed = placed.inspect_err(|_| tried.truncate(before))?;
            let decision = placed.decision;
            tried.push(decision.worker);
            let reason = decision.reason.as_str();
            metrics.requests.placed(reason);
            if let Some(in_flight) = begin(&placed.worker, &decision) {
                let recorded = placed.recorded;
                let placed = Box::new(Placed {
                    in_flight,
                    decision,
                    pool: Arc::clone(pool),
                    others: match self.query.holder {
                        Some(_) if self.computes() => Others::Nobody,
                        Some(_) => Others::NeedNot,
                        // Empty, and then not allocated, for almost every request.
                        None => Others::But([&tried[..tried.len() - 1], strangers].concat()),
                    },
                });
                return Ok((placed, recorded));
            }
            if let Some(recorded) = placed.recorded {
                cluster.cache_view().retract(recorded);
            }
        }
    }

    /// Sends all of it to one worker.
    /// Errors: see [`Failure`].
    pub(in crate::proxy) async fn send(
        &mut self,
        dispatch: &Dispatch,
        record: &mut Record,
        doubts: &mut Doubts<'_>,
        placed: Box<Placed>,
        attempt: Attempt,
    ) -> Result<Sent, Failure> {
        if attempt.number > 1 {
            dispatch.metrics.attempts.retries.inc();
        }
        record.propagate(&mut self.outgoing.headers);
        let (worker, begun) = (Arc::clone(placed.worker()), Instant::now());
        doubts.tries(begun, placed.likely_computed());
        let result = placed
            .send(dispatch, &self.outgoing, self.deadline, attempt, doubts)
            .await;
        match &result {
            Ok(sent) => doubts.answered(sent.answer.status()),
            Err(failure) => {
                record.attempt_failed(failure);
                self.failed_on(dispatch, &worker, begun, failure);
            }
        }
        result
    }
}

impl ToWorker<'_> {
    /// Chooses a worker in the pool that the request looks in.
    /// Errors: no worker is left that may take it.
    pub(in crate::proxy) fn place_in_pool(&mut self) -> Result<Box<Placed>, NoWorker> {
        let first = self.tried.is_empty();
        let begun = Instant::now();
        let pool = &self.asked.query.pool;
        let (placed, recorded) = self.asked.choose(self.dispatch, pool, &mut self.tried)?;
        if first {
            let took = self.asked.thought + begun.elapsed();
            self.dispatch.metrics.requests.decided(took);
            self.record.decided(took, placed.reason());
        }
        self.record
            .placed(placed.worker(), placed.reason(), recorded);
        if !self.asked.query.stream {
            self.record.comes_whole();
        }
        Ok(placed)
    }
}

impl AttemptPlan for ToWorker<'_> {
    type Placed = Box<Placed>;
    type Answer = Sent;

    async fn place_first(&mut self) -> Result<Box<Placed>, Exhausted> {
        let admission = &self.dispatch.admission;
        let waits_by = self.asked.waits_by(admission, !self.tried.is_empty());
        let now = self.record.prepared();
        if !self.asked.computes() {
            return self.place();
        }
        let tenant = self.record.tenant.clone();
        self.record.waits(now);
        let (placed, waited) = with_room(self, admission, waits_by, tenant.as_deref()).await;
        self.record.waited(waited);
        placed
    }

    fn place(&mut self) -> Result<Box<Placed>, Exhausted> {
        self.asked.is_let_through(self.dispatch)?;
        if let Some(pool) = self.asked.changed_pool(&self.dispatch.cluster)? {
            self.tried = self.asked.query.pool.indices_in(&pool, &self.tried);
            self.asked.looks_in(pool);
        }
        self.place_in_pool().map_err(Exhausted::Unplaced)
    }

    fn is_last_resort(placed: &Box<Placed>) -> bool {
        placed.is_last_resort()
    }

    async fn send(&mut self, placed: Box<Placed>, attempt: Attempt) -> Result<Sent, Failure> {
        let doubts = &mut self.doubts;
        self.asked
            .send(self.dispatch, self.record, doubts, placed, attempt)
            .await
    }

    async fn is_condemned(&mut self) -> bool {
        self.asked.is_condemned(self.dispatch).await
    }
}

/// A request that may wait for room at a worker.
pub(in crate::proxy) trait WaitsForRoom: AttemptPlan {
    /// The workers that it may have, of those that it has looked at last.
    fn reach(&self) -> Reach;
}

impl WaitsForRoom for ToWorker<'_> {
    fn reach(&self) -> Reach {
        self.asked.reach(&self.tried).undivided()
    }
}

/// While every worker that it may have is at its own limit, the request waits for its turn among those that may have
/// the same ones. For workers that said when to come back it does not wait: its client is sent that time. Says how long
/// it waited, if it did. `tenant`: of a request that is refused if it waits in vain.
pub(in crate::proxy) async fn with_room<P: WaitsForRoom>(
    plan: &mut P,
    admission: &Admission,
    waits_by: Ask,
    tenant: Option<&Tenant>,
) -> (Result<P::Placed, Exhausted>, Option<Duration>) {
    let queue = plan.reach().queue();
    let place = || match plan.place() {
        // Of the workers of now: some may have come or left since it began to wait.
        Err(Exhausted::Unplaced(NoWorker::Full)) if plan.reach().shortest_pause().is_none() => {
            Err(NoWorker::Full)
        }
        done => Ok(done),
    };
    let (placed, waited) = admission.place(&queue, &waits_by, tenant, place).await;
    let placed = match placed {
        Ok(placed) => placed,
        Err(Unplaced::NoWorker(nobody)) => Err(Exhausted::Unplaced(nobody)),
        Err(Unplaced::TurnedAway(error)) => Err(Exhausted::TurnedAway(error)),
    };
    (placed, waited)
}
