//! Replicas without disk space, with a wrong clock, or with little processor time.

use super::{for_a_while, life, phase, replicas};
use crate::chaos::fault::{Fault, Node};
use crate::chaos::scenario::{Scenario, Shape, Step, Terms};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "disk-full",
        title: "A replica cannot write its log because the disk is full",
        holds: "requests go on; no ring changes",
        terms: Terms::GOSSIP,
        replicas_min: 2,
        steps: |shape| for_a_while(shape, "disk full", Fault::FillDisk(Node::Replica(1)), 15.0),
    },
    Scenario {
        name: "clock",
        title: "Wall clocks jump two hours ahead on one replica and two hours back on another",
        holds: "no liveness changes, no timeout fires early, no ring changes",
        terms: Terms {
            errors: &["clock"],
            liveness_stays: true,
            ..Terms::GOSSIP
        },
        replicas_min: 2,
        steps: clock,
    },
    Scenario {
        name: "starve",
        title: "One replica gets a tenth of a processor",
        holds: "no replica is declared dead; no ring changes",
        terms: Terms {
            liveness_stays: true,
            ..Terms::STEADY
        },
        replicas_min: 2,
        steps: |shape| life::starved(shape, 0.1),
    },
];

/// Seconds by which a clock jumps.
const JUMP: i64 = 7_200;

fn clock(shape: &Shape) -> Vec<Step> {
    let jumps: Vec<Fault> = replicas(shape)
        .zip([JUMP, -JUMP])
        .map(|(node, ahead)| Fault::Clock { node, ahead })
        .collect();
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.extend(jumps.iter().copied().map(Step::Do));
    steps.extend(phase("clocks differ by hours", shape.seconds(20.0)));
    steps.extend(jumps.iter().filter_map(Fault::repair).map(Step::Do));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}
