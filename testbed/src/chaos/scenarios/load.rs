//! More load than the cluster can serve.

use super::phase;
use crate::chaos::scenario::{Rush, Scenario, Shape, Step, Terms};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "hot-prefix",
        title: "Most requests suddenly begin with one and the same prompt",
        holds: "no request fails: the prefix is spread over several workers; no ring changes",
        terms: Terms::STEADY,
        replicas_min: 1,
        steps: |shape| rush(shape, "one prefix is hot", 3.0, true),
    },
    Scenario {
        name: "overload",
        title: "Ten times the load, more than the workers can serve",
        holds: "requests beyond the capacity are refused by 429 or 503, nothing fails otherwise, and afterwards all are served again",
        terms: Terms {
            may_refuse: true,
            ..Terms::STEADY
        },
        replicas_min: 1,
        steps: |shape| rush(shape, "too many requests", 10.0, false),
    },
];

fn rush(shape: &Shape, name: &'static str, times: f64, same_prefix: bool) -> Vec<Step> {
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.push(Step::Phase(name));
    steps.push(Step::Rush(Rush {
        times,
        time: shape.seconds(20.0),
        same_prefix,
    }));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}
