//! The data port's HTTP/1.1 server (RFC 9112): one request at a time, each head read once.
//!
//! The rules of [`super::framing`] are the parser (`request`); `wire` reads, `answer` makes the head of an answer, `send`
//! writes it with its body, `clock` measures what is waited for. A connection between two requests, or whose answer has
//! nothing to say, holds no buffer.

mod answer;
mod clock;
#[cfg(test)]
mod leaving_tests;
pub mod request;
#[cfg(test)]
mod request_tests;
mod send;
#[cfg(test)]
mod tests;
mod wire;

use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::yield_now;

pub(super) use self::answer::refusal;
use self::answer::{Asked, Framed};
pub(super) use self::clock::LAST_CALL;
use self::clock::{Clock, Wait};
use self::request::RequestHead;
pub use self::send::SendError;
use self::send::Sending;
pub(super) use self::wire::lock;
pub use self::wire::{Shared, Wire};
use super::framing::{BodyLength, Fault};
use super::waits::Waits;
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::http::client_body::{BodySource, ClientBody, Http1Body};
use crate::metrics::refusals::RefusalMetrics;
use crate::proxy::ClientLeft;

/// How a connection ended that did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The client's socket.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A head against the rules, or too late; it was answered.
    #[error("refused: {0}")]
    Refused(&'static str),
    /// There is no reader of an answer.
    #[error(transparent)]
    ClientLeft(#[from] ClientLeft),
    /// An answer could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// An answer that only the end of its connection ends is not whole: that end must be a reset, for any other would say
    /// that it is. With the reason, if it is another one than the end of the replica.
    #[error("an answer without a length was cut short")]
    CutShort(#[source] Option<Box<Self>>),
}

/// How a connection ended well.
#[derive(Debug)]
pub enum Ended<B> {
    /// Between two requests.
    Closed,
    /// The last answer was a 101, whose body this is: the stream speaks another protocol from now on.
    Switched(B),
    /// It was one, but the client had not waited for it.
    SwitchedEarly,
}

/// What comes next on a connection.
enum Next {
    Request(RequestHead),
    End,
    Refused(ApiError),
}

impl Next {
    /// What was read of a head; none at the end of the stream.
    fn of(head: Option<Result<RequestHead, Fault>>, refusals: &RefusalMetrics) -> Self {
        match head {
            None => Self::End,
            Some(Ok(head)) => Self::Request(head),
            Some(Err(fault)) => {
                if !matches!(fault, Fault::Malformed(_)) {
                    refusals.limit_reached("header_bytes");
                }
                Self::Refused(fault.error())
            }
        }
    }
}

/// Serves requests until either side ends the connection. Polled again after [`Wire::leave`], it ends as soon as nothing
/// is in progress; but its last answer did not say so, and behind that the client has a moment for a request that it may
/// have sent.
/// Errors: see [`ConnectionError`].
pub async fn serve<Io, S, F, B>(
    wire: &Shared<Io>,
    waits: Waits,
    refusals: &RefusalMetrics,
    service: S,
) -> Result<Ended<B>, ConnectionError>
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Fn(Request<ClientBody>) -> F,
    F: Future<Output = Result<Response<B>, ClientLeft>>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut clock = Clock::new(waits);
    loop {
        let next = poll_fn(|cx| poll_next(wire, &mut clock, refusals, cx));
        let mut next = next.await?;
        if matches!(next, Next::End) && lock(wire).is_leaving() {
            // What has come may not be known here yet: the system is asked for news between two turns of a runtime.
            yield_now().await;
            next = poll_fn(|cx| Poll::Ready(come_by_now(wire, refusals, cx))).await?;
        }
        let head = match next {
            Next::Request(head) => head,
            Next::End => break,
            Next::Refused(error) => return Err(refuse(wire, refusals, &error).await),
        };
        let is_http10 = head.parts.version == Version::HTTP_10;
        let mut asked = Asked::of(&head.parts.method, is_http10, head.keeps_alive);
        // On the heap: a connection between two requests must not have the room that one of them needs.
        let mut answering = Box::pin(service(request(wire, head)));
        let answered = poll_fn(|cx| match answering.as_mut().poll(cx) {
            Poll::Pending => lock(wire).poll_left(cx).map(|()| Err(ClientLeft)),
            ready => ready,
        });
        let response = answered.await?;
        drop(answering);
        let (parts, body) = response.into_parts();
        let is_switch = parts.status == StatusCode::SWITCHING_PROTOCOLS;
        let has_waited = is_switch && poll_fn(|cx| Poll::Ready(lock(wire).has_waited(cx))).await;
        // Whatever of its body is left, the request has its answer.
        let can_go_on = poll_fn(|cx| Poll::Ready(lock(wire).gives_up_body(cx))).await;
        asked.keeps_alive &=
            can_go_on && parts.status != StatusCode::REQUEST_TIMEOUT && !lock(wire).is_leaving();
        let head = answer::encode(&parts, body.size_hint().exact(), asked);
        // A stream may last for hours.
        drop(parts);
        let keeps_alive = head.keeps_alive;
        if is_switch {
            let mut sending = Sending::new(head, http_body_util::Empty::new());
            poll_fn(|cx| sending.poll(wire, cx)).await?;
            return Ok(match has_waited {
                true => Ended::Switched(body),
                false => Ended::SwitchedEarly,
            });
        }
        let is_open_ended = head.framed == Framed::UntilClose;
        if is_open_ended {
            lock(wire).set_open_ended(true);
        }
        let mut sending = Sending::new(head, body);
        poll_fn(|cx| sending.poll(wire, cx)).await?;
        drop(sending);
        if is_open_ended {
            lock(wire).set_open_ended(false);
        }
        if !keeps_alive || !poll_fn(|cx| poll_end(wire, &mut clock, cx)).await {
            break;
        }
    }
    poll_fn(|cx| Pin::new(&mut lock(wire).io).poll_shutdown(cx)).await?;
    Ok(Ended::Closed)
}

/// A head with the body that is read behind it.
fn request<Io>(wire: &Shared<Io>, head: RequestHead) -> Request<ClientBody>
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let length = match head.length {
        BodyLength::Nothing => Some(0),
        BodyLength::Fixed(bytes) => Some(bytes),
        BodyLength::Chunked => None,
    };
    let source = Arc::downgrade(wire) as Weak<dyn BodySource>;
    let body = Http1Body::new(source, lock(wire).requests(), length);
    Request::from_parts(head.parts, ClientBody::Http1(body))
}

/// The next request.
fn poll_next<Io>(
    wire: &Shared<Io>,
    clock: &mut Clock,
    refusals: &RefusalMetrics,
    cx: &mut Context<'_>,
) -> Poll<io::Result<Next>>
where
    Io: AsyncRead + AsyncWrite + Unpin,
{
    let mut wire = lock(wire);
    let next = match wire.poll_head(cx) {
        Poll::Ready(head) => Next::of(head?, refusals),
        Poll::Pending if wire.is_in_the_way() => Next::End,
        Poll::Pending => {
            // Whoever drips a head does not hold up the end for longer than one who sends nothing.
            let wait = match wire.is_within_head() {
                _ if wire.is_leaving() => Wait::LastCall,
                true => Wait::Rest,
                false => Wait::Request,
            };
            ready!(clock.poll_late(wait, cx));
            match wait {
                Wait::Request | Wait::LastCall => Next::End,
                Wait::Rest => {
                    refusals.limit_reached("header");
                    let message = "the head of the request did not arrive in time";
                    Next::Refused(ApiError::new(ErrorKind::RequestTimeout, message))
                }
            }
        }
    };
    clock.stop();
    Poll::Ready(Ok(next))
}

/// The next request, if all of its head has come.
fn come_by_now<Io>(
    wire: &Shared<Io>,
    refusals: &RefusalMetrics,
    cx: &mut Context<'_>,
) -> io::Result<Next>
where
    Io: AsyncRead + AsyncWrite + Unpin,
{
    match lock(wire).poll_head(cx) {
        Poll::Ready(head) => Ok(Next::of(head?, refusals)),
        Poll::Pending => Ok(Next::End),
    }
}

/// Ends a request that has its answer; whether another one can be read behind it.
fn poll_end<Io>(wire: &Shared<Io>, clock: &mut Clock, cx: &mut Context<'_>) -> Poll<bool>
where
    Io: AsyncRead + AsyncWrite + Unpin,
{
    let mut wire = lock(wire);
    let goes_on = match wire.poll_end_request(cx) {
        Poll::Ready(goes_on) => goes_on,
        Poll::Pending if wire.is_leaving() => false,
        Poll::Pending => {
            // The rest of a body has no more time than a head.
            ready!(clock.poll_late(Wait::Rest, cx));
            false
        }
    };
    clock.stop();
    Poll::Ready(goes_on)
}

/// Says the last words on a connection of which no more can be read.
async fn refuse<Io>(
    wire: &Shared<Io>,
    refusals: &RefusalMetrics,
    error: &ApiError,
) -> ConnectionError
where
    Io: AsyncRead + AsyncWrite + Unpin,
{
    refusals.own_error(error.kind);
    let answer = refusal(error);
    let mut left = &*answer;
    let said = poll_fn(|cx| {
        let io = &mut lock(wire).io;
        while !left.is_empty() {
            let written = ready!(Pin::new(&mut *io).poll_write(cx, left))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            left = &left[written..];
        }
        ready!(Pin::new(&mut *io).poll_flush(cx))?;
        Pin::new(io).poll_shutdown(cx)
    });
    match said.await {
        Ok(()) => ConnectionError::Refused(error.kind.code()),
        Err(error) => ConnectionError::Io(error),
    }
}
