//! All scenarios, in the order in which `chaos list` shows them.

mod gossip;
mod life;
mod load;
mod resources;
mod workers;

use std::time::Duration;

use super::fault::{Fault, Node};
use super::scenario::{Expectation, Scenario, Shape, Sight, Step, Terms};
use super::schedule;

/// Limit for replicas to hold the same ring after a repair. They usually take a second; a busy machine may not.
const AGREE_WITHIN: Duration = Duration::from_secs(20);
/// Limit for a replica to notice that another is gone, or back.
const NOTICE_WITHIN: Duration = Duration::from_secs(30);

/// The scenario of this name.
pub(crate) fn named(name: &str) -> Option<&'static Scenario> {
    all().find(|scenario| scenario.name == name)
}

/// Every scenario.
pub(crate) fn all() -> impl Iterator<Item = &'static Scenario> {
    [
        life::ALL,
        workers::ALL,
        gossip::ALL,
        resources::ALL,
        load::ALL,
        DRAWN,
    ]
    .into_iter()
    .flatten()
}

/// Scenarios whose steps are drawn at random.
const DRAWN: &[Scenario] = &[
    Scenario {
        name: "random",
        title: "Random faults drawn from --seed, for --duration",
        holds: "the same seed and cluster size give the same faults at the same times",
        terms: Terms::CHANGING,
        replicas_min: 2,
        steps: |shape| schedule::drawn(shape, schedule::Pace::BUSY),
    },
    Scenario {
        name: "soak",
        title: "Mixed faults for as long as --duration says, with prompts that never repeat",
        holds: "memory and open files of every replica are flat after the first 10 minutes",
        terms: Terms {
            flat: true,
            ..Terms::CHANGING
        },
        replicas_min: 2,
        steps: |shape| schedule::drawn(shape, schedule::Pace::CALM),
    },
];

/// All running replicas agree on so many workers.
fn agreed(workers: usize) -> Step {
    Step::Expect(Expectation {
        what: Sight::Agreed { workers },
        within: AGREE_WITHIN,
    })
}

/// This replica sees so many others.
fn sees(replica: usize, alive: usize) -> Step {
    Step::Expect(Expectation {
        what: Sight::Peers {
            replica,
            alive: alive as u64,
        },
        within: NOTICE_WITHIN,
    })
}

/// Each replica sees all others.
fn all_see_each_other(shape: &Shape) -> impl Iterator<Item = Step> + use<> {
    let replicas = shape.replicas;
    (1..=replicas).map(move |replica| sees(replica, replicas - 1))
}

/// This replica reports that it is alone.
fn alone(replica: usize) -> Step {
    Step::Expect(Expectation {
        what: Sight::Alone { replica },
        within: NOTICE_WITHIN,
    })
}

/// Load for a while, as a named phase.
fn phase(name: &'static str, time: Duration) -> [Step; 2] {
    [Step::Phase(name), Step::Wait(time)]
}

/// Length of a pause: longer than replicas wait for a token.
const STANDS_STILL: Duration = Duration::from_secs(8);

/// One fault for a while, then its repair, with load before and after.
fn for_a_while(shape: &Shape, name: &'static str, fault: Fault, seconds: f64) -> Vec<Step> {
    let mut steps = Vec::from(phase("before", shape.seconds(8.0)));
    steps.push(Step::Do(fault));
    let stands_still = matches!(fault, Fault::Pause(_) | Fault::Freeze(_));
    let least = if stands_still {
        STANDS_STILL
    } else {
        Duration::ZERO
    };
    steps.extend(phase(name, shape.seconds(seconds).max(least)));
    steps.extend(fault.repair().map(Step::Do));
    steps.extend(phase("after", shape.seconds(12.0)));
    steps
}

/// All replicas.
fn replicas(shape: &Shape) -> impl Iterator<Item = Node> + use<> {
    (1..=shape.replicas).map(Node::Replica)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn shape(quick: bool) -> Shape {
        Shape {
            replicas: 3,
            workers: 4,
            quick,
            seed: 1,
            duration: Duration::from_secs(120),
        }
    }

    #[test]
    fn names_are_unique_and_found() {
        let names: BTreeSet<&str> = all().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(names.iter().all(|name| named(name).is_some()));
        assert!(named("nothing").is_none());
    }

    #[test]
    fn what_a_scenario_says_is_judged() {
        type Judged = fn(&Terms) -> bool;
        let words: [(&str, Judged); 7] = [
            ("no ring changes", |terms| terms.ring_stays),
            ("they agree throughout", |terms| terms.agreement_stays),
            ("no liveness changes", |terms| terms.liveness_stays),
            ("declared dead", |terms| terms.liveness_stays),
            ("refused", |terms| terms.may_refuse),
            ("flat", |terms| terms.flat),
            ("caches lose nothing", |terms| terms.hit_dip_max.is_some()),
        ];
        for (said, judged) in words {
            let mut saying = all().filter(|one| one.holds.contains(said)).peekable();
            assert!(saying.peek().is_some(), "no scenario says: {said}");
            for scenario in saying {
                assert!(judged(&scenario.terms), "{}: {said}", scenario.name);
            }
        }
        let shape = shape(false);
        for scenario in all().filter(|one| one.holds.contains("all see each other")) {
            let steps = (scenario.steps)(&shape);
            for sees in all_see_each_other(&shape) {
                assert!(steps.contains(&sees), "{}: {sees:?}", scenario.name);
            }
        }
    }

    #[test]
    fn what_replicas_promise_of_each_other_needs_two() {
        for Scenario {
            name,
            terms,
            replicas_min,
            ..
        } in all()
        {
            let of_each_other = terms.agreement_stays || terms.liveness_stays;
            assert!(!of_each_other || *replicas_min >= 2, "{name}");
        }
    }

    #[test]
    fn what_a_scenario_breaks_it_repairs_and_the_quick_one_is_shorter() {
        for scenario in all() {
            let steps = (scenario.steps)(&shape(false));
            let mut open: Vec<Fault> = Vec::new();
            for step in &steps {
                if let Step::Do(fault) = step {
                    let before = open.len();
                    open.retain(|earlier| !fault.ends(earlier));
                    let repairs = fault.repair().is_none();
                    assert!(
                        !repairs || open.len() < before,
                        "{}: {fault} repairs nothing",
                        scenario.name
                    );
                    if !repairs {
                        open.push(*fault);
                    }
                }
            }
            assert!(open.is_empty(), "{} leaves {open:?}", scenario.name);
            let waits = |steps: &[Step]| -> Duration {
                let wait = |step: &Step| match step {
                    Step::Wait(time) => *time,
                    Step::Rush(rush) => rush.time,
                    _ => Duration::ZERO,
                };
                steps.iter().map(wait).sum()
            };
            let quick = (scenario.steps)(&shape(true));
            let drawn = DRAWN.iter().any(|drawn| drawn.name == scenario.name);
            assert!(
                drawn || waits(&quick) < waits(&steps).div_f64(2.0),
                "{} is not quick",
                scenario.name
            );
        }
    }
}
