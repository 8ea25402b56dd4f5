//! The faults that can be injected, and their repairs. Pure.

use std::fmt;
use std::time::Duration;

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

/// The traffic that a cut drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// UDP between replicas.
    Gossip,
    /// Every packet, also requests to workers and probes.
    All,
}

/// Impairments of one replica's gossip, in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Link {
    /// Share of packets that are lost, 0 to 1.
    pub(crate) loss: f64,
    /// Added to the travel time of each packet.
    pub(crate) delay: Duration,
    /// Uniform random change of the delay, at most this much up or down.
    pub(crate) jitter: Duration,
    /// Share of packets that are held back long enough for later ones to pass them, 0 to 1.
    pub(crate) reorder: f64,
    /// Share of packets that arrive twice, 0 to 1.
    pub(crate) duplicate: f64,
}

/// One fault, or the repair of one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// SIGKILL.
    Kill(Node),
    /// SIGTERM; a replica settles and drains, so it may run on for that long.
    Terminate(Node),
    /// Starts a killed or terminated node again, on its former addresses.
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
    /// No packet passes from or to `node`.
    Isolate { node: Node, reach: Reach },
    /// The link of `node` to every other replica is bad.
    Impair { node: Node, link: Link },
    /// All links are whole again.
    Heal,
    /// The engine of a worker makes no more tokens; its HTTP server and `/health` go on.
    Freeze(usize),
    /// The engine makes tokens again.
    Thaw(usize),
    /// A worker answers later by `delay`; zero ends the fault.
    Slow { worker: usize, delay: Duration },
    /// The wall clock of a replica is `ahead` seconds ahead of the right time; 0 ends the fault.
    Clock { node: Node, ahead: i64 },
    /// Every write to its log fails because the disk is full.
    FillDisk(Node),
    /// Writes to its log succeed again.
    FreeDisk(Node),
    /// The node gets this share of one processor's time, above 0 and below 1.
    Starve { node: Node, share: f64 },
    /// The node gets as much processor time as it needs again.
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

impl Fault {
    /// The repair of this fault; `None` if it is itself a repair.
    pub(crate) fn repair(&self) -> Option<Self> {
        Some(match *self {
            Self::Kill(node) | Self::Terminate(node) => Self::Start(node),
            Self::Pause(node) => Self::Resume(node),
            Self::Cut { .. } | Self::Isolate { .. } | Self::Impair { .. } => Self::Heal,
            Self::Freeze(worker) => Self::Thaw(worker),
            Self::Slow { worker, delay } if !delay.is_zero() => Self::Slow {
                worker,
                delay: Duration::ZERO,
            },
            Self::Clock { node, ahead } if ahead != 0 => Self::Clock { node, ahead: 0 },
            Self::FillDisk(node) => Self::FreeDisk(node),
            Self::Starve { node, .. } => Self::Feed(node),
            Self::Start(_)
            | Self::Resume(_)
            | Self::Heal
            | Self::Thaw(_)
            | Self::Slow { .. }
            | Self::Clock { .. }
            | Self::FreeDisk(_)
            | Self::Feed(_) => return None,
        })
    }

    /// The node that it concerns, if it concerns a single one.
    pub(crate) fn node(&self) -> Option<Node> {
        Some(match *self {
            Self::Kill(node)
            | Self::Terminate(node)
            | Self::Start(node)
            | Self::Pause(node)
            | Self::Resume(node)
            | Self::Isolate { node, .. }
            | Self::Impair { node, .. }
            | Self::Clock { node, .. }
            | Self::FillDisk(node)
            | Self::FreeDisk(node)
            | Self::Starve { node, .. }
            | Self::Feed(node) => node,
            Self::Freeze(worker) | Self::Thaw(worker) | Self::Slow { worker, .. } => {
                Node::Worker(worker)
            }
            Self::Cut { .. } | Self::Heal => return None,
        })
    }

    /// The fault is a state of the process, so the end of the process ends it, too.
    fn dies_with_process(&self) -> bool {
        matches!(
            self,
            Self::Pause(_)
                | Self::Freeze(_)
                | Self::Slow { .. }
                | Self::FillDisk(_)
                | Self::Starve { .. }
        )
    }

    /// Injecting `self` ends `earlier`.
    pub(crate) fn ends(&self, earlier: &Self) -> bool {
        if matches!(self, Self::Kill(_) | Self::Terminate(_)) {
            return earlier.dies_with_process() && earlier.node() == self.node();
        }
        self.repair().is_none() && earlier.repair().as_ref() == Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_ended_by_its_repair_and_by_nothing_elses() {
        let (replica, worker) = (Node::Replica(1), Node::Worker(2));
        let cut = Fault::Cut {
            from: replica,
            to: Node::Replica(2),
            one_way: true,
            reach: Reach::Gossip,
        };
        let isolate = Fault::Isolate {
            node: replica,
            reach: Reach::All,
        };
        let starve = Fault::Starve {
            node: replica,
            share: 0.1,
        };
        let slow = Fault::Slow {
            worker: 2,
            delay: Duration::from_secs(1),
        };
        let clock = Fault::Clock {
            node: replica,
            ahead: 5,
        };
        let faults = [
            Fault::Kill(replica),
            Fault::Kill(worker),
            Fault::Pause(replica),
            Fault::Pause(worker),
            cut,
            Fault::Freeze(2),
            slow,
            clock,
            Fault::FillDisk(replica),
            starve,
        ];
        for (at, fault) in faults.iter().enumerate() {
            let repair = fault.repair().expect("a fault has one");
            assert_eq!(repair.repair(), None, "{repair} puts right");
            for (other_at, other) in faults.iter().enumerate() {
                assert_eq!(repair.ends(other), at == other_at, "{repair} ends {other}");
            }
        }
        assert!(Fault::Heal.ends(&isolate) && Fault::Heal.ends(&cut));
    }

    #[test]
    fn death_ends_what_was_wrong_with_the_process_alone() {
        let node = Node::Replica(1);
        let clock = Fault::Clock { node, ahead: 5 };
        let kill = Fault::Kill(node);
        assert!(kill.ends(&Fault::Pause(node)) && kill.ends(&Fault::FillDisk(node)));
        assert!(!kill.ends(&clock) && !kill.ends(&kill));
        assert!(!kill.ends(&Fault::Pause(Node::Replica(2))));
    }
}
