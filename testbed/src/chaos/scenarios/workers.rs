//! Workers that die, freeze and slow down.

use std::time::Duration;

use super::for_a_while;
use crate::chaos::fault::{Fault, Node};
use crate::chaos::scenario::{Scenario, Terms};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "worker-kill",
        title: "A worker dies by SIGKILL under load and is started again with an empty cache",
        holds: "only answers that had begun on it fail; no ring changes, and its prefixes return to it",
        terms: Terms::STEADY,
        replicas_min: 1,
        steps: |shape| for_a_while(shape, "one is dead", Fault::Kill(Node::Worker(1)), 10.0),
    },
    Scenario {
        name: "worker-pause",
        title: "A worker is paused by SIGSTOP: connections are accepted and nothing answers",
        holds: "only answers that had begun on it fail; no ring changes, and its prefixes return to it",
        terms: Terms::STEADY,
        replicas_min: 1,
        steps: |shape| {
            for_a_while(
                shape,
                "one stands still",
                Fault::Pause(Node::Worker(1)),
                15.0,
            )
        },
    },
    Scenario {
        name: "worker-freeze",
        title: "A worker's engine freezes behind a healthy HTTP server",
        holds: "only answers that had begun on it fail; no ring changes, and its prefixes return to it",
        terms: Terms::STEADY,
        replicas_min: 1,
        steps: |shape| for_a_while(shape, "one is frozen", Fault::Freeze(1), 15.0),
    },
    Scenario {
        name: "worker-slow",
        title: "A worker answers a second late",
        holds: "no request fails; no ring changes",
        terms: Terms::STEADY,
        replicas_min: 1,
        steps: |shape| {
            let delay = Duration::from_secs(1);
            for_a_while(shape, "one is slow", Fault::Slow { worker: 1, delay }, 15.0)
        },
    },
];
