//! Faults drawn at random. Pure: the same seed and shape give the same steps.
//!
//! A round has one fault, sometimes a second one in the other kind of node; both are repaired, and the
//! replicas must agree before the next round. So whatever breaks has a short history, and at most one replica
//! and one worker have a fault at once, which a cluster promises to survive.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fault::{Fault, Link, Node, Reach};
use super::scenario::{Expectation, Shape, Sight, Step};

/// How often and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Length of a fault in seconds, uniformly at random.
    lasts: (f64, f64),
    /// Pause after each round in seconds, uniformly at random.
    rests: (f64, f64),
    /// The first replica's process is never ended: its memory is observed over one life.
    spares_first: bool,
}

impl Pace {
    /// One round after the other.
    pub(crate) const BUSY: Self = Self {
        lasts: (2.0, 8.0),
        rests: (1.0, 4.0),
        spares_first: false,
    };
    /// Time to see what a fault has left behind.
    pub(crate) const CALM: Self = Self {
        lasts: (3.0, 20.0),
        rests: (10.0, 30.0),
        spares_first: true,
    };
}

/// Share of rounds that have one fault alone.
const ALONE: f64 = 0.7;
/// Limit for replicas to agree after a round.
const AGREE_WITHIN: Duration = Duration::from_secs(45);

/// Rounds until their waits add up to the shape's duration.
pub(crate) fn drawn(shape: &Shape, pace: Pace) -> Vec<Step> {
    let mut random = StdRng::seed_from_u64(shape.seed);
    let between = |(least, most): (f64, f64), random: &mut StdRng| {
        Duration::from_secs_f64(random.random_range(least..most))
    };
    let mut steps = vec![Step::Phase("before"), Step::Wait(Duration::from_secs(5))];
    let mut planned = Duration::from_secs(5);
    while planned < shape.duration {
        let lasts = between(pace.lasts, &mut random);
        let rests = between(pace.rests, &mut random);
        steps.extend(round(shape, pace, lasts, &mut random));
        steps.push(agreed(shape));
        steps.push(Step::Wait(rests));
        planned += lasts + rests;
    }
    steps
}

fn agreed(shape: &Shape) -> Step {
    Step::Expect(Expectation {
        what: Sight::Agreed {
            workers: shape.workers,
        },
        within: AGREE_WITHIN,
    })
}

fn round(shape: &Shape, pace: Pace, lasts: Duration, random: &mut StdRng) -> Vec<Step> {
    let replica = random.random_range(1..=shape.replicas);
    let worker = random.random_range(1..=shape.workers);
    if random.random_bool(0.1) {
        return vec![
            Step::Remove {
                via: replica,
                worker,
            },
            Step::Wait(lasts),
            Step::Add {
                via: random.random_range(1..=shape.replicas),
                worker,
            },
        ];
    }
    let mut faults = if random.random_bool(0.6) {
        vec![of_replica(shape, pace, replica, random)]
    } else {
        vec![of_worker(worker, random)]
    };
    if !random.random_bool(ALONE) {
        faults.push(match faults[0].node() {
            Some(Node::Worker(_)) => of_replica(shape, pace, replica, random),
            _ => of_worker(worker, random),
        });
    }
    let share = lasts.div_f64(faults.len() as f64);
    let repairs: Vec<Step> = faults
        .iter()
        .filter_map(Fault::repair)
        .map(Step::Do)
        .collect();
    let hurt = faults
        .into_iter()
        .flat_map(|fault| [Step::Do(fault), Step::Wait(share)]);
    hurt.chain(repairs).collect()
}

fn of_replica(shape: &Shape, pace: Pace, number: usize, random: &mut StdRng) -> Fault {
    let node = Node::Replica(number);
    let reach = Reach::Gossip;
    // The next replica; a single replica has none to be cut from.
    let to = Node::Replica(number % shape.replicas + 1);
    let may_end = !(pace.spares_first && number == 1);
    match random.random_range(0..8) {
        0 if may_end => Fault::Kill(node),
        1 if may_end => Fault::Terminate(node),
        2 => Fault::Pause(node),
        3 => Fault::FillDisk(node),
        4 => Fault::Starve {
            node,
            share: random.random_range(0.1..0.5),
        },
        5 if to != node => Fault::Cut {
            from: node,
            to,
            one_way: random.random_bool(0.5),
            reach,
        },
        6 => Fault::Impair {
            node,
            link: Link {
                loss: random.random_range(0.0..0.4),
                delay: Duration::from_millis(random.random_range(0..150)),
                jitter: Duration::from_millis(random.random_range(0..100)),
                reorder: random.random_range(0.0..0.2),
                duplicate: random.random_range(0.0..0.2),
            },
        },
        _ => Fault::Isolate { node, reach },
    }
}

fn of_worker(number: usize, random: &mut StdRng) -> Fault {
    let node = Node::Worker(number);
    match random.random_range(0..4) {
        0 => Fault::Kill(node),
        1 => Fault::Pause(node),
        2 => Fault::Freeze(number),
        _ => Fault::Slow {
            worker: number,
            delay: Duration::from_millis(random.random_range(200..2_000)),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn shape(seed: u64, replicas: usize, workers: usize) -> Shape {
        Shape {
            replicas,
            workers,
            quick: false,
            seed,
            duration: Duration::from_secs(600),
        }
    }

    #[test]
    fn a_seed_is_a_schedule() {
        let steps = |seed| drawn(&shape(seed, 3, 4), Pace::BUSY);
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
    }

    #[test]
    fn a_calm_one_lets_the_first_replica_live() {
        let first = Node::Replica(1);
        for seed in 0..50 {
            let steps = drawn(&shape(seed, 3, 4), Pace::CALM);
            let ends = |step: &Step| {
                [Fault::Kill(first), Fault::Terminate(first)]
                    .iter()
                    .any(|end| *step == Step::Do(*end))
            };
            assert!(!steps.iter().any(ends), "seed {seed}");
        }
    }

    #[test]
    fn a_long_one_has_every_kind_of_fault() {
        let steps = (0..20).flat_map(|seed| drawn(&shape(seed, 3, 4), Pace::BUSY));
        let kinds = steps.filter_map(|step| match step {
            Step::Do(fault) if fault.repair().is_some() => {
                Some(format!("{:?}", std::mem::discriminant(&fault)))
            }
            _ => None,
        });
        assert_eq!(kinds.collect::<BTreeSet<_>>().len(), 10);
    }

    proptest! {
        #[test]
        fn every_round_is_repaired_and_leaves_enough_alone(
            seed: u64, replicas in 2_usize..6, workers in 2_usize..8,
        ) {
            let mut open: Vec<Fault> = Vec::new();
            let mut away = BTreeSet::new();
            for step in drawn(&shape(seed, replicas, workers), Pace::BUSY) {
                match step {
                    Step::Do(fault) if fault.repair().is_some() => {
                        let same_kind = |other: &Fault| {
                            matches!(other.node(), Some(Node::Worker(_)))
                                == matches!(fault.node(), Some(Node::Worker(_)))
                        };
                        prop_assert!(!open.iter().any(same_kind), "{open:?} and {fault}");
                        open.push(fault);
                    }
                    Step::Do(repair) => open.retain(|earlier| !repair.ends(earlier)),
                    Step::Remove { worker, .. } => prop_assert!(away.insert(worker)),
                    Step::Add { worker, .. } => prop_assert!(away.remove(&worker)),
                    Step::Expect(_) => prop_assert!(open.is_empty() && away.is_empty(), "{open:?}"),
                    _ => {}
                }
            }
        }
    }
}
