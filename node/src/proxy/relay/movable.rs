//! The relay of a stream that goes on from another worker when its own fails.
//!
//! What the continuation passes goes to the client; when a worker fails the stream waits, without a byte, for the
//! next one. Whatever is searched for or found travels in the relay, so a client that leaves meanwhile releases
//! it like everything else.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use grapevine_placement::AttemptOutcome;
use http_body::Frame;
use tokio::time::Instant;

use super::{Movable, Moved, Next, OnBreak, Relay};
use crate::proxy::continuation::{Reason, Then};
use crate::proxy::deaths::Sign;
use crate::proxy::outcome::Outcome;
use crate::upstream::Broken;

impl Relay {
    pub(super) fn poll_movable(&mut self, cx: &mut Context<'_>) -> Next {
        loop {
            if self.gone.poll(cx).is_ready() {
                return self.client_left();
            }
            let Some(failover) = self.failover() else {
                // It is left alone since the last piece.
                return self.poll_next(cx);
            };
            let words = if failover.is_moving() {
                match failover.poll_moved(cx) {
                    Poll::Ready(Ok(moved)) => self.go_on(moved),
                    Poll::Ready(Err(Reason::OutOfTime)) => self.ran_out_of_time(),
                    Poll::Ready(Err(reason)) => self.give_up(self.broke_by, reason),
                    Poll::Pending => match ready!(self.poll_end(cx)) {
                        Outcome::OutOfTime => self.ran_out_of_time(),
                        end => return Poll::Ready(self.broke(end)),
                    },
                }
            } else {
                match self.poll_data(cx) {
                    Poll::Ready(Some(Ok(data))) => self.pass(data),
                    Poll::Ready(Some(Err(_))) => self.leave(Outcome::WorkerBroke),
                    Poll::Ready(None) => self.finish_movable(),
                    Poll::Pending => match ready!(self.poll_limits(cx)) {
                        end @ (Outcome::OutOfTime | Outcome::ShutDown) => {
                            return Poll::Ready(self.broke(end));
                        }
                        stalled => self.leave(stalled),
                    },
                }
            };
            if !words.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(words))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
        }
    }

    /// The time of the whole request is over while another worker is looked for. The search may notice first.
    fn ran_out_of_time(&mut self) -> Bytes {
        self.give_up(Outcome::OutOfTime, Reason::OutOfTime)
    }

    /// The end of the whole request, or of this replica; the search has limits of its own.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        if self.poll_cutoff(cx).is_ready() {
            return Poll::Ready(Outcome::ShutDown);
        }
        let Some(deadline) = self.silence.deadline else {
            return Poll::Pending;
        };
        if self.timer.deadline() != deadline {
            self.timer.as_mut().reset(deadline);
        }
        self.timer.as_mut().poll(cx).map(|()| Outcome::OutOfTime)
    }

    /// None once the relay has ended.
    fn failover(&mut self) -> Option<&mut (dyn Movable + 'static)> {
        match &mut self.on_break {
            OnBreak::Move(failover) => Some(&mut **failover),
            OnBreak::End | OnBreak::Refused(_) => None,
        }
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        if let Some(held) = self.held.take() {
            return Poll::Ready(Some(Ok(held)));
        }
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(None);
        };
        loop {
            let frame = ready!(connection.poll_frame(&mut self.body, cx));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(Ok(data))) => return Poll::Ready(Some(Ok(data))),
                // Trailers belong to one worker's answer, not to that of all.
                Some(Ok(Err(_))) => {}
            }
        }
    }

    fn pass(&mut self, data: Bytes) -> Bytes {
        let Some(failover) = self.failover() else {
            return Bytes::new();
        };
        let taken = failover.continuation().take(data);
        if let Some(reason) = failover.continuation().left_alone() {
            return self.leave_alone(reason, taken.pass);
        }
        self.see(&taken.pass);
        let last = match taken.then {
            Then::More => return taken.pass,
            Then::Failed => {
                self.notes_engine(&taken.said);
                self.leave(Outcome::WorkerError)
            }
            Then::Lost(reason) => {
                // It answers well; what it says is no continuation.
                self.in_flight.end(AttemptOutcome::Neutral);
                self.give_up(Outcome::WorkerBroke, reason)
            }
        };
        [taken.pass, last].concat().into()
    }

    /// It has shown that it cannot be continued. What was kept for that is let go, and from here on it passes as one for
    /// which nobody wants failover: what comes may end within an event.
    fn leave_alone(&mut self, reason: Reason, data: Bytes) -> Bytes {
        self.on_break = OnBreak::Refused(reason);
        self.pass_whole(data, false)
    }

    /// The worker's answer ended well-formed, but perhaps too early.
    fn finish_movable(&mut self) -> Bytes {
        let ended = |relay: &Self| {
            relay
                .scan
                .as_ref()
                .is_some_and(|scan| scan.done || scan.error)
        };
        if !ended(self) {
            return match self.is_cut_short() {
                true => self.leave(Outcome::WorkerBroke),
                false => self.leave(Outcome::Incomplete),
            };
        }
        let rest = self.flush();
        self.finish();
        rest
    }

    fn flush(&mut self) -> Bytes {
        let rest = self
            .failover()
            .map(|failover| failover.continuation().flush());
        let rest = rest.unwrap_or_default();
        self.see(&rest);
        rest
    }

    /// The worker is done with: another one is looked for, unless bytes come back, which are the last ones.
    fn leave(&mut self, outcome: Outcome) -> Bytes {
        self.connection = None;
        if self.scan.as_ref().is_some_and(|scan| scan.done) {
            self.end(Outcome::Success);
            return Bytes::new();
        }
        let worker = Arc::clone(self.in_flight.worker());
        let sign = match outcome {
            Outcome::WorkerBroke => Some(Sign::Connection),
            Outcome::WorkerError if worker.engine_dead_since.get().is_some() => Some(Sign::Word),
            _ => None,
        };
        self.part(outcome);
        let ended = sign.map(|sign| (&worker, sign));
        let left = match &mut self.on_break {
            OnBreak::Move(failover) => Some(failover.leave(ended, &mut self.record)),
            OnBreak::End | OnBreak::Refused(_) => None,
        };
        match left {
            Some(Ok(None)) => {
                self.broke_by = outcome;
                Bytes::new()
            }
            Some(Ok(Some(last))) => {
                self.record.failover("finished");
                self.see(&last);
                self.end(Outcome::Success);
                last
            }
            Some(Err(reason)) => self.give_up(outcome, reason),
            None => Bytes::new(),
        }
    }

    /// The stream ends as it would have without failover.
    fn give_up(&mut self, outcome: Outcome, reason: Reason) -> Bytes {
        self.record.moved_nowhere(reason.as_str());
        if outcome == Outcome::Incomplete {
            let rest = self.flush();
            self.end(outcome);
            return rest;
        }
        if outcome == Outcome::WorkerError
            && let Some(said) = self.failover().map(|left| left.continuation().complaint())
            && !said.is_empty()
        {
            self.see(&said);
            self.end(outcome);
            return said;
        }
        self.last_words(outcome).unwrap_or_default()
    }

    /// Another worker has begun to answer.
    fn go_on(&mut self, moved: Moved) -> Bytes {
        let (worker, status) = (moved.in_flight.worker(), moved.begun.parts.status);
        let (attempts, scan) = (moved.attempts, self.scan.as_ref());
        self.record
            .moved(worker, moved.reason, moved.recorded, attempts, status, scan);
        self.in_flight = moved.in_flight;
        self.held = Some(moved.begun.held);
        self.body = moved.begun.body;
        self.is_until_close = moved.begun.until_close;
        self.connection = Some(moved.begun.connection);
        self.last_event = Instant::now();
        // It may stand at the end of the whole request.
        self.timer.as_mut().reset(self.last_event);
        Bytes::new()
    }
}
