//! The HTTP side: accept, connections, and the ways a worker stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::connection::{Connection, NoRequest};
use super::fault::Fault;
use super::reply::Reply;
use super::route::exchange;
use super::worker::{Phase, Rank, Worker};

/// How long a worker that begins to hang still answers 500 before its port is closed (measured: 50 ms to 1 s,
/// by load).
const HANG_GRACE: Duration = Duration::from_millis(100);
/// How often a draining worker looks whether it is idle.
const DRAIN_POLL: Duration = Duration::from_millis(20);

/// Serves until the worker has stopped. All connections end with this future.
pub(super) async fn run(worker: Arc<Worker>, listener: TcpListener) {
    let engine = |rank: &Rank| tokio::spawn(Arc::clone(&rank.pacer).run());
    let engines = worker.ranks.iter().map(engine);
    let _engines: Vec<_> = engines.map(AbortOnDropHandle::new).collect();
    let pings = listener
        .local_addr()
        .ok()
        .and_then(|http| worker.ping(http));
    let _pings = pings.map(|ping| AbortOnDropHandle::new(tokio::spawn(ping.run())));
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(port_closes(&worker));
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    worker.ledger.connection();
                    connections.spawn(connection(Arc::clone(&worker), stream, peer));
                }
                Err(e) => {
                    tracing::warn!("accept failed: {e}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    if let Some(transfer) = &worker.transfer {
        transfer.side_channel.close();
    }
    let mut phase = worker.phase.subscribe();
    tokio::select! {
        // Clients of a hanging worker decide when it ends.
        () = async { while connections.join_next().await.is_some() {} } => {}
        _ = phase.wait_for(|phase| *phase == Phase::Exiting) => {}
    }
    connections.shutdown().await;
}

/// Returns when no further connection is to be accepted.
async fn port_closes(worker: &Worker) {
    let mut phase = worker.phase.subscribe();
    let stopped = phase.wait_for(|phase| *phase != Phase::Running).await;
    let stopped = *stopped.expect("the worker owns the sender");
    let (patience, next) = match stopped {
        Phase::Hanging => (HANG_GRACE, Phase::Closed),
        Phase::Draining(limit) => (limit, Phase::Exiting),
        Phase::Running | Phase::Closed | Phase::Exiting => return,
    };
    tokio::select! {
        () = tokio::time::sleep(patience) => {}
        () = idle(worker), if matches!(stopped, Phase::Draining(_)) => {}
        _ = phase.wait_for(|phase| *phase == Phase::Exiting) => {}
    }
    worker.phase.send_if_modified(|phase| {
        let moves = *phase != Phase::Exiting;
        if moves {
            *phase = next;
        }
        moves
    });
}

async fn idle(worker: &Worker) {
    while worker.ledger.in_flight() > 0 {
        tokio::time::sleep(DRAIN_POLL).await;
    }
}

async fn connection(worker: Arc<Worker>, stream: TcpStream, peer: SocketAddr) {
    if let Err(e) = stream.set_nodelay(true) {
        tracing::debug!("nodelay for {peer}: {e}");
    }
    let mut connection = Connection::new(stream);
    let mut phase = worker.phase.subscribe();
    let mut idle_limit = None;
    loop {
        let begun = tokio::select! {
            biased; // a request that is already here is answered
            begun = connection.next_request_begins(idle_limit) => begun,
            _ = phase.wait_for(|phase| *phase == Phase::Closed) => return,
        };
        let request = match begun {
            Ok(()) => connection.request().await,
            Err(end) => Err(end),
        };
        match request {
            Ok(request) => {
                let again = request.keep_alive;
                if exchange(&worker, &mut connection, &request).await.is_err() || !again {
                    return;
                }
            }
            Err(NoRequest::Closed) => return,
            Err(NoRequest::Invalid) => {
                let mut reply = Reply::new(&mut connection, Fault::default(), None, None, false);
                let text = b"Invalid HTTP request received.";
                let kind = "text/plain; charset=utf-8";
                if reply.plain(400, kind, text).await.is_err() {
                    tracing::debug!("{peer} left before its 400");
                }
                return;
            }
        }
        idle_limit = Some(worker.config.keep_alive);
    }
}
