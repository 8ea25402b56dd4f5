//! The end of a replica: ready off → settle → stop accepting → drain → last words → leave the cluster → close.
//!
//! Balancers need time to see that a replica is going, so it serves on for `settle` while it says
//! that it is not ready. Then it accepts nothing new and lets open requests end, under a limit; those
//! that are still open then get an error event. A second signal skips what is left.
//!
//! It gossips to the very end: the others learn at once that it is leaving, and until its last stream has ended they
//! receive the load that it puts on workers.
//!
//! [`Shutdown`] has one owner, which runs it; parts hold a [`Phase`] and spawn on its trackers, so
//! that nothing outlives the process's end unseen.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::live::Live;

/// Where a replica is on its way to the end; later is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    /// Serves, but asks clients to connect elsewhere.
    Settling,
    /// Accepts nothing new; open requests go on.
    Draining,
    /// Open requests end now, each with a last word.
    Cutting,
    /// Everything must end.
    Closed,
}

/// Where this replica is between start and end, for the parts that act on it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Phase {
    stage: watch::Receiver<Stage>,
    caught_up: Arc<AtomicBool>,
    is_cutting: Arc<AtomicBool>,
}

impl Phase {
    /// Whether this replica holds the cluster's view.
    pub fn is_caught_up(&self) -> bool {
        self.caught_up.load(Ordering::Relaxed)
    }

    /// Whether clients should be asked to connect elsewhere (`Connection: close`).
    pub fn is_leaving(&self) -> bool {
        *self.stage.borrow() > Stage::Serving
    }

    /// Returns when clients should be asked to connect elsewhere. Cancel safe.
    pub async fn leaving(&self) {
        self.reached(Stage::Settling).await;
    }

    /// Returns when nothing new may be accepted. Cancel safe.
    pub async fn draining(&self) {
        self.reached(Stage::Draining).await;
    }

    /// Whether open requests must end now; as a flag, because each of them looks often.
    pub fn is_cutting(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_cutting)
    }

    /// Returns when open requests must end, each with a last word to its client. Cancel safe.
    pub async fn cutting(&self) {
        self.reached(Stage::Cutting).await;
    }

    /// Returns when everything must end. Cancel safe.
    pub async fn closed(&self) {
        self.reached(Stage::Closed).await;
    }

    async fn reached(&self, stage: Stage) {
        // An error means that the owner is gone, which is the end as well.
        let _ = self.stage.clone().wait_for(|now| *now >= stage).await;
    }
}

/// Tells one request that it must end now, with a last word to its client.
pub struct Cutoff {
    is_cutting: Arc<AtomicBool>,
    told: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl Cutoff {
    /// For a request whose connection's task also waits for [`Phase::cutting`], and polls it again then.
    pub fn of_connection(phase: &Phase) -> Self {
        Self {
            is_cutting: phase.is_cutting(),
            told: None,
        }
    }

    /// For a request in a task of its own.
    pub fn of_task(phase: &Phase) -> Self {
        let own = phase.clone();
        Self {
            is_cutting: phase.is_cutting(),
            told: Some(Box::pin(async move { own.cutting().await })),
        }
    }

    /// Ready once the request must end.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_cutting.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        match &mut self.told {
            Some(told) => told.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for Cutoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cutoff").field(&self.is_cutting).finish()
    }
}

/// How a replica ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Every open request ended by itself.
    Drained,
    /// The drain limit passed; so many connections were cut.
    Cut {
        /// Connections that were still open.
        connections: usize,
    },
    /// A second signal; so many connections were cut.
    AtOnce {
        /// Connections that were still open.
        connections: usize,
    },
}

impl Ending {
    /// Exit code of `serve`: 0 when it was asked to end, also where the drain limit cut requests; 5 ended by a second
    /// signal.
    ///
    /// The limit is the operator's, and reaching it is no failure that a service manager should act on.
    pub fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Drained | Self::Cut { .. } => 0,
            Self::AtOnce { .. } => 5,
        })
    }
}

/// Time that each part of the end may take.
#[derive(Debug, Clone, Copy)]
pub struct ShutdownLimits {
    /// How long to serve on, not ready, so that balancers notice.
    pub settle: Duration,
    /// How long open requests may take to end.
    pub drain: Duration,
}

/// A wish that the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, from a service manager.
    Terminate,
    /// SIGINT, from a keyboard.
    Interrupt,
}

impl fmt::Display for Signal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
        })
    }
}

/// Owner of the process's end.
#[derive(Debug)]
pub struct Shutdown {
    stage: watch::Sender<Stage>,
    caught_up: Arc<AtomicBool>,
    is_cutting: Arc<AtomicBool>,
    accepting: TaskTracker,
    connections: TaskTracker,
    background: TaskTracker,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// Serving, and without the cluster's view before [`Shutdown::caught_up`] is set.
    pub fn new() -> Self {
        Self {
            stage: watch::Sender::new(Stage::Serving),
            caught_up: Arc::default(),
            is_cutting: Arc::default(),
            accepting: TaskTracker::new(),
            connections: TaskTracker::new(),
            background: TaskTracker::new(),
        }
    }

    /// The view of this end that parts hold.
    pub fn phase(&self) -> Phase {
        Phase {
            stage: self.stage.subscribe(),
            caught_up: Arc::clone(&self.caught_up),
            is_cutting: Arc::clone(&self.is_cutting),
        }
    }

    /// Set while this replica holds the cluster's view; ready depends on it.
    pub fn caught_up(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.caught_up)
    }

    /// For the task that accepts clients' connections, and ends soon after [`Phase::draining`]: until then there may be
    /// another connection.
    pub fn accepting(&self) -> &TaskTracker {
        &self.accepting
    }

    /// For the tasks of clients' connections, which are drained.
    pub fn connections(&self) -> &TaskTracker {
        &self.connections
    }

    /// For tasks that serve as long as there are requests and end at [`Phase::closed`].
    pub fn background(&self) -> &TaskTracker {
        &self.background
    }

    /// Listens for SIGTERM and SIGINT from now on.
    /// Errors: the system refuses the handlers.
    pub fn signals(&self) -> io::Result<mpsc::Receiver<Signal>> {
        let (sender, receiver) = mpsc::channel(SIGNALS);
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let phase = self.phase();
        self.background.spawn(async move {
            loop {
                let signal = tokio::select! {
                    _ = terminate.recv() => Signal::Terminate,
                    _ = interrupt.recv() => Signal::Interrupt,
                    () = phase.closed() => return,
                };
                // Full: the earlier ones were not acted on yet, and this one says nothing new.
                let _ = sender.try_send(signal);
            }
        });
        Ok(receiver)
    }

    /// Waits for a signal, then ends the replica step by step; `leave` notifies the other replicas.
    pub async fn run(
        self,
        limits: impl Into<Live<ShutdownLimits>>,
        mut signals: mpsc::Receiver<Signal>,
        leave: impl Future<Output = ()>,
    ) -> Ending {
        let Some(signal) = signals.recv().await else {
            return self.close(Ending::Drained, leave).await;
        };
        let limits = limits.into().now();
        self.stage.send_replace(Stage::Settling);
        info!(%signal, settle = ?limits.settle, "no longer ready, serving on");
        let drained = async {
            tokio::time::sleep(limits.settle).await;
            self.stage.send_replace(Stage::Draining);
            self.accepting.close();
            self.accepting.wait().await;
            self.connections.close();
            info!(connections = self.connections.len(), limit = ?limits.drain, "draining");
            timeout(limits.drain, self.connections.wait()).await
        };
        let ending = tokio::select! {
            Some(_) = signals.recv() => Ending::AtOnce { connections: self.connections.len() },
            drained = drained => match drained {
                Ok(()) => Ending::Drained,
                Err(_) => Ending::Cut { connections: self.connections.len() },
            },
        };
        self.close(ending, leave).await
    }

    /// Ends everything, gives tasks a moment to notice, and says which ending it was.
    async fn close(self, ending: Ending, leave: impl Future<Output = ()>) -> Ending {
        self.is_cutting.store(true, Ordering::Relaxed);
        self.stage.send_replace(Stage::Cutting);
        self.connections.close();
        // A client that does not read its last word is not waited for.
        let _ = timeout(LAST_WORDS_WITHIN, self.connections.wait()).await;
        self.stage.send_replace(Stage::Closed);
        self.background.close();
        let ended = async {
            self.connections.wait().await;
            self.background.wait().await;
        };
        let (ended, ()) = tokio::join!(timeout(CLOSE_WITHIN, ended), leave);
        if ended.is_err() {
            let tasks = self.connections.len() + self.background.len();
            warn!(tasks, "tasks did not end when told to");
        }
        match ending {
            Ending::Drained => info!("ended: every open request was finished"),
            Ending::Cut { connections } => warn!(connections, "ended: cut at the drain limit"),
            Ending::AtOnce { connections } => {
                warn!(connections, "ended: at once by a second signal")
            }
        }
        ending
    }
}

/// Time for the last answers to clients whose requests are cut.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(500);
/// Time for tasks to notice the end; those of a healthy process need microseconds.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Signals that may wait: the first one and the second one.
const SIGNALS: usize = 2;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;

    const LIMITS: ShutdownLimits = ShutdownLimits {
        settle: Duration::from_secs(5),
        drain: Duration::from_secs(60),
    };
    const REQUEST: Duration = Duration::from_secs(7);

    /// A connection that ends when told to, or with a last word.
    fn connection(shutdown: &Shutdown) -> oneshot::Sender<()> {
        let (end, ended) = oneshot::channel();
        let mut cutoff = Cutoff::of_task(&shutdown.phase());
        shutdown.connections().spawn(async move {
            tokio::select! {
                _ = ended => {}
                () = poll_fn(|cx| cutoff.poll(cx)) => {}
            }
        });
        end
    }

    #[tokio::test(start_paused = true)]
    async fn it_leaves_with_the_first_signal() {
        let shutdown = Shutdown::new();
        let phase = shutdown.phase();
        assert!(!phase.is_caught_up() && !phase.is_leaving());
        shutdown.caught_up().store(true, Ordering::Relaxed);
        assert!(phase.is_caught_up() && !phase.is_leaving());
        let (signal, signals) = mpsc::channel(1);
        signal.send(Signal::Terminate).await.expect("received");
        let end = connection(&shutdown);
        let began = Instant::now();
        let request = async {
            phase.leaving().await;
            assert!(phase.is_caught_up() && phase.is_leaving());
            phase.draining().await;
            assert_eq!(
                began.elapsed(),
                LIMITS.settle,
                "serves on while balancers notice"
            );
            tokio::time::sleep(REQUEST).await;
            end.send(()).expect("the connection is open until then");
        };
        let left = async {
            assert_eq!(
                began.elapsed(),
                LIMITS.settle + REQUEST,
                "the others hear of its load to the end"
            );
        };
        let (ending, ()) = tokio::join!(shutdown.run(LIMITS, signals, left), request);
        assert_eq!(ending, Ending::Drained);
    }

    /// A client that does not read its last word holds the end up for a moment only.
    #[tokio::test(start_paused = true)]
    async fn last_words_are_not_waited_for_long() {
        let shutdown = Shutdown::new();
        let (signal, signals) = mpsc::channel(1);
        signal.send(Signal::Terminate).await.expect("received");
        let phase = shutdown.phase();
        let deaf = phase.clone();
        shutdown
            .connections()
            .spawn(async move { deaf.closed().await });
        let began = Instant::now();
        let ending = shutdown.run(LIMITS, signals, async {}).await;
        assert_eq!(ending, Ending::Cut { connections: 1 });
        assert_eq!(
            began.elapsed(),
            LIMITS.settle + LIMITS.drain + LAST_WORDS_WITHIN
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_drain_limit_cuts_what_is_left() {
        let shutdown = Shutdown::new();
        let (signal, signals) = mpsc::channel(1);
        signal.send(Signal::Terminate).await.expect("received");
        let _open = connection(&shutdown);
        let finished = connection(&shutdown);
        finished.send(()).expect("open");
        let began = Instant::now();
        let ending = shutdown.run(LIMITS, signals, async {}).await;
        assert_eq!(ending, Ending::Cut { connections: 1 });
        assert_eq!(began.elapsed(), LIMITS.settle + LIMITS.drain);
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_ends_at_once() {
        let shutdown = Shutdown::new();
        let (signal, signals) = mpsc::channel(2);
        signal.send(Signal::Interrupt).await.expect("received");
        let _open = connection(&shutdown);
        let phase = shutdown.phase();
        let began = Instant::now();
        let second = async {
            phase.draining().await;
            signal.send(Signal::Interrupt).await.expect("received");
        };
        let (ending, ()) = tokio::join!(shutdown.run(LIMITS, signals, async {}), second);
        assert_eq!(ending, Ending::AtOnce { connections: 1 });
        assert_eq!(began.elapsed(), LIMITS.settle);
    }

    #[tokio::test(start_paused = true)]
    async fn background_tasks_outlive_the_drain() {
        let shutdown = Shutdown::new();
        let (signal, signals) = mpsc::channel(1);
        signal.send(Signal::Terminate).await.expect("received");
        let phase = shutdown.phase();
        let began = Instant::now();
        let task = shutdown.background().spawn(async move {
            phase.closed().await;
            began.elapsed()
        });
        let end = connection(&shutdown);
        let half_drained = LIMITS.settle + LIMITS.drain / 2;
        let client = async {
            tokio::time::sleep(half_drained).await;
            end.send(()).expect("open");
        };
        let (ending, ()) = tokio::join!(shutdown.run(LIMITS, signals, async {}), client);
        assert_eq!(ending, Ending::Drained);
        assert_eq!(task.await.expect("ended"), half_drained);
    }
}
