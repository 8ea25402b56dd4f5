//! One replica as a process of its own: a runtime that can be frozen and ended, a socket, a wall clock.
//!
//! turmoil runs every host in every step and cannot stop one, so it carries the datagrams only: each
//! of its hosts is a relay between the simulated network and the queue that stands for the kernel's
//! receive buffer. The replica itself runs beside it, on a paused clock that is moved by the same tick.
//!
//! A frozen process is as after SIGSTOP: nothing is polled, packets queue until the buffer is full and then
//! are lost, and on waking the monotonic clock has moved on, so that all timers that are due fire at once.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use grapevine_gossip::Network;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::network::SimNetwork;

/// Start of every wall clock: 2025-10-09.
pub(crate) const START_MS: u64 = 1_760_000_000_000;
/// Datagrams that wait in a receive buffer: some 200 KiB of what gossip sends.
const RECEIVE_BUFFER: usize = 512;
/// Datagrams of one tick that wait to be sent; more are lost.
const SEND_BUFFER: usize = 4096;
const DATAGRAM_MAX: usize = 65_536;

/// The wall clock of one host: virtual time and a skew. It outlives the host's processes.
#[derive(Debug)]
pub(crate) struct WallClock {
    elapsed_ms: Arc<AtomicU64>,
    skew_ms: AtomicI64,
}

impl WallClock {
    /// `elapsed_ms` is virtual time since the start of the simulation.
    pub(crate) fn new(elapsed_ms: Arc<AtomicU64>) -> Self {
        Self {
            elapsed_ms,
            skew_ms: AtomicI64::new(0),
        }
    }

    /// Sets how far this clock is ahead (or behind, if negative) of the others.
    pub(crate) fn skew(&self, skew_ms: i64) {
        self.skew_ms.store(skew_ms, Ordering::Relaxed);
    }

    fn unix_ms(&self) -> u64 {
        let now = START_MS + self.elapsed_ms.load(Ordering::Relaxed);
        now.saturating_add_signed(self.skew_ms.load(Ordering::Relaxed))
    }
}

type Datagram = (SocketAddr, Vec<u8>);

/// The network's side of a process's socket.
pub(crate) struct NetEnd {
    sent: mpsc::Receiver<Datagram>,
    arrived: mpsc::Sender<Datagram>,
}

/// The place where a process leaves the network's side for its relay.
pub(crate) type Plug = Arc<Mutex<Option<NetEnd>>>;

/// The running process of a replica.
pub(crate) struct Process {
    runtime: Runtime,
    main: JoinHandle<()>,
    is_frozen: bool,
    /// Time that passed while it was frozen.
    missed: Duration,
}

impl Process {
    /// Runs `main` with a network and its clock.
    pub(crate) fn spawn<Fut>(
        plug: &Plug,
        names: Arc<BTreeMap<String, IpAddr>>,
        seed: u64,
        clock: Arc<WallClock>,
        main: impl FnOnce(Arc<dyn Network>) -> Fut,
    ) -> Self
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let (outgoing, sent) = mpsc::channel(SEND_BUFFER);
        let (arrived, incoming) = mpsc::channel(RECEIVE_BUFFER);
        *lock(plug) = Some(NetEnd { sent, arrived });
        let socket = Arc::new(HostSocket {
            outgoing,
            incoming: Mutex::new(incoming),
        });
        let network = Arc::new(HostNetwork {
            socket,
            names,
            seed,
            clock,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without IO");
        let main = runtime.spawn(main(network));
        Self {
            runtime,
            main,
            is_frozen: false,
            missed: Duration::ZERO,
        }
    }

    /// Lets the process run for one tick, or miss it if it is frozen.
    pub(crate) fn tick(&mut self, tick: Duration) {
        if self.is_frozen {
            self.missed += tick;
        } else {
            self.runtime
                .block_on(async { tokio::time::sleep(tick).await });
            assert!(!self.main.is_finished(), "a replica's process ended");
        }
    }

    /// SIGSTOP.
    pub(crate) fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// SIGCONT.
    pub(crate) fn thaw(&mut self) {
        if std::mem::take(&mut self.is_frozen) {
            let missed = std::mem::take(&mut self.missed);
            self.runtime.block_on(tokio::time::advance(missed));
        }
    }
}

/// Carries the datagrams of one process; runs on the simulated host.
pub(crate) async fn relay(network: SimNetwork, port: u16, plug: Plug) -> turmoil::Result {
    let Some(mut end) = lock(&plug).take() else {
        return Ok(());
    };
    let socket = network.bind(([0, 0, 0, 0], port).into()).await?;
    let mut buffer = vec![0; DATAGRAM_MAX];
    poll_fn(|cx| {
        while let Poll::Ready(Some((destination, contents))) = end.sent.poll_recv(cx) {
            // As in UDP: a packet that cannot be sent is lost.
            let _ = socket.try_send(&Transmit {
                destination,
                ecn: None,
                contents: &contents,
                segment_size: None,
                src_ip: None,
            });
        }
        let mut meta = [RecvMeta::default()];
        while let Poll::Ready(received) =
            socket.poll_recv(cx, &mut [IoSliceMut::new(&mut buffer)], &mut meta)
        {
            received?;
            let [
                RecvMeta {
                    addr, len, stride, ..
                },
            ] = meta;
            for datagram in buffer[..len].chunks(stride.max(1)) {
                // As in the kernel: a full buffer loses further packets.
                let _ = end.arrived.try_send((addr, datagram.to_vec()));
            }
        }
        Poll::<io::Result<()>>::Pending
    })
    .await?;
    Ok(())
}

/// The replica's view of the network.
#[derive(Debug)]
struct HostNetwork {
    socket: Arc<HostSocket>,
    names: Arc<BTreeMap<String, IpAddr>>,
    seed: u64,
    clock: Arc<WallClock>,
}

#[async_trait]
impl Network for HostNetwork {
    async fn bind(&self, _: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(self.socket.clone())
    }

    /// Host names of the simulation, and literal addresses.
    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = name.parse() {
            return Ok(vec![address]);
        }
        let unknown = || io::Error::other("no such name");
        let (host, port) = name.rsplit_once(':').ok_or_else(unknown)?;
        let address = self.names.get(host).ok_or_else(unknown)?;
        let port = port.parse().map_err(|_| unknown())?;
        Ok(vec![SocketAddr::new(*address, port)])
    }

    fn seed(&self) -> Option<[u8; 32]> {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        Some(seed)
    }

    fn unix_ms(&self) -> u64 {
        self.clock.unix_ms()
    }
}

struct HostSocket {
    outgoing: mpsc::Sender<Datagram>,
    incoming: Mutex<mpsc::Receiver<Datagram>>,
}

impl std::fmt::Debug for HostSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostSocket")
    }
}

impl AsyncUdpSocket for HostSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit) -> io::Result<()> {
        let datagram = (transmit.destination, transmit.contents.to_vec());
        let _ = self.outgoing.try_send(datagram);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(arrived) = lock(&self.incoming).poll_recv(cx) else {
            return Poll::Pending;
        };
        let (addr, bytes) = arrived.ok_or_else(|| io::Error::other("the host is gone"))?;
        let len = bytes.len().min(buffers[0].len());
        buffers[0][..len].copy_from_slice(&bytes[..len]);
        meta[0] = RecvMeta {
            addr,
            len,
            stride: len,
            ecn: None,
            dst_ip: None,
        };
        Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(([0, 0, 0, 0], crate::cluster::PORT).into())
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

thread_local! {
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// Number of panics on this thread: a runtime catches those of its tasks, and the replica runs on without
/// them.
pub(crate) fn panics() -> usize {
    PANICS.get()
}

/// Begins to count panics from zero, on each thread separately.
pub(crate) fn count_panics() {
    static HOOK: Once = Once::new();
    PANICS.set(0);
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            print(info);
        }));
    });
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
