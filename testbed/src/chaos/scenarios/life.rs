//! Replicas that die, pause, leave and join.

use super::{STANDS_STILL, agreed, all_see_each_other, for_a_while, phase, replicas, sees};
use crate::chaos::fault::{Fault, Node};
use crate::chaos::scenario::{Scenario, Shape, Step, Terms};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "replica-kill",
        title: "A replica dies by SIGKILL under load and is started again",
        holds: "only requests that it was serving fail; no ring changes",
        terms: Terms::STEADY,
        replicas_min: 2,
        steps: replica_kill,
    },
    Scenario {
        name: "replica-pause",
        title: "A replica is paused by SIGSTOP and goes on later with an outdated view",
        holds: "its requests wait and then succeed; the others notice its absence and its return; no ring changes",
        terms: Terms::STEADY,
        replicas_min: 2,
        steps: replica_pause,
    },
    Scenario {
        name: "all-paused",
        title: "Every process is paused at once and goes on later, as on a suspended machine",
        holds: "no process treats the pause as a failure: requests wait and then succeed; no ring changes",
        terms: Terms::STEADY,
        replicas_min: 1,
        steps: all_paused,
    },
    Scenario {
        name: "rolling-restart",
        title: "Every replica is restarted by SIGTERM, one after the other, under load",
        holds: "no request fails and no stream is cut; caches lose nothing",
        terms: Terms {
            hit_dip_max: Some(1),
            ..Terms::STEADY
        },
        replicas_min: 2,
        steps: rolling_restart,
    },
    Scenario {
        name: "scale",
        title: "A replica is added under load, and taken away again",
        holds: "no request fails; no ring changes",
        terms: Terms::STEADY,
        replicas_min: 1,
        steps: scale,
    },
    Scenario {
        name: "join-late",
        title: "A replica that was down is started again after workers have changed",
        holds: "it has the changes before it takes requests",
        terms: Terms::CHANGING,
        replicas_min: 2,
        steps: join_late,
    },
    Scenario {
        name: "crash-loop",
        title: "A replica dies right after each start, again and again",
        holds: "no ring changes; afterwards all see each other",
        terms: Terms::STEADY,
        replicas_min: 2,
        steps: crash_loop,
    },
];

fn last(shape: &Shape) -> Node {
    Node::Replica(shape.replicas)
}

fn replica_kill(shape: &Shape) -> Vec<Step> {
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.push(Step::Do(Fault::Kill(last(shape))));
    steps.extend(phase("one is dead", shape.seconds(10.0)));
    steps.push(sees(1, shape.replicas - 2));
    steps.push(Step::Do(Fault::Start(last(shape))));
    steps.push(sees(1, shape.replicas - 1));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}

fn replica_pause(shape: &Shape) -> Vec<Step> {
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.push(Step::Do(Fault::Pause(last(shape))));
    steps.extend(phase(
        "one stands still",
        shape.seconds(12.0).max(STANDS_STILL),
    ));
    steps.push(sees(1, shape.replicas - 2));
    steps.push(Step::Do(Fault::Resume(last(shape))));
    steps.push(sees(1, shape.replicas - 1));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}

fn all_paused(shape: &Shape) -> Vec<Step> {
    let workers = (1..=shape.workers).map(Node::Worker);
    let nodes: Vec<Node> = replicas(shape).chain(workers).collect();
    let each = |fault: fn(Node) -> Fault| {
        let fault = move |node: &Node| Step::Do(fault(*node));
        nodes.iter().map(fault).collect::<Vec<_>>()
    };
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.extend(each(Fault::Pause));
    steps.extend(phase(
        "all stand still",
        shape.seconds(15.0).max(STANDS_STILL),
    ));
    steps.extend(each(Fault::Resume));
    steps.push(sees(1, shape.replicas - 1));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}

fn rolling_restart(shape: &Shape) -> Vec<Step> {
    let mut steps = Vec::from(phase("before", shape.seconds(20.0)));
    for replica in replicas(shape) {
        steps.push(Step::Phase("restarting one"));
        steps.push(Step::Do(Fault::Terminate(replica)));
        steps.push(Step::Do(Fault::Start(replica)));
        steps.push(agreed(shape.workers));
        steps.push(Step::Wait(shape.seconds(4.0)));
    }
    steps.extend(phase("after", shape.seconds(20.0)));
    steps
}

fn scale(shape: &Shape) -> Vec<Step> {
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.push(Step::Scale(shape.replicas + 1));
    steps.push(agreed(shape.workers));
    steps.push(sees(1, shape.replicas));
    steps.extend(phase("one more", shape.seconds(10.0)));
    steps.push(Step::Scale(shape.replicas));
    steps.push(sees(1, shape.replicas - 1));
    steps.extend(phase("after", shape.seconds(10.0)));
    steps
}

fn join_late(shape: &Shape) -> Vec<Step> {
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.push(Step::Do(Fault::Terminate(last(shape))));
    steps.push(Step::Phase("workers change while one is away"));
    steps.push(Step::Add {
        via: 1,
        worker: shape.workers + 1,
    });
    steps.push(Step::Remove { via: 1, worker: 1 });
    steps.push(agreed(shape.workers));
    steps.push(Step::Wait(shape.seconds(8.0)));
    steps.push(Step::Do(Fault::Start(last(shape))));
    steps.push(agreed(shape.workers));
    steps.extend(phase("after", shape.seconds(10.0)));
    steps
}

fn crash_loop(shape: &Shape) -> Vec<Step> {
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.push(Step::Phase("crash after crash"));
    for _ in 0..shape.times(12) {
        steps.push(Step::Do(Fault::Kill(last(shape))));
        steps.push(Step::Wait(shape.seconds(1.0)));
        steps.push(Step::Do(Fault::Start(last(shape))));
        steps.push(Step::Wait(shape.seconds(1.0)));
    }
    steps.extend(all_see_each_other(shape));
    steps.extend(phase("after", shape.seconds(10.0)));
    steps
}

/// A replica that gets little processor time is late, not gone; see `resources`.
pub(super) fn starved(shape: &Shape, share: f64) -> Vec<Step> {
    let node = last(shape);
    for_a_while(shape, "one starves", Fault::Starve { node, share }, 20.0)
}
