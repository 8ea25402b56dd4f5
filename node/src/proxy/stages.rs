//! The states of a request up to its commit. Each is made from the one before and by nothing else, and owns
//! what the request holds there, so that dropping it, in whatever way a request ends, releases that.
//!
//! | state | what is known | holds |
//! |---|---|---|
//! | [`Accepted`] | the head; the endpoint is one of the workers' | the unread body |
//! | [`Admitted`] | this replica has room to read it | a permit, in the record |
//! | [`Asked`] | the body, what to ask of placement, that its model has room | bytes of the body's budget, a place in the retry budget's count |
//! | [`Placed`] | one worker | its weight on that worker |
//! | [`Sent`] | that worker's answer, held back | the connection, within the answer |
//! | [`Won`] | it may be shown | all of these |
//!
//! `attempt` has the states between placed and sent: connecting, and waiting for what may be shown.
//! [`Won::commit`] is the only way to a client's first byte.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grapevine_gossip::worker::WorkerId;
use grapevine_placement::{Decision, NoWorker};
use http::request::Parts;
use http::{HeaderValue, Method, Response, Uri, header};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::attempt::{self, Answer, AttemptLimits, Begun, Outgoing};
use super::body::{self, BodyLimits, HeldBody};
use super::budget::Counted;
use super::caller::Caller;
use super::deaths::Company;
use super::failover::OnBreak;
use super::failure::Failure;
use super::holders::Wanted;
use super::patience::{Patience, WaitsFor};
use super::question::{Asking, Early, Question};
use super::realtime::tunnel::Tunnel;
use super::realtime::watch::Terms as SessionTerms;
use super::realtime::{self, Opening, Session, handshake};
use super::record::{Outcome, Record};
use super::relay::{Relay, ResponseBody, Silence};
use super::retry::{self, Course, Lost, Terms};
use super::worker_body::WorkerBody;
use super::{Proxy, headers, refusal, sse};
use crate::admission::{Admission, Ask, Unplaced};
use crate::api::{ApiError, Endpoint};
use crate::cache::{self, Answer as KeptAnswer, Found};
use crate::cluster::{Pool, Taken};
use crate::hops;
use crate::metrics::ReasonLabels;
use crate::tenants::{Key, X_API_KEY};
use crate::upstream::{InFlight, Worker};

/// A request for a worker; nothing of its body is read yet.
#[derive(Debug)]
pub(super) struct Accepted {
    head: Parts,
    body: Incoming,
    endpoint: Endpoint,
    key: Option<Arc<Key>>,
    deadline: Option<Instant>,
}

/// A request that this replica has room for.
#[derive(Debug)]
pub(super) struct Admitted {
    accepted: Accepted,
    waits_by: Ask,
}

/// A request whose body is read: what to ask of placement, and what to send.
#[derive(Debug)]
pub(super) struct Asked {
    question: Question,
    outgoing: Outgoing,
    body: HeldBody,
    endpoint: Endpoint,
    deadline: Option<Instant>,
    /// The client wants to know about the placement.
    explained: bool,
    /// Its place among those that wait.
    pub(super) waits_by: Ask,
    /// A stream goes on elsewhere if its worker fails.
    failover: bool,
    /// The only worker that can answer.
    holder: Option<WorkerId>,
    /// The number of its key's tenant, where there are keys.
    tenant: Option<u64>,
    /// How long it took to read what it asks for.
    thought: Duration,
    /// Workers that ended while they had it.
    company: Company,
    /// What it has of a WebSocket session, if it is one.
    session: Option<Session>,
    _counted: Counted,
}

/// A request whose body is read, and where its answer comes from.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one lives at a time, on the stack of its request"
)]
pub(super) enum Source {
    /// The response cache has it.
    Kept(Arc<KeptAnswer>),
    /// A worker has to be asked.
    Worker(Asked),
}

/// The way of a request to a worker.
#[derive(Debug)]
pub(super) struct ToWorker<'a> {
    asked: &'a mut Asked,
    proxy: &'a Proxy,
    record: &'a mut Record,
}

/// A request that counts on a worker, before anything is sent there.
#[derive(Debug)]
pub(super) struct Placed {
    in_flight: InFlight,
    decision: Decision,
    pool: Arc<Pool>,
    /// Workers that were tried before this one.
    tried: Vec<usize>,
}

/// A request that a worker has answered in a way that may be shown.
#[derive(Debug)]
pub(super) struct Sent {
    answer: Answer,
    placed: Placed,
}

/// What the client will see.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one lives at a time, on the stack of its request"
)]
pub(super) enum Shown {
    /// A kept answer.
    Kept(Arc<KeptAnswer>),
    /// A worker's.
    Won(Won),
}

/// A request at its commit.
#[derive(Debug)]
pub(super) struct Won {
    asked: Asked,
    sent: Sent,
}

impl Accepted {
    /// `key`: the client's, where there are keys; `deadline`: the end of the whole request.
    pub(super) fn new(
        head: Parts,
        body: Incoming,
        endpoint: Endpoint,
        key: Option<Arc<Key>>,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            head,
            body,
            endpoint,
            key,
            deadline,
        }
    }

    /// What of it is a WebSocket handshake.
    ///
    /// # Errors
    /// See [`Proxy::opening`].
    pub(super) fn opening(&self, proxy: &Proxy) -> Result<Option<Opening>, ApiError> {
        match self.endpoint {
            Endpoint::Realtime => proxy.opening(&self.head).map(Some),
            _ => Ok(None),
        }
    }

    /// Takes a place to be read, among the requests of this replica; waits for one if it must.
    ///
    /// # Errors
    /// What [`Admission::admit`](crate::admission::Admission::admit) refuses.
    pub(super) async fn admit(
        self,
        proxy: &Proxy,
        record: &mut Record,
    ) -> Result<Admitted, ApiError> {
        let admission = &proxy.parts.admission;
        let key = self.key.as_ref();
        let length = self.body.size_hint().exact();
        let waits_by = admission.ask(
            key.map(|key| &**key),
            &self.head.headers,
            length,
            self.deadline,
        );
        record.tenant = key.map(|key| Arc::clone(key.tenant()));
        record.priority = waits_by.class();
        let models = proxy.parts.cluster.fleet().pools().len();
        match admission.admit(key, &waits_by, models).await {
            Ok(admitted) => {
                record.admission = Some(admitted.permit);
                record.waited(admitted.queued);
                record.quota = admitted.quota;
                Ok(Admitted {
                    accepted: self,
                    waits_by,
                })
            }
            Err(refused) => {
                record.quota = refused.quota;
                Err(refused.error)
            }
        }
    }
}

impl Admitted {
    /// Reads the body and what it asks for, and takes a place of its model for it; waits for one if it must.
    ///
    /// # Errors
    /// What [`body::read`], [`Question::of`] and [`Admission::enter`] refuse.
    pub(super) async fn ask(self, proxy: &Proxy, record: &mut Record) -> Result<Source, ApiError> {
        let Accepted {
            mut head,
            body,
            endpoint,
            key,
            deadline,
        } = self.accepted;
        let limits = BodyLimits {
            coding: headers::take_coding(&mut head.headers),
            ..BodyLimits::of(
                endpoint.traits().form,
                &proxy.parts.limits,
                &proxy.parts.timeouts,
            )
        };
        let caller = key.as_deref().map_or(Caller::Anybody, Caller::Keyed);
        let cluster = &proxy.parts.cluster;
        let mut early = Early::of(endpoint, &head.headers)?;
        let look = |so_far: &[u8]| early.look(so_far, cluster, caller);
        let body = body::read(body, limits, &proxy.byte_budget, look)
            .await
            .map_err(|refused| {
                if let Some(limit) = refused.limit {
                    proxy.parts.metrics.limit_reached(limit);
                }
                refused.error
            })?;
        let read = Instant::now();
        let asking = Asking {
            endpoint,
            path: head.uri.path(),
            headers: &head.headers,
            body: &body.bytes,
            caller,
        };
        let mut question = Question::of(cluster, &asking)?;
        record.model = Some(question.pool.label());
        if let Some(left) = proxy.parts.quarantine.holds(head.uri.path(), &body.bytes) {
            proxy.parts.metrics.query_of_death("refused");
            return Err(refusal::quarantined(left));
        }
        let failovers = &proxy.parts.failovers;
        let failover = failovers.wanted(&head.headers, question.pool.model())?;
        if let Some(cache) = &proxy.parts.cache {
            let found = cache.find(&kept_as(proxy, &head, caller, &question, &body));
            record.cache = Some(found.as_str());
            match found {
                Found::Hit(answer) => return Ok(Source::Kept(answer)),
                Found::Miss(recording) | Found::Bypass(_, Some(recording)) => {
                    record.recording = Some(Box::new(recording));
                }
                Found::Bypass(_, None) => {}
            }
        }
        let thought = read.elapsed();
        let waits_by = self.waits_by.holding(body.bytes.len());
        enter(proxy, record, key.as_ref(), &mut question, &waits_by).await?;
        let sent = question.body_of(body.bytes.clone());
        let explained = head.headers.contains_key(headers::EXPLAIN);
        let outgoing = Outgoing {
            repeatable: endpoint.traits().repeatable || head.method == Method::GET,
            stream: question.stream,
            ..outgoing(head, sent, record.request_id(), key.is_some())
        };
        let holder = match &question.response {
            None => None,
            Some(id) => {
                let wanted = Wanted {
                    id,
                    pool: &question.pool,
                    caller: key.as_deref().map_or(Caller::Anybody, Caller::Keyed),
                    headers: &outgoing.headers,
                };
                Some(proxy.holder_of(wanted).await?)
            }
        };
        Ok(Source::Worker(Asked {
            explained,
            outgoing,
            holder,
            tenant: key.as_ref().map(|key| key.tenant().number()),
            question,
            body,
            endpoint,
            deadline,
            waits_by,
            failover,
            thought,
            company: Company::default(),
            session: None,
            _counted: proxy.retries.request(),
        }))
    }
}

/// The permit becomes one of the model; waits for that if it must.
async fn enter(
    proxy: &Proxy,
    record: &mut Record,
    key: Option<&Arc<Key>>,
    question: &mut Question,
    waits_by: &Ask,
) -> Result<(), ApiError> {
    let Some(permit) = &mut record.admission else {
        return Ok(());
    };
    let model = question.pool.label();
    let admission = &proxy.parts.admission;
    let waited = admission.enter(permit, key, &model, waits_by).await?;
    record.waited(waited);
    if waited.is_some() {
        question.renew(&proxy.parts.cluster);
    }
    Ok(())
}

impl Admitted {
    /// A session instead of a request with a body: only its handshake is sent.
    ///
    /// # Errors
    /// What [`Question::of`] and [`Admission::enter`] refuse.
    pub(super) async fn session(
        self,
        opening: Opening,
        proxy: &Proxy,
        record: &mut Record,
    ) -> Result<Asked, ApiError> {
        let Accepted {
            mut head,
            endpoint,
            key,
            deadline,
            ..
        } = self.accepted;
        let read = Instant::now();
        let caller = key.as_deref().map_or(Caller::Anybody, Caller::Keyed);
        let cluster = &proxy.parts.cluster;
        let body = opening.as_body();
        let asking = Asking {
            endpoint,
            path: head.uri.path(),
            headers: &head.headers,
            body: &body,
            caller,
        };
        let mut question = Question::of(cluster, &asking)?;
        record.model = Some(question.pool.label());
        let thought = read.elapsed();
        enter(proxy, record, key.as_ref(), &mut question, &self.waits_by).await?;
        let explained = head.headers.contains_key(headers::EXPLAIN);
        let target = head
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str());
        let terms = SessionTerms::of(cluster, key.as_ref(), question.pool.model());
        if terms.is_some() {
            // What is to be read is not compressed.
            head.headers.remove(header::SEC_WEBSOCKET_EXTENSIONS);
        }
        let target = realtime::target_with(target, question.pool.model());
        if let Ok(renamed) = target.parse() {
            head.uri = renamed;
        }
        let nothing = WorkerBody::unchanged(Bytes::new());
        Ok(Asked {
            explained,
            outgoing: Outgoing {
                // Nothing has been said in it yet.
                repeatable: true,
                upgrade: Some(opening.accept),
                ..outgoing(head, nothing, record.request_id(), key.is_some())
            },
            question,
            body: HeldBody {
                bytes: Bytes::new(),
                reserved: proxy.byte_budget.reserve(),
            },
            endpoint,
            deadline,
            waits_by: self.waits_by,
            failover: false,
            thought,
            company: Company::default(),
            holder: None,
            tenant: None,
            session: Some(Session {
                place: opening.place,
                terms,
            }),
            _counted: proxy.retries.request(),
        })
    }
}

impl Asked {
    /// Where the model's workers are.
    pub(super) fn pool(&self) -> &Pool {
        &self.question.pool
    }

    /// What its retries have to keep to.
    pub(super) fn terms<'a>(&self, proxy: &'a Proxy) -> Terms<'a> {
        Terms {
            config: &proxy.parts.retry,
            budget: &proxy.retries,
            repeatable: self.outgoing.repeatable,
            deadline: self.deadline,
        }
    }

    /// Its way to a worker.
    pub(super) fn course<'a>(
        &'a mut self,
        proxy: &'a Proxy,
        record: &'a mut Record,
    ) -> ToWorker<'a> {
        ToWorker {
            asked: self,
            proxy,
            record,
        }
    }

    /// Its endpoint.
    pub(super) fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// An attempt on this worker failed, which had the request since `begun`.
    pub(super) fn failed_on(
        &self,
        proxy: &Proxy,
        worker: &Arc<Worker>,
        begun: Instant,
        why: &Failure,
    ) {
        self.company.failed(&proxy.deaths, worker, begun, why);
    }

    /// The worker of its stream broke off.
    pub(super) fn broke_on(&self, proxy: &Proxy, worker: &Arc<Worker>) {
        self.company.broke(&proxy.deaths, worker);
    }

    /// Whether so many workers ended while they had it that no other is to get it. Says so once, everywhere.
    pub(super) async fn is_condemned(&self, proxy: &Proxy) -> bool {
        let Some(workers) = self.company.is_condemned(proxy).await else {
            return false;
        };
        let path = self.outgoing.target.path();
        let marked = proxy.parts.quarantine.mark(path, &self.body.bytes);
        let (hash, displaced) = marked.unwrap_or_default();
        let metrics = &proxy.parts.metrics;
        metrics.query_of_death("found");
        if displaced {
            metrics.limit_reached("quarantine");
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

    /// The end of the whole request.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The body that its worker gets, in one piece.
    pub(super) fn body_at_worker(&self) -> Bytes {
        self.outgoing.body.to_bytes()
    }

    /// What the worker gets that goes on with the answer after `number` others broke off.
    pub(super) fn continued(&self, body: Bytes, number: u32) -> Outgoing {
        let mut headers = self.outgoing.headers.clone();
        headers.insert(headers::CONTINUATION, number.into());
        Outgoing {
            method: self.outgoing.method.clone(),
            target: self.outgoing.target.clone(),
            headers,
            body: WorkerBody::unchanged(body),
            stream: true,
            upgrade: None,
            repeatable: true,
        }
    }

    /// Chooses a worker of a pool that is not in `tried`, puts it there, and counts the request on it. The
    /// second value is what placement recorded.
    ///
    /// # Errors
    /// Nobody is left that may take it.
    pub(super) fn choose(
        &self,
        proxy: &Proxy,
        pool: &Arc<Pool>,
        tried: &mut Vec<usize>,
    ) -> Result<(Placed, Option<Taken>), NoWorker> {
        let (cluster, metrics) = (&proxy.parts.cluster, &proxy.parts.metrics);
        let other_ranks = self.question.other_ranks(pool);
        loop {
            let key = &self.question.key;
            let placed = if let Some(holder) = &self.holder {
                cluster.place_at(pool, key, holder, tried)?
            } else if other_ranks.is_empty() {
                cluster.place(pool, key, tried)?
            } else {
                let passed_over = [tried.as_slice(), &other_ranks].concat();
                cluster.place(pool, key, &passed_over)?
            };
            let decision = placed.decision;
            tried.push(decision.worker);
            let reason = decision.reason.as_str();
            metrics
                .placements
                .get_or_create(&ReasonLabels { reason })
                .inc();
            if let Some(in_flight) = InFlight::begin(&placed.worker, &decision) {
                let taken = placed.taken;
                let placed = Placed {
                    in_flight,
                    decision,
                    pool: Arc::clone(pool),
                    // Empty, and then not allocated, for almost every request.
                    tried: tried[..tried.len() - 1].to_vec(),
                };
                return Ok((placed, taken));
            }
            if let Some(taken) = placed.taken {
                cluster.knowledge().failed(taken);
            }
        }
    }

    /// An answer that the client will see; none other will be asked for.
    pub(super) fn won(self, sent: Sent, proxy: &Proxy) -> Won {
        if sent.answer.status().is_success() {
            if self.endpoint == Endpoint::Responses {
                let worker = &sent.placed.worker().id;
                let beginning = sent.answer.beginning();
                proxy.holders.answered(beginning, worker, self.tenant);
            }
            let (pool, key) = (&self.question.pool, &self.question.key);
            let warm_ups = &proxy.parts.warm_ups;
            warm_ups.offer(self.endpoint, pool, key, &self.body.bytes);
        }
        Won { asked: self, sent }
    }
}

impl Course for ToWorker<'_> {
    type Placed = Placed;
    type Answer = Sent;

    async fn place_first(&mut self, tried: &mut Vec<usize>) -> Result<Placed, Lost> {
        let (admission, waits_by) = (&self.proxy.parts.admission, self.asked.waits_by);
        let pool = Arc::clone(&self.asked.question.pool);
        with_room(admission, waits_by, &pool, || self.place(tried)).await
    }

    fn place(&mut self, tried: &mut Vec<usize>) -> Result<Placed, NoWorker> {
        let first = tried.is_empty();
        let begun = Instant::now();
        let (placed, taken) = self
            .asked
            .choose(self.proxy, &self.asked.question.pool, tried)?;
        if first {
            let took = self.asked.thought + begun.elapsed();
            self.proxy.parts.metrics.decided(took);
            self.record.decided(took, placed.reason());
        }
        self.record.placed(placed.worker(), placed.reason(), taken);
        Ok(placed)
    }

    fn is_last_resort(placed: &Placed) -> bool {
        placed.is_last_resort()
    }

    async fn send(&mut self, placed: Placed, attempt: u32) -> Result<Sent, Failure> {
        if attempt > 1 {
            self.proxy.parts.metrics.retries.inc();
        }
        self.record.propagate(&mut self.asked.outgoing.headers);
        let (outgoing, deadline) = (&self.asked.outgoing, self.asked.deadline);
        let (worker, begun) = (Arc::clone(placed.worker()), Instant::now());
        let result = placed.send(self.proxy, outgoing, deadline, attempt).await;
        if let Err(failure) = &result {
            self.record.attempt_failed(failure);
            self.asked.failed_on(self.proxy, &worker, begun, failure);
        }
        result
    }

    async fn is_condemned(&mut self) -> bool {
        self.asked.is_condemned(self.proxy).await
    }
}

/// While every worker is at its own limit, the request waits for its turn. For workers that said when to come back
/// it does not wait: its client is told.
pub(super) async fn with_room(
    admission: &Admission,
    waits_by: Ask,
    pool: &Pool,
    mut place: impl FnMut() -> Result<Placed, NoWorker>,
) -> Result<Placed, Lost> {
    let place = || match place() {
        Err(NoWorker::Full) if refusal::shortest_pause(pool).is_none() => Err(NoWorker::Full),
        done => Ok(done),
    };
    match admission.place(&pool.label(), &waits_by, place).await {
        Ok(placed) => placed.map_err(Lost::Unplaced),
        Err(Unplaced::NoWorker(nobody)) => Err(Lost::Unplaced(nobody)),
        Err(Unplaced::Turned(error)) => Err(Lost::Turned(error)),
    }
}

impl Placed {
    /// The worker.
    pub(super) fn worker(&self) -> &Arc<Worker> {
        self.in_flight.worker()
    }

    /// It was known to refuse connections when it was chosen.
    pub(super) fn is_last_resort(&self) -> bool {
        self.decision.unreachable
    }

    /// Why it was chosen.
    pub(super) fn reason(&self) -> &'static str {
        self.decision.reason.as_str()
    }

    /// Connects, sends, and waits until the answer is known to be one. A failure has been told to the
    /// worker's health when this returns. `attempt` counts from 1.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(super) async fn send(
        mut self,
        proxy: &Proxy,
        outgoing: &Outgoing,
        deadline: Option<Instant>,
        attempt: u32,
    ) -> Result<Sent, Failure> {
        let patience = Patience {
            begun: Instant::now(),
            waits_for: if outgoing.stream {
                WaitsFor::Token
            } else {
                WaitsFor::Answer
            },
            silence: self.longest_silence(proxy),
            deadline,
            worker_gone: proxy.parts.timeouts.worker_gone,
        };
        let limits = AttemptLimits {
            connect: proxy.parts.timeouts.connect,
            patience,
            held_bytes: proxy.parts.limits.event_line_bytes.as_usize(),
        };
        let worker = Arc::clone(self.in_flight.worker());
        let may_move = retry::may_follow(&proxy.parts.retry, attempt) && outgoing.repeatable;
        let has_another = || may_move && self.has_another(proxy);
        let result = attempt::attempt(&worker, outgoing, limits, has_another).await;
        proxy.count_attempt(&worker, &result);
        match result {
            Ok(answer) => {
                worker.engine_dead_since.clear();
                Ok(Sent {
                    answer,
                    placed: self,
                })
            }
            Err(failure) => {
                if matches!(failure, Failure::Late) {
                    self.in_flight.stalled(Instant::now() - patience.silence);
                }
                self.in_flight.end(failure.verdict());
                if failure.is_broken_connection() {
                    worker.unreachable();
                }
                if let Some(pause) = failure.pause() {
                    let pause = pause.min(proxy.parts.retry.worker_pause_max);
                    worker.paused_until.extend(Instant::now() + pause);
                }
                Err(failure)
            }
        }
    }

    /// Whether somebody else would take the request: else it is better off where it is.
    fn has_another(&self, proxy: &Proxy) -> bool {
        let mut tried = self.tried.clone();
        tried.push(self.decision.worker);
        proxy.parts.cluster.has_another(&self.pool, &tried)
    }

    /// A long prompt takes longer to compute.
    fn longest_silence(&self, proxy: &Proxy) -> Duration {
        let timeouts = &proxy.parts.timeouts;
        let per_token = timeouts.first_token_per_1k.as_secs_f64() / 1000.0;
        let tokens = f64::from(self.decision.prompt_tokens);
        let for_prompt = Duration::from_secs_f64(per_token * tokens);
        timeouts.first_token + for_prompt
    }
}

impl Sent {
    /// The beginning of a good stream, and the request's weight on its worker; none for any other answer.
    pub(super) fn into_stream(self) -> Option<(Box<Begun>, InFlight)> {
        let Placed { mut in_flight, .. } = self.placed;
        match self.answer {
            Answer::Begun(begun) if begun.is_good_stream() => {
                in_flight.prefilled();
                in_flight.delivered();
                Some((begun, in_flight))
            }
            Answer::Begun(_) | Answer::Whole(..) | Answer::Switched(..) => None,
        }
    }
}

impl Won {
    /// The worker's name and the decision for it, if the client wants to know.
    pub(super) fn explanation(&self) -> Option<(Arc<str>, Decision)> {
        let placed = &self.sent.placed;
        self.asked.explained.then(|| {
            (
                Arc::clone(&placed.in_flight.worker().label),
                placed.decision,
            )
        })
    }

    /// The point of no return: from here on the answer belongs to this worker.
    pub(super) fn commit(self, proxy: &Arc<Proxy>, mut record: Record) -> Response<ResponseBody> {
        let Placed { mut in_flight, .. } = self.sent.placed;
        in_flight.prefilled();
        if let Answer::Switched(mut parts, switched) = self.sent.answer {
            record.switches(&parts);
            handshake::switch(&mut parts.headers);
            let session = self.asked.session.expect("only a session asks for a 101");
            let config = proxy.parts.sessions.config().clone();
            let held = (in_flight, record);
            let tunnel = Tunnel::new(*switched, config, self.asked.deadline, held, session);
            return Response::from_parts(parts, ResponseBody::Tunnel(Some(Box::new(tunnel))));
        }
        if self.asked.endpoint.traits().computes && self.sent.answer.status().is_success() {
            in_flight.delivered();
        }
        record.first_token();
        match self.sent.answer {
            Answer::Whole(parts, bytes) => {
                record.answers(&parts, false);
                record.passes(&bytes);
                let outcome = if parts.status.is_success() {
                    record.usage = sse::usage_of(&bytes);
                    Outcome::Success
                } else {
                    Outcome::Error
                };
                in_flight.end(outcome.verdict());
                record.finish(outcome);
                Response::from_parts(parts, bytes.into())
            }
            Answer::Switched(..) => unreachable!("a tunnel is no answer to pass on"),
            Answer::Begun(begun) => {
                record.answers(&begun.parts, begun.events);
                let timeouts = &proxy.parts.timeouts;
                let silence = Silence {
                    longest: timeouts.inter_token,
                    worker_bad: timeouts.worker_bad,
                    worker_gone: timeouts.worker_gone,
                    deadline: self.asked.deadline,
                };
                let on_break = if self.asked.failover && begun.is_good_stream() {
                    let worker = in_flight.worker().id.clone();
                    OnBreak::of(proxy, self.asked, worker)
                } else {
                    OnBreak::End
                };
                let (parts, mut relay) = Relay::new(*begun, in_flight, record, silence);
                relay.on_break(on_break);
                Response::from_parts(parts, ResponseBody::Relay(Box::new(relay)))
            }
        }
    }
}

/// What the response cache has to know of a request.
fn kept_as<'a>(
    proxy: &'a Proxy,
    head: &'a Parts,
    caller: Caller<'a>,
    question: &'a Question,
    body: &'a HeldBody,
) -> cache::Asked<'a> {
    let tenant_header = proxy.parts.cluster.settings().tenant_header.as_deref();
    let tenant = caller.tenant(tenant_header, &head.headers);
    cache::Asked {
        method: &head.method,
        path: head.uri.path(),
        query: head.uri.query(),
        headers: &head.headers,
        model: question.pool.model(),
        tenant: tenant.map_or(&b""[..], |(name, _)| name),
        // Without keys nobody has checked it before a worker does; with them it is this replica's alone.
        authorization: match caller {
            Caller::Anybody => head.headers.get(header::AUTHORIZATION),
            Caller::Keyed(_) | Caller::Tenant(_) => None,
        },
        body: &body.bytes,
    }
}

/// The request as every worker gets it; a client's key, where there are keys, is for nobody but this replica.
fn outgoing(head: Parts, body: WorkerBody, id: &HeaderValue, has_key: bool) -> Outgoing {
    let mut headers = head.headers;
    headers::clean_request(&mut headers);
    if has_key {
        headers.remove(header::AUTHORIZATION);
        headers.remove(X_API_KEY);
    }
    headers.insert(headers::REQUEST_ID, id.clone());
    hops::sign(&mut headers);
    Outgoing {
        method: head.method,
        // A client may send an absolute URI; workers get its path.
        target: head
            .uri
            .into_parts()
            .path_and_query
            .map_or_else(Uri::default, Uri::from),
        headers,
        body,
        stream: false,
        upgrade: None,
        repeatable: false,
    }
}
