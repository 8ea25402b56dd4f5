//! A scenario: the faults of a cluster with their times, and what must hold.

use std::time::Duration;

use super::fault::{Fault, Node};

/// How large the cluster is and how long things take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shape {
    pub(crate) replicas: usize,
    pub(crate) workers: usize,
    /// Phases are a quarter as long.
    pub(crate) quick: bool,
    pub(crate) seed: u64,
    /// Length of the scenarios whose length can be chosen.
    pub(crate) duration: Duration,
}

impl Shape {
    /// So many seconds; a quarter of them in a quick run.
    pub(crate) fn seconds(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(if self.quick { seconds / 4.0 } else { seconds })
    }

    /// So many repeats; a quarter of them in a quick run, at least one.
    pub(crate) fn times(&self, times: usize) -> usize {
        if self.quick { times.div_ceil(4) } else { times }
    }
}

/// One step, done after the one before it.
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
    /// A worker is removed through a replica.
    Remove {
        via: usize,
        worker: usize,
    },
    /// Sets the number of replicas.
    Scale(usize),
    /// Additional clients, for a while.
    Rush(Rush),
    /// Waits until the expectation is met; if that takes too long, a promise is broken.
    Expect(Expectation),
}

/// Requests beside the steady load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rush {
    /// So many times the steady rate.
    pub(crate) times: f64,
    pub(crate) time: Duration,
    /// All their prompts have the same prefix.
    pub(crate) same_prefix: bool,
}

/// A state that must be reached.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expectation {
    pub(crate) what: Sight,
    pub(crate) within: Duration,
}

/// A state that the replicas report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sight {
    /// All that run are ready and hold the same ring, registry and number of workers.
    Agreed { workers: usize },
    /// This replica sees so many others as alive.
    Peers { replica: usize, alive: u64 },
    /// This replica reports that it is alone.
    Alone { replica: usize },
    /// The rings of these replicas differ, as they must while a change has reached one side only.
    Apart,
}

/// Promises of one scenario beyond those of every scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// No replica's ring ever changes.
    pub(crate) ring_stays: bool,
    /// All replicas that answer see all others alive, always.
    pub(crate) liveness_stays: bool,
    /// All replicas choose the same worker, also under the fault, when load is left aside.
    pub(crate) agreement_stays: bool,
    /// Requests may be refused by 429 and 503.
    pub(crate) may_refuse: bool,
    /// Memory and open files of every replica stay flat after the warm-up.
    pub(crate) flat: bool,
    /// The share of prompt tokens from caches falls by at most so many percentage points.
    pub(crate) hit_dip_max: Option<u32>,
    /// Parts of ERROR lines that belong to the fault.
    pub(crate) errors: &'static [&'static str],
}

impl Terms {
    /// Only liveness changes: rings stay the same, and every request is answered.
    pub(crate) const STEADY: Self = Self {
        ring_stays: true,
        liveness_stays: false,
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
    /// Only gossip has faults.
    pub(crate) const GOSSIP: Self = Self {
        agreement_stays: true,
        ..Self::STEADY
    };
}

/// A named scenario.
pub(crate) struct Scenario {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What must hold, besides [`ALWAYS`].
    pub(crate) holds: &'static str,
    pub(crate) terms: Terms,
    /// Least number of replicas; every scenario needs two workers.
    pub(crate) replicas_min: usize,
    pub(crate) steps: fn(&Shape) -> Vec<Step>,
}

impl Scenario {
    /// It moves a wall clock; processes must be started so that this is possible.
    pub(crate) fn moves_clocks(&self, shape: &Shape) -> bool {
        self.does(shape, |fault| matches!(fault, Fault::Clock { .. }))
    }

    /// It fills a disk, which only a process that writes notices.
    pub(crate) fn fills_disks(&self, shape: &Shape) -> bool {
        self.does(shape, |fault| matches!(fault, Fault::FillDisk(_)))
    }

    /// It pauses workers: replicas with long timeouts would not notice it.
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
pub(crate) const ALWAYS: &str = "no request fails but those that the fault excuses; answers are whole; \
     once all is repaired, replicas hold the same ring and registry and send the same prefix to the same \
     worker as before; nothing stays in flight; no panic, no ERROR";
