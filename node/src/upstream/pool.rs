//! Idle connections to one worker, of each lane apart: a connection is used where its socket was opened.
//!
//! vLLM closes a connection that was idle for 5.0 s (measured), so ours rest for less: a request never meets
//! a socket that its worker is closing, except in the race that `attempt` covers by one fresh connection.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use thread_local::ThreadLocal;
use tokio::time::Instant;

use super::connection::Connection;
use crate::live::Live;

/// Last in, first out: the youngest connection is the least likely to be closing.
#[derive(Debug)]
pub struct IdlePool {
    /// The locks are for the sweep, and for the end: a lane meets no other one at them.
    lanes: ThreadLocal<Mutex<Vec<Connection>>>,
    /// Connections that rest, of all lanes.
    resting: AtomicUsize,
    is_closed: AtomicBool,
    idle_max: Live<Duration>,
    connections_max: usize,
}

impl IdlePool {
    /// Keeps up to `connections_max` connections of all lanes together, each for at most `idle_max`.
    pub fn new(idle_max: Live<Duration>, connections_max: usize) -> Self {
        Self {
            lanes: ThreadLocal::new(),
            resting: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            idle_max,
            connections_max,
        }
    }

    /// Those of this thread.
    fn own(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.lanes.get_or_default().lock()
    }

    /// A connection of this lane that is still open, if there is one.
    pub fn take(&self, now: Instant) -> Option<Connection> {
        loop {
            let mut connection = self.own().pop()?;
            self.resting.fetch_sub(1, Ordering::Relaxed);
            if now.duration_since(connection.idle_since) < **self.idle_max.look()
                && connection.is_still_open()
            {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for later; when there are too many, the oldest of this lane goes, if it is no other's.
    pub fn put(&self, mut connection: Connection, now: Instant) {
        connection.idle_since = now;
        let mut idle = self.own();
        // Under the lock, which the end takes after it has said so.
        if self.is_closed.load(Ordering::Relaxed) {
            return;
        }
        if self.resting.fetch_add(1, Ordering::Relaxed) >= self.connections_max {
            self.resting.fetch_sub(1, Ordering::Relaxed);
            if idle.is_empty() {
                return;
            }
            idle.remove(0);
        }
        idle.push(connection);
    }

    /// Closes what has rested for too long. The oldest lie in front.
    pub fn sweep(&self, now: Instant) {
        let idle_max = **self.idle_max.look();
        let is_expired = |c: &Connection| now.duration_since(c.idle_since) >= idle_max;
        self.close_first(|idle| idle.partition_point(is_expired));
    }

    /// Closes all, for a worker that is known to be down.
    pub fn clear(&self) {
        self.close_first(<[_]>::len);
    }

    /// Closes all, now and as they come, for a worker that is gone.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.clear();
    }

    /// Closes so many of each lane, the oldest.
    fn close_first(&self, count: impl Fn(&[Connection]) -> usize) {
        for lane in &self.lanes {
            let mut idle = lane.lock();
            let count = count(&idle);
            self.resting.fetch_sub(count, Ordering::Relaxed);
            let closed: Vec<_> = idle.drain(..count).collect();
            // Their sockets close without the lock.
            drop(idle);
            drop(closed);
        }
    }

    /// How many rest here.
    pub fn resting(&self) -> usize {
        self.resting.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use grapevine_gossip::worker::{RawWorker, WorkerSpec};
    use tokio::net::TcpListener;

    use super::*;
    use crate::config::WorkerHttp2;
    use crate::upstream::address::Address;
    use crate::upstream::connector::{Connector, ConnectorParts};

    const IDLE_MAX: Duration = Duration::from_secs(4);
    const CONNECTIONS_MAX: usize = 2;

    fn pool() -> IdlePool {
        IdlePool::new(IDLE_MAX.into(), CONNECTIONS_MAX)
    }

    /// Open connections, with their other ends.
    async fn open(count: usize) -> (Vec<Connection>, TcpListener) {
        let worker = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", worker.local_addr().expect("bound"));
        let spec = WorkerSpec::new(RawWorker::at(url)).expect("a worker");
        let address = Address::of(&spec).expect("an address");
        let connector = Connector::load(ConnectorParts::default()).expect("nothing is read");
        let mut opened = Vec::new();
        for _ in 0..count {
            let within = Duration::from_secs(10);
            let connection = Connection::open(&connector, &address, "w", within, WorkerHttp2::Off);
            opened.push(connection.await.expect("open"));
        }
        (opened, worker)
    }

    /// What another lane does, which goes on living meanwhile; it ends when it is told to.
    fn on_other_lane<T: Send>(
        other: impl FnOnce() -> T + Send,
        meanwhile: impl FnOnce(),
        after: impl FnOnce(T) + Send,
    ) {
        let (done, is_done) = mpsc::channel();
        let (end, is_end) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                let result = other();
                done.send(()).expect("waited for");
                is_end.recv().expect("told");
                after(result);
            });
            is_done.recv().expect("done");
            meanwhile();
            end.send(()).expect("waited for");
        });
    }

    #[tokio::test]
    async fn a_connection_is_used_again_on_its_own_lane_alone() {
        let (pool, now) = (pool(), Instant::now());
        let (mut opened, _worker) = open(1).await;
        let connection = opened.pop().expect("one");
        on_other_lane(
            || pool.put(connection, now),
            || {
                assert_eq!(pool.resting(), 1);
                assert!(pool.take(now).is_none(), "it is another lane's");
            },
            |()| assert!(pool.take(now).is_some()),
        );
        assert_eq!(pool.resting(), 0);
    }

    #[tokio::test]
    async fn the_limit_holds_for_all_lanes_together() {
        let (pool, now) = (pool(), Instant::now());
        let (mut opened, _worker) = open(4).await;
        let mut own = opened.split_off(2);
        pool.put(own.pop().expect("two"), now);
        on_other_lane(
            || opened.drain(..).for_each(|more| pool.put(more, now)),
            || {
                assert_eq!(pool.resting(), CONNECTIONS_MAX);
                pool.put(own.pop().expect("one"), now);
                assert_eq!(pool.resting(), CONNECTIONS_MAX);
                assert!(pool.take(now).is_some() && pool.take(now).is_none());
            },
            |()| assert!(pool.take(now).is_some() && pool.take(now).is_none()),
        );
    }

    #[tokio::test]
    async fn what_is_swept_or_closed_is_that_of_all_lanes() {
        let (pool, now) = (pool(), Instant::now());
        let (mut opened, _worker) = open(3).await;
        let (first, last) = (opened.pop().expect("three"), opened.pop().expect("two"));
        on_other_lane(
            || pool.put(first, now),
            || {
                pool.sweep(now + IDLE_MAX / 2);
                assert_eq!(pool.resting(), 1);
                pool.sweep(now + IDLE_MAX);
                assert_eq!(pool.resting(), 0);
            },
            |()| pool.put(last, now),
        );
        pool.close();
        assert_eq!(pool.resting(), 0);
        pool.put(opened.pop().expect("one"), now);
        assert_eq!(pool.resting(), 0, "its worker is gone");
    }
}
