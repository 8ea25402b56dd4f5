//! One try on one worker: connect, send, and wait for an answer that may be shown (`judge`). Nothing here decides about
//! retries: `retry` does. What can go wrong is in `failure`, how long is waited in `patience`.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::{Response, StatusCode};
use tokio::time::{Instant, sleep_until};

use super::answer::{Answer, rest};
use super::connection::{AnswerBody, Connection, SendError};
use super::failure::Failure;
use super::judge::{judge, read_error_body};
use super::outgoing::Outgoing;
use super::patience::{Known, Next, Patience};
use super::worker::Worker;
use crate::lag::{LISTEN_FIRST, overslept};

/// A connection that was at rest and ends within this time may have been closed before the request came there. Longer
/// than a packet's way and back; later, the worker had it.
const CLOSED_MEANWHILE: Duration = Duration::from_secs(1);
/// A request that waits for longer than this listens for verdicts against its worker; most are over by then.
const LISTENS_AFTER: Duration = Duration::from_millis(250);

/// Limits of one attempt.
#[derive(Debug, Clone, Copy)]
pub struct AttemptLimits {
    /// Longest wait for the socket.
    pub connect: Duration,
    /// Longest wait for what may be shown.
    pub patience: Patience,
    /// Most bytes of a stream that are held while its first event is incomplete.
    pub held_bytes: usize,
}

/// Tries one worker. `has_another`: whether another worker would take the request, should this one turn out bad. `looks` is
/// called now and then while there is no answer, and at the time that it answers.
/// Errors: see [`Failure`]. Dropping the future drops the connection, which aborts the request at the worker.
pub async fn attempt(
    worker: &Arc<Worker>,
    outgoing: &Outgoing,
    limits: &AttemptLimits,
    has_another: impl Fn() -> bool,
    mut looks: impl FnMut(Instant) -> Option<Instant>,
) -> Result<Answer, Failure> {
    let (patience, heard) = (&limits.patience, Heard::default());
    let look = || {
        patience.look(
            Instant::now(),
            known(worker, patience, &heard, &has_another),
        )
    };
    let mut answer = std::pin::pin!(attempt_untimed(worker, outgoing, limits, &heard));
    let mut due = look()?.at.min(patience.begun + LISTENS_AFTER);
    let mut timer = std::pin::pin!(sleep_until(due));
    let mut verdict = std::pin::pin!(worker.health.gives_up());
    let mut listens = false;
    poll_fn(|cx| {
        if let Poll::Ready(result) = answer.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        loop {
            let told = listens && verdict.as_mut().poll(cx).is_ready();
            if told {
                verdict.set(worker.health.gives_up());
            }
            let fired = timer.as_mut().poll(cx).is_ready();
            if !fired && !told {
                return Poll::Pending;
            }
            listens = true;
            let now = Instant::now();
            let wanted = looks(now);
            let sooner = |at: Instant| wanted.map_or(at, |wanted| at.min(wanted));
            if fired && !told && now < due {
                // Its own looks keep their time: for one that comes too early no sign is asked, and the next is too late.
                timer.as_mut().reset(sooner(due));
                continue;
            }
            if fired && overslept(timer.deadline()) {
                timer.as_mut().reset(Instant::now() + LISTEN_FIRST);
                continue;
            }
            match look() {
                Ok(Next { at, wants_sign }) => {
                    if wants_sign {
                        worker.health.want_sign(patience.look_every());
                    }
                    due = at;
                    timer.as_mut().reset(sooner(at));
                }
                Err(failure) => return Poll::Ready(Err(failure)),
            }
        }
    })
    .await
}

/// When the latest byte of an answer's body came, in microseconds after the request was sent; 0: none yet.
#[derive(Debug, Default)]
struct Heard(AtomicU64);

impl Heard {
    fn now(&self, patience: &Patience) {
        let us = u64::try_from(patience.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.0.store(us.max(1), Ordering::Relaxed);
    }

    fn at(&self, patience: &Patience) -> Option<Instant> {
        let us = self.0.load(Ordering::Relaxed);
        (us > 0).then(|| patience.begun + Duration::from_micros(us))
    }
}

/// What the wait depends on, as it is now.
fn known(
    worker: &Worker,
    patience: &Patience,
    heard: &Heard,
    has_another: impl Fn() -> bool,
) -> Known {
    let bad_since = worker.health.given_up_since();
    Known {
        heard: heard.at(patience),
        sign: worker.health.last_sign(),
        refuses_since: worker.refuses_since.get(),
        // Asked for last: it looks at all workers.
        bad_since: bad_since.filter(|at| *at > patience.begun && has_another()),
    }
}

async fn attempt_untimed(
    worker: &Arc<Worker>,
    outgoing: &Outgoing,
    limits: &AttemptLimits,
    heard: &Heard,
) -> Result<Answer, Failure> {
    let (connection, response) = send(worker, outgoing, limits.connect).await?;
    let came = || heard.now(&limits.patience);
    judge(
        worker,
        connection,
        response,
        outgoing,
        limits.held_bytes,
        came,
    )
    .await
}

/// Connects, sends the request, and waits for a response's head.
async fn send(
    worker: &Worker,
    outgoing: &Outgoing,
    connect: Duration,
) -> Result<(Connection, Response<AnswerBody>), Failure> {
    let request = outgoing.to(worker);
    let mut was_sent = false;
    // What is at rest may speak HTTP/2, which knows no change of protocols.
    let switches = outgoing.upgrade.is_some();
    // And its worker may be closing it, after which nobody knows whether it has read the request: one that must not be
    // sent twice gets a new connection.
    let may_rest = !switches && outgoing.repeatable;
    let idle = may_rest.then(|| worker.idle.take(Instant::now()));
    if let Some(mut idle) = idle.flatten() {
        let begun = Instant::now();
        match idle.send(&request).await {
            Ok(response) => return Ok((idle, response)),
            // The worker closed it while the request was on its way: the one race that an idle limit leaves.
            Err(SendError::Unsent(_)) => {}
            Err(SendError::Unanswered(_)) if begun.elapsed() < CLOSED_MEANWHILE => {
                was_sent = true;
            }
            Err(error) => return Err(error.into()),
        }
    }
    // On the heap: most requests find a connection, and must not have the room that its handshakes need.
    let opened = match switches {
        true => Box::pin(worker.connect_http1(connect)).await,
        false => Box::pin(worker.connect(connect)).await,
    };
    worker.connected(&opened);
    let mut fresh = opened.map_err(|error| match was_sent {
        // The process may have ended by what it got on the other connection.
        true => Failure::Closed(error.into()),
        false => Failure::of_connect(error),
    })?;
    let response = fresh.send(&request).await?;
    Ok((fresh, response))
}

/// The status of a worker's answer to a request of this replica's own. The connection stays if its answer was short.
/// Errors: it did not say anything.
pub(crate) async fn status_of(
    worker: &Worker,
    question: &Outgoing,
    connect: Duration,
) -> Result<StatusCode, Failure> {
    let (mut connection, response) = send(worker, question, connect).await?;
    let (parts, mut body) = response.into_parts();
    if !parts.status.is_success() {
        read_error_body(&mut connection, &mut body).await;
        rest(worker, connection, &body);
    }
    Ok(parts.status)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, Method, Uri};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::alone::{Alone, worker_with};
    use crate::config::KvEventsConfig;
    use crate::http::worker_body::WorkerBody;
    use crate::upstream::patience::WaitsFor;

    /// As the prefill leg of a stream: nobody reads its events, and the next prompt wants its connection.
    #[tokio::test]
    async fn the_connection_of_a_stream_that_was_read_to_its_end_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let described = worker_with("w", "m", |raw| {
            raw.url = format!("http://127.0.0.1:{port}");
        });
        let alone = Alone::new("r1", [described], &KvEventsConfig::default(), 1);
        let fleet = alone.cluster.fleet();
        let worker = Arc::clone(fleet.workers().next().expect("one"));
        let serves = async {
            let (mut client, _) = listener.accept().await.expect("a client");
            let mut heard = Vec::new();
            while !heard.ends_with(b"{}") {
                client.read_buf(&mut heard).await.expect("a request");
            }
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            let answer = [
                head,
                "9\r\ndata: 1\n\n\r\n",
                "9\r\ndata: 2\n\n\r\n",
                "0\r\n\r\n",
            ];
            for piece in answer {
                client.write_all(piece.as_bytes()).await.expect("taken");
            }
            client
        };
        let outgoing = Outgoing {
            method: Method::POST,
            target: Uri::from_static("/v1/completions"),
            headers: HeaderMap::new(),
            body: WorkerBody::unchanged(Bytes::from_static(b"{}")),
            stream: true,
            upgrade: None,
            repeatable: true,
            keeps_key: false,
            one_value: false,
        };
        let limit = Duration::from_secs(60);
        let limits = AttemptLimits {
            connect: limit,
            patience: Patience {
                begun: Instant::now(),
                waits_for: WaitsFor::Token,
                silence: limit,
                deadline: None,
                worker_gone: limit,
            },
            held_bytes: 1024,
        };
        let asks = async {
            let answer = attempt(&worker, &outgoing, &limits, || false, |_| None).await;
            let whole = answer.expect("a stream").whole(&worker, 1024).await;
            whole.expect("to its end").1
        };
        let (read, _client) = tokio::join!(asks, serves);
        assert_eq!(read, "data: 1\n\ndata: 2\n\n");
        assert!(worker.idle.take(Instant::now()).is_some());
    }
}
