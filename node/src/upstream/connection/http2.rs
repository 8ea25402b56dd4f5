//! A connection in HTTP/2, with one stream at a time.
//!
//! By h2 and not by hyper on top of it: hyper would have the parts of a connection spawned, and takes a stream that its
//! worker resets with NO_ERROR for one that has ended.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri, Version, header};
use http_body::Frame;
use tokio::time::timeout;

use super::broken::{Broken, SendError};
use super::length::{BodyLength, body_length};
use super::limits::{HEADERS_MAX, READ_BYTES_MAX};
use super::quiet;
use super::request::WorkerRequest;
use crate::http::worker_body::WorkerBody;
use crate::upstream::address::Address;
use crate::upstream::head_count::{Counted, HEAD_BYTES_MAX, HeadCount};
use crate::upstream::tls::WorkerIo;

/// Most bytes of all frames up to a response's head, informational ones included. The limit of the head itself is
/// [`HEAD_BYTES_MAX`]; with it may come what fits into the window behind it.
const HEAD_FRAMES_BYTES_MAX: usize = 4 * HEAD_BYTES_MAX;
/// What frames of less than 256 bytes may fall short of that, together, while they lie here unread. Events are small,
/// and a window of them may come in one piece: by h2's own measure some 150 such frames end the connection, by this
/// one 4,000.
const SMALL_FRAMES_BYTES_MAX: usize = 1024 * 1024;
/// Of a request's body, for each byte that may come besides before the head: a worker gives room for the rest of it in
/// frames, of which two, of 13 bytes each, may stand for as little as this many times 26.
const BODY_BYTES_FOR_A_BYTE_OF_ROOM: usize = 8;

type Driver = h2::client::Connection<Counted<WorkerIo>, Bytes>;

#[derive(Debug)]
pub(super) struct Connection {
    sender: SendRequest<Bytes>,
    /// None once it has ended.
    driver: Option<Driver>,
    /// What is left to send of the request.
    upload: Option<Upload>,
    head: HeadCount,
    scheme: Scheme,
    /// What stands in the place of `Host`.
    authority: Option<Authority>,
}

impl Connection {
    /// Waits for the worker's SETTINGS, which show that it speaks HTTP/2 before a request is on its way.
    pub(super) async fn open(
        io: WorkerIo,
        address: &Address,
        within: Duration,
    ) -> io::Result<Self> {
        let head = HeadCount::up_to(HEAD_FRAMES_BYTES_MAX);
        let io = Counted::new(io, head.clone());
        let shaking = async {
            let window = READ_BYTES_MAX - 1;
            let (sender, mut driver) = Builder::new()
                .initial_window_size(window)
                .initial_connection_window_size(window)
                .max_header_list_size(HEAD_BYTES_MAX as u32)
                .data_frame_budget(SMALL_FRAMES_BYTES_MAX)
                .enable_push(false)
                // Until SETTINGS say how many.
                .initial_max_send_streams(0)
                .handshake(io)
                .await
                .map_err(of_handshake)?;
            poll_fn(|cx| match Pin::new(&mut driver).poll(cx) {
                Poll::Ready(Ok(())) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Err(error)) => Poll::Ready(Err(of_handshake(error))),
                Poll::Pending if driver.max_concurrent_send_streams() > 0 => Poll::Ready(Ok(())),
                Poll::Pending => Poll::Pending,
            })
            .await?;
            Ok::<_, io::Error>((sender, driver))
        };
        let (sender, driver) = timeout(within, shaking)
            .await
            .map_err(|_| io::ErrorKind::TimedOut)??;
        Ok(Self {
            sender,
            driver: Some(driver),
            upload: None,
            head,
            scheme: address.scheme(),
            authority: Authority::try_from(address.host.as_bytes()).ok(),
        })
    }

    /// Moves everything on, and lets go of the socket when it has ended.
    ///
    /// Only here does anything come in, and who calls it looks at its stream afterwards: streams are asked in
    /// [`quiet`], since h2 would else wake the task that runs, once more for each piece that came.
    fn drive(&mut self, cx: &mut Context<'_>) {
        let mut is_first = true;
        loop {
            let has_sent = self.upload();
            // Its own result says nothing that the stream does not say as well.
            if let Some(driver) = &mut self.driver
                && Pin::new(driver).poll(cx).is_ready()
            {
                self.driver = None;
            }
            // What came in may be room for more.
            let may_send = self.upload.as_ref().is_some_and(Upload::has_room);
            if !may_send || self.driver.is_none() || !(has_sent || is_first) {
                return;
            }
            is_first = false;
        }
    }

    /// Sends of the body what the worker has room for; false where that is nothing.
    fn upload(&mut self) -> bool {
        let Some(upload) = &mut self.upload else {
            return false;
        };
        let before = upload.sent;
        let has_ended = upload.poll(&mut quiet()).is_ready();
        let sent = upload.sent - before;
        if has_ended {
            self.upload = None;
        }
        self.head.allow(sent / BODY_BYTES_FOR_A_BYTE_OF_ROOM);
        sent > 0
    }

    pub(super) async fn send(
        &mut self,
        request: &WorkerRequest<'_>,
    ) -> Result<Response<AnswerBody>, SendError> {
        let (request, body) = (self.head_of(request), request.body.clone());
        poll_fn(|cx| self.sender.poll_ready(cx))
            .await
            .map_err(unsent)?;
        let sent = self.sender.send_request(request, body.is_empty());
        let (mut answer, stream) = sent.map_err(unsent)?;
        self.upload = (!body.is_empty()).then(|| Upload::new(stream, body));
        self.head.begin();
        let result = poll_fn(|cx| {
            self.drive(cx);
            Pin::new(&mut answer).poll(&mut quiet())
        })
        .await;
        self.head.end();
        let response = result.map_err(of_answer)?;
        if response.headers().len() > HEADERS_MAX {
            return Err(SendError::HeadTooLong);
        }
        let length = body_length(response.version(), response.headers());
        let length = length.ok_or(SendError::LengthInDoubt)?;
        let mut response = response.map(|stream| AnswerBody {
            left: match length {
                _ if stream.is_end_stream() => Some(0),
                BodyLength::Fixed(length) => Some(length),
                BodyLength::Chunked | BodyLength::Open => None,
            },
            stream,
        });
        // As every hop names its own.
        *response.version_mut() = Version::HTTP_11;
        Ok(response)
    }

    pub(super) fn poll_frame(
        &mut self,
        body: &mut AnswerBody,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Poll::Ready(frame) = body.poll_frame(&mut quiet()) {
            return Poll::Ready(frame);
        }
        self.drive(cx);
        body.poll_frame(&mut quiet())
    }

    /// A head as HTTP/2 has it: `Host` is a part of the target.
    fn head_of(&self, request: &WorkerRequest<'_>) -> Request<()> {
        let mut head = Request::new(());
        *head.method_mut() = request.method.clone();
        *head.version_mut() = Version::HTTP_2;
        let headers = head.headers_mut();
        headers.reserve(request.headers.len() + request.own.len());
        for (name, value) in request.lines().filter(|(name, _)| *name != header::HOST) {
            let mut value = value.clone();
            // The next request on this connection may be another client's: its key has no place in the common table.
            if matches!(*name, header::AUTHORIZATION | header::COOKIE) {
                value.set_sensitive(true);
            }
            headers.append(name, value);
        }
        let path = request.target.path_and_query().cloned();
        let mut target = http::uri::Parts::default();
        target.scheme = Some(self.scheme.clone());
        target.authority = self.authority.clone();
        target.path_and_query = Some(path.unwrap_or(PathAndQuery::from_static("/")));
        // Without an authority it is none: h2 then says so.
        *head.uri_mut() = Uri::from_parts(target).unwrap_or_default();
        head
    }

    /// After a complete response: as far as it is known without a look at the socket.
    pub(super) fn may_rest(&mut self) -> bool {
        let may_begin = |driver: &Driver| driver.max_concurrent_send_streams() > 0;
        self.driver.as_ref().is_some_and(may_begin)
            && self.upload.is_none()
            && matches!(self.sender.poll_ready(&mut quiet()), Poll::Ready(Ok(())))
    }

    /// Before reuse, when what came meanwhile is read.
    pub(super) fn is_still_open(&mut self) -> bool {
        self.drive(&mut quiet());
        self.may_rest()
    }
}

/// A request's body on its way, in pieces of what the worker has room for.
#[derive(Debug)]
struct Upload {
    stream: SendStream<Bytes>,
    piece: Bytes,
    rest: WorkerBody,
    /// Bytes so far.
    sent: usize,
}

impl Upload {
    fn new(stream: SendStream<Bytes>, body: WorkerBody) -> Self {
        let mut upload = Self {
            stream,
            piece: Bytes::new(),
            rest: body,
            sent: 0,
        };
        upload.begin_next();
        upload
    }

    fn begin_next(&mut self) {
        self.piece = self.rest.next_piece().unwrap_or_default();
        self.stream.reserve_capacity(self.piece.len());
    }

    fn has_room(&self) -> bool {
        self.stream.capacity() > 0
    }

    /// Ready once there is nothing left to do; why, if it is not sent, the response says.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(Ok(room)) = ready!(self.stream.poll_capacity(cx)) {
            let part = self.piece.split_to(room.min(self.piece.len()));
            let is_last = self.piece.is_empty() && self.rest.is_empty();
            self.sent += part.len();
            if self.stream.send_data(part, is_last).is_err() || is_last {
                break;
            }
            if self.piece.is_empty() {
                self.begin_next();
            }
        }
        Poll::Ready(())
    }
}

/// The body of an answer.
#[derive(Debug)]
pub struct AnswerBody {
    stream: RecvStream,
    /// What is still to come, in bytes, where the head says it; h2 holds the worker to that.
    left: Option<u64>,
}

impl AnswerBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = match ready!(self.stream.poll_data(cx)) {
            Some(data) => data.map(|data| {
                // Taken: the worker may send as much again. It fails only where nothing was taken.
                let _ = self.stream.flow_control().release_capacity(data.len());
                self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                Frame::data(data)
            }),
            None => match ready!(self.stream.poll_trailers(cx)) {
                Ok(None) => return Poll::Ready(None),
                Ok(Some(trailers)) => Ok(Frame::trailers(trailers)),
                Err(error) => Err(error),
            },
        };
        Poll::Ready(Some(frame.map_err(Broken::from)))
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    pub(super) fn length(&self) -> Option<u64> {
        self.left
    }
}

fn unsent(error: h2::Error) -> SendError {
    SendError::Unsent(error.into())
}

/// What an error in place of a response says about the request (RFC 9113, section 8.7).
fn of_answer(error: h2::Error) -> SendError {
    let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    let is_unseen = error.is_remote() && (error.is_go_away() || is_refused);
    match Broken::from(error) {
        broken if is_unseen => SendError::Unsent(broken),
        broken if is_end(&broken) => SendError::Unanswered(broken),
        broken => SendError::Malformed(broken),
    }
}

/// The connection ended, for whatever reason, and without a frame about the stream.
fn is_end(broken: &Broken) -> bool {
    matches!(broken, Broken::Http2(error) if error.is_io()) && broken.is_cut()
}

fn of_handshake(error: h2::Error) -> io::Error {
    if error.is_io() {
        let kind = error.get_io().map(io::Error::kind);
        return io::Error::new(kind.unwrap_or(io::ErrorKind::Other), error);
    }
    io::Error::new(io::ErrorKind::InvalidData, error)
}
