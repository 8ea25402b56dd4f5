//! A small TCP (L4) balancer for the front of the replicas where no other is at hand.
//!
//! It only splices bytes. The one use of HTTP is an optional check: a `GET` that asks a backend whether it
//! wants traffic. A connection stays on one backend for its life; if the connect to that backend fails, the
//! next one is tried. Half-closes and resets pass through.
//!
//! Not a product: no TLS, no PROXY protocol, no reload. haproxy does all that.

mod check;
mod pool;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use socket2::SockRef;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use pool::Pool;
pub use pool::{BackendStats, Strategy};

/// Bytes of buffer per direction of a connection.
const SPLICE_BYTES: usize = 16 << 10;

/// What to balance and how.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address to listen on; port 0: any free port.
    pub listen: SocketAddr,
    /// `host:port` each; names are resolved for every connection. Must not be empty.
    pub backends: Vec<String>,
    /// Which backend gets a connection.
    pub strategy: Strategy,
    /// Time for a connect before the next backend is tried.
    pub connect_timeout: Duration,
    /// Ask backends whether they want traffic; `None`: only a failed connect shows that one is down.
    pub check: Option<Check>,
    /// Connections at once; more wait in the kernel's queue.
    pub connections_max: usize,
}

/// Active check by HTTP.
#[derive(Debug, Clone)]
pub struct Check {
    /// Path to `GET`; any 2xx is a yes. Usually `/readiness`.
    pub path: String,
    /// Time between two checks of one backend.
    pub interval: Duration,
    /// No answer within this time is a no.
    pub timeout: Duration,
}

impl Config {
    /// Round robin over `backends` on a free loopback port, without checks.
    pub fn new(backends: Vec<String>) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            backends,
            strategy: Strategy::RoundRobin,
            connect_timeout: Duration::from_secs(1),
            check: None,
            connections_max: 10_000,
        }
    }
}

/// A running balancer; dropping it cuts its connections.
pub struct Balancer {
    addr: SocketAddr,
    pool: Arc<Pool>,
    /// Notified when a backend is added.
    grown: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
}

impl Balancer {
    /// Binds and serves. Fails when the address is taken or there is no backend.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        anyhow::ensure!(
            !config.backends.is_empty(),
            "at least one backend is needed"
        );
        let listener = TcpListener::bind(config.listen)
            .await
            .with_context(|| format!("cannot listen on {}", config.listen))?;
        let addr = listener.local_addr().context("listener has no address")?;
        let pool = Arc::new(Pool::new(config.backends.clone(), config.strategy));
        let grown = Arc::new(Notify::new());
        let task = tokio::spawn(run(listener, Arc::clone(&pool), Arc::clone(&grown), config));
        Ok(Self {
            addr,
            pool,
            grown,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Gives connections to one more backend, `host:port`.
    pub fn add(&self, backend: String) {
        self.pool.add(backend);
        self.grown.notify_one();
    }

    /// The address on which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://ip:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Counts of each backend, in the order configured.
    pub fn stats(&self) -> Vec<BackendStats> {
        self.pool.stats()
    }
}

async fn run(listener: TcpListener, pool: Arc<Pool>, grown: Arc<Notify>, config: Config) {
    let permits = Arc::new(Semaphore::new(config.connections_max));
    let mut tasks = JoinSet::new();
    let mut checked = 0;
    loop {
        if let Some(check) = &config.check {
            let count = pool.count();
            for index in checked..count {
                tasks.spawn(check::watch(Arc::clone(&pool), index, check.clone()));
            }
            checked = count;
        }
        let permit = Arc::clone(&permits).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    let pool = Arc::clone(&pool);
                    tasks.spawn(async move {
                        serve(client, &pool, config.connect_timeout).await;
                        drop(permit);
                    });
                }
                Err(e) => {
                    tracing::warn!("accept failed: {e}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            () = grown.notified() => {}
            Some(_) = tasks.join_next() => {}
        }
    }
}

async fn serve(mut client: TcpStream, pool: &Pool, connect_timeout: Duration) {
    for index in pool.order() {
        let address = pool.address(index);
        let connected = timeout(connect_timeout, TcpStream::connect(&address)).await;
        let mut backend = match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(backend) => backend,
            Err(e) => {
                tracing::debug!("connect to {address}: {e}");
                pool.refused(index);
                continue;
            }
        };
        let mut open = pool.opened(index);
        for side in [&client, &backend] {
            if let Err(e) = side.set_nodelay(true) {
                tracing::debug!("nodelay: {e}");
            }
        }
        let spliced =
            copy_bidirectional_with_sizes(&mut client, &mut backend, SPLICE_BYTES, SPLICE_BYTES);
        match spliced.await {
            Ok((up, down)) => open.done(up, down),
            // One side was reset: the other must not see an orderly end.
            Err(_) => [&client, &backend].into_iter().for_each(reset),
        }
        return;
    }
    tracing::warn!("no backend could be connected to");
    reset(&client);
}

/// Makes the drop of this socket send a reset.
fn reset(stream: &TcpStream) {
    if let Err(e) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!("linger: {e}");
    }
}

#[cfg(test)]
mod tests;
