//! One stream's answer on its way to a client that may not take it.
//!
//! hyper asks a body for a frame, then waits until the client's window has room for it, and asks for nothing meanwhile: no
//! limit of the body runs. The limit on a blocked socket sees nothing either, for the connection goes on. So the stream's
//! whole future is watched from outside, and dropped when the client took too long; h2 resets its stream then. What the
//! replica does about a connection as a whole is elsewhere.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, header};
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::http::progress::InProgress;
use crate::lag::{LISTEN_FIRST, overslept};
use crate::metrics::refusals::RefusalMetrics;

/// Bytes of an answer that hyper gets at a time. It gives a whole frame to h2 once the window has room for one byte of it,
/// so this is what a client must take to count as one that reads, and what may lie in h2 of an answer that has ended,
/// until the client takes it or its connection ends; that connection counts as idle. As much as a frame of HTTP/2 holds
/// where the client has not asked for more.
const PIECE_BYTES: usize = 16 * 1024;

tokio::task_local! {
    /// Of the stream that the task serves.
    static TURN: Arc<Turn>;
}

/// Whose turn it is: odd while a frame was given that hyper has not passed on. Written and read by one task.
#[derive(Debug, Default)]
struct Turn(AtomicU64);

impl Turn {
    /// hyper asks for a frame: the one before is on its way.
    fn asked(&self) {
        let turn = self.0.load(Ordering::Relaxed);
        self.0.store(turn + turn % 2, Ordering::Relaxed);
    }

    /// hyper got a frame.
    fn gave(&self) {
        let turn = self.0.load(Ordering::Relaxed);
        self.0.store(turn + 1 + turn % 2, Ordering::Relaxed);
    }

    /// The number of the frame that hyper holds; none while the body is what is waited for.
    fn untaken(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|turn| turn % 2 == 1)
    }
}

/// Runs the streams of a connection, each in a task of its own, until their clients take nothing for too long.
#[derive(Debug, Clone)]
pub(super) struct Streams(Arc<Limits>);

#[derive(Debug)]
struct Limits {
    write_stall: Duration,
    refusals: RefusalMetrics,
}

impl Streams {
    /// `write_stall`: how long a client may take nothing of an answer.
    pub(super) fn new(write_stall: Duration, refusals: RefusalMetrics) -> Self {
        Self(Arc::new(Limits {
            write_stall,
            refusals,
        }))
    }
}

impl<F> Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        let turn = Arc::<Turn>::default();
        let mut patience = Patience::new(Arc::clone(&turn), self.0.write_stall);
        // On the heap: the closure must be able to move, and a stream must not be copied into it.
        let mut stream = Box::pin(stream);
        let limits = Arc::clone(&self.0);
        let watched = poll_fn(move |cx| {
            if stream.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            ready!(patience.poll_over(cx));
            // Before the stream is dropped, with which its client hears of it.
            limits.refusals.limit_reached("write_stall");
            tracing::debug!("a client took nothing of its answer over HTTP/2");
            Poll::Ready(())
        });
        tokio::spawn(TURN.scope(turn, watched));
    }
}

/// Measures for how long a frame is not taken. A stream that flows costs it one look a poll: neither clock nor timer.
#[derive(Debug)]
struct Patience {
    turn: Arc<Turn>,
    longest: Duration,
    /// The frame that was seen waiting last, and since when.
    frame: u64,
    since: Instant,
    /// Armed when a frame waits, and left alone when it is taken: where it fires early, it is armed anew.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    fn new(turn: Arc<Turn>, longest: Duration) -> Self {
        Self {
            turn,
            longest,
            frame: 0,
            since: Instant::now(),
            timer: None,
        }
    }

    /// Ready once the client has taken nothing for too long.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(frame) = self.turn.untaken() else {
            return Poll::Pending;
        };
        let is_new = std::mem::replace(&mut self.frame, frame) != frame;
        if is_new {
            self.since = Instant::now();
        }
        let due = self.since + self.longest;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if is_new && timer.is_elapsed() {
            timer.as_mut().reset(due);
        }
        while timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let again = match overslept(timer.deadline()) {
                // What the client said meanwhile was not read yet.
                true => now + LISTEN_FIRST,
                false if due <= now => return Poll::Ready(()),
                false => due,
            };
            timer.as_mut().reset(again);
        }
        Poll::Pending
    }
}

/// The body of an answer over HTTP/2, in pieces.
#[derive(Debug)]
pub(super) struct Answer<B> {
    body: B,
    /// Of the last frame, what hyper has not got yet.
    rest: Bytes,
    turn: Arc<Turn>,
    /// The head is all of the answer. hyper leaves that to whom it serves for.
    is_bare: bool,
    /// While the client has not taken the answer, its connection is not idle.
    _progress: InProgress,
}

impl<B: Body> Answer<B> {
    /// Must be called by the task that [`Streams`] runs. `is_head`: the client asked for the head alone.
    pub(super) fn of(
        mut response: Response<B>,
        is_head: bool,
        progress: InProgress,
    ) -> Response<Self> {
        let turn = TURN.try_with(Arc::clone);
        debug_assert!(turn.is_ok(), "nobody watches the stream");
        if is_head && let Some(bytes @ 1..) = response.body().size_hint().exact() {
            // As long as the body of a GET.
            let length = response.headers_mut().entry(header::CONTENT_LENGTH);
            length.or_insert(bytes.into());
        }
        response.map(|body| Self {
            body,
            rest: Bytes::new(),
            turn: turn.unwrap_or_default(),
            is_bare: is_head,
            _progress: progress,
        })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.rest.is_empty() {
            self.turn.asked();
            self.rest = loop {
                let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                    Some(Ok(frame)) => frame,
                    end => return Poll::Ready(end),
                };
                match frame.into_data() {
                    // Whoever makes an answer to HEAD has no reason to give any, but might.
                    Ok(_) if self.is_bare => {}
                    Ok(data) => break data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                }
            };
        }
        self.turn.gave();
        let piece = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(piece);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        // A body whose length is known is whole; any other may hold a worker, and is asked to its end.
        let is_over = || self.is_bare && self.body.size_hint().exact().is_some();
        self.rest.is_empty() && (self.body.is_end_stream() || is_over())
    }

    fn size_hint(&self) -> SizeHint {
        // Looked at before the first frame only.
        self.body.size_hint()
    }
}
