//! A request on its way: its head, built once, and its body's own bytes behind it in one vectored write.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

use crate::http::worker_body::WorkerBody;
use crate::upstream::connection::request::WorkerRequest;

/// Pieces that are written at once: the head, and those that a body has mostly.
const PIECES: usize = 4;
const VERSION: &[u8] = b" HTTP/1.1\r\n";
const END: &[u8] = b"\r\n";
/// What the first line has besides method and target, and the others besides name and value: a head of known length is
/// not copied again.
const FIRST_LINE_EXTRA: usize = b" ".len() + VERSION.len();
const LINE_EXTRA: usize = b": \r\n".len();

/// What is left to write of a request.
#[derive(Debug)]
pub(super) struct Upload {
    pieces: [Bytes; PIECES],
    rest: WorkerBody,
}

impl Upload {
    pub(super) fn of(request: &WorkerRequest<'_>) -> Self {
        let mut pieces = [const { Bytes::new() }; PIECES];
        pieces[0] = head_of(request);
        let rest = request.body.clone();
        let mut upload = Self { pieces, rest };
        upload.fill(1);
        upload
    }

    fn fill(&mut self, from: usize) {
        for piece in &mut self.pieces[from..] {
            *piece = self.rest.next_piece().unwrap_or_default();
        }
    }

    /// Writes on; ready once all is written.
    /// Errors: the socket's.
    pub(super) fn poll(
        &mut self,
        io: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.pieces.iter().all(Bytes::is_empty) {
                self.fill(0);
                if self.pieces[0].is_empty() {
                    return Pin::new(io).poll_flush(cx);
                }
            }
            let slices = self.pieces.each_ref().map(|piece| IoSlice::new(piece));
            let written = ready!(Pin::new(&mut *io).poll_write_vectored(cx, &slices))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
    }

    fn advance(&mut self, mut written: usize) {
        for piece in &mut self.pieces {
            let part = written.min(piece.len());
            piece.advance(part);
            written -= part;
        }
    }
}

/// RFC 9112, sections 2 to 5.
fn head_of(request: &WorkerRequest<'_>) -> Bytes {
    let (method, target) = (request.method.as_str(), request.target.path_and_query());
    let target = target.map_or("/", |path| path.as_str());
    let lines = request.lines();
    let lines = lines.map(|(name, value)| name.as_str().len() + value.len() + LINE_EXTRA);
    let first = method.len() + target.len() + FIRST_LINE_EXTRA;
    let mut head = Vec::with_capacity(first + lines.sum::<usize>() + END.len());
    let mut add = |parts: &[&[u8]]| parts.iter().for_each(|part| head.extend_from_slice(part));
    add(&[method.as_bytes(), b" ", target.as_bytes(), VERSION]);
    for (name, value) in request.lines() {
        add(&[name.as_str().as_bytes(), b": ", value.as_bytes(), END]);
    }
    add(&[END]);
    head.into()
}
