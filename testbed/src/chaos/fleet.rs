//! What can be done to a cluster, wherever it runs.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

use super::compose::ComposeFleet;
use super::local::LocalFleet;
use crate::client::Target;

/// A router replica or a worker, numbered from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Node {
    Replica(usize),
    Worker(usize),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica(number) => write!(f, "replica {number}"),
            Self::Worker(number) => write!(f, "worker {number}"),
        }
    }
}

/// What a cut concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// UDP between replicas.
    Gossip,
    /// Every packet: requests to workers and probes, too.
    All,
}

/// What a bad network does to the packets of one replica's gossip, in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Link {
    /// Share of packets that are lost, 0 to 1.
    pub(crate) loss: f64,
    /// Added to each packet's way.
    pub(crate) delay: Duration,
    /// At most this more or less, evenly by chance.
    pub(crate) jitter: Duration,
    /// Share of packets that are held back long enough for later ones to pass them, 0 to 1.
    pub(crate) reorder: f64,
    /// Share of packets that arrive twice, 0 to 1.
    pub(crate) duplicate: f64,
}

/// One thing that goes wrong, or is put right.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// SIGKILL.
    Kill(Node),
    /// SIGTERM; a replica settles and drains, and may go on for that long.
    Terminate(Node),
    /// Starts what was killed or terminated, on its former addresses.
    Start(Node),
    /// SIGSTOP.
    Pause(Node),
    /// SIGCONT.
    Resume(Node),
    /// No packet passes from `from` to `to`; unless `one_way`, none back either.
    Cut {
        from: Node,
        to: Node,
        one_way: bool,
        reach: Reach,
    },
    /// `node` reaches nobody and is reached by nobody.
    Isolate { node: Node, reach: Reach },
    /// The link of `node` to every other replica is bad.
    Impair { node: Node, link: Link },
    /// All links are whole again.
    Heal,
    /// The engine of a worker makes no more tokens; its HTTP server and `/health` go on.
    Freeze(usize),
    /// It makes tokens again.
    Thaw(usize),
    /// A worker answers `delay` later than it would; zero ends it.
    Slow { worker: usize, delay: Duration },
    /// The wall clock of a replica is `ahead` seconds ahead of the truth; 0 ends it.
    Clock { node: Node, ahead: i64 },
    /// Whatever it writes to its log fails for want of room.
    FillDisk(Node),
    /// Room again.
    FreeDisk(Node),
    /// It gets this share of one processor's time, above 0 and below 1.
    Starve { node: Node, share: f64 },
    /// It gets all it wants again.
    Feed(Node),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = |reach: &Reach| match reach {
            Reach::Gossip => "gossip",
            Reach::All => "everything",
        };
        match self {
            Self::Kill(node) => write!(f, "kill {node}"),
            Self::Terminate(node) => write!(f, "terminate {node}"),
            Self::Start(node) => write!(f, "start {node}"),
            Self::Pause(node) => write!(f, "pause {node}"),
            Self::Resume(node) => write!(f, "resume {node}"),
            Self::Cut {
                from,
                to,
                one_way,
                reach,
            } => {
                let arrow = if *one_way { "to" } else { "and" };
                write!(f, "cut {} {from} {arrow} {to}", what(reach))
            }
            Self::Isolate { node, reach } => write!(f, "cut {} of {node}", what(reach)),
            Self::Impair { node, link } => {
                write!(f, "impair gossip of {node}:")?;
                let percent = |part: f64| 100.0 * part;
                if link.loss > 0.0 {
                    write!(f, " {:.0} % lost", percent(link.loss))?;
                }
                if !link.delay.is_zero() || !link.jitter.is_zero() {
                    write!(
                        f,
                        " {} +-{} ms late",
                        link.delay.as_millis(),
                        link.jitter.as_millis()
                    )?;
                }
                if link.reorder > 0.0 {
                    write!(f, " {:.0} % reordered", percent(link.reorder))?;
                }
                if link.duplicate > 0.0 {
                    write!(f, " {:.0} % twice", percent(link.duplicate))?;
                }
                Ok(())
            }
            Self::Heal => f.write_str("heal all links"),
            Self::Freeze(worker) => write!(f, "freeze the engine of worker {worker}"),
            Self::Thaw(worker) => write!(f, "thaw the engine of worker {worker}"),
            Self::Slow { worker, delay } => {
                write!(f, "worker {worker} answers {} ms later", delay.as_millis())
            }
            Self::Clock { node, ahead } => write!(f, "clock of {node} {ahead:+} s"),
            Self::FillDisk(node) => write!(f, "fill the disk of {node}"),
            Self::FreeDisk(node) => write!(f, "free the disk of {node}"),
            Self::Starve { node, share } => {
                write!(f, "leave {node} {:.0} % of a processor", 100.0 * share)
            }
            Self::Feed(node) => write!(f, "give {node} its processor time back"),
        }
    }
}

/// Is a process there?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeatState {
    Running,
    Paused,
    Stopped,
}

/// One process of the cluster, as whoever watches it needs it. Addresses may change on a restart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seat {
    pub(crate) node: Node,
    /// As it calls itself: the replica's id, the worker's id.
    pub(crate) name: String,
    pub(crate) state: SeatState,
    /// Admin API, of a replica that is running.
    pub(crate) admin: Option<Target>,
    /// What the admin API asks for as `Authorization: Bearer`.
    pub(crate) token: Option<String>,
    /// `/metrics`, where it is not that of the admin API.
    pub(crate) metrics: Option<Target>,
    /// Data port of a replica, API of a worker.
    pub(crate) http: Option<Target>,
    /// On this machine.
    pub(crate) pid: Option<u32>,
}

/// A cluster that can be hurt. Numbers of replicas and workers count from 1.
pub(crate) enum Fleet {
    Local(Box<LocalFleet>),
    Compose(Box<ComposeFleet>),
}

macro_rules! each {
    ($fleet:expr, $inner:ident => $body:expr) => {
        match $fleet {
            Fleet::Local($inner) => $body,
            Fleet::Compose($inner) => $body,
        }
    };
}

impl Fleet {
    /// Does it, and returns when it is done: a started replica answers, a killed one is gone.
    ///
    /// # Errors
    /// When this kind of cluster cannot do it, with the reason.
    pub(crate) async fn apply(&mut self, fault: &Fault) -> anyhow::Result<()> {
        each!(self, fleet => fleet.apply(fault).await)
    }

    /// Where clients send requests: the balancer.
    pub(crate) fn front(&self) -> Target {
        each!(self, fleet => fleet.front())
    }

    /// All processes, replicas first; the receiver is told of each change.
    pub(crate) fn seats(&self) -> watch::Receiver<Vec<Seat>> {
        each!(self, fleet => fleet.seats())
    }

    /// The name under which the cluster knows a node: `x-grapevine-replica`, the worker's id.
    pub(crate) fn name(&self, node: Node) -> String {
        each!(self, fleet => fleet.name(node))
    }

    /// Starts worker `worker` if it is not there, and registers it at replica `via`.
    pub(crate) async fn add_worker(&mut self, via: usize, worker: usize) -> anyhow::Result<()> {
        each!(self, fleet => fleet.add_worker(via, worker).await)
    }

    /// Takes worker `worker` off the registry at replica `via`; its process goes on.
    pub(crate) async fn remove_worker(&mut self, via: usize, worker: usize) -> anyhow::Result<()> {
        each!(self, fleet => fleet.remove_worker(via, worker).await)
    }

    /// Starts or terminates replicas until this many run: 1 to this number.
    pub(crate) async fn scale(&mut self, replicas: usize) -> anyhow::Result<()> {
        each!(self, fleet => fleet.scale(replicas).await)
    }

    /// Files with what each process wrote to its log so far.
    pub(crate) async fn logs(&self) -> anyhow::Result<Vec<(String, PathBuf)>> {
        each!(self, fleet => fleet.logs().await)
    }

    /// Undoes every fault and ends what this fleet started.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        each!(self, fleet => fleet.stop().await)
    }
}
