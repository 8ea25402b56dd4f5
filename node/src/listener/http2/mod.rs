//! The data port's HTTP/2 server: hyper's, with this replica's limits.

mod rest;
mod stream;
#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::Arc;

use http::{Method, Request};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use self::rest::{Rest, Rests};
use self::stream::{Answer, Streams};
use super::Front;
use crate::config::LimitConfig;
use crate::http::client_body::ClientBody;
use crate::http::client_io::Gone;
use crate::http::forwarded::Peer;
use crate::http::head_size::TooLarge;
use crate::proxy::ClientLeft;
use crate::seats::{Goodbye, Seat};
use crate::shutdown::Cutoff;

/// Bytes of a request's body that a client may send before they are read. An upload gets so much in each round trip: 5 MB
/// a second where that takes 50 ms.
///
/// It is also what a request costs that waits to be admitted, unread; `admission.queue_size` bounds how many of them there
/// are. A client that sends more than it is asked for costs its connection all windows at most: 64 MiB with 256 streams.
const STREAM_WINDOW: u32 = 256 * 1024;
/// RFC 9113, section 6.9.1.
const WINDOW_MAX: u32 = (1 << 31) - 1;

/// The windows of a stream, and of a connection with so many of them: all may be full at once, so that no stream which
/// nobody reads takes the room of one that is read.
fn windows(streams: u32) -> (u32, u32) {
    let streams = streams.max(1);
    let stream = STREAM_WINDOW.min(WINDOW_MAX / streams);
    (stream, stream * streams)
}

/// Bytes of a head as HTTP/2 counts them (RFC 9113, section 6.5.2: 32 more for each field). Above it h2 answers with a
/// status and nothing else, so this is twice the limit, behind which the proxy says which one it was.
fn header_list_max(limits: &LimitConfig) -> u32 {
    let fields = 32 * u64::from(limits.headers);
    u32::try_from(2 * limits.header_bytes.0 + fields).unwrap_or(u32::MAX)
}

/// What of a head is above its limit.
fn exceeds(request: &Request<Incoming>, limits: &LimitConfig) -> Option<TooLarge> {
    let (bytes, fields) = (limits.header_bytes.as_usize(), limits.headers as usize);
    TooLarge::of(request.uri(), request.headers(), bytes, fields)
}

/// hyper's server.
///
/// Without its keep-alive, which ends a connection with all its streams when a PING is not answered in time: a client that
/// reads nothing for a moment has not read the PING either, and what it has to answer lies behind all that the kernel
/// holds. Who takes nothing of an answer is found by `stream` and by the socket, who asks for nothing by `rest`, and a host
/// that vanished by [`keep_alive`](crate::keep_alive).
fn server(streams: Streams, limits: &LimitConfig) -> http2::Builder<Streams> {
    let (stream_window, connection_window) = windows(limits.streams_per_connection);
    let mut server = http2::Builder::new(streams);
    server
        .initial_stream_window_size(stream_window)
        .initial_connection_window_size(connection_window)
        .max_concurrent_streams(limits.streams_per_connection)
        .max_header_list_size(header_list_max(limits));
    server
}

/// Serves HTTP/2 to the end of the connection, or of the replica.
pub(super) async fn serve<Io>(
    io: Io,
    peer: Peer,
    seat: &Seat,
    front: &Arc<Front>,
) -> Result<(), hyper::Error>
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (limits, timeouts) = (front.limits.now(), front.timeouts.now());
    let rests = Rests {
        first: timeouts.first_byte,
        between: timeouts.keep_alive,
        last: timeouts.write_stall,
    };
    let rest = Rest::new(seat.progress(), rests);
    let service = service_fn(|mut request: Request<Incoming>| {
        let client = peer.client(request.headers(), &front.trusted_proxies);
        // Before a line is written into it that its client did not send.
        let too_large = exceeds(&request, &front.limits.look());
        peer.rewrite(request.headers_mut());
        let is_head = request.method() == Method::HEAD;
        let progress = rest.ends();
        let (head, body) = request.into_parts();
        let refusal = seat.must_turn_away().and_then(|short| {
            let refusal = front.proxy.turn_away(&head, short)?;
            // By GOAWAY: there is no `Connection: close` over HTTP/2.
            seat.turn_away(short);
            Some(refusal)
        });
        let front = Arc::clone(front);
        let cutoff = Cutoff::of_task(&front.phase);
        let (head, body) = (Box::new(head), ClientBody::Http2(body.into()));
        async move {
            if let Some(refusal) = refusal {
                return Ok(Answer::of(refusal, is_head, progress));
            }
            // hyper reads all the time and drops a reset stream's handler itself, and the socket's read waker belongs to
            // the connection's task, not to the stream's.
            let response = front
                .proxy
                .serve(head, body, too_large, client, Gone::never(), cutoff);
            Ok::<_, ClientLeft>(Answer::of(response.await?, is_head, progress))
        }
    });
    let streams = Streams::new(timeouts.write_stall, front.metrics.refusals.clone());
    let connection = server(streams, &limits).serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let mut is_told = tokio::select! {
        // In this order: a request may be waiting in the socket of which nothing was read yet.
        biased;
        result = connection.as_mut() => return result,
        // GOAWAY already while settling: a client that keeps one connection for hours would never leave.
        () = front.phase.leaving() => false,
        () = seat.progress().told_to_leave() => true,
        () = rest.is_over() => {
            if !rest.has_asked() {
                front.metrics.refusals.limit_reached("first_byte");
            }
            false
        }
    };
    connection.as_mut().graceful_shutdown();
    // hyper waits for an answer to its GOAWAY, and before the client's preface for that.
    let mut over = pin!(rest.is_over_at_last());
    loop {
        if is_told {
            match seat.goodbye(connection.as_mut()).await {
                Goodbye::Ended(ended) => return ended,
                Goodbye::Idle => return Ok(()),
                Goodbye::Busy => {}
            }
        }
        is_told = tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            // Its place may be wanted while it ends, which is its client's to hold up, or once more.
            () = seat.progress().told_to_leave() => true,
            () = over.as_mut() => return Ok(()),
            () = front.phase.closed() => return Ok(()),
        };
    }
}
