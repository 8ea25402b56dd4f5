//! Accepts connections, speaks TLS, and serves HTTP/1.1 or HTTP/2 as the client chose.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::line::Line;
use super::resource::answer;
use crate::fake_kubernetes::fault::Network;
use crate::fake_kubernetes::state::State;

/// From the first byte to the end of the handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// After a failed accept, which happens when descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until it is dropped, which cuts all connections.
pub(in crate::fake_kubernetes) async fn serve(
    state: Arc<State>,
    listener: TcpListener,
    tls: Arc<ServerConfig>,
) {
    let acceptor = TlsAcceptor::from(tls);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < state.config.connections_max => {
                    connections.spawn(counted(Arc::clone(&state), acceptor.clone(), stream));
                }
                Ok(_) => {
                    state.connections_refused.fetch_add(1, Ordering::SeqCst);
                }
                Err(e) => {
                    tracing::warn!("accept failed: {e}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn counted(state: Arc<State>, acceptor: TlsAcceptor, stream: TcpStream) {
    state.connections.fetch_add(1, Ordering::SeqCst);
    let mut network = state.network.subscribe();
    let mut resets = state.resets.subscribe();
    let now = *network.borrow_and_update();
    match now {
        Network::Refusing => {}
        // Held open without a byte for as long as the server runs.
        Network::Silent => std::future::pending::<()>().await,
        Network::Open => tokio::select! {
            () = connection(Arc::clone(&state), acceptor, stream) => {}
            _ = network.wait_for(|network| *network == Network::Refusing) => {}
            _ = resets.changed() => {}
        },
    }
    state.connections.fetch_sub(1, Ordering::SeqCst);
}

async fn connection(state: Arc<State>, acceptor: TlsAcceptor, stream: TcpStream) {
    if let Err(e) = stream.set_nodelay(true) {
        tracing::debug!("nodelay: {e}");
    }
    let line = Line::new(stream, Arc::clone(&state));
    let stream = match tokio::time::timeout(HANDSHAKE_WITHIN, acceptor.accept(line)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(e)) => return tracing::debug!("no TLS: {e}"),
        Err(_) => return tracing::debug!("no TLS within {HANDSHAKE_WITHIN:?}"),
    };
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request| answer(Arc::clone(&state), request));
    let stream = TokioIo::new(stream);
    let ended = if is_h2 {
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .serve_connection(stream, service)
            .await
    } else {
        http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(stream, service)
            .await
    };
    if let Err(e) = ended {
        tracing::debug!("a connection ended: {e}");
    }
}
