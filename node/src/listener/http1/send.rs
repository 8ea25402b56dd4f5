//! One answer's bytes out: head and body, framed, in as few writes as there are times that something is ready.
//!
//! The body is asked for more only when everything before is with the kernel: that is the back-pressure. While it has
//! nothing, nothing is kept here.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::Body;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};

use super::answer::{AnswerHead, Framed};
use super::wire::{Wire, lock};

/// What is taken of a body for one write: bytes, and pieces (a chunk has three).
const BATCH_BYTES: usize = 64 * 1024;
const BATCH_PIECES: usize = 48;
/// Longest size line of a chunk.
const SIZE_LINE_BYTES: usize = 18;

/// Why an answer was not sent to its end.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The client's socket.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The client closed its side.
    #[error("the client left")]
    ClientLeft,
    /// The body failed.
    #[error("the answer broke off: {0}")]
    Body(Box<dyn Error + Send + Sync>),
    /// The body is shorter than the head says.
    #[error("the answer is shorter than its Content-Length")]
    Short,
}

/// Bytes to be written.
#[derive(Debug)]
enum Piece {
    Shared(Bytes),
    SizeLine {
        text: [u8; SIZE_LINE_BYTES],
        from: u8,
        to: u8,
    },
}

impl Piece {
    fn size_line(bytes: usize) -> Self {
        let mut text = [0; SIZE_LINE_BYTES];
        let mut free = &mut text[..];
        // Sixteen digits and a line end fit.
        let _ = write!(free, "{bytes:x}\r\n");
        let to = (SIZE_LINE_BYTES - free.len()) as u8;
        Self::SizeLine { text, from: 0, to }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes,
            Self::SizeLine { text, from, to } => &text[usize::from(*from)..usize::from(*to)],
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Self::Shared(bytes) => bytes.advance(count),
            Self::SizeLine { from, .. } => *from += count as u8,
        }
    }
}

/// An answer on its way out.
#[derive(Debug)]
pub(super) struct Sending<B> {
    /// Kept to the end of the answer: what it does when it is dropped keeps nobody waiting.
    body: B,
    /// Nothing of it is to come.
    has_ended: bool,
    framed: Framed,
    unsent: VecDeque<Piece>,
    /// The body was asked for the first time.
    has_begun: bool,
    must_flush: bool,
    failed: Option<SendError>,
}

impl<B> Sending<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    pub(super) fn new(head: AnswerHead, body: B) -> Self {
        let is_empty = head.framed == Framed::Length(0);
        // The head, a body, and what frames it.
        let mut unsent = VecDeque::with_capacity(4);
        unsent.push_back(Piece::Shared(head.bytes.into()));
        Self {
            body,
            has_ended: is_empty,
            framed: head.framed,
            unsent,
            has_begun: false,
            must_flush: true,
            failed: None,
        }
    }

    /// Sends all of it.
    pub(super) fn poll<Io>(
        &mut self,
        wire: &Mutex<Wire<Io>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>>
    where
        Io: AsyncRead + AsyncWrite + Unpin,
    {
        if !std::mem::replace(&mut self.has_begun, true) {
            // The head goes out with what of the body is ready.
            self.gather(cx);
        }
        loop {
            if !self.unsent.is_empty() {
                let mut wire = lock(wire);
                if self.poll_write(&mut wire.io, cx)?.is_pending() {
                    ready!(wire.poll_left(cx));
                    return Poll::Ready(Err(SendError::ClientLeft));
                }
            }
            self.gather(cx);
            if !self.unsent.is_empty() {
                continue;
            }
            if self.must_flush {
                ready!(Pin::new(&mut lock(wire).io).poll_flush(cx))?;
                self.must_flush = false;
            }
            if !self.has_ended {
                self.unsent = VecDeque::new();
                ready!(lock(wire).poll_left(cx));
                return Poll::Ready(Err(SendError::ClientLeft));
            }
            return Poll::Ready(self.failed.take().map_or(Ok(()), Err));
        }
    }

    fn poll_write<Io: AsyncWrite + Unpin>(
        &mut self,
        io: &mut Io,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.must_flush = true;
        while !self.unsent.is_empty() {
            let mut slices = [IoSlice::new(&[]); BATCH_PIECES + 4];
            let count = self.unsent.len().min(slices.len());
            for (slice, piece) in slices.iter_mut().zip(&self.unsent) {
                *slice = IoSlice::new(piece.bytes());
            }
            let mut written = ready!(Pin::new(&mut *io).poll_write_vectored(cx, &slices[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            while let Some(first) = self.unsent.front_mut() {
                let length = first.bytes().len();
                if written < length {
                    first.advance(written);
                    break;
                }
                written -= length;
                self.unsent.pop_front();
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Takes what the body has ready. Nothing of it may wait to be written.
    fn gather(&mut self, cx: &mut Context<'_>) {
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && self.unsent.len() < BATCH_PIECES
            && !self.has_ended
            && let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(cx)
        {
            match next {
                None => self.end(),
                Some(Ok(frame)) => {
                    // Trailers are not sent.
                    if let Ok(data) = frame.into_data() {
                        bytes += data.len();
                        self.push(data);
                    }
                    if self.body.is_end_stream() {
                        self.end();
                    }
                }
                Some(Err(error)) => {
                    self.failed = Some(SendError::Body(error.into()));
                    self.has_ended = true;
                }
            }
        }
    }

    fn push(&mut self, mut data: Bytes) {
        if data.is_empty() {
            return;
        }
        match &mut self.framed {
            Framed::UntilClose => self.unsent.push_back(Piece::Shared(data)),
            Framed::Length(left) => {
                data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data.len() as u64;
                self.has_ended = *left == 0;
                self.unsent.push_back(Piece::Shared(data));
            }
            Framed::Chunked => self.unsent.extend([
                Piece::size_line(data.len()),
                Piece::Shared(data),
                Piece::Shared(Bytes::from_static(b"\r\n")),
            ]),
        }
    }

    /// The body has ended.
    fn end(&mut self) {
        self.has_ended = true;
        match self.framed {
            Framed::Chunked => {
                let last = Bytes::from_static(b"0\r\n\r\n");
                self.unsent.push_back(Piece::Shared(last));
            }
            Framed::Length(left) if left > 0 => self.failed = Some(SendError::Short),
            Framed::Length(_) | Framed::UntilClose => {}
        }
    }
}
