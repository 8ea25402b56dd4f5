//! Capacity: the highest rate at which enough requests get their first token in time.

use super::contender::Contender;
use super::scenario::Scenario;
use super::sim::{GOOD_SHARE, run};
use super::workload::Workload;

/// Relative width of the bracket at which the search ends.
const PRECISION: f64 = 1.01;
/// Factor by which the first bracket grows.
const STRIDE: f64 = 1.3;
/// Greatest number of steps.
const STEPS_MAX: usize = 40;

/// The capacity as a factor on the workload's own rate ([`Workload::at`]). Starts from a guess and bisects
/// geometrically; `tick` is called for each run. A rate that needs too many copies of a trace counts as too high.
/// Infinite where no rate was too high: all sessions of the load at once are no load for these workers, and what is
/// measured then is one moment.
pub fn capacity(
    workload: &Workload,
    contender: &Contender,
    scenario: &Scenario,
    guess: f64,
    mut tick: impl FnMut(),
) -> f64 {
    let mut holds = |speed: f64| {
        tick();
        let Some((workload, speed)) = workload.at(speed) else {
            return false;
        };
        let scenario = Scenario {
            speed,
            ..scenario.clone()
        };
        run(&workload, contender, &scenario, true)
            .is_some_and(|outcome| outcome.good_share >= GOOD_SHARE)
    };
    let (mut low, mut high) = (None, None);
    let mut speed = guess;
    for _ in 0..STEPS_MAX {
        if holds(speed) {
            low = Some(speed);
        } else {
            high = Some(speed);
        }
        speed = match (low, high) {
            (Some(low), Some(high)) if high / low <= PRECISION => break,
            (Some(low), Some(high)) => f64::sqrt(low * high),
            (Some(low), None) => low * STRIDE,
            (None, Some(high)) => high / STRIDE,
            (None, None) => guess,
        };
    }
    match (low, high) {
        (Some(_), None) => f64::INFINITY,
        (low, _) => low.unwrap_or(speed),
    }
}
