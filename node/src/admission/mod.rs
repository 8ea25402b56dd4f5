//! Admission: which requests are let in, which wait, which are turned away.
//!
//! 1. Limits of the key and its tenant: above them 429 at once.
//! 2. The door, before a byte of the body is read: a place among the requests of this replica. With room and none
//!    waiting it costs a lock and no wait; else the request waits in a queue: classes in strict order with a reserve
//!    for those passed over, tenants by fair shares (`queue` has the rules). A full queue and a wait that was too long
//!    are 503.
//! 3. Its model, as soon as the body was read: the place becomes one of the model, if the model may have one more
//!    (`places` has the rule), and is held to the end of the answer. Else it is given back, and the request waits in
//!    its model's queue, in the same order. So one model's requests do not keep another's out. Where one model is
//!    served, or none is kept apart, this never waits: all waiting is at the door, unread.
//! 4. Where every worker that it may have is at its own limit, the same kind of queue for room at one: that of its
//!    model, or, of a request that only some of the model's workers may take, that of those that may have the same.
//!
//! A waiting request that is dropped, because its client left or its time is over, leaves its queue at once and is
//! never sent to a worker.

pub mod byte_budget;
pub mod metrics;
mod model_queues;
mod permits;
mod places;
mod queue;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod tests;
mod wait_queue;
mod worker_capacity;

use std::sync::Arc;
use std::time::Duration;

use grapevine_placement::NoWorker;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tokio::time::Instant;

use self::byte_budget::ByteBudget;
use self::metrics::{AdmissionMetrics, For, Verdict};
use self::model_queues::{ModelQueues, Wait};
pub use self::permits::Permit;
use self::permits::Permits;
use self::places::Places;
use self::queue::{Claim, FlowId};
use self::wait_queue::{TurnedAway, WaitQueue};
use self::worker_capacity::NoCapacity;
use crate::api::Priority;
use crate::api::error::{ApiError, ErrorKind};
use crate::cluster::ServedModels;
use crate::config::{AdmissionConfig, NoRoomStatus};
use crate::live::Live;
use crate::tenants::bucket::Quotas;
use crate::tenants::{ApiKey, Charge, OthersUse, Seat, Tenant};

/// Estimated tokens of a body whose length is not known, and of an answer, whose length never is.
const TOKENS_UNKNOWN: u32 = 256;
/// The head of the queue is woken by every end of a request; this is only a net.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What admission is made of.
#[derive(Debug)]
pub struct AdmissionParts {
    /// Queue and classes.
    pub config: Live<AdmissionConfig>,
    /// Requests at once.
    pub requests: u32,
    /// To estimate a prompt's tokens by its bytes.
    pub bytes_per_token: u8,
    /// Header that names a tenant where there are no keys.
    pub tenant_header: Option<HeaderName>,
    /// What the other replicas do.
    pub others: Arc<dyn OthersUse>,
    /// Bytes of all bodies.
    pub bodies: Arc<ByteBudget>,
    /// Where to count.
    pub metrics: AdmissionMetrics,
}

/// Lets requests in.
#[derive(Debug)]
pub struct Admission {
    parts: AdmissionParts,
    permits: Arc<Permits>,
}

/// What a request waits by.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    claim: Claim,
    /// The part of its cost that the door knew, by its head.
    head_cost: u32,
    /// To estimate a prompt's tokens by its bytes.
    bytes_per_token: u8,
    /// Until when it may wait, for a place and for a worker together.
    by: Instant,
    /// Bytes of its body that it holds while it waits.
    bytes: u64,
    /// It is about a response that is there, and has nothing computed.
    only_reads: bool,
    /// What it has computed counts in tokens.
    uses_tokens: bool,
}

/// A request that was let in.
#[derive(Debug)]
pub struct Admitted {
    /// Its place; the request is in progress as long as it is held.
    pub permit: Permit,
    /// How long it waited, if it did.
    pub queued: Option<Duration>,
    /// Its key's rate limits.
    pub quotas: Quotas,
    /// What it took of its key's rate of tokens.
    pub charge: Option<Charge>,
}

/// A request that was turned away.
#[derive(Debug)]
pub struct AdmissionRefused {
    /// What the client gets.
    pub error: ApiError,
    /// Its key's rate limits.
    pub quotas: Quotas,
    /// How long it waited, if it did.
    pub queued: Option<Duration>,
}

/// A request beyond a limit of its key.
struct Limited {
    error: ApiError,
    quotas: Quotas,
}

/// A request within the limits of its key.
#[derive(Default)]
struct Within {
    seat: Option<Seat>,
    charge: Option<Charge>,
    quotas: Quotas,
}

impl From<Box<Limited>> for AdmissionRefused {
    fn from(limited: Box<Limited>) -> Self {
        Self {
            error: limited.error,
            quotas: limited.quotas,
            queued: None,
        }
    }
}

/// A request that is in and gets no place of its model.
#[derive(Debug)]
pub struct Refused {
    /// What the client gets.
    pub error: ApiError,
    /// How long it waited, if it did.
    pub queued: Option<Duration>,
}

/// A request that is in and gets no worker.
#[derive(Debug)]
pub enum Unplaced {
    /// Waiting would not help, or there is no room to wait.
    NoWorker(NoWorker),
    /// It waited in vain.
    TurnedAway(ApiError),
}

impl Ask {
    /// How urgent it is.
    pub fn class(&self) -> Priority {
        self.claim.class
    }

    /// The same for a request about a response that is there: it waits for nobody's computing, and to cancel may be what
    /// makes room.
    pub fn that_only_reads(self) -> Self {
        Self {
            only_reads: true,
            ..self
        }
    }

    /// The same for a request that no rate of tokens counts: it has nothing generated or embedded, or is an upload, whose
    /// bytes say nothing of tokens.
    pub fn without_tokens(self) -> Self {
        Self {
            uses_tokens: false,
            ..self
        }
    }

    /// The same after so long a time in which it did not wait here, but read its body: only waiting wears patience.
    /// `deadline`: the end of the whole request.
    pub fn after(self, reading: Duration, deadline: Option<Instant>) -> Self {
        let by = self.by + reading;
        Self {
            by: deadline.map_or(by, |deadline| deadline.min(by)),
            ..self
        }
    }

    /// The same when so many bytes of its body are held. They alone say what it costs: a head may have said nothing of
    /// their number, or that of the compressed ones.
    pub fn holding(self, bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self {
            claim: Claim {
                cost: cost_of(Some(bytes), self.bytes_per_token),
                ..self.claim
            },
            bytes,
            ..self
        }
    }
}

/// Estimated tokens of a request with so long a body, and of its answer.
fn cost_of(body_bytes: Option<u64>, bytes_per_token: u8) -> u32 {
    let prompt = body_bytes.map_or(TOKENS_UNKNOWN, |bytes| {
        let tokens = bytes / u64::from(bytes_per_token.max(1));
        u32::try_from(tokens).unwrap_or(u32::MAX)
    });
    prompt.saturating_add(TOKENS_UNKNOWN)
}

impl Admission {
    /// With no request in progress.
    pub fn new(parts: AdmissionParts) -> Self {
        let config = parts.config.now();
        let (len_max, passed_over_max) = (config.queue_size as usize, config.passed_over_max);
        let queues = || ModelQueues::new(len_max, passed_over_max);
        let door = WaitQueue::new(len_max, passed_over_max);
        // A ratio of 0 to 1.
        let kept_milli = (config.model_reserve.get() * 1_000.0).round() as u32;
        let places = Places::new(parts.requests, kept_milli);
        Self {
            permits: Arc::new(Permits::new(places, door, queues(), queues())),
            parts,
        }
    }

    /// The status of an answer that means "no room".
    pub fn no_room_status(&self) -> NoRoomStatus {
        self.parts.config.look().no_room_status
    }

    /// What workers are told of how urgent a request of this class is; none where they are not told.
    #[must_use]
    pub fn in_engines(&self, class: Priority) -> Option<&'static str> {
        (self.parts.config.look().engine_priority).then(|| class.in_engines())
    }

    /// So many requests at once from now on. With fewer than are in progress, nobody gets in until enough have ended.
    pub fn resize(&self, requests: u32) {
        self.permits.resize(requests);
    }

    /// What holds the bytes of all bodies.
    pub fn bodies(&self) -> &Arc<ByteBudget> {
        &self.parts.bodies
    }

    /// What a request asks for, by its head. `body_bytes`: length of its body, if the client said it; `deadline`: the
    /// end of the whole request.
    pub fn ask(
        &self,
        key: Option<&ApiKey>,
        headers: &HeaderMap,
        body_bytes: Option<u64>,
        deadline: Option<Instant>,
    ) -> Ask {
        let config = self.parts.config.look();
        let (usual, most) = match key {
            Some(key) => (key.priority(), key.priority()),
            None => (config.priority, config.priority_max),
        };
        let bytes_per_token = self.parts.bytes_per_token;
        let cost = cost_of(body_bytes, bytes_per_token);
        Ask {
            claim: Claim {
                class: Priority::of(headers, &config.priority_headers, usual, most),
                flow: key.map_or_else(|| self.flow_of(headers), |key| key.tenant().number()),
                weight: key.map_or(1_000, ApiKey::weight_milli),
                cost,
            },
            head_cost: cost,
            bytes_per_token,
            by: self.patience(deadline),
            bytes: 0,
            only_reads: false,
            uses_tokens: true,
        }
    }

    /// The same for a request that comes back from a worker that failed: its patience begins anew.
    pub fn ask_again(&self, ask: Ask, deadline: Option<Instant>) -> Ask {
        Ask {
            by: self.patience(deadline),
            ..ask
        }
    }

    fn patience(&self, deadline: Option<Instant>) -> Instant {
        let patience = Instant::now() + self.parts.config.look().queue_timeout;
        deadline.map_or(patience, |deadline| deadline.min(patience))
    }

    /// These models are served: the places are shared out between them.
    pub fn serve(&self, models: &Arc<ServedModels>) {
        self.permits.serve(models);
    }

    /// Lets a request in to be read, at once or after a wait.
    /// Errors: 429 above a limit of the key, 503 when the queue is full or the wait was too long.
    pub async fn admit(
        &self,
        key: Option<&Arc<ApiKey>>,
        ask: &Ask,
    ) -> Result<Admitted, AdmissionRefused> {
        let beside = ask.only_reads.then(|| self.permits.beside()).flatten();
        let Within {
            mut seat,
            charge,
            quotas,
        } = match key {
            Some(key) => self.within_limits(key, ask, beside.is_some())?,
            None => Within::default(),
        };
        let queued = match beside {
            Some(_) => Ok(None),
            None => self.at_door(key, ask).await,
        };
        let queued = queued.map_err(|Refused { error, queued }| AdmissionRefused {
            error,
            quotas,
            queued,
        })?;
        if let Some(seat) = &mut seat {
            seat.admitted();
        }
        self.parts.metrics.count(ask.class(), Verdict::Admitted);
        Ok(Admitted {
            permit: self.permits.permit(seat, beside),
            queued,
            quotas,
            charge,
        })
    }

    async fn at_door(
        &self,
        key: Option<&Arc<ApiKey>>,
        ask: &Ask,
    ) -> Result<Option<Duration>, Refused> {
        if self.permits.take_unread().is_some() {
            return Ok(None);
        }
        let turn = self.permits.wait_unread(self.wait(ask));
        self.queue(key, ask, turn).await.map(Some)
    }

    /// Makes the place of a request that was read one of its model, at once or after a wait, and says how long it
    /// waited, if it did.
    /// Errors: 503 when the model's queue is full, or the wait was too long.
    pub async fn enter(
        &self,
        permit: &mut Permit,
        key: Option<&Arc<ApiKey>>,
        model: &Arc<str>,
        ask: &Ask,
    ) -> Result<Option<Duration>, Refused> {
        let claim = ask.claim;
        let hidden = claim.cost.saturating_sub(ask.head_cost);
        self.permits.charge_at_door(Claim {
            cost: hidden,
            ..claim
        });
        if self.permits.change(permit, model) {
            return Ok(None);
        }
        let turn = self.permits.wait(permit, model, self.wait(ask));
        self.queue(key, ask, turn).await.map(Some)
    }

    /// Makes the place of a request that was read one of its model, if that has one; else it gives its place back. One
    /// that was let in beside the others takes none.
    pub fn enter_at_once(&self, permit: &mut Permit, model: &Arc<str>) {
        if !permit.is_beside() {
            self.permits.change(permit, model);
        }
    }

    /// Requests wait to be read.
    pub fn is_crowded(&self) -> bool {
        !self.permits.door.is_empty()
    }

    /// Requests in progress, as far as their models are known.
    pub fn in_progress(&self) -> u32 {
        self.permits.held().iter().map(|(_, held)| held).sum()
    }

    /// Requests that wait now, at the door and for a worker.
    pub fn waiting(&self) -> i64 {
        self.parts.metrics.waiting()
    }

    /// Sets the metrics of models to what is so now.
    pub fn show(&self, label_of: impl Fn(&Arc<str>) -> Arc<str>) {
        let (held, waiting) = (self.permits.held(), self.permits.at_models.lengths());
        self.parts.metrics.show_models(held, waiting, label_of);
    }

    /// Places a request that is in: tries, and while every worker that it may have is at its own limit, waits. Says how
    /// long it waited, if it did. `queue`: where it waits, by a name that requests share which may have the same workers;
    /// only the first in a queue looks for room. `tenant`: for whom it is counted if it is turned away.
    /// Errors: no worker may take it, the queue is full, or the wait was too long.
    pub async fn place<T>(
        &self,
        queue: &Arc<str>,
        ask: &Ask,
        tenant: Option<&Tenant>,
        mut place: impl FnMut() -> Result<T, NoWorker>,
    ) -> (Result<T, Unplaced>, Option<Duration>) {
        if !self.permits.at_workers.is_waited_for(queue) {
            match place() {
                Err(NoWorker::Full) => {}
                done => return (done.map_err(Unplaced::NoWorker), None),
            }
        }
        let mut waiting = Pending::new(&self.parts.metrics, For::Worker, ask.class());
        let wait = Wait {
            again: worker_capacity::AGAIN,
            ..self.wait(ask)
        };
        let capacity = worker_capacity::wait(&self.permits.at_workers, queue, wait, place);
        let (placed, verdict) = match capacity.await {
            Ok(placed) => (Ok(placed), None),
            Err(NoCapacity::NoWorker(why)) => (Err(Unplaced::NoWorker(why)), None),
            Err(NoCapacity::TurnedAway(TurnedAway::Full)) => {
                let full = Unplaced::NoWorker(NoWorker::Full);
                (Err(full), Some(Verdict::QueueFull))
            }
            Err(NoCapacity::TurnedAway(turned)) => {
                let verdict = verdict_of(turned);
                (
                    Err(Unplaced::TurnedAway(turned_away(verdict))),
                    Some(verdict),
                )
            }
        };
        waiting.ended(verdict);
        if let (Some(tenant), Some(verdict)) = (tenant, verdict) {
            tenant.refused(verdict.as_str());
        }
        (placed, waiting.waited())
    }

    /// A request that goes on has left a worker: those that wait for one should look. What ends wakes them by itself.
    pub fn worker_has_room(&self) {
        self.permits.at_workers.wake_all();
    }

    /// `beside`: it is none of the requests at once, of which the tenant may have so many.
    fn within_limits(
        &self,
        key: &Arc<ApiKey>,
        ask: &Ask,
        beside: bool,
    ) -> Result<Within, Box<Limited>> {
        let others = &*self.parts.others;
        // One beside the others is none of `max_requests`, here or by what other replicas are told.
        let entered = (!beside).then(|| key.tenant().enter());
        if let (Some((_, here)), Some(most)) = (&entered, key.requests_max()) {
            let elsewhere = match key.is_cluster_wide() {
                true => others.requests(key.tenant().number()),
                false => 0,
            };
            if here.saturating_add(elsewhere) > most {
                let what = format!(
                    "{most} requests at once, of all keys of the tenant, are the limit of this key; let some end first"
                );
                let quotas = Quotas::default();
                return Err(self.limited(key, ask, Verdict::TenantRequests, what, quotas));
            }
        }
        let now = Instant::now();
        let mut quotas = Quotas {
            requests: key.take(now, others),
            tokens: None,
        };
        if let Some(quota) = quotas.requests.filter(|quota| quota.next_in.is_some()) {
            let what = format!(
                "{} requests a minute are the limit of this key",
                quota.limit
            );
            return Err(self.limited(key, ask, Verdict::RequestRate, what, quotas));
        }
        let mut charge = None;
        if ask.uses_tokens {
            match key.take_tokens(now, others, ask.claim.cost, ask.bytes_per_token) {
                None => {}
                Some(Ok((quota, taken))) => {
                    quotas.tokens = Some(quota);
                    charge = Some(taken);
                }
                Some(Err(quota)) => {
                    quotas.tokens = Some(quota);
                    let what = format!(
                        "{} tokens a minute, of prompts and answers, are the limit of this key",
                        quota.limit
                    );
                    return Err(self.limited(key, ask, Verdict::TokenRate, what, quotas));
                }
            }
        }
        Ok(Within {
            seat: entered.map(|(seat, _)| seat),
            charge,
            quotas,
        })
    }

    fn limited(
        &self,
        key: &ApiKey,
        ask: &Ask,
        verdict: Verdict,
        what: String,
        quotas: Quotas,
    ) -> Box<Limited> {
        self.parts.metrics.count(ask.class(), verdict);
        key.tenant().refused(verdict.as_str());
        Box::new(Limited {
            error: ApiError::new(ErrorKind::RateLimited, what),
            quotas,
        })
    }

    fn wait(&self, ask: &Ask) -> Wait {
        Wait {
            claim: ask.claim,
            by: ask.by,
            again: LOOK_AGAIN,
            bytes: ask.bytes,
            bytes_free: self.parts.bodies.free(),
        }
    }

    /// Counts a wait for a place; says how long it took.
    async fn queue(
        &self,
        key: Option<&Arc<ApiKey>>,
        ask: &Ask,
        turn: impl Future<Output = Result<(), TurnedAway>>,
    ) -> Result<Duration, Refused> {
        let mut waiting = Pending::new(&self.parts.metrics, For::Admission, ask.class());
        match turn.await {
            Ok(()) => {
                waiting.ended(None);
                Ok(waiting.waited().unwrap_or_default())
            }
            Err(turned) => {
                let verdict = verdict_of(turned);
                waiting.ended(Some(verdict));
                if let Some(key) = key {
                    key.tenant().refused(verdict.as_str());
                }
                Err(Refused {
                    error: turned_away(verdict),
                    queued: waiting.waited(),
                })
            }
        }
    }

    /// The tenant of a request where there are no keys.
    fn flow_of(&self, headers: &HeaderMap) -> FlowId {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        let name = self.parts.tenant_header.as_ref();
        let Some(tenant) = name.and_then(|name| headers.get(name)) else {
            return 0;
        };
        let mut hasher = DefaultHasher::new();
        tenant.as_bytes().hash(&mut hasher);
        hasher.finish()
    }
}

/// A wait whose end is counted, whatever it is; one that is dropped lost its client.
struct Pending<'a> {
    metrics: &'a AdmissionMetrics,
    waiting: metrics::WaitTimer<'a>,
    class: Priority,
    verdict: Option<Verdict>,
}

impl<'a> Pending<'a> {
    fn new(metrics: &'a AdmissionMetrics, queue: For, class: Priority) -> Self {
        Self {
            metrics,
            waiting: metrics.wait(queue, class),
            class,
            verdict: Some(Verdict::ClientLeft),
        }
    }

    /// None: it goes on, and is counted elsewhere.
    fn ended(&mut self, verdict: Option<Verdict>) {
        self.verdict = verdict;
        if let Some(Verdict::QueueFull | Verdict::QueueBytes) = verdict {
            self.waiting.was_refused();
        }
    }

    /// How long it has waited; none: the queue did not take it.
    fn waited(&self) -> Option<Duration> {
        self.waiting.waited()
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(verdict) = self.verdict {
            self.metrics.count(self.class, verdict);
        }
    }
}

fn verdict_of(turned: TurnedAway) -> Verdict {
    match turned {
        TurnedAway::Full => Verdict::QueueFull,
        TurnedAway::Displaced => Verdict::Displaced,
        TurnedAway::Late => Verdict::QueueTimeout,
        TurnedAway::Heavy => Verdict::QueueBytes,
    }
}

fn turned_away(verdict: Verdict) -> ApiError {
    let message = match verdict {
        Verdict::QueueTimeout => "no room was found while the request waited; try again later",
        Verdict::Displaced => "more urgent requests took the place in the queue; try again later",
        Verdict::QueueBytes => {
            "the waiting requests of this model hold too many bytes already; try again later"
        }
        _ => "this replica has too many requests in progress; try again",
    };
    ApiError::new(ErrorKind::Overloaded, message)
}

/// OpenAI's headers for a rate: its limit, what is left of it, and when it is whole again.
struct RateHeaders([HeaderName; 3]);

const REQUESTS: RateHeaders = RateHeaders([
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
]);
const TOKENS: RateHeaders = RateHeaders([
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
]);

/// Tells a client where it stands, in OpenAI's headers.
pub fn tell(quotas: &Quotas, headers: &mut HeaderMap) {
    for (quota, names) in [(&quotas.requests, REQUESTS), (&quotas.tokens, TOKENS)] {
        let Some(quota) = quota else { continue };
        let [limit, remaining, reset] = names.0;
        headers.insert(limit, quota.limit.into());
        headers.insert(remaining, quota.remaining.into());
        let until = format!("{}s", whole_seconds(quota.full_in));
        if let Ok(until) = HeaderValue::try_from(until) {
            headers.insert(reset, until);
        }
        if let Some(next) = quota.next_in {
            headers.insert(header::RETRY_AFTER, whole_seconds(next).max(1).into());
        }
    }
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
