//! What stands between an HTTP/1 client of the admin port and hyper: the rules of [`super::framing`] and two clocks.
//!
//! hyper has one clock for the wait between two requests and for a head that does not end, and closes without an
//! answer. Here there are two: an idle connection is closed quietly, an unfinished head is answered with 408. Answers
//! of this file are written only while no request is in progress and nothing else is waiting to be written.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::framing::{Fault, Framing, FramingError, HeadLimits};
use super::http1::refusal;
use super::waits::Waits;
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::http::progress::Progress;
use crate::metrics::refusals::RefusalMetrics;

/// Between two looks whether the answer in progress has ended, so that the last answer may be written.
const LOOK: Duration = Duration::from_millis(50);

/// A client's stream, guarded.
#[derive(Debug)]
pub struct Guarded<Io> {
    io: Io,
    framing: Framing,
    waits: Waits,
    progress: Progress,
    refusals: RefusalMetrics,
    /// The head that is waited for, if one has begun.
    head: Option<u64>,
    /// When it was first waited for, or when the last bytes came.
    since: Instant,
    /// Never later than what is due, often earlier: to set it anew for each request would cost more.
    timer: Pin<Box<Sleep>>,
    refusal: Option<Refusal>,
    /// What is wrong with the framing of the body being read.
    broken: Option<&'static str>,
}

/// The last answer on a connection.
#[derive(Debug)]
struct Refusal {
    answer: Vec<u8>,
    written: usize,
    why: &'static str,
}

impl<Io: AsyncRead + AsyncWrite + Unpin> Guarded<Io> {
    /// `progress` shows when nothing may be written in between.
    pub fn new(
        io: Io,
        limits: HeadLimits,
        waits: Waits,
        progress: Progress,
        refusals: RefusalMetrics,
    ) -> Self {
        Self {
            io,
            framing: Framing::new(limits),
            waits,
            progress,
            refusals,
            head: None,
            since: Instant::now(),
            timer: Box::pin(sleep_until(Instant::now())),
            refusal: None,
            broken: None,
        }
    }

    fn refuse(&mut self, error: &ApiError) {
        self.refusals.own_error(error.kind);
        self.refusal = Some(Refusal {
            answer: refusal(error),
            written: 0,
            why: error.kind.code(),
        });
    }

    /// Nothing more is read.
    fn is_over(&self) -> bool {
        self.refusal.is_some() || self.broken.is_some()
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.broken {
            Some(what) => Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, what))),
            None => self.poll_refuse(cx),
        }
    }

    /// Says the last words once nothing else is being said; then the stream fails for hyper.
    fn poll_refuse(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(refusal) = &mut self.refusal else {
            return Poll::Pending;
        };
        while self.progress.is_busy() {
            // hyper does not poll for more when an answer ends, so this looks again by itself.
            ready!(self.timer.as_mut().poll(cx));
            self.timer.as_mut().reset(Instant::now() + LOOK);
        }
        while refusal.written < refusal.answer.len() {
            let rest = &refusal.answer[refusal.written..];
            refusal.written += ready!(Pin::new(&mut self.io).poll_write(cx, rest))?;
        }
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
        let why = refusal.why;
        Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)))
    }

    /// Nothing came: is it too late?
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let head = self.framing.open_head();
        if head != self.head {
            self.head = head;
            self.since = Instant::now();
        }
        loop {
            let due = self.due();
            if due < self.timer.deadline() {
                self.timer.as_mut().reset(due);
            }
            ready!(self.timer.as_mut().poll(cx));
            // It was set before an answer, and is looked at after it, or during the next.
            let due = self.due();
            if due > Instant::now() {
                self.timer.as_mut().reset(due);
                continue;
            }
            break;
        }
        if head.is_none() {
            // To hyper it looks as if the client had closed, between two requests as is its right.
            return Poll::Ready(Ok(()));
        }
        self.refusals.limit_reached("header");
        self.refuse(&ApiError::new(
            ErrorKind::RequestTimeout,
            "the head of the request did not arrive in time",
        ));
        self.poll_refuse(cx)
    }

    /// When what is waited for is late. During an answer nothing is: then when to look again.
    fn due(&self) -> Instant {
        let limit = match self.head {
            Some(_) => self.waits.header,
            None => self.waits.keep_alive,
        };
        if self.progress.is_busy() {
            return Instant::now() + limit;
        }
        self.since.max(self.progress.ended()) + limit
    }

    /// Holds what came to the rules; how much of it hyper may see.
    fn judge(&mut self, bytes: &[u8]) -> usize {
        if self.head.is_none() {
            self.since = Instant::now();
        }
        match self.framing.feed(bytes) {
            Ok(()) => bytes.len(),
            Err(FramingError::Head(good, fault)) => {
                if !matches!(fault, Fault::Malformed(_)) {
                    self.refusals.limit_reached("header_bytes");
                }
                self.refuse(&fault.error());
                good
            }
            // The handler that reads the body answers, and hyper closes.
            Err(FramingError::Body(good, what)) => {
                self.broken = Some(what);
                good
            }
        }
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin> AsyncRead for Guarded<Io> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.is_over() {
            return this.poll_over(cx);
        }
        let before = buf.filled().len();
        match Pin::new(&mut this.io).poll_read(cx, buf) {
            Poll::Pending => this.poll_late(cx),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                let good = this.judge(&buf.filled()[before..]);
                let is_end = buf.filled().len() == before;
                buf.set_filled(before + good);
                // None left would look like the client's end.
                if good == 0 && !is_end {
                    return this.poll_over(cx);
                }
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Guarded<Io> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const WAITS: Waits = Waits {
        header: Duration::from_secs(15),
        keep_alive: Duration::from_secs(75),
    };
    const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

    fn guarded() -> (DuplexStream, Guarded<DuplexStream>, Progress) {
        let (client, server) = duplex(4096);
        let limits = HeadLimits {
            bytes: 1024,
            lines: 16,
        };
        let progress = Progress::default();
        let refusals = RefusalMetrics::register(&mut Registry::default());
        let guarded = Guarded::new(server, limits, WAITS, progress.clone(), refusals);
        (client, guarded, progress)
    }

    async fn last_words(mut client: DuplexStream) -> String {
        let mut text = String::new();
        client.read_to_string(&mut text).await.expect("text");
        text
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_ends_quietly_and_not_within_a_request() {
        let (mut client, mut guarded, progress) = guarded();
        let began = Instant::now();
        client.write_all(GET).await.expect("room");
        let mut buffer = [0; 512];
        assert_eq!(guarded.read(&mut buffer).await.expect("read"), GET.len());
        let request = progress.begin();
        let answering = async {
            tokio::time::sleep(WAITS.keep_alive * 10).await;
            drop(request);
        };
        // hyper polls for more while it answers, and again once the answer has ended.
        tokio::select! {
            read = guarded.read(&mut buffer) => panic!("{read:?} within a request"),
            () = answering => {}
        }
        assert_eq!(guarded.read(&mut buffer).await.expect("the end"), 0);
        assert_eq!(began.elapsed(), WAITS.keep_alive * 11);
        drop(guarded);
        assert_eq!(last_words(client).await, "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_drips_is_answered_in_time() {
        let (mut client, mut guarded, _) = guarded();
        let began = Instant::now();
        let dripping = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            for byte in GET.iter().cycle() {
                if client.write_all(&[*byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            client
        };
        let reading = async {
            let mut buffer = [0; 512];
            loop {
                match guarded.read(&mut buffer).await {
                    Ok(0) => panic!("a quiet end"),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
            drop(guarded);
            began.elapsed()
        };
        let (client, took) = tokio::join!(dripping, reading);
        assert_eq!(took, Duration::from_secs(60) + WAITS.header);
        let words = last_words(client).await;
        assert!(words.starts_with("HTTP/1.1 408 ") && words.contains("connection: close"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_head_waits_until_the_answer_before_it_is_out() {
        let (mut client, mut guarded, progress) = guarded();
        let both = [GET, b"GET / HTTP/1.1\nhost: a\n\n"].concat();
        client.write_all(&both).await.expect("room");
        let mut buffer = [0; 512];
        assert_eq!(guarded.read(&mut buffer).await.expect("read"), GET.len());
        let request = progress.begin();
        let answering = async {
            tokio::time::sleep(Duration::from_secs(600)).await;
        };
        tokio::select! {
            read = guarded.read(&mut buffer) => panic!("{read:?} within a request"),
            () = answering => {}
        }
        guarded.write_all(b"answer;").await.expect("room");
        drop(request);
        assert!(guarded.read(&mut buffer).await.is_err());
        drop(guarded);
        let words = last_words(client).await;
        assert!(words.starts_with("answer;HTTP/1.1 400 "), "{words}");
    }
}
