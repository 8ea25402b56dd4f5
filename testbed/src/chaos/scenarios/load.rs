//! More than the cluster can do.

use super::phase;
use crate::chaos::scenario::{Rush, Scenario, Shape, Step, Terms};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "hot-prefix",
        title: "Most of the traffic suddenly begins with one and the same prompt",
        holds: "no request fails: the prefix is spread over several workers; no ring changes",
        terms: Terms::STEADY,
        replicas_min: 1,
        steps: |shape| rush(shape, "one prefix is hot", 32, true),
    },
    Scenario {
        name: "overload",
        title: "Far more clients than the workers can serve",
        holds: "what is too much is refused by 429 or 503, nothing fails otherwise, and it passes",
        terms: Terms {
            may_refuse: true,
            ..Terms::STEADY
        },
        replicas_min: 1,
        steps: |shape| rush(shape, "too many clients", 600, false),
    },
];

fn rush(shape: &Shape, name: &'static str, clients: usize, same_prefix: bool) -> Vec<Step> {
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.push(Step::Phase(name));
    steps.push(Step::Rush(Rush {
        clients,
        time: shape.seconds(20.0),
        same_prefix,
    }));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}
