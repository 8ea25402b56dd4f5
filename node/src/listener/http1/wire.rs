//! One connection's bytes in: heads, and the bodies that are read from the same stream by their handlers.
//!
//! Nothing is kept that is not needed: a read fills a buffer of the thread, and what has come is copied once, in its exact
//! length, into bytes that the head's values and the body are slices of. The rest of a body whose length is known is read
//! straight to where it belongs.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::buf::BufMut;
use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::request::{HeadReader, RequestHead};
use crate::http::client_body::{BodyError, BodySource};
use crate::listener::framing::{BodyLength, Chunked, Fault, HeadLimits};

/// Most bytes of one read, where nobody knows how many there are. A head and a short prompt come in one.
const READ_BYTES: usize = 16 * 1024;
/// So much of a body that nobody reads is waited for, so that the connection can go on.
const DRAIN_BYTES: usize = 64 * 1024;

/// Up to this length, a chunk is copied together with those that came with it: whoever reads the body has a turn for each
/// piece, which costs more than to copy it.
const JOINED_BYTES_MAX: usize = 1_024;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
const REQUEST_ENDED: BodyError = BodyError::Broke("its request has ended");
const CUT_SHORT: &str = "the connection ended within the body";

thread_local! {
    static READ_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// A connection, shared by who serves it and the body of its request, both in one task.
pub type Shared<Io> = Arc<Mutex<Wire<Io>>>;

/// The stream, and where in it the reader is.
#[derive(Debug)]
pub struct Wire<Io> {
    pub(super) io: Io,
    limits: HeadLimits,
    /// What has come and was not used yet.
    input: Bytes,
    reading: Reading,
    /// Requests so far.
    requests: u64,
    /// What is left to be said to a client that waits for leave to send its body.
    continues: &'static [u8],
    /// It is said, and may still lie in a buffer.
    must_flush: bool,
    is_leaving: bool,
    /// Its place is wanted for another client: while it leaves, it waits for no first request.
    is_in_the_way: bool,
    /// An answer whose end is that of the connection has begun, and not all of it is out.
    is_open_ended: bool,
}

#[derive(Debug)]
enum Reading {
    /// None before its first byte: a connection between two requests must not have its room.
    Head(Option<Box<HeadReader>>),
    Fixed(u64),
    Chunked {
        chunked: Chunked,
        /// The beginning of a line whose end has not come.
        line: Vec<u8>,
    },
    /// Of the body in progress nothing is left.
    Ended,
    /// No more requests can be told from what comes.
    Broken(&'static str),
}

impl<Io> Wire<Io> {
    /// Before the first byte.
    pub fn shared(io: Io, limits: HeadLimits) -> Shared<Io> {
        Arc::new(Mutex::new(Self {
            io,
            limits,
            input: Bytes::new(),
            reading: Reading::Head(None),
            requests: 0,
            continues: &[],
            must_flush: false,
            is_leaving: false,
            is_in_the_way: false,
            is_open_ended: false,
        }))
    }

    /// The stream, for another protocol; none while a body of a request is being read.
    pub(in crate::listener) fn into_io(wire: Shared<Io>) -> Option<Io> {
        let wire = Arc::into_inner(wire)?;
        Some(wire.into_inner().io)
    }

    /// No request is read after the one in progress, or the head that has come whole; one more where the last answer began
    /// without saying so, or none was given yet, if it comes soon.
    pub(in crate::listener) fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// The same, because another client needs the place: without a first request it ends now.
    pub(in crate::listener) fn make_room(&mut self) {
        self.is_leaving = true;
        self.is_in_the_way = true;
    }

    pub(super) fn set_open_ended(&mut self, is_open_ended: bool) {
        self.is_open_ended = is_open_ended;
    }

    /// Whether the end of the connection, as it is now, would pass for the end of an answer that is not whole.
    pub(in crate::listener) fn is_cut_short(&self) -> bool {
        self.is_open_ended
    }

    /// Whether nobody may count on an answer here that has not asked for it by now.
    pub(super) fn is_in_the_way(&self) -> bool {
        self.is_in_the_way && self.requests == 0
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether a head has begun and is not whole.
    pub(super) fn is_within_head(&self) -> bool {
        matches!(&self.reading, Reading::Head(Some(reader)) if reader.has_begun())
    }
}

pub(in crate::listener) fn lock<Io>(wire: &Mutex<Wire<Io>>) -> MutexGuard<'_, Wire<Io>> {
    wire.lock()
}

impl<Io: AsyncRead + AsyncWrite + Unpin> Wire<Io> {
    /// The next head; none at the end of the stream.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Result<RequestHead, Fault>>>> {
        loop {
            let Reading::Head(reader) = &mut self.reading else {
                return Poll::Ready(Ok(None));
            };
            if !self.input.is_empty() {
                let reader = reader.get_or_insert_default();
                match reader.feed(&mut self.input, self.limits) {
                    Ok(None) => {}
                    Ok(Some(head)) => {
                        self.begin(&head);
                        return Poll::Ready(Ok(Some(Ok(head))));
                    }
                    Err(fault) => return Poll::Ready(Ok(Some(Err(fault)))),
                }
            }
            if !ready!(self.poll_input(cx))? {
                return Poll::Ready(Ok(None));
            }
        }
    }

    fn begin(&mut self, head: &RequestHead) {
        self.requests += 1;
        self.reading = match head.length {
            BodyLength::Nothing => Reading::Ended,
            BodyLength::Fixed(bytes) => Reading::Fixed(bytes),
            BodyLength::Chunked => Reading::Chunked {
                chunked: Chunked::default(),
                line: Vec::new(),
            },
        };
        // A client that sends its body all the same needs no leave.
        self.continues = match head.expects_continue && self.input.is_empty() {
            true => CONTINUE,
            false => &[],
        };
    }

    /// Reads once; false at the end of the stream. Nothing may be left of the last read.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let mut read = ReadBuf::new(buffer);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut read))?;
            self.input = Bytes::copy_from_slice(read.filled());
            Poll::Ready(Ok(!self.input.is_empty()))
        })
    }

    /// Ready once the client has closed its side, or the stream has failed, within a body or behind a request whose body
    /// is read. A TLS client may close without closing its socket. What it sends instead is kept, one read of it.
    pub(super) fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(self.reading, Reading::Broken(CUT_SHORT)) {
            return Poll::Ready(());
        }
        if !self.input.is_empty() || !matches!(self.reading, Reading::Ended) {
            return Poll::Pending;
        }
        match ready!(self.poll_input(cx)) {
            Ok(true) => Poll::Pending,
            Ok(false) | Err(_) => Poll::Ready(()),
        }
    }

    /// Whether the client has said nothing behind the request in progress.
    pub(super) fn has_waited(&mut self, cx: &mut Context<'_>) -> bool {
        self.input.is_empty() && self.poll_left(cx).is_pending() && self.input.is_empty()
    }

    /// Asks for the body where the client waits to be asked.
    fn poll_continue(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.continues.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, self.continues))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.continues = &self.continues[written..];
            self.must_flush = true;
        }
        if self.must_flush {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.must_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    /// The next bytes of the body in progress, as they come.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, &'static str>>> {
        if !matches!(self.reading, Reading::Ended | Reading::Broken(_))
            && ready!(self.poll_continue(cx)).is_err()
        {
            return self.broke(CUT_SHORT).map(|what| Some(Err(what)));
        }
        loop {
            match self.next_data() {
                Ok(Some(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(None) if matches!(self.reading, Reading::Ended) => return Poll::Ready(None),
                Ok(None) => {}
                Err(what) => return self.broke(what).map(|what| Some(Err(what))),
            }
            if !matches!(ready!(self.poll_input(cx)), Ok(true)) {
                return self.broke(CUT_SHORT).map(|what| Some(Err(what)));
            }
        }
    }

    fn broke(&mut self, what: &'static str) -> Poll<&'static str> {
        self.reading = Reading::Broken(what);
        Poll::Ready(what)
    }

    /// Takes the next bytes of the body from what has come; none if nothing of it is there, or it has ended.
    fn next_data(&mut self) -> Result<Option<Bytes>, &'static str> {
        match &mut self.reading {
            Reading::Head(_) | Reading::Ended => Ok(None),
            Reading::Broken(what) => Err(what),
            Reading::Fixed(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX);
                let data = self.input.split_to(taken.min(self.input.len()));
                *left -= data.len() as u64;
                if *left == 0 {
                    self.reading = Reading::Ended;
                }
                Ok(Some(data).filter(|data| !data.is_empty()))
            }
            Reading::Chunked { chunked, line } => {
                let mut joined = BytesMut::new();
                while !self.input.is_empty() {
                    let is_data = chunked.is_within_data();
                    let mut rest = &*self.input;
                    let has_ended = chunked.feed(line, &mut rest)?;
                    let data = self.input.split_to(self.input.len() - rest.len());
                    if has_ended {
                        self.reading = Reading::Ended;
                        break;
                    }
                    if !is_data {
                        continue;
                    }
                    let is_long = data.len() > JOINED_BYTES_MAX;
                    if joined.is_empty() && (is_long || self.input.is_empty()) {
                        return Ok(Some(data));
                    }
                    joined.extend_from_slice(&data);
                }
                Ok(Some(joined.freeze()).filter(|data| !data.is_empty()))
            }
        }
    }

    /// Nobody reads the rest of the body in progress: passes over what of it has come. Whether another request may follow,
    /// for all of it is over or its end is near.
    pub(super) fn gives_up_body(&mut self, cx: &mut Context<'_>) -> bool {
        // A client that was not asked for its body may send it, or not.
        if !self.continues.is_empty() {
            return false;
        }
        let mut passed = 0;
        while passed <= DRAIN_BYTES
            && let Poll::Ready(Some(Ok(data))) = self.poll_body(cx)
        {
            passed += data.len();
        }
        match self.reading {
            Reading::Ended => true,
            Reading::Fixed(left) => left <= DRAIN_BYTES as u64,
            Reading::Head(_) | Reading::Chunked { .. } | Reading::Broken(_) => false,
        }
    }

    /// Waits for the end of a body whose end is near; whether it has come, and the next head may.
    pub(super) fn poll_end_request(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            match ready!(self.poll_body(cx)) {
                Some(Ok(_)) => {}
                Some(Err(_)) => return Poll::Ready(false),
                None => {
                    self.reading = Reading::Head(None);
                    return Poll::Ready(true);
                }
            }
        }
    }

    /// Whether a body of this request may read.
    fn reads_body_of(&self, request: u64) -> bool {
        self.requests == request && !matches!(self.reading, Reading::Head(_))
    }

    /// Reads a body of known length to the end of `buffer`.
    fn poll_fill(
        &mut self,
        buffer: &mut BytesMut,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, &'static str>> {
        let left = match self.reading {
            Reading::Fixed(left) if self.input.is_empty() => left,
            _ => {
                let next = ready!(self.poll_body(cx)).transpose()?;
                let data = next.unwrap_or_default();
                buffer.extend_from_slice(&data);
                return Poll::Ready(Ok(data.len()));
            }
        };
        if ready!(self.poll_continue(cx)).is_err() {
            return self.broke(CUT_SHORT).map(Err);
        }
        let room = (buffer.capacity() - buffer.len()) as u64;
        let most = usize::try_from(left.min(room)).unwrap_or(usize::MAX);
        let mut free = buffer.limit(most);
        let read = pin!(self.io.read_buf(&mut free)).poll(cx);
        match ready!(read) {
            Ok(bytes) if bytes > 0 => {
                self.reading = match left - bytes as u64 {
                    0 => Reading::Ended,
                    left => Reading::Fixed(left),
                };
                Poll::Ready(Ok(bytes))
            }
            _ => self.broke(CUT_SHORT).map(Err),
        }
    }
}

fn body_error(what: &'static str) -> BodyError {
    match what {
        CUT_SHORT => BodyError::Left,
        what => BodyError::Broke(what),
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin + Send> BodySource for Mutex<Wire<Io>> {
    fn poll_data(
        &self,
        request: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let mut wire = lock(self);
        if !wire.reads_body_of(request) {
            return Poll::Ready(Some(Err(REQUEST_ENDED)));
        }
        wire.poll_body(cx)
            .map(|next| next.map(|data| data.map_err(body_error)))
    }

    fn poll_read_into(
        &self,
        request: u64,
        buffer: &mut BytesMut,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, BodyError>> {
        let mut wire = lock(self);
        if !wire.reads_body_of(request) {
            return Poll::Ready(Err(REQUEST_ENDED));
        }
        wire.poll_fill(buffer, cx)
            .map(|read| read.map_err(body_error))
    }
}
