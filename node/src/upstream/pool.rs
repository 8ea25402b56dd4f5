//! Idle connections to one worker.
//!
//! vLLM closes a connection that was idle for 5.0 s (measured), so ours rest for less: a request never meets
//! a socket that its worker is closing, except in the race that `attempt` covers by one fresh connection.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::connection::Connection;
use crate::live::Live;

/// Last in, first out: the youngest connection is the least likely to be closing.
#[derive(Debug)]
pub struct IdlePool {
    /// None once it is closed for good.
    idle: Mutex<Option<Vec<Connection>>>,
    idle_max: Live<Duration>,
    connections_max: usize,
}

impl IdlePool {
    /// Keeps up to `connections_max` connections, each for at most `idle_max`.
    pub fn new(idle_max: Live<Duration>, connections_max: usize) -> Self {
        Self {
            idle: Mutex::new(Some(Vec::new())),
            idle_max,
            connections_max,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Vec<Connection>>> {
        // A panic cannot leave a vector of connections half-changed.
        self.idle
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A connection that is still open, if there is one.
    pub fn take(&self, now: Instant) -> Option<Connection> {
        loop {
            let mut connection = self.lock().as_mut()?.pop()?;
            if now.duration_since(connection.idle_since) < **self.idle_max.look()
                && connection.is_still_open()
            {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for later; the oldest goes when there are too many.
    pub fn put(&self, mut connection: Connection, now: Instant) {
        connection.idle_since = now;
        if let Some(idle) = self.lock().as_mut() {
            if idle.len() >= self.connections_max {
                idle.remove(0);
            }
            idle.push(connection);
        }
    }

    /// Closes what has rested for too long. The oldest lie in front.
    pub fn sweep(&self, now: Instant) {
        if let Some(idle) = self.lock().as_mut() {
            let idle_max = **self.idle_max.look();
            let is_expired = |c: &Connection| now.duration_since(c.idle_since) >= idle_max;
            let expired = idle.partition_point(is_expired);
            idle.drain(..expired);
        }
    }

    /// Closes all, for a worker that is known to be down.
    pub fn clear(&self) {
        if let Some(idle) = self.lock().as_mut() {
            idle.clear();
        }
    }

    /// Closes all, now and as they come, for a worker that is gone.
    pub fn close(&self) {
        *self.lock() = None;
    }

    /// How many rest here.
    pub fn resting(&self) -> usize {
        self.lock().as_ref().map_or(0, Vec::len)
    }
}
