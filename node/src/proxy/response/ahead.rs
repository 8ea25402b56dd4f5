//! The head of a stream that goes out ahead of its answer.
//!
//! The head of a stream waits for its first event, so that a refusal can move to another worker. Boxes between a client and
//! this replica cut connections on which nothing comes for a while. So where `timeouts.stream_comment` is set, and nothing
//! has reached the client for that long, it gets a head with 200 and a comment, and one more each time that this is over
//! again. The request goes on as before: it waits, moves, and is refused, until its first event is there. A refusal is then
//! the stream's last event.
//!
//! Nothing is known of a stream before its body is read: a request that waits to be read gets no comment.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body::{Body as _, Frame};
use tokio::time::{Instant, Sleep, sleep_until};

use super::ResponseBody;
use crate::http::client_io::Gone;
use crate::proxy::awaited::{Awaited, EventForm};
use crate::proxy::guarded::guarded;
use crate::proxy::metrics::ProxyMetrics;
use crate::proxy::relay::RelayError;
use crate::shutdown::Cutoff;

/// What becomes of a request, whoever waits for it.
type Answer = Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send>>;

/// A request that may be waited for with comments: its head is not out.
pub(in crate::proxy) struct Patient {
    answer: Answer,
    awaited: Arc<Awaited>,
    every: Duration,
    /// When the client has waited for that long.
    due: Instant,
    metrics: Arc<ProxyMetrics>,
    form: EventForm,
}

impl Patient {
    /// `since`: when the client began to wait.
    pub(in crate::proxy) fn new(
        answer: Answer,
        awaited: Arc<Awaited>,
        (since, every): (Instant, Duration),
        metrics: Arc<ProxyMetrics>,
        form: EventForm,
    ) -> Self {
        Self {
            answer,
            awaited,
            every,
            due: since + every,
            metrics,
            form,
        }
    }

    /// The answer, if it is there before its client has waited for too long; else a head, and comments until it is.
    pub(in crate::proxy) async fn answer(mut self) -> Response<ResponseBody> {
        let mut timer = Box::pin(sleep_until(self.due));
        let answered = std::future::poll_fn(|cx| {
            if let Poll::Ready(response) = self.answer.as_mut().poll(cx) {
                return Poll::Ready(Some(response));
            }
            ready!(timer.as_mut().poll(cx));
            match self.awaited.headers() {
                Some(_) => Poll::Ready(None),
                // It is known when its body is there, which wakes this.
                None => Poll::Pending,
            }
        });
        if let Some(response) = answered.await {
            return response;
        }
        let headers = self.awaited.headers().cloned().unwrap_or_default();
        let comment = self.awaited.comment();
        timer.as_mut().reset(Instant::now() + self.every);
        let mut response = Response::new(ResponseBody::Ahead(Box::new(Ahead {
            first: Some(comment),
            stage: Stage::Waiting(self.answer),
            awaited: self.awaited,
            every: self.every,
            timer,
            gone: Gone::never(),
            cutoff: None,
            metrics: self.metrics,
            form: self.form,
        })));
        *response.headers_mut() = headers;
        let kind = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

enum Stage {
    /// Comments come until the answer does.
    Waiting(Answer),
    /// It is there.
    Passing(ResponseBody),
    Ended,
}

/// The body behind a head that went out ahead of its answer.
pub struct Ahead {
    first: Option<Bytes>,
    stage: Stage,
    awaited: Arc<Awaited>,
    every: Duration,
    timer: Pin<Box<Sleep>>,
    gone: Gone,
    cutoff: Option<Cutoff>,
    metrics: Arc<ProxyMetrics>,
    form: EventForm,
}

type Next = Poll<Option<Result<Frame<Bytes>, RelayError>>>;

impl Ahead {
    /// Ends the wait once this client has left; the answer is watched by itself.
    pub fn watch(&mut self, gone: Gone, cutoff: Cutoff) {
        self.gone = gone;
        self.cutoff = Some(cutoff);
    }

    /// Nothing more comes.
    pub(super) fn is_over(&self) -> bool {
        match &self.stage {
            Stage::Waiting(_) => false,
            Stage::Passing(body) => self.first.is_none() && body.is_end_stream(),
            Stage::Ended => self.first.is_none(),
        }
    }

    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Next {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if let Stage::Waiting(answer) = &mut self.stage {
            let answered = guarded(|| answer.as_mut().poll(cx));
            match answered {
                Ok(Poll::Ready(response)) => self.passes(response.into_body()),
                Ok(Poll::Pending) => return self.poll_wait(cx),
                Err(error) => {
                    self.metrics.refusals.own_error(error.kind);
                    self.stage = Stage::Ended;
                    let end = self.form.event_of(&error);
                    return Poll::Ready(Some(Ok(Frame::data(end))));
                }
            }
        }
        match &mut self.stage {
            Stage::Passing(body) => Pin::new(body).poll_frame(cx),
            Stage::Waiting(_) | Stage::Ended => Poll::Ready(None),
        }
    }

    fn passes(&mut self, mut body: ResponseBody) {
        if let ResponseBody::Relay(relay) = &mut body
            && let Some(cutoff) = self.cutoff.take()
        {
            relay.watch(std::mem::replace(&mut self.gone, Gone::never()), cutoff);
        }
        self.stage = Stage::Passing(body);
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Next {
        if self.gone.poll(cx).is_ready() {
            self.stage = Stage::Ended;
            return Poll::Ready(Some(Err(RelayError::ClientLeft)));
        }
        ready!(self.timer.as_mut().poll(cx));
        self.timer.as_mut().reset(Instant::now() + self.every);
        // Before the next one is asked for it has gone out, so the timer is looked at again.
        Poll::Ready(Some(Ok(Frame::data(self.awaited.comment()))))
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead")
            .field("awaited", &self.awaited)
            .finish_non_exhaustive()
    }
}
