//! The backends: order of choice, health by the checks, counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;
use serde::Serialize;

/// Which backend gets a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Strategy {
    /// Each backend in turn.
    RoundRobin,
    /// The backend with the fewest open connections; ties in turn.
    LeastConnections,
}

/// Counts of one backend since start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackendStats {
    /// `host:port` as configured.
    pub address: String,
    /// False while the active check says no.
    pub up: bool,
    /// Connections open now.
    pub open: u64,
    /// Connections that it got.
    pub connections: u64,
    /// Connects that failed.
    pub refused: u64,
    /// Bytes towards the backend, of connections that ended in order.
    pub bytes_up: u64,
    /// Bytes towards clients, of connections that ended in order.
    pub bytes_down: u64,
}

#[derive(Debug)]
struct Backend {
    address: String,
    up: AtomicBool,
    open: AtomicU64,
    connections: AtomicU64,
    refused: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Pool {
    backends: RwLock<Vec<Arc<Backend>>>,
    strategy: Strategy,
    turn: AtomicUsize,
}

/// One open connection; dropping it counts it out.
pub(super) struct Open(Arc<Backend>);

impl Pool {
    pub(super) fn new(addresses: Vec<String>, strategy: Strategy) -> Self {
        let pool = Self {
            backends: RwLock::default(),
            strategy,
            turn: AtomicUsize::new(0),
        };
        for address in addresses {
            pool.add(address);
        }
        pool
    }

    /// Adds a backend at the end.
    pub(super) fn add(&self, address: String) {
        let backend = Backend {
            address,
            up: AtomicBool::new(true),
            open: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            bytes_up: AtomicU64::new(0),
            bytes_down: AtomicU64::new(0),
        };
        let mut backends = self.backends.write();
        backends.push(Arc::new(backend));
    }

    pub(super) fn count(&self) -> usize {
        self.backends.read().len()
    }

    fn backend(&self, index: usize) -> Arc<Backend> {
        Arc::clone(&self.backends.read()[index])
    }

    pub(super) fn address(&self, index: usize) -> String {
        self.backend(index).address.clone()
    }

    /// All backends in the order to try them. Those that are down are last and not left out: a wrong check
    /// must not refuse a connection that would have worked.
    pub(super) fn order(&self) -> Vec<usize> {
        let backends = self.backends.read();
        let count = backends.len();
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut order: Vec<usize> = (0..count).map(|step| (first + step) % count).collect();
        order.sort_by_key(|index| {
            let backend = &backends[*index];
            let load = match self.strategy {
                Strategy::RoundRobin => 0,
                Strategy::LeastConnections => backend.open.load(Ordering::Relaxed),
            };
            (!backend.up.load(Ordering::Relaxed), load)
        });
        order
    }

    /// Sets the result of a check; true when it differs from the last one.
    pub(super) fn set_up(&self, index: usize, up: bool) -> bool {
        self.backend(index).up.swap(up, Ordering::Relaxed) != up
    }

    pub(super) fn refused(&self, index: usize) {
        self.backend(index).refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn opened(&self, index: usize) -> Open {
        let backend = self.backend(index);
        backend.open.fetch_add(1, Ordering::Relaxed);
        backend.connections.fetch_add(1, Ordering::Relaxed);
        Open(backend)
    }

    pub(super) fn stats(&self) -> Vec<BackendStats> {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let stats = |backend: &Arc<Backend>| BackendStats {
            address: backend.address.clone(),
            up: backend.up.load(Ordering::Relaxed),
            open: read(&backend.open),
            connections: read(&backend.connections),
            refused: read(&backend.refused),
            bytes_up: read(&backend.bytes_up),
            bytes_down: read(&backend.bytes_down),
        };
        let backends = self.backends.read();
        backends.iter().map(stats).collect()
    }
}

impl Open {
    pub(super) fn done(&mut self, up: u64, down: u64) {
        self.0.bytes_up.fetch_add(up, Ordering::Relaxed);
        self.0.bytes_down.fetch_add(down, Ordering::Relaxed);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(strategy: Strategy) -> Pool {
        Pool::new(vec!["a".into(), "b".into(), "c".into()], strategy)
    }

    #[test]
    fn round_robin_takes_turns_and_lists_everybody() {
        let pool = pool(Strategy::RoundRobin);
        assert_eq!(pool.order(), [0, 1, 2]);
        assert_eq!(pool.order(), [1, 2, 0]);
        assert_eq!(pool.order(), [2, 0, 1]);
    }

    #[test]
    fn least_connections_prefers_the_idle() {
        let pool = pool(Strategy::LeastConnections);
        let _a = [pool.opened(0), pool.opened(0)];
        let b = pool.opened(1);
        assert_eq!(pool.order(), [2, 1, 0]);
        drop(b);
        assert_eq!(pool.order()[2], 0);
    }

    #[test]
    fn a_backend_that_is_down_comes_last() {
        let pool = pool(Strategy::RoundRobin);
        assert!(pool.set_up(0, false));
        assert!(!pool.set_up(0, false), "no news");
        for _ in 0..3 {
            assert_eq!(pool.order()[2], 0);
        }
    }
}
