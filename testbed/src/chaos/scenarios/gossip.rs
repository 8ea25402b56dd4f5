//! Replicas that lose all or some of each other's gossip.

use std::time::Duration;

use super::{agreed, all_see_each_other, alone, phase, replicas, sees};
use crate::chaos::fault::{Fault, Link, Node, Reach};
use crate::chaos::scenario::{Expectation, Scenario, Shape, Sight, Step, Terms};

/// A worker comes, and replicas go on choosing the same one.
const AGREEING: Terms = Terms {
    agreement_stays: true,
    ..Terms::CHANGING
};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "partition",
        title: "Gossip is cut between the last replica and all others; a worker is added on one side and removed on the other",
        holds: "both sides serve; after the repair all replicas have the added worker and none has the removed one",
        terms: Terms::CHANGING,
        replicas_min: 2,
        steps: partition,
    },
    Scenario {
        name: "isolate",
        title: "One replica loses all gossip",
        holds: "it still serves with its last view and reports that it is alone; no ring changes",
        terms: Terms::GOSSIP,
        replicas_min: 2,
        steps: isolate,
    },
    Scenario {
        name: "one-way",
        title: "Gossip passes from the second replica to the first, but not back",
        holds: "a worker added meanwhile reaches all replicas through the third",
        terms: Terms::CHANGING,
        replicas_min: 3,
        steps: one_way,
    },
    Scenario {
        name: "lossy",
        title: "A fifth of all gossip packets is lost at each replica",
        holds: "a change still reaches all replicas; they agree throughout",
        terms: AGREEING,
        replicas_min: 2,
        steps: |shape| {
            let link = Link {
                loss: 0.2,
                ..Link::default()
            };
            bad_links(shape, link)
        },
    },
    Scenario {
        name: "delayed",
        title: "Gossip arrives 200 +-150 ms late, out of order, and a third of it twice",
        holds: "a change still reaches all replicas; they agree throughout",
        terms: AGREEING,
        replicas_min: 2,
        steps: |shape| {
            let link = Link {
                loss: 0.0,
                delay: Duration::from_millis(100),
                jitter: Duration::from_millis(75),
                reorder: 0.1,
                duplicate: 0.15,
            };
            bad_links(shape, link)
        },
    },
    Scenario {
        name: "flapping",
        title: "The links of one replica fail and recover each second",
        holds: "no ring changes; afterwards all see each other",
        terms: Terms::GOSSIP,
        replicas_min: 2,
        steps: flapping,
    },
    Scenario {
        name: "gossip-blocked",
        title: "No replica receives gossip from any other, while their data ports work",
        holds: "every replica still serves and reports that it is alone; no ring changes",
        terms: Terms::GOSSIP,
        replicas_min: 2,
        steps: blocked,
    },
];

fn isolated(node: Node) -> Step {
    Step::Do(Fault::Isolate {
        node,
        reach: Reach::Gossip,
    })
}

fn partition(shape: &Shape) -> Vec<Step> {
    let last = shape.replicas;
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.push(isolated(Node::Replica(last)));
    steps.push(sees(last, 0));
    steps.push(sees(1, last - 2));
    steps.push(Step::Phase("cut in two"));
    steps.push(Step::Add {
        via: 1,
        worker: shape.workers + 1,
    });
    steps.push(Step::Remove {
        via: last,
        worker: 1,
    });
    steps.push(Step::Expect(Expectation {
        what: Sight::Apart,
        within: Duration::from_secs(20),
    }));
    steps.push(Step::Wait(shape.seconds(60.0)));
    steps.push(Step::Do(Fault::Heal));
    steps.push(agreed(shape.workers));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}

fn isolate(shape: &Shape) -> Vec<Step> {
    let last = shape.replicas;
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.push(isolated(Node::Replica(last)));
    steps.push(sees(last, 0));
    steps.push(alone(last));
    steps.extend(phase("one is alone", shape.seconds(20.0)));
    steps.push(Step::Do(Fault::Heal));
    steps.push(sees(last, last - 1));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}

fn one_way(shape: &Shape) -> Vec<Step> {
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.push(Step::Do(Fault::Cut {
        from: Node::Replica(1),
        to: Node::Replica(2),
        one_way: true,
        reach: Reach::Gossip,
    }));
    steps.extend(phase("cut one way", shape.seconds(12.0)));
    steps.push(Step::Add {
        via: 1,
        worker: shape.workers + 1,
    });
    steps.push(agreed(shape.workers + 1));
    steps.push(Step::Wait(shape.seconds(12.0)));
    steps.push(Step::Do(Fault::Heal));
    steps.push(sees(1, shape.replicas - 1));
    steps.push(sees(2, shape.replicas - 1));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}

fn bad_links(shape: &Shape, link: Link) -> Vec<Step> {
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.extend(replicas(shape).map(|node| Step::Do(Fault::Impair { node, link })));
    steps.extend(phase("bad links", shape.seconds(12.0)));
    steps.push(Step::Add {
        via: 1,
        worker: shape.workers + 1,
    });
    steps.push(agreed(shape.workers + 1));
    steps.push(Step::Wait(shape.seconds(12.0)));
    steps.push(Step::Do(Fault::Heal));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}

fn flapping(shape: &Shape) -> Vec<Step> {
    let last = Node::Replica(shape.replicas);
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.push(Step::Phase("links fail and recover"));
    for _ in 0..shape.times(20) {
        steps.push(isolated(last));
        steps.push(Step::Wait(Duration::from_secs(1)));
        steps.push(Step::Do(Fault::Heal));
        steps.push(Step::Wait(Duration::from_secs(1)));
    }
    steps.extend(all_see_each_other(shape));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}

fn blocked(shape: &Shape) -> Vec<Step> {
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.extend(replicas(shape).map(isolated));
    steps.push(sees(1, 0));
    steps.extend((1..=shape.replicas).map(alone));
    steps.extend(phase("no gossip at all", shape.seconds(20.0)));
    steps.push(Step::Do(Fault::Heal));
    steps.push(sees(1, shape.replicas - 1));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}
