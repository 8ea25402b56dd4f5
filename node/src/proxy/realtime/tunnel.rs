//! The relay of a session: bytes both ways as they are, until either side leaves or a limit is reached.
//!
//! Runs in the task of the client's connection and owns everything that the session holds, so that whichever side
//! leaves frees the other side at once. The router says a word of its own only at an end that the client cannot know
//! of, as a close frame between two of the worker's.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout};

use super::Session;
use super::frames::{CloseCode, Frames};
use super::watch::Watch;
use crate::config::RealtimeConfig;
use crate::http::client_io::Gone;
use crate::lag::{LISTEN_FIRST, overslept};
use crate::metrics::refusals::RefusalMetrics;
use crate::proxy::outcome::Outcome;
use crate::proxy::record::Record;
use crate::shutdown::Phase;
use crate::upstream::InFlight;
use crate::upstream::connection::Switched;

/// Bytes of one direction that are on their way at once.
const BUFFER_BYTES: usize = 16 * 1024;
/// For the last words to a client that may not read them, and of a worker that is closing.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A session whose worker has agreed to it.
#[derive(Debug)]
pub struct Tunnel {
    worker: Switched,
    config: Arc<RealtimeConfig>,
    deadline: Option<Instant>,
    in_flight: InFlight,
    record: Box<Record>,
    gone: Gone,
    /// Of a client that may not say everything.
    watch: Option<Watch>,
    _place: OwnedSemaphorePermit,
}

/// Why a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    ClientLeft,
    WorkerLeft,
    /// Nothing passed for too long.
    Idle,
    /// More passed than may.
    TooLong,
    /// The limit for whole requests.
    OutOfTime,
    /// The client sent what may not pass.
    Refused(CloseCode),
    /// This replica ends.
    ShutDown,
}

impl Tunnel {
    /// `deadline`: the end of the whole session.
    pub(in crate::proxy) fn new(
        worker: Switched,
        config: Arc<RealtimeConfig>,
        deadline: Option<Instant>,
        (in_flight, record): (InFlight, Box<Record>),
        session: Session,
    ) -> Self {
        let said_to = in_flight.worker();
        Self {
            watch: session.scope.map(|scope| scope.watch(Arc::clone(said_to))),
            worker,
            config,
            deadline,
            in_flight,
            record,
            gone: Gone::never(),
            _place: session.place,
        }
    }

    /// Ends the session once this client has left, even if it cannot be read because its worker does not read.
    pub(in crate::proxy) fn watch(&mut self, gone: Gone) {
        self.gone = gone;
    }

    /// Relays to the end.
    pub(crate) async fn run<Io>(
        mut self: Box<Self>,
        mut client: Io,
        phase: &Phase,
        refusals: &RefusalMetrics,
    ) where
        Io: AsyncRead + AsyncWrite + Unpin,
    {
        let mut up = Way::of_client(self.watch.take());
        let mut down = Way::beginning_with(&self.worker.early);
        let end = tokio::select! {
            end = self.relay(&mut client, &mut up, &mut down) => end,
            () = phase.cutting() => End::ShutDown,
        };
        if end == End::WorkerLeft {
            // It may have said more than could be written to.
            let rest = poll_fn(|cx| down.poll(cx, &mut self.worker.io, &mut client));
            let _ = timeout(LAST_WORDS, rest).await;
        }
        match end {
            End::Idle => refusals.limit_reached("realtime_idle"),
            End::TooLong => refusals.limit_reached("realtime_session_bytes"),
            _ => {}
        }
        let has_closed = up.frames.has_closed() || down.frames.has_closed();
        let outcome = end.outcome(has_closed);
        self.record.bytes_in = Some(up.passed);
        self.record.bytes_out = down.passed;
        self.in_flight.end(outcome.verdict());
        self.record.finish(outcome);
        if !has_closed {
            // No reader waits for what is still on its way, and behind it a worker that does not read sees no end.
            self.worker.io.will_reset();
        }
        // The worker is free before the client has received the reason.
        drop(self);
        let word = end
            .close_code()
            .filter(|_| down.may_end() && !down.frames.has_closed());
        let _ = timeout(LAST_WORDS, async {
            if let Some(code) = word {
                client.write_all(&code.frame()).await?;
            }
            client.shutdown().await
        })
        .await;
    }

    async fn relay<Io>(&mut self, client: &mut Io, up: &mut Way, down: &mut Way) -> End
    where
        Io: AsyncRead + AsyncWrite + Unpin,
    {
        let (worker, gone) = (&mut self.worker.io, &mut self.gone);
        let (idle_max, bytes_max) = (self.config.idle, self.config.session_bytes.0);
        let (deadline, record) = (self.deadline, &mut self.record);
        let mut last = Instant::now();
        let mut seen = 0;
        let due = |last: Instant| {
            let idle = last + idle_max;
            deadline.map_or(idle, |at| at.min(idle))
        };
        let mut timer = std::pin::pin!(sleep_until(due(last)));
        poll_fn(|cx| {
            if let Poll::Ready(side) = up.poll(cx, client, worker) {
                return Poll::Ready(side.left(End::ClientLeft, End::WorkerLeft));
            }
            if let Some(watch) = &mut up.watch {
                for refused in watch.take_uncounted() {
                    record.count_error(refused);
                }
                if down.words.is_empty() {
                    down.words = watch.take_refusals();
                }
            }
            if let Poll::Ready(side) = down.poll(cx, worker, client) {
                return Poll::Ready(side.left(End::WorkerLeft, End::ClientLeft));
            }
            if !up.is_empty() && gone.poll(cx).is_ready() {
                return Poll::Ready(End::ClientLeft);
            }
            if up.passed.max(down.passed) > bytes_max {
                return Poll::Ready(End::TooLong);
            }
            if up.passed + down.passed != seen {
                seen = up.passed + down.passed;
                last = Instant::now();
            }
            // The timer is set anew only when it fires.
            while timer.as_mut().poll(cx).is_ready() {
                let now = Instant::now();
                if overslept(timer.deadline()) {
                    // What either side said meanwhile was not read yet.
                    timer.as_mut().reset(now + LISTEN_FIRST);
                    continue;
                }
                if deadline.is_some_and(|at| at <= now) {
                    return Poll::Ready(End::OutOfTime);
                }
                if last + idle_max <= now {
                    return Poll::Ready(End::Idle);
                }
                timer.as_mut().reset(due(last));
            }
            Poll::Pending
        })
        .await
    }
}

impl End {
    /// `has_closed`: either side had said that it closes.
    fn outcome(self, has_closed: bool) -> Outcome {
        match self {
            Self::ClientLeft | Self::WorkerLeft if has_closed => Outcome::Success,
            Self::ClientLeft => Outcome::ClientLeft,
            Self::WorkerLeft => Outcome::WorkerBroke,
            Self::Idle | Self::OutOfTime => Outcome::OutOfTime,
            Self::TooLong | Self::Refused(_) => Outcome::Error,
            Self::ShutDown => Outcome::ShutDown,
        }
    }

    /// What a client that is still there is sent.
    fn close_code(self) -> Option<CloseCode> {
        match self {
            Self::ClientLeft => None,
            Self::WorkerLeft => Some(CloseCode::WorkerBroke),
            Self::Idle | Self::OutOfTime | Self::ShutDown => Some(CloseCode::GoingAway),
            Self::TooLong => Some(CloseCode::TooLong),
            Self::Refused(code) => Some(code),
        }
    }
}

/// One direction of a session.
struct Way {
    buffer: Vec<u8>,
    /// What of the buffer has been read and not been written.
    waiting: std::ops::Range<usize>,
    frames: Frames,
    /// Bytes that have been written.
    passed: u64,
    /// Reads what passes here, and may hold it back.
    watch: Option<Watch>,
    /// What it has refused already.
    refused: Option<CloseCode>,
    /// Whole messages of our own, to be put in between two others.
    words: Vec<u8>,
}

/// Which side ended a direction.
#[derive(Debug, Clone, Copy)]
enum Side {
    Source,
    Sink,
    /// What the source says may not pass.
    Refused(CloseCode),
}

impl Side {
    fn left(self, source: End, sink: End) -> End {
        match self {
            Self::Source => source,
            Self::Sink => sink,
            Self::Refused(code) => End::Refused(code),
        }
    }
}

impl Way {
    fn beginning_with(early: &[u8]) -> Self {
        let mut buffer = early.to_vec();
        buffer.resize(early.len().max(BUFFER_BYTES), 0);
        Self {
            buffer,
            waiting: 0..early.len(),
            frames: Frames::default(),
            passed: 0,
            watch: None,
            refused: None,
            words: Vec::new(),
        }
    }

    /// What the client says, of which nothing has come: it has waited for the answer to its handshake.
    fn of_client(watch: Option<Watch>) -> Self {
        Self {
            watch,
            ..Self::beginning_with(&[])
        }
    }

    /// What has been read is what may be written, but for a watched client.
    fn read_to(&mut self, read: usize) -> Result<(), CloseCode> {
        self.waiting = 0..read;
        let Some(watch) = &mut self.watch else {
            return Ok(());
        };
        let mut out = Vec::with_capacity(read);
        watch.read(&self.buffer[..read], &mut out)?;
        self.fill(out);
        Ok(())
    }

    fn fill(&mut self, bytes: Vec<u8>) {
        self.waiting = 0..bytes.len();
        self.buffer = bytes;
        self.buffer.resize(self.buffer.len().max(BUFFER_BYTES), 0);
    }

    /// Nothing waits to be written.
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Something else may be written now.
    fn may_end(&self) -> bool {
        self.is_empty() && self.frames.is_between()
    }

    /// Passes what there is; ready when a side has ended, and nothing that it had said waits.
    fn poll<R, W>(&mut self, cx: &mut Context<'_>, from: &mut R, to: &mut W) -> Poll<Side>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            if let Some(code) = self.refused {
                return Poll::Ready(Side::Refused(code));
            }
            while !self.waiting.is_empty() {
                let piece = &self.buffer[self.waiting.clone()];
                match ready!(Pin::new(&mut *to).poll_write(cx, piece)) {
                    Ok(0) | Err(_) => return Poll::Ready(Side::Sink),
                    Ok(written) => {
                        self.frames.pass(&piece[..written]);
                        self.waiting.start += written;
                        self.passed += written as u64;
                    }
                }
            }
            if !self.words.is_empty() && self.frames.is_between_messages() {
                let words = std::mem::take(&mut self.words);
                self.fill(words);
                continue;
            }
            match self.poll_read(cx, from) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Side::Source),
                Poll::Ready(Ok(read)) => {
                    self.refused = self.read_to(read).err();
                }
                Poll::Pending => {
                    // TLS keeps back what is not flushed.
                    return match ready!(Pin::new(to).poll_flush(cx)) {
                        Ok(()) => Poll::Pending,
                        Err(_) => Poll::Ready(Side::Sink),
                    };
                }
            }
        }
    }

    fn poll_read<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
    ) -> Poll<io::Result<usize>> {
        // Held back frames may have made it longer.
        let mut space = ReadBuf::new(&mut self.buffer[..BUFFER_BYTES]);
        ready!(Pin::new(from).poll_read(cx, &mut space))?;
        Poll::Ready(Ok(space.filled().len()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_way_passes_all_and_says_who_ended() {
        let (mut source, mut from) = duplex(1 << 20);
        let (mut to, mut sink) = duplex(100);
        let sent: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        source.write_all(&sent).await.expect("room");
        drop(source);
        let mut way = Way::beginning_with(b"early ");
        let mut got = Vec::new();
        let passing = async {
            let side = poll_fn(|cx| way.poll(cx, &mut from, &mut to)).await;
            drop(to);
            side
        };
        let (side, read) = tokio::join!(passing, sink.read_to_end(&mut got));
        read.expect("read");
        assert!(matches!(side, Side::Source));
        assert!(got.starts_with(b"early ") && got[6..] == sent);
        assert_eq!(way.passed, got.len() as u64);

        let (_source, mut from) = duplex(100);
        let (mut to, sink) = duplex(100);
        drop(sink);
        let mut way = Way::beginning_with(b"for nobody");
        let side = poll_fn(|cx| way.poll(cx, &mut from, &mut to)).await;
        assert!(matches!(side, Side::Sink));
    }

    #[test]
    fn ends_have_their_outcomes() {
        for (end, closed, outcome) in [
            (End::ClientLeft, true, Outcome::Success),
            (End::WorkerLeft, true, Outcome::Success),
            (End::ClientLeft, false, Outcome::ClientLeft),
            (End::WorkerLeft, false, Outcome::WorkerBroke),
            (End::ShutDown, true, Outcome::ShutDown),
            (End::Idle, false, Outcome::OutOfTime),
        ] {
            assert_eq!(end.outcome(closed), outcome, "{end:?}");
        }
    }
}
