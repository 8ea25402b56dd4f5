//! What has come from a worker and was not passed on yet. Memory follows use: while nothing is there, there is no
//! buffer.
//!
//! Only a read that may find something takes a buffer, and one that is empty afterwards goes back. The allocator is the
//! pool: buffers of these sizes come from, and go to, a list of the thread. On TLS readiness says nothing of what the
//! session holds already, so there each look at the socket takes a buffer, and gives it back.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::AsyncReadExt;

use crate::upstream::tls::WorkerIo;

/// Smallest and largest buffer, in bytes, for what has no known length.
const ROOM_MIN: usize = 2 * 1024;
const ROOM_FIRST: usize = 4 * 1024;
/// Also the most that is read ahead of a slow client. Larger ones would not come from the thread's list.
const ROOM_MAX: usize = 32 * 1024;
/// A read that fills its buffer is followed by another one, which mostly finds nothing: so there is room for more than
/// is expected.
const BEHIND: u64 = 64;

#[derive(Debug)]
pub(super) struct Inbox {
    /// In order, without what was taken.
    pub(super) buf: BytesMut,
    /// How much is looked for at once: as much as came lately.
    room: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            buf: BytesMut::new(),
            room: ROOM_FIRST,
        }
    }

    /// Reads once, behind what is there; how many bytes came, 0 at the end. `expected`: how many are to come, where
    /// that is known.
    pub(super) fn poll_fill(
        &mut self,
        io: &mut WorkerIo,
        cx: &mut Context<'_>,
        expected: Option<u64>,
    ) -> Poll<io::Result<usize>> {
        if io.poll_readable(cx)?.is_pending() {
            self.rest();
            return Poll::Pending;
        }
        let room = match expected {
            Some(bytes) => (bytes.saturating_add(BEHIND)).min(ROOM_MAX as u64) as usize,
            None => self.room,
        };
        self.buf.reserve(room);
        // It keeps nothing between two polls.
        let read = pin!(io.read_buf(&mut self.buf)).poll(cx);
        match &read {
            Poll::Ready(Ok(bytes @ 1..)) => self.fit(*bytes),
            _ => self.rest(),
        }
        read
    }

    /// Nothing is to be read for now: an empty buffer goes back.
    pub(super) fn rest(&mut self) {
        if self.buf.is_empty() {
            self.buf = BytesMut::new();
        }
    }

    fn fit(&mut self, bytes: usize) {
        if bytes >= self.room {
            self.room = (self.room * 2).min(ROOM_MAX);
        } else if bytes < self.room / 4 {
            self.room = (self.room / 2).max(ROOM_MIN);
        }
    }
}
