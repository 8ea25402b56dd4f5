//! Lanes: one thread a core with a runtime of its own, for everything between a client's and a worker's socket.
//!
//! A connection stays on the lane that it was given to, and with it its timers, its requests, and the connections to
//! workers that these open, so no byte of an answer wakes another thread. Gossip, probes, discovery and operators' ports
//! are on the process's own runtime: a lane that is busy does not hold them up, nor they it. One that stands still gets no
//! more connections, and is noticed (`pulse`).

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::config::LANES_MAX;
use crate::pulse::{Pulse, Pulses};

/// As many lanes as the process may use cores: within its affinity and the quota of its cgroup.
pub fn usual_count() -> NonZeroUsize {
    let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    cores.min(NonZeroUsize::new(LANES_MAX as usize).expect("not zero"))
}

/// All lanes of a process. Dropped, their threads end, and with them what still runs there.
#[derive(Debug)]
pub struct Lanes(Vec<Lane>);

#[derive(Debug)]
struct Lane {
    runtime: Handle,
    pulse: Pulse,
    /// Connections that were given to it and have not ended.
    connections: Arc<AtomicUsize>,
    /// Dropped, it ends the thread.
    _running: oneshot::Sender<()>,
}

impl Lanes {
    /// Starts their threads.
    /// Errors: the system's: no threads, or no descriptors, are left.
    pub fn start(count: NonZeroUsize) -> io::Result<Self> {
        (0..count.get())
            .map(Lane::start)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Whether they go on.
    pub fn pulses(&self) -> Pulses {
        self.0.iter().map(|lane| lane.pulse.clone()).collect()
    }

    /// Gives a connection to the lane that has the fewest of those that go on, which runs there what `serve` makes of it.
    ///
    /// The task is tracked from now on. `serve` gets the system's error where the socket cannot change its runtime.
    pub fn give<F>(
        &self,
        stream: TcpStream,
        tracker: &TaskTracker,
        serve: impl FnOnce(io::Result<TcpStream>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let lane = self.emptiest(Instant::now());
        let counted = Counted::new(&lane.connections);
        let stream = stream.into_std();
        let task = async move {
            let _counted = counted;
            // Here, so that its readiness is reported to this lane.
            serve(stream.and_then(TcpStream::from_std)).await;
        };
        tracker.spawn_on(task, &lane.runtime);
    }

    fn emptiest(&self, now: Instant) -> &Lane {
        let lanes = self.0.iter();
        let order = |lane: &&Lane| {
            let connections = lane.connections.load(Ordering::Relaxed);
            (lane.pulse.stands_still(now), connections)
        };
        lanes.min_by_key(order).expect("there is at least one")
    }
}

impl Lane {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel::<()>();
        let pulse = Pulse::new(Instant::now());
        let own = pulse.clone();
        thread::Builder::new()
            .name(format!("lane-{number}"))
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        // It is never sent anything: an error is the end.
                        _ = ended => {}
                        () = own.run() => {}
                    }
                });
                // A name look-up that hangs would otherwise hold the thread.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            runtime: handle,
            pulse,
            connections: Arc::default(),
            _running: running,
        })
    }
}

/// One connection of a lane; counted out when dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(connections))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::Ipv4Addr;
    use std::thread::ThreadId;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::pulse::STILL;

    const LIMIT: Duration = Duration::from_secs(10);

    async fn door() -> TcpListener {
        let door = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        door.expect("a port")
    }

    fn lanes(count: usize) -> Lanes {
        Lanes::start(NonZeroUsize::new(count).expect("not zero")).expect("threads")
    }

    /// A client's connection that a lane serves: it says on which thread, then waits for the client's end.
    async fn connect(
        door: &TcpListener,
        lanes: &Lanes,
        tracker: &TaskTracker,
        served: &mpsc::Sender<ThreadId>,
    ) -> TcpStream {
        let address = door.local_addr().expect("bound");
        let client = TcpStream::connect(address).await.expect("connected");
        let (stream, _) = door.accept().await.expect("accepted");
        let served = served.clone();
        lanes.give(stream, tracker, |stream| async move {
            let mut stream = stream.expect("it can change its runtime");
            let before = thread::current().id();
            let rest = stream.read_to_end(&mut Vec::new()).await;
            assert_eq!(rest.expect("the client's end"), 1);
            assert_eq!(thread::current().id(), before);
            served.send(before).await.expect("heard");
        });
        client
    }

    /// How many ended on each thread, of so many.
    async fn ended(clients: Vec<TcpStream>, served: &mut mpsc::Receiver<ThreadId>) -> Vec<usize> {
        let mut by_thread = HashMap::<ThreadId, usize>::new();
        for mut client in clients {
            client.write_all(b".").await.expect("sent");
            drop(client);
            let thread = timeout(LIMIT, served.recv()).await.expect("in time");
            *by_thread.entry(thread.expect("served")).or_default() += 1;
        }
        by_thread.into_values().collect()
    }

    #[tokio::test]
    async fn few_long_connections_are_spread_evenly_and_stay_on_their_threads() {
        let door = door().await;
        let (lanes, tracker) = (lanes(3), TaskTracker::new());
        let (served, mut hears) = mpsc::channel(1);
        let mut clients = Vec::new();
        for _ in 0..6 {
            clients.push(connect(&door, &lanes, &tracker, &served).await);
        }
        assert_eq!(ended(clients, &mut hears).await, [2, 2, 2]);
        tracker.close();
        timeout(LIMIT, tracker.wait())
            .await
            .expect("all have ended");
        let left = lanes
            .0
            .iter()
            .map(|lane| lane.connections.load(Ordering::Relaxed));
        assert_eq!(left.sum::<usize>(), 0, "what ended is counted out");
    }

    #[tokio::test]
    async fn a_blocked_lane_has_no_pulse_and_gets_no_connection() {
        let door = door().await;
        let (lanes, tracker) = (lanes(2), TaskTracker::new());
        let address = door.local_addr().expect("bound");
        let _client = TcpStream::connect(address).await.expect("connected");
        let (stream, _) = door.accept().await.expect("accepted");
        let (blocked, is_blocked) = oneshot::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        lanes.give(stream, &tracker, move |_| async move {
            blocked.send(Instant::now()).expect("heard");
            let _ = goes_on.recv();
        });
        let since = timeout(LIMIT, is_blocked).await.expect("in time");
        let since = since.expect("it runs");
        let pulses = lanes.pulses();
        assert!(pulses.all_beat(since));
        // A moment at which only a beat from after the block is in time.
        let then = since + STILL + Duration::from_millis(100);
        let [stuck, other] = &lanes.0[..] else {
            unreachable!("there are two");
        };
        let until = async |what: &str, is_so: &dyn Fn() -> bool| {
            let waiting = async {
                while !is_so() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            timeout(LIMIT, waiting).await.expect(what);
        };
        until("the other one beats", &|| !other.pulse.stands_still(then)).await;
        assert!(stuck.pulse.stands_still(then) && !pulses.all_beat(then));
        other.connections.store(9, Ordering::Relaxed);
        assert!(std::ptr::eq(lanes.emptiest(since), stuck));
        assert!(std::ptr::eq(lanes.emptiest(then), other));
        go_on.send(()).expect("it waits");
        until("it beats again", &|| pulses.all_beat(then)).await;
    }

    #[tokio::test]
    async fn what_runs_on_a_lane_ends_with_it() {
        let door = door().await;
        let (lanes, tracker) = (lanes(1), TaskTracker::new());
        let (served, _hears) = mpsc::channel(1);
        let mut client = connect(&door, &lanes, &tracker, &served).await;
        drop(lanes);
        let mut byte = [0];
        let read = timeout(LIMIT, client.read(&mut byte))
            .await
            .expect("in time");
        assert!(matches!(read, Ok(0) | Err(_)), "the connection is closed");
    }
}
