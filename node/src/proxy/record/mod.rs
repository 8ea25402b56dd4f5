//! The one record of a request: exactly one outcome, counted once, and one log line.

mod ended;
mod midway;
mod prefill;

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, response};
use tokio::time::Instant;

pub(super) use self::midway::Midway;
use self::prefill::PrefillLeg;
use super::awaited::Awaited;
use super::metrics::ProxyMetrics;
use super::model_series::ModelSeries;
use super::outcome::Outcome;
use super::session_id::name_text;
use crate::admission::Permit;
use crate::api::error::{Dialect, ErrorKind};
use crate::api::{ApiError, Endpoint, Priority};
use crate::cache::Recording;
use crate::cluster::{Cluster, RecordedPlacement};
use crate::http::sse::{Scan, Usage};
use crate::metrics::{Gaps, SampledSpan};
use crate::tenants::bucket::Quotas;
use crate::tenants::{ApiKey, Charge, Tenant};
use crate::trace::RequestTrace;
use crate::upstream::Worker;
use crate::upstream::failure::Failure;

/// Filled in as the request goes on; counted when it ends or, at the latest, when it is dropped. Its line and its spans
/// are written when it is dropped: whoever holds it until the answer is out does not make a client wait for them.
#[derive(Debug)]
pub struct Record {
    metrics: Arc<ProxyMetrics>,
    cluster: Arc<Cluster>,
    started: Instant,
    endpoint: Endpoint,
    request_id: HeaderValue,
    /// The client's address, as far as proxies are trusted.
    pub client: Option<IpAddr>,
    /// The shape of errors that its client reads.
    pub dialect: Dialect,
    /// The model's name in the registry.
    model: Option<Arc<str>>,
    /// What is counted of the model.
    series: Arc<ModelSeries>,
    /// The worker that answered.
    pub worker: Option<Arc<Worker>>,
    /// The worker of the latest attempt that gave nothing.
    failed_worker: Option<Arc<Worker>>,
    /// Why it was chosen.
    pub reason: &'static str,
    /// What a prefill worker did for it, if one did.
    prefill: Option<Box<PrefillLeg>>,
    /// How it went, for a model some of whose workers take one half of a request.
    split: Option<&'static str>,
    /// Its prompt came to the worker from another one: what the worker says of its own cache says nothing.
    kv_arrived: bool,
    /// Tries so far.
    pub attempts: u32,
    /// Times that the stream went on from another worker.
    failovers: u32,
    /// Status that went to the client.
    pub status: Option<StatusCode>,
    /// Token counts that the worker reported.
    pub usage: Option<Usage>,
    /// They came before the answer, which broke off: see [`Self::completion_tokens`].
    counts_prompt_alone: bool,
    /// Events relayed.
    events: u64,
    /// Tokens of the answer, an event taken for one: for an answer whose worker reports none.
    counted_tokens: u64,
    /// Those of them that earlier workers made, and that are counted as theirs.
    moved_tokens: u64,
    /// Bytes of its own body, once that is there.
    pub bytes_in: Option<u64>,
    /// Bytes of the answer's body.
    pub bytes_out: u64,
    /// What its client gets while it waits, where that is on.
    pub(super) awaited: Option<Arc<Awaited>>,
    /// The router's own error that its client got.
    error: Option<ErrorKind>,
    /// The model that it names, where that is an alias, or its beginning, where it may not be asked for.
    pub asked_model: Option<Box<str>>,
    /// The key that it came with.
    pub key: Option<Arc<ApiKey>>,
    /// The request's place among those admitted; held to the end of the stream.
    pub admission: Option<Permit>,
    /// The tenant of the request, by its key.
    pub tenant: Option<Arc<Tenant>>,
    /// How urgent it is.
    pub priority: Priority,
    /// How long it waited to be admitted, if it did.
    pub queued: Option<Duration>,
    /// Since when it waits for a place, unless it has one.
    waits_since: Option<Instant>,
    /// The rate limits of its key.
    pub quotas: Quotas,
    /// What it took of its key's rate of tokens, until it is known what it used.
    pub charge: Option<Charge>,
    /// What the response cache had; none when it is off.
    pub cache: Option<&'static str>,
    /// Takes the answer down for the response cache.
    pub recording: Option<Box<Recording>>,
    /// The request's spans; none when traces are off.
    pub trace: Option<Box<RequestTrace>>,
    /// From the first event of a stream to the last.
    streamed: Duration,
    /// Longest pause between two of them.
    longest_pause: Duration,
    /// The gaps between its tokens, once there is one.
    gaps: Option<Box<Gaps>>,
    /// What placement recorded for the last attempt.
    recorded: Option<RecordedPlacement>,
    /// Of a stream.
    first_token: Option<Duration>,
    /// Whether this replica ends now.
    is_cutting: Arc<AtomicBool>,
    /// How it ended, and after what time.
    ended: Option<(Outcome, Duration)>,
}

impl Record {
    /// Begins with the request's head. On the heap: it is large, and goes from hand to hand.
    pub fn new(
        metrics: Arc<ProxyMetrics>,
        cluster: Arc<Cluster>,
        endpoint: Endpoint,
        request_id: HeaderValue,
        is_cutting: Arc<AtomicBool>,
    ) -> Box<Self> {
        metrics.traffic.requests_active.inc();
        Box::new(Self {
            series: Arc::clone(metrics.requests.models.unknown()),
            metrics,
            cluster,
            started: Instant::now(),
            endpoint,
            request_id,
            client: None,
            dialect: Dialect::default(),
            model: None,
            worker: None,
            failed_worker: None,
            reason: "",
            prefill: None,
            split: None,
            kv_arrived: false,
            attempts: 0,
            failovers: 0,
            status: None,
            usage: None,
            counts_prompt_alone: false,
            events: 0,
            counted_tokens: 0,
            moved_tokens: 0,
            bytes_in: None,
            bytes_out: 0,
            awaited: None,
            error: None,
            asked_model: None,
            key: None,
            admission: None,
            cache: None,
            recording: None,
            trace: None,
            streamed: Duration::ZERO,
            longest_pause: Duration::ZERO,
            gaps: None,
            tenant: None,
            priority: Priority::default(),
            queued: None,
            waits_since: None,
            quotas: Quotas::default(),
            charge: None,
            recorded: None,
            first_token: None,
            is_cutting,
            ended: None,
        })
    }

    /// How a request ended that was dropped before its end.
    pub fn abandoned(&self) -> Outcome {
        if std::thread::panicking() {
            Outcome::Error
        } else if self.is_cutting.load(Ordering::Relaxed) {
            Outcome::ShutDown
        } else {
            Outcome::ClientLeft
        }
    }

    /// When the request's head was there.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Its id.
    pub fn request_id(&self) -> &HeaderValue {
        &self.request_id
    }

    /// It asks for this model, by its name in the registry; the empty one is that of no model.
    pub fn asks_for(&mut self, model: Arc<str>) {
        self.series = self.metrics.requests.models.of(&model);
        self.series.expect(self.endpoint);
        self.model = Some(model);
    }

    /// A worker is to be chosen: all that comes before is done, at the time that is returned.
    pub fn prepared(&self) -> Instant {
        let now = Instant::now();
        // Another one is chosen as if the request had just been let in: what the first one took is not the router's time.
        if self.attempts == 0 {
            let took = now - self.started;
            let took = took.saturating_sub(self.queued.unwrap_or_default());
            self.metrics.requests.prepared(took);
        }
        now
    }

    /// The first event, or a whole short answer, is there; `streams`: it is the first of a stream's events.
    pub fn first_token(&mut self, streams: bool) {
        let elapsed = self.started.elapsed();
        if let Some(recorded) = &mut self.recorded {
            recorded.settle();
        }
        if streams && !self.is_reread() {
            self.first_token = Some(elapsed);
            let first_token = &self.series.pace().first_token;
            first_token.observe(elapsed, self.sampled_span());
            if let Some(worker) = &self.worker {
                let seconds = elapsed.as_secs_f64();
                self.metrics.answers.first_token(worker, seconds);
            }
        }
    }

    /// A stored answer that is read again, whole or as a stream: its tokens and their pace were counted when they were made.
    fn is_reread(&self) -> bool {
        self.endpoint == Endpoint::Response
    }

    /// The first worker was chosen; the choice took this long.
    pub fn decided(&mut self, took: Duration, reason: &'static str) {
        if let Some(trace) = &mut self.trace {
            trace.placed(took, reason);
        }
    }

    /// A worker was chosen for the next attempt.
    pub fn placed(
        &mut self,
        worker: &Arc<Worker>,
        reason: &'static str,
        recorded: Option<RecordedPlacement>,
    ) {
        self.attempts += 1;
        self.asked(worker, reason, recorded);
    }

    /// The answer comes whole, from a worker that may have the prompt: nothing says when it has.
    pub fn comes_whole(&mut self) {
        if let Some(recorded) = &mut self.recorded {
            recorded.comes_whole();
        }
    }

    fn asked(
        &mut self,
        worker: &Arc<Worker>,
        reason: &'static str,
        recorded: Option<RecordedPlacement>,
    ) {
        if let Some(trace) = &mut self.trace {
            let url = &worker.address.url;
            trace.attempt(&worker.label, url.host(), url.port());
        }
        self.is_at(worker, reason, recorded);
    }

    fn is_at(
        &mut self,
        worker: &Arc<Worker>,
        reason: &'static str,
        recorded: Option<RecordedPlacement>,
    ) {
        self.reason = reason;
        self.worker = Some(Arc::clone(worker));
        self.recorded = recorded;
        self.kv_arrived = false;
    }

    /// It goes this way; the last word counts, since an attempt that fails may be followed by one of another way.
    pub fn goes(&mut self, way: &'static str) {
        self.split = Some(way);
    }

    /// A worker is to answer, whose prompt comes from a prefill worker.
    pub fn decode_placed(
        &mut self,
        worker: &Arc<Worker>,
        reason: &'static str,
        recorded: Option<RecordedPlacement>,
    ) {
        self.attempts += u32::from(!self.joins_prefill());
        self.asked(worker, reason, recorded);
        self.kv_arrived = true;
    }

    /// The worker that was to answer is not asked for it any more.
    pub fn decode_given_up(&mut self) {
        self.worker = None;
        if let Some(trace) = &mut self.trace {
            trace.attempt_failed("given_up", None);
        }
        if let Some(recorded) = self.recorded.take() {
            self.cluster.cache_view().retract(recorded);
        }
    }

    /// Other workers are asked to go on with the stream: makes that the parent of what they do, where traces are on.
    pub fn moves(&mut self, headers: &mut HeaderMap) {
        if let Some(trace) = &mut self.trace {
            trace.moves(headers);
        }
    }

    /// The stream goes on from a worker that has computed its prompt, the last one of `attempts` that were asked.
    /// `status`: of its answer; `scan`: what was read of the stream so far.
    pub fn moved(
        &mut self,
        worker: &Arc<Worker>,
        reason: &'static str,
        recorded: Option<RecordedPlacement>,
        attempts: u32,
        status: StatusCode,
        scan: Option<&Scan>,
    ) {
        let tokens = self.tokens_of(scan);
        if let Some(former) = &self.worker {
            let own = tokens.saturating_sub(self.moved_tokens);
            let model = self.series.label();
            self.metrics.answers.count_events(former, model, own);
        }
        self.moved_tokens = tokens;
        self.attempts += attempts;
        if let Some(trace) = &mut self.trace {
            let url = &worker.address.url;
            trace.moved(&worker.label, (url.host(), url.port()), attempts, status);
        }
        // What passed was another worker's: the two parts are no answer that either gave.
        self.recording = None;
        self.is_at(worker, reason, recorded);
        if let Some(recorded) = &mut self.recorded {
            recorded.settle();
        }
        self.failovers += 1;
        self.failover("continued");
    }

    /// No worker goes on with the stream, for this reason.
    pub fn moved_nowhere(&mut self, why: &'static str) {
        self.failover(why);
        if let Some(trace) = &mut self.trace {
            trace.moved_nowhere(why);
        }
    }

    /// A stream's worker broke off where failover was wanted; this came of it.
    pub fn failover(&self, result: &'static str) {
        self.metrics.detours.failover(result);
    }

    /// The attempt gave nothing; the worker has had its verdict.
    pub fn attempt_failed(&mut self, failure: &Failure) {
        self.failed_worker = self.worker.take();
        if let Some(trace) = &mut self.trace {
            trace.attempt_failed(failure.as_str(), failure.status());
        }
        // What its time ended may have been computed long before.
        let is_lost = |recorded: &RecordedPlacement| {
            !matches!(failure, Failure::OutOfTime) || !recorded.is_computed()
        };
        if let Some(recorded) = self.recorded.take().filter(is_lost) {
            self.cluster.cache_view().retract(recorded);
        }
    }

    /// Makes the current attempt the parent of what the worker does, where traces are on.
    ///
    /// And names the text to a worker that publishes which blocks it becomes.
    pub fn propagate(&self, headers: &mut HeaderMap) {
        name_text(self.recorded.as_ref(), headers);
        if let Some(trace) = &self.trace {
            trace.propagate(headers);
        }
    }

    /// The worker refuses the request, and has computed nothing for it.
    pub fn computed_nothing(&mut self) {
        if let Some(recorded) = self.recorded.take() {
            self.cluster.cache_view().retract(recorded);
        }
    }

    /// A worker's answer begins to pass; `streams`: as events.
    pub fn answers(&mut self, head: &response::Parts, streams: bool) {
        self.status = Some(head.status);
        if let Some(recording) = &mut self.recording {
            recording.begin(head);
        }
        if let Some(trace) = &mut self.trace {
            trace.answers(head.status, streams);
        }
    }

    /// A worker agrees to a session, which begins.
    pub fn switches(&mut self, head: &response::Parts) {
        if let Some(recorded) = &mut self.recorded {
            recorded.settle();
        }
        self.answers(head, false);
    }

    /// A piece of the answer's body passes.
    pub fn passes(&mut self, piece: &Bytes) {
        self.bytes_out += piece.len() as u64;
        if let Some(recording) = &mut self.recording {
            recording.add(piece);
        }
    }

    /// It asks for a place now, at `since`. If it ends before [`Self::waited`], it has waited for one until then.
    pub fn waits(&mut self, since: Instant) {
        self.waits_since = Some(since);
    }

    /// It waited this long for a place, until now; none: not at all.
    pub fn waited(&mut self, waited: Option<Duration>) {
        self.waits_since = None;
        let Some(waited) = waited else { return };
        self.queued = Some(self.queued.unwrap_or_default() + waited);
        if let Some(trace) = &mut self.trace {
            trace.queued(waited);
        }
    }

    /// An event of a stream came this long after the one before, or some that came together; the first one after none. With
    /// them the tokens rose from the range's start to its end, as [`Scan::tokens`] counts.
    pub fn event_after(&mut self, pause: Duration, tokens: Range<u64>) {
        self.streamed += pause;
        self.longest_pause = self.longest_pause.max(pause);
        // The first token has none before it.
        let first_gap = self.roles() + 1;
        let (pause, from) = match tokens.start < first_gap {
            true => (Duration::ZERO, first_gap),
            false => (pause, tokens.start),
        };
        let gaps = tokens.end.saturating_sub(from);
        if gaps > 0 {
            self.gaps.get_or_insert_default().count(pause, gaps);
        }
    }

    /// Events before the first token: a chat's first one names the role.
    fn roles(&self) -> u64 {
        u64::from(self.endpoint == Endpoint::Chat)
    }

    /// The request's span, if its trace is sampled.
    fn sampled_span(&self) -> Option<SampledSpan> {
        self.trace.as_ref()?.sampled()
    }

    /// What was read of a stream.
    pub fn streamed(&mut self, scan: &Scan) {
        self.usage = scan.usage;
        self.counts_prompt_alone = scan.counts_prompt_alone;
        self.events = scan.events;
        self.counted_tokens = self.tokens_of(Some(scan));
    }

    /// Tokens of the answer, as the worker reported them; none where it broke off before that.
    fn completion_tokens(&self) -> Option<u64> {
        let usage = self.usage.filter(|_| !self.counts_prompt_alone)?;
        Some(usage.completion_tokens)
    }

    fn tokens_of(&self, scan: Option<&Scan>) -> u64 {
        scan.map_or(0, |scan| scan.tokens().saturating_sub(self.roles()))
    }

    /// The router's own error is a part of what the client gets.
    pub fn count_error(&mut self, kind: ErrorKind) {
        self.error = Some(kind);
        self.metrics.refusals.own_error(kind);
    }

    /// The router's own error is the last event of a stream. A time limit, and the end of this replica, are outcomes of
    /// their own: who adds these up with errors would count them twice.
    pub fn ends_stream(&mut self, kind: ErrorKind, event: &Bytes) {
        self.bytes_out += event.len() as u64;
        match kind {
            ErrorKind::UpstreamBroke => self.count_error(kind),
            _ => self.error = Some(kind),
        }
    }

    /// The router's own error is what the client gets.
    pub fn own_error(&mut self, error: &ApiError) {
        self.own_error_as(error, error.kind.status());
    }

    /// The same under another status.
    pub fn own_error_as(&mut self, error: &ApiError, status: StatusCode) {
        self.count_error(error.kind);
        self.status = Some(status);
        self.bytes_out += error.body_as(status, self.dialect).len() as u64;
        if self.asked_model.is_none() {
            self.asked_model.clone_from(&error.model);
        }
        self.finish(match error.kind {
            ErrorKind::ShuttingDown => Outcome::ShutDown,
            _ => Outcome::Error,
        });
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // A handler that is dropped before it answered: the server saw the client leave, mostly.
        let outcome = self.abandoned();
        if self.ended.is_none() && outcome == Outcome::Error {
            self.status = Some(StatusCode::INTERNAL_SERVER_ERROR);
            // Whoever caught the panic counts it; it is no error of a worker's.
            self.error = Some(ErrorKind::Internal);
        }
        self.finish(outcome);
        self.write();
    }
}
