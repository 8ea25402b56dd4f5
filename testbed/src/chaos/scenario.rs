//! A scenario: what is done to a cluster and when, and what must hold.

use std::time::Duration;

use super::fleet::{Fault, Node};

/// How large the cluster is and how long things take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shape {
    pub(crate) replicas: usize,
    pub(crate) workers: usize,
    /// Phases are a quarter as long.
    pub(crate) quick: bool,
    pub(crate) seed: u64,
    /// Of scenarios that go on for as long as they are told to.
    pub(crate) duration: Duration,
}

impl Shape {
    /// So many seconds, or a quarter of them.
    pub(crate) fn seconds(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(if self.quick { seconds / 4.0 } else { seconds })
    }

    /// So many repeats, or a quarter of them, at least one.
    pub(crate) fn times(&self, times: usize) -> usize {
        if self.quick { times.div_ceil(4) } else { times }
    }
}

/// One step, done when the one before is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// A part of the run begins; it is named in reports.
    Phase(&'static str),
    /// Load goes on, nothing else happens.
    Wait(Duration),
    Do(Fault),
    /// A worker is started if need be and registered through a replica.
    Add {
        via: usize,
        worker: usize,
    },
    /// A worker is taken off through a replica.
    Remove {
        via: usize,
        worker: usize,
    },
    /// So many replicas.
    Scale(usize),
    /// Further clients, for a while.
    Rush(Rush),
    /// Waits until it is so; a promise that is broken when it takes too long.
    Expect(Expectation),
}

/// Requests beside the steady load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rush {
    /// So many times the steady rate.
    pub(crate) times: f64,
    pub(crate) time: Duration,
    /// Their prompts all begin alike.
    pub(crate) same_prefix: bool,
}

/// Something that must become so.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expectation {
    pub(crate) what: Sight,
    pub(crate) within: Duration,
}

/// What replicas are seen to say.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sight {
    /// All that run are ready and hold the same ring, registry and number of workers.
    Agreed { workers: usize },
    /// This one holds so many others for alive.
    Peers { replica: usize, alive: u64 },
    /// The rings of these differ, as they must while a change reached one side alone.
    Apart,
}

/// What is promised beyond what every scenario promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// No replica's ring ever changes.
    pub(crate) ring_stays: bool,
    /// Also under the fault, all replicas choose the same worker when load is left aside.
    pub(crate) agreement_stays: bool,
    /// Requests may be refused by 429 and 503.
    pub(crate) may_refuse: bool,
    /// Memory and open files of every replica stay flat after the warm-up.
    pub(crate) flat: bool,
    /// The share of prompt tokens from caches falls by at most so many hundredths.
    pub(crate) hit_dip_max: Option<u32>,
    /// Parts of ERROR lines that belong to the fault.
    pub(crate) errors: &'static [&'static str],
}

impl Terms {
    /// Only liveness changes: rings stay, and every request is answered.
    pub(crate) const STEADY: Self = Self {
        ring_stays: true,
        agreement_stays: false,
        may_refuse: false,
        flat: false,
        hit_dip_max: None,
        errors: &[],
    };
    /// Workers come or go.
    pub(crate) const CHANGING: Self = Self {
        ring_stays: false,
        ..Self::STEADY
    };
    /// Nothing but gossip is hurt.
    pub(crate) const GOSSIP: Self = Self {
        agreement_stays: true,
        ..Self::STEADY
    };
}

/// A named scenario.
pub(crate) struct Scenario {
    /// As on the command line.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What must hold, besides what must always hold.
    pub(crate) holds: &'static str,
    pub(crate) terms: Terms,
    /// Replicas that it needs at least; workers it needs two of.
    pub(crate) replicas_min: usize,
    pub(crate) steps: fn(&Shape) -> Vec<Step>,
}

impl Scenario {
    /// It moves a wall clock, for which processes are prepared when they start.
    pub(crate) fn moves_clocks(&self, shape: &Shape) -> bool {
        self.does(shape, |fault| matches!(fault, Fault::Clock { .. }))
    }

    /// It fills a disk, which is felt only by who writes.
    pub(crate) fn fills_disks(&self, shape: &Shape) -> bool {
        self.does(shape, |fault| matches!(fault, Fault::FillDisk(_)))
    }

    /// Workers stand still in it: whoever waits for them with a long patience would see nothing.
    pub(crate) fn stalls_workers(&self, shape: &Shape) -> bool {
        self.does(shape, |fault| {
            matches!(fault, Fault::Freeze(_) | Fault::Pause(Node::Worker(_)))
        })
    }

    fn does(&self, shape: &Shape, is_it: fn(&Fault) -> bool) -> bool {
        let steps = (self.steps)(shape);
        let does = |step: &Step| matches!(step, Step::Do(fault) if is_it(fault));
        steps.iter().any(does)
    }
}

/// What every scenario promises.
pub(crate) const ALWAYS: &str = "no request fails but those that the fault takes along; answers are whole; \
     once all is repaired, replicas hold the same ring and registry and send the same prefix to the same \
     worker as before; nothing stays in flight; no panic, no ERROR";
