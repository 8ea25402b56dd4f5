//! From the first byte to the client to the last: the body of a relayed answer.
//!
//! Everything that a request holds travels inside this body (connection, in-flight count, record), so every
//! way out releases all of it: the answer's end, the worker's failure, the client's leaving. The server polls
//! the body only when the client can take more, and only a poll reads from the worker: that is the back-pressure.
//! `movable` has the streams that go on from another worker.

mod first;
mod held_back;
mod movable;
mod on_break;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use grapevine_placement::AttemptOutcome;
use http::HeaderMap;
use http_body::Frame;
use tokio::time::{Instant, Sleep, sleep_until};

use self::held_back::HeldBack;
use crate::api::error::{ApiError, ErrorKind};
use crate::http::client_io::Gone;
use crate::http::counts::Counts;
use crate::http::headers;
use crate::http::sse::Scan;
use crate::lag::{LISTEN_FIRST, overslept};
use crate::proxy::guarded::guarded;
use crate::proxy::outcome::Outcome;
use crate::proxy::own_words;
use crate::proxy::record::Record;
use crate::shutdown::Cutoff;
use crate::upstream::answer::Begun;
use crate::upstream::failure::has_event_of_dead_engine;
use crate::upstream::{AnswerBody, Connection, InFlight};

pub use self::first::First;
pub use self::on_break::{Movable, Moved, OnBreak};

/// The client left, or an answer without a place for an error event broke off: the connection is cut.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The client closed its side.
    #[error("client left")]
    ClientLeft,
    /// The worker's answer broke off, or this replica ends.
    #[error("worker's answer broke off")]
    WorkerBroke,
    /// A defect of the router.
    #[error("the router broke off")]
    RouterBroke,
}

/// How long an answer that has begun may be silent.
#[derive(Debug, Clone, Copy)]
pub struct Silence {
    /// Longest time without a `data:` event; when it is no event stream, without a byte or a sign of life.
    pub longest: Duration,
    /// The same once the worker is known to be bad.
    pub worker_bad: Duration,
    /// The same once the worker refuses connections.
    pub worker_gone: Duration,
    /// The end of the whole request.
    pub deadline: Option<Instant>,
    /// The worker's engine computes what is waited for: its pieces, and its silence, are signs of that.
    pub of_engine: bool,
}

/// An answer on its way from a worker to a client.
#[derive(Debug)]
pub struct Relay {
    held: Option<Bytes>,
    /// What its first event will show, while it has not come.
    first: Option<First>,
    body: AnswerBody,
    /// It ends with its connection, and so does a stream whose worker dies: only its last event tells them apart.
    is_until_close: bool,
    connection: Option<Connection>,
    in_flight: InFlight,
    gone: Gone,
    cutoff: Option<Cutoff>,
    record: Box<Record>,
    scan: Option<Scan>,
    /// Of an answer that is no stream of events.
    counts: Counts,
    /// Of a stream of events that does not move.
    held_back: HeldBack,
    silence: Silence,
    /// Since when the present worker is silent.
    last_event: Instant,
    /// When the client was given the last event, whoever it came from.
    passed_at: Option<Instant>,
    /// The time of the whole request was over when the last piece was given out: the next one is not.
    is_late: bool,
    /// It has waited for the worker since: what comes next has just been sent.
    waited: bool,
    timer: Pin<Box<Sleep>>,
    on_break: OnBreak,
    /// How the worker ended whose stream is looking for another one.
    broke_by: Outcome,
    ended: bool,
}

type Next = Poll<Option<Result<Frame<Bytes>, RelayError>>>;

impl Relay {
    /// Goes on with an answer that has begun.
    pub fn new(
        begun: Begun,
        in_flight: InFlight,
        record: Box<Record>,
        silence: Silence,
    ) -> (http::response::Parts, Self) {
        let now = Instant::now();
        let relay = Self {
            held: Some(begun.held).filter(|held| !held.is_empty()),
            first: None,
            is_until_close: begun.until_close,
            body: begun.body,
            connection: Some(begun.connection),
            in_flight,
            gone: Gone::never(),
            cutoff: None,
            record,
            scan: begun.events.then(Scan::default),
            counts: Counts::default(),
            held_back: HeldBack::default(),
            silence,
            last_event: now,
            passed_at: None,
            is_late: false,
            waited: false,
            timer: Box::pin(sleep_until(now)),
            on_break: OnBreak::End,
            broke_by: Outcome::WorkerBroke,
            ended: false,
        };
        (begun.parts, relay)
    }

    /// What becomes of the stream if its worker fails. Nothing may have been sent yet.
    pub fn on_break(&mut self, on_break: OnBreak) {
        self.on_break = on_break;
    }

    /// What the first event will show; none where it is there already. Nothing may have been sent yet.
    pub fn waits_for(&mut self, first: Option<First>) {
        self.first = first;
    }

    /// Ends the relay once this client has left, or this replica ends.
    pub fn watch(&mut self, gone: Gone, cutoff: Cutoff) {
        self.gone = gone;
        self.cutoff = Some(cutoff);
    }

    /// A defect of ours ends this answer alone, with what can still be said to its client.
    pub(in crate::proxy) fn poll_guarded(&mut self, cx: &mut Context<'_>) -> Next {
        let error = match guarded(|| self.poll_next(cx)) {
            Ok(next) => return next,
            Err(error) => error,
        };
        self.record.count_error(error.kind);
        let words = self.words(&error);
        if !self.ended {
            self.end(Outcome::Error);
        }
        Poll::Ready(Some(words.map(Frame::data).ok_or(RelayError::RouterBroke)))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Next {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.is_late {
            return Poll::Ready(self.broke(Outcome::OutOfTime));
        }
        if let OnBreak::Move(_) = self.on_break {
            return self.poll_movable(cx);
        }
        if let Some(held) = self.held.take() {
            let data = self.pass_whole(held, false);
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
        if self.gone.poll(cx).is_ready() {
            return self.client_left();
        }
        loop {
            let Some(connection) = &mut self.connection else {
                return Poll::Ready(None);
            };
            let data = match connection.poll_frame(&mut self.body, cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    let is_last = self.body.is_end_stream();
                    let (data, trailers) = match frame.into_data() {
                        Ok(data) => (self.pass_whole(data, is_last), None),
                        Err(frame) => (self.pass_rest(), passing(frame)),
                    };
                    if is_last {
                        self.finish();
                    }
                    // Behind half an event, which no engine sends, they are left out.
                    match trailers.filter(|_| data.is_empty()) {
                        Some(trailers) => {
                            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                        }
                        None => data,
                    }
                }
                Poll::Ready(None) if self.is_cut_short() => {
                    return Poll::Ready(self.broke(Outcome::WorkerBroke));
                }
                Poll::Ready(None) => {
                    let rest = self.pass_rest();
                    self.finish();
                    rest
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(self.broke(Outcome::WorkerBroke)),
                Poll::Pending => {
                    return self.poll_limits(cx).map(|outcome| self.broke(outcome));
                }
            };
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
        }
    }

    /// What of a piece passes now: of a stream of events whole ones, unless it is the last piece.
    fn pass_whole(&mut self, data: Bytes, is_last: bool) -> Bytes {
        self.look_through(&data);
        let data = match &self.scan {
            Some(scan) => self.held_back.take(data, scan.is_mid_event() && !is_last),
            None => data,
        };
        self.record.passes(&data);
        data
    }

    /// What waited for the end of an event passes: nothing more comes.
    fn pass_rest(&mut self) -> Bytes {
        let rest = self.held_back.rest();
        self.record.passes(&rest);
        rest
    }

    /// Looks at bytes on their way to the client.
    fn see(&mut self, data: &Bytes) {
        self.look_through(data);
        self.record.passes(data);
    }

    /// Looks at what has come from the worker.
    fn look_through(&mut self, data: &Bytes) {
        #[cfg(debug_assertions)]
        crate::fault_injection::panic_in("stream", self.record.request_id());
        let (progress, tokens, complains) = match &mut self.scan {
            Some(scan) => {
                let (before, error) = (scan.tokens(), scan.error);
                let progress = scan.read(data);
                (progress, before..scan.tokens(), scan.error && !error)
            }
            None => {
                self.counts.look(data);
                (true, 0..0, false)
            }
        };
        if complains {
            self.notes_engine(data);
        }
        if progress {
            let now = Instant::now();
            self.saw_event();
            self.last_event = now;
            let before = self.passed_at.replace(now).unwrap_or(now);
            self.record.event_after(now - before, tokens);
            // Of a client that reads slowly the worker's side is always ahead, so nobody waits for it to look at limits.
            // What has said all has its end left to give.
            let is_done = self.scan.as_ref().is_some_and(|scan| scan.done);
            self.is_late = !is_done && self.silence.deadline.is_some_and(|at| at <= now);
            // What a slow reader left behind says nothing about the worker as it is now.
            let waited = std::mem::take(&mut self.waited);
            if waited && self.scan.is_some() && self.silence.of_engine {
                self.in_flight.goes_on(now);
            }
        }
    }

    /// The worker says that it failed. That its engine is dead is known from here on: what comes to it later did not end
    /// it.
    fn notes_engine(&self, said: &[u8]) {
        if self.in_flight.is_judged() && has_event_of_dead_engine(said) {
            let worker = self.in_flight.worker();
            worker.engine_dead_since.begin(Instant::now());
        }
    }

    /// An event has come. The first that shows anything shows that the worker computes; one that refuses in it has computed
    /// nothing.
    fn saw_event(&mut self) {
        let is_early = |scan: &Scan| !scan.has_begun();
        if self.first.is_none() || self.scan.as_ref().is_some_and(is_early) {
            return;
        }
        self.in_flight.is_heard();
        if let Some(first) = self.first.take()
            && !self.scan.as_ref().is_some_and(|scan| scan.error)
        {
            first.came(&mut self.in_flight, &mut self.record);
        }
    }

    /// The timer runs to the limit that was current when it was armed; only when it fires is the last event's
    /// time looked at, so that an event costs no timer operation. It fires often enough to see that the worker's
    /// port has closed.
    fn poll_limits(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.waited = true;
        if self.poll_cutoff(cx).is_ready() {
            return Poll::Ready(Outcome::ShutDown);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if overslept(self.timer.deadline()) {
                self.timer.as_mut().reset(now + LISTEN_FIRST);
                continue;
            }
            match self.look(now) {
                Ok(next) => self.timer.as_mut().reset(next),
                Err(outcome) => return Poll::Ready(outcome),
            }
        }
        Poll::Pending
    }

    /// When to look at the limits again, unless one is reached.
    fn look(&self, now: Instant) -> Result<Instant, Outcome> {
        let silence = self.silence;
        let worker = self.in_flight.worker();
        let sign = worker.health.last_sign();
        let last = sign.map_or(self.last_event, |sign| sign.max(self.last_event));
        let heard = match &self.scan {
            // The body of a plain answer may pause for as long as its worker lives.
            None => last,
            Some(_) => self.last_event,
        };
        let bad = heard + silence.worker_bad.min(silence.longest);
        let idle = match worker.health.given_up_since() {
            Some(_) => bad,
            None => heard + silence.longest,
        };
        // One that closed its port and sends tokens to others ends what it has begun.
        let given_up = worker.given_up_at(last, silence.worker_gone);
        if idle <= now {
            return Err(Outcome::WorkerStalled);
        }
        if given_up.is_some_and(|at| at <= now) {
            return Err(Outcome::WorkerBroke);
        }
        if silence.deadline.is_some_and(|at| at <= now) {
            return Err(Outcome::OutOfTime);
        }
        let every = silence.longest / 4;
        // What has begun with its head alone waits as if it had not.
        let waits = self.scan.is_none() || self.silence.of_engine && self.first.is_some();
        if waits && heard + every <= now {
            worker.health.want_sign(every);
        }
        let soon = Some(bad).filter(|at| *at > now);
        let again = now + silence.worker_gone.min(every);
        let limits = [Some(idle), given_up, silence.deadline, soon];
        Ok(limits.into_iter().flatten().fold(again, Instant::min))
    }

    fn poll_cutoff(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.cutoff {
            Some(cutoff) => cutoff.poll(cx),
            None => Poll::Pending,
        }
    }

    /// A stream of an engine's events ended without its last one, where nothing else shows that it is whole.
    fn is_cut_short(&mut self) -> bool {
        // Its last line may lack its end.
        if let Some(scan) = self.scan.as_mut().filter(|scan| scan.is_mid_event()) {
            scan.read(b"\n");
        }
        let lacks_end = |scan: &Scan| !scan.done && !scan.error;
        let is_good = self.record.status.is_none_or(|status| status.is_success());
        self.is_until_close && is_good && self.scan.as_ref().is_some_and(lacks_end)
    }

    /// The worker's answer ended well-formed.
    fn finish(&mut self) {
        let is_success = self.record.status.is_none_or(|status| status.is_success());
        let outcome = match &self.scan {
            // As of an answer that is known whole: what a client did wrong is no success of its worker's.
            _ if !is_success => Outcome::Error,
            Some(scan) if scan.error => Outcome::WorkerError,
            Some(scan) if !scan.done => Outcome::Incomplete,
            _ => Outcome::Success,
        };
        if outcome != Outcome::Success {
            self.count_refused();
        }
        if let Some(mut connection) = self.connection.take()
            && connection.may_rest()
        {
            self.in_flight.worker().idle.put(connection, Instant::now());
        }
        self.end(outcome);
    }

    /// The answer cannot go on. An event stream says so in an event; any other body is cut, so that the
    /// client does not take a part for the whole. A stream that has said all ends as if its worker had ended it.
    fn broke(&mut self, outcome: Outcome) -> Option<Result<Frame<Bytes>, RelayError>> {
        let has_said_all = |scan: &Scan| scan.done && !scan.is_mid_event();
        if self.scan.as_ref().is_some_and(has_said_all) {
            self.connection = None;
            self.finish();
            return None;
        }
        let words = self.last_words(outcome);
        Some(words.map(Frame::data).ok_or(RelayError::WorkerBroke))
    }

    /// The error event of a stream, in the shape that its client reads.
    fn words(&self, error: &ApiError) -> Option<Bytes> {
        let scan = self.scan.as_ref()?;
        let is_mid_event = match &self.on_break {
            // Only what passes is looked at.
            OnBreak::Move(_) => scan.is_mid_event(),
            OnBreak::End | OnBreak::Refused(_) => self.held_back.is_within(),
        };
        Some(error.sse_event(is_mid_event, scan.named, self.record.dialect))
    }

    /// Ends the relay, and gives the error event of a stream.
    fn last_words(&mut self, outcome: Outcome) -> Option<Bytes> {
        if !matches!(outcome, Outcome::OutOfTime | Outcome::ShutDown) {
            self.count_refused();
        }
        let broke = |message| ApiError::new(ErrorKind::UpstreamBroke, message);
        let error = match outcome {
            Outcome::WorkerStalled => broke("the worker stopped producing tokens"),
            Outcome::OutOfTime => own_words::out_of_time_midway(),
            Outcome::ShutDown => own_words::shutting_down(),
            _ => broke("the worker's answer broke off"),
        };
        let words = self.words(&error);
        if let Some(words) = &words {
            self.record.ends_stream(error.kind, words);
        }
        self.end(outcome);
        words
    }

    fn count_refused(&self) {
        if let OnBreak::Refused(reason) = self.on_break {
            self.record.failover(reason.as_str());
        }
    }

    fn client_left(&mut self) -> Next {
        self.end(self.unless_all_is_said(Outcome::ClientLeft));
        Poll::Ready(Some(Err(RelayError::ClientLeft)))
    }

    /// What becomes of a stream that nobody reads any more. A client that was given the mark of its end has all of it, and
    /// some, such as OpenAI's for Python, close without waiting for the end of its framing.
    fn unless_all_is_said(&self, outcome: Outcome) -> Outcome {
        let said = |scan: &Scan| scan.done && !scan.error && !scan.is_mid_event();
        match self.scan.as_ref().is_some_and(said) {
            true => Outcome::Success,
            false => outcome,
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.ended = true;
        self.connection = None;
        // A search for another worker ends here, and whatever it has found is let go.
        self.on_break = OnBreak::End;
        match &self.scan {
            Some(scan) => self.record.streamed(scan),
            None if outcome == Outcome::Success => self.record.usage = self.counts.usage(),
            None => {}
        }
        // The worker's room is there before the request's end makes others look for it.
        self.part(outcome);
        self.record.finish(outcome);
    }

    /// The worker has nothing more to do with the request; its health is sent how that came.
    fn part(&mut self, outcome: Outcome) {
        let verdict = match outcome {
            // A stored response that had failed is read again.
            Outcome::WorkerError if !self.in_flight.is_judged() => AttemptOutcome::Neutral,
            // Its worker gives what it has: nothing of its engine was waited for.
            Outcome::WorkerStalled if !self.silence.of_engine => AttemptOutcome::Neutral,
            Outcome::WorkerStalled => {
                self.in_flight.stalled(self.last_event);
                outcome.verdict()
            }
            Outcome::ClientLeft if self.silence.of_engine => {
                self.in_flight.given_up();
                outcome.verdict()
            }
            _ => outcome.verdict(),
        };
        self.in_flight.end(verdict);
    }
}

/// What a client may see of an answer's trailers; none where nothing is left.
fn passing(trailers: Frame<Bytes>) -> Option<HeaderMap> {
    let mut trailers = trailers.into_trailers().ok()?;
    headers::clean_trailers(&mut trailers);
    Some(trailers).filter(|trailers| !trailers.is_empty())
}

impl Drop for Relay {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // Without a connection the stream was looking for another worker.
        let read = self.held.is_none() && self.connection.is_some();
        let has_all = self.body.is_end_stream() || self.body.length() == Some(0);
        if read && has_all {
            // The server asks for no more once as many bytes are there as the head promised. Over HTTP/2 the end may come
            // behind them, in a frame of its own.
            self.finish();
        } else {
            // The server drops a body that it cannot deliver: the client left, mostly.
            self.end(self.unless_all_is_said(self.record.abandoned()));
        }
    }
}
