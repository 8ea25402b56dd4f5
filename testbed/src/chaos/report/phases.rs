//! The phases of a run (before a fault, during it, afterwards), and what clients and replicas saw in each.
//! Pure.

use super::super::record::{Agreement, Mark, MarkKind, Record, Sample, Window};
use grapevine_bench::tally::share;

/// One part of a run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) from_ms: u64,
    pub(crate) until_ms: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    /// Answered requests a second.
    pub(crate) per_s: f64,
    /// Cached over all prompt tokens, 0 to 1; `None` where no reply reported any.
    pub(crate) hit_rate: Option<f64>,
    /// Median of the windows' medians.
    pub(crate) p50_ms: Option<f64>,
    /// The worst window's.
    pub(crate) p99_ms: Option<f64>,
    /// Equal over asked, 0 to 1, each replica with its own view of the load.
    pub(crate) agreement: Option<f64>,
    /// The same without regard to load.
    pub(crate) agreement_idle: Option<f64>,
}

/// The phases that the scenario named; without any, the times before, between and after its faults.
pub(crate) fn phases(record: &Record) -> Vec<Phase> {
    let mut bounds = named(record);
    if bounds.is_empty() {
        bounds = around_faults(record);
    }
    bounds
        .into_iter()
        .filter(|(_, from, until)| from < until)
        .map(|(name, from, until)| phase(record, name, from, until))
        .collect()
}

/// A phase lasts until its own end, or else until the next one begins.
fn named(record: &Record) -> Vec<(String, u64, u64)> {
    let marks: Vec<&Mark> = record
        .marks
        .iter()
        .filter(|mark| mark.kind == MarkKind::Phase)
        .collect();
    let begin = |index: usize| marks.get(index).map(|mark| mark.at_ms);
    let bound = |(index, mark): (usize, &&Mark)| {
        let next = begin(index + 1).unwrap_or(record.duration_ms);
        (mark.text.clone(), mark.at_ms, mark.until_ms.unwrap_or(next))
    };
    marks.iter().enumerate().map(bound).collect()
}

fn around_faults(record: &Record) -> Vec<(String, u64, u64)> {
    let faults = || {
        let marks = record.marks.iter();
        marks.filter(|mark| mark.kind == MarkKind::Fault)
    };
    let end = record.duration_ms;
    let Some(first) = faults().map(|mark| mark.at_ms).min() else {
        return vec![("all".into(), 0, end)];
    };
    let last = faults().map(|mark| mark.until_ms.unwrap_or(end)).max();
    let last = last.unwrap_or(end).min(end);
    vec![
        ("before".into(), 0, first),
        ("faults".into(), first, last),
        ("after".into(), last, end),
    ]
}

fn phase(record: &Record, name: String, from_ms: u64, until_ms: u64) -> Phase {
    let inside = |at_ms: u64| (from_ms..until_ms).contains(&at_ms);
    // A window belongs to the phase in which its middle lies.
    let windows: Vec<&Window> = record
        .windows
        .iter()
        .filter(|window| inside(window.at_ms + window.length_ms / 2))
        .collect();
    let sum = |of: fn(&Window) -> u64| windows.iter().map(|window| of(window)).sum::<u64>();
    let mut medians: Vec<f64> = windows.iter().filter_map(|window| window.p50_ms).collect();
    medians.sort_unstable_by(f64::total_cmp);
    let samples = || record.samples.iter().filter(|sample| inside(sample.at_ms));
    let equal = |of: fn(&Sample) -> Option<Agreement>| {
        let (mut equal, mut asked) = (0, 0);
        for one in samples().filter_map(of) {
            equal += one.equal as u64;
            asked += one.asked as u64;
        }
        (asked > 0).then(|| share(equal, asked))
    };
    let prompt_tokens = sum(|window| window.prompt_tokens);
    let succeeded = sum(|window| window.succeeded);
    let seconds = sum(|window| window.length_ms) as f64 / 1_000.0;
    Phase {
        name,
        from_ms,
        until_ms,
        succeeded,
        failed: sum(|window| window.failed),
        per_s: if seconds > 0.0 {
            succeeded as f64 / seconds
        } else {
            0.0
        },
        hit_rate: (prompt_tokens > 0)
            .then(|| share(sum(|window| window.cached_tokens), prompt_tokens)),
        p50_ms: medians.get(medians.len() / 2).copied(),
        p99_ms: windows
            .iter()
            .filter_map(|window| window.p99_ms)
            .reduce(f64::max),
        agreement: equal(|sample| sample.agreement),
        agreement_idle: equal(|sample| sample.agreement_idle),
    }
}
