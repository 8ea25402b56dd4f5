//! Figures over the last hour, all on one axis of time with the marks. Pure.

use std::time::Duration;

use grapevine_placement::named;

use super::workers::short;
use crate::page::history::marks::{Kind, Mark};
use crate::page::history::tracks::{ReplicaSample, WorkerSample};
use crate::page::history::{EVERY, History, Moment, OUTCOMES, Sample, hour};

/// One line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// What it shows.
    pub name: &'static str,
    /// When, since the start of the replica, and how much; NaN breaks the line.
    pub points: Vec<(Duration, f32)>,
}

named! {
    /// What the numbers of a chart are.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Unit {
        /// Things.
        Count = "count",
        /// Things a second.
        PerSecond = "per_second",
        /// Seconds.
        Seconds = "seconds",
        /// 0 to 1, shown in percent.
        Share = "share",
    }
}

impl Unit {
    /// The unit of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.as_str() == name)
    }

    /// A value for people: `120 ms`, `87 %`.
    pub fn written(self, value: f64) -> String {
        match self {
            Self::Share => format!("{:.0} %", value * 100.0),
            Self::Seconds if value == 0.0 => "0".to_owned(),
            Self::Seconds if value < 1.0 => format!("{} ms", short(value * 1e3)),
            Self::Seconds => format!("{} s", short(value)),
            Self::Count | Self::PerSecond => short(value),
        }
    }

    /// The top of an axis: a round number above all values, whose greatest is `most`.
    pub fn top(self, most: f64) -> f64 {
        let least = match self {
            Self::Share => return 1.0,
            Self::Count => 2.0,
            Self::PerSecond => 1.0,
            Self::Seconds => 1e-3,
        };
        let most = most.max(least);
        let unit = 10_f64.powi(most.log10().floor() as i32);
        let steps = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0].map(|step| step * unit);
        let fits = steps.into_iter().find(|step| *step >= most * (1.0 - 1e-9));
        fits.unwrap_or(most)
    }
}

/// One chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Its name in the page.
    pub id: &'static str,
    /// Its title.
    pub title: &'static str,
    /// What its numbers are.
    pub unit: Unit,
    /// Its lines.
    pub lines: Vec<Line>,
    /// What happened meanwhile.
    pub marks: Vec<(Duration, Kind)>,
    /// The time at its right edge.
    pub until: Duration,
    /// The time between its edges: an hour, or what there is of it.
    pub span: Duration,
    /// The same by the clock, in seconds since 1970.
    pub until_unix_s: u64,
}

/// The time between the edges is a multiple of this, so that each of the four parts of an axis is whole minutes.
const SPAN_STEP: Duration = Duration::from_secs(4 * 60);

/// Which outcomes are shown together.
const GROUPS: [(&str, &[&str]); 4] = [
    ("whole", &["success"]),
    ("client left", &["client_left"]),
    ("answered with an error", &["error"]),
    (
        "broken off",
        &[
            "incomplete",
            "worker_error",
            "worker_broke",
            "worker_stalled",
            "out_of_time",
            "shut_down",
        ],
    ),
];

/// Charts of the whole cluster, as this replica counts.
pub fn of_cluster(history: &History, now: Moment) -> Vec<Chart> {
    let line = |name, value: &dyn Fn(&Sample) -> f32| Line {
        name,
        points: history.samples().map(|of| (of.at, value(of))).collect(),
    };
    let chart = |id, title, unit, lines| {
        chart((id, title, unit), lines, history.marks.iter(), history, now)
    };
    let outcomes = GROUPS.map(|(name, group)| line(name, &|of| per_second(of, group)));
    vec![
        chart(
            "requests",
            "Requests that ended here, a second",
            Unit::PerSecond,
            outcomes.into(),
        ),
        chart(
            "first-token",
            "Time to the first token",
            Unit::Seconds,
            vec![
                line("median", &|of| of.first_token.p50),
                line("99 of 100", &|of| of.first_token.p99),
            ],
        ),
        chart(
            "inter-token",
            "Time between tokens",
            Unit::Seconds,
            vec![
                line("median", &|of| of.inter_token.p50),
                line("99 of 100", &|of| of.inter_token.p99),
            ],
        ),
        chart(
            "queue",
            "Time in queues, of requests that waited",
            Unit::Seconds,
            vec![
                line("median", &|of| of.queue.p50),
                line("99 of 100", &|of| of.queue.p99),
            ],
        ),
        chart(
            "load",
            "Requests under way",
            Unit::Count,
            vec![
                line("at workers, all replicas", &|of| of.levels.in_flight),
                line("waiting here", &|of| of.levels.waiting),
            ],
        ),
        chart(
            "agreement",
            "Peers that would choose the same worker",
            Unit::Share,
            vec![line("share of comparisons", &agreeing_share)],
        ),
        chart(
            "usable",
            "Workers and replicas",
            Unit::Count,
            vec![
                line("workers usable", &|of| of.levels.usable),
                line("workers", &|of| of.levels.workers),
                line("replicas alive", &|of| of.levels.live),
                line("of these, agreeing", &|of| of.levels.agreeing),
            ],
        ),
    ]
}

/// Charts of one worker; none where it has no history of its own.
pub fn of_worker(history: &History, id: &str, now: Moment) -> Vec<Chart> {
    let Some(track) = history.workers.of(id) else {
        return Vec::new();
    };
    let track: Vec<&(Duration, WorkerSample)> = track.collect();
    let marks = || history.marks.iter().filter(|mark| mark.is_of_worker(id));
    let level = |name, value: &dyn Fn(&WorkerSample) -> f32| Line {
        name,
        points: track.iter().map(|(at, of)| (*at, value(of))).collect(),
    };
    let grown = |name, value: &dyn Fn(&WorkerSample, &WorkerSample, f32) -> f32| Line {
        name,
        points: track
            .windows(2)
            .map(|pair| {
                let ((from, before), (at, now)) = (pair[0], pair[1]);
                (
                    *at,
                    value(
                        before,
                        now,
                        at.saturating_sub(*from).as_secs_f32().max(0.001),
                    ),
                )
            })
            .collect(),
    };
    let attempts = vec![
        grown("answered", &|a, b, s| {
            b.answered.saturating_sub(a.answered) as f32 / s
        }),
        grown("failed", &|a, b, s| {
            b.failed.saturating_sub(a.failed) as f32 / s
        }),
    ];
    let chart = |head, lines| chart(head, lines, marks(), history, now);
    vec![
        chart(
            (
                "worker-load",
                "Requests there, from all replicas",
                Unit::Count,
            ),
            vec![level("in flight", &|of| of.in_flight)],
        ),
        chart(
            (
                "attempts",
                "Attempts from this replica, a second",
                Unit::PerSecond,
            ),
            attempts,
        ),
        chart(
            ("hits", "Prompt tokens from its cache", Unit::Share),
            vec![grown("share of prompt tokens", &|a, b, _| hits(a, b))],
        ),
        chart(
            (
                "worker-usable",
                "May get requests (1) or not (0)",
                Unit::Count,
            ),
            vec![level("usable", &|of| of.is_usable.into())],
        ),
    ]
}

/// Charts of one replica; none where it has no history of its own.
pub fn of_replica(history: &History, id: &str, now: Moment) -> Vec<Chart> {
    let Some(track) = history.replicas.of(id) else {
        return Vec::new();
    };
    let line = |name, value: &dyn Fn(&ReplicaSample) -> f32| Line {
        name,
        points: track.clone().map(|(at, of)| (*at, value(of))).collect(),
    };
    let marks = || history.marks.iter().filter(|mark| mark.is_of_replica(id));
    let standing = vec![
        line("alive", &|of| of.is_live.into()),
        line("ready", &|of| of.is_ready.into()),
        line("same ring and settings", &|of| of.agrees.into()),
    ];
    let heard = vec![line("seconds", &|of| of.heard_ms / 1e3)];
    vec![
        chart(
            ("standing", "Yes (1) or no (0)", Unit::Count),
            standing,
            marks(),
            history,
            now,
        ),
        chart(
            ("heard", "Since it was heard, when looked at", Unit::Seconds),
            heard,
            marks(),
            history,
            now,
        ),
    ]
}

fn chart<'a>(
    (id, title, unit): (&'static str, &'static str, Unit),
    lines: Vec<Line>,
    marks: impl Iterator<Item = &'a Mark>,
    history: &History,
    now: Moment,
) -> Chart {
    // The axis moves with the samples, so that a chart is the same until there is a new one.
    let until = history.samples().next_back().map_or(now.at, |last| last.at);
    let first = history.samples().next().map_or(now.at, |first| first.at);
    let span = span(until.saturating_sub(first) + EVERY);
    let shown = until + EVERY;
    let oldest = shown.saturating_sub(span);
    let marks = marks.filter(|mark| mark.at >= oldest && mark.at <= shown);
    Chart {
        id,
        title,
        unit,
        lines,
        marks: marks.map(|mark| (mark.at, mark.kind)).collect(),
        until: shown,
        span,
        until_unix_s: now.unix_s(until) + EVERY.as_secs(),
    }
}

/// The time between the edges of a chart of what there is of the last hour.
fn span(there_is: Duration) -> Duration {
    let steps = there_is.as_secs().div_ceil(SPAN_STEP.as_secs()).max(1);
    let steps = u32::try_from(steps).unwrap_or(u32::MAX);
    SPAN_STEP.saturating_mul(steps).min(hour())
}

fn per_second(sample: &Sample, group: &[&str]) -> f32 {
    let of_group = OUTCOMES.iter().zip(sample.outcomes);
    let of_group = of_group.filter(|(name, _)| group.contains(name));
    of_group.map(|(_, count)| count as f32).sum::<f32>() / sample.over_s
}

fn agreeing_share(sample: &Sample) -> f32 {
    // The last verdict is that of a peer that gave none.
    let [same, differing @ .., _] = sample.verdicts;
    let all = same + differing.iter().sum::<u32>();
    same as f32 / all as f32
}

fn hits(before: &WorkerSample, now: &WorkerSample) -> f32 {
    if !now.tells || !now.may_follow(before) {
        return f32::NAN;
    }
    let prompt = now.prompt_tokens - before.prompt_tokens;
    let cached = now.cached_tokens - before.cached_tokens;
    cached as f32 / prompt as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_labels_of_a_young_chart_are_whole_minutes_apart() {
        let minutes = |there_is_s| span(Duration::from_secs(there_is_s)).as_secs_f64() / 60.0;
        assert_eq!(
            [0, 10, 240, 241, 600, 3_540, 3_600, 9_999].map(minutes),
            [4.0, 4.0, 4.0, 8.0, 12.0, 60.0, 60.0, 60.0]
        );
    }

    #[test]
    fn a_share_of_hits_is_one_or_none() {
        let sample = |prompt_tokens, cached_tokens, tells| WorkerSample {
            prompt_tokens,
            cached_tokens,
            tells,
            ..WorkerSample::default()
        };
        let before = sample(500, 100, true);
        assert_eq!(hits(&before, &sample(600, 190, true)), 0.9);
        for now in [
            sample(510, 200, true),
            sample(600, 100, false),
            sample(20, 0, true),
        ] {
            assert!(hits(&before, &now).is_nan(), "{now:?}");
        }
    }

    #[test]
    fn axes_end_at_round_numbers_and_units_are_found_by_their_names() {
        assert_eq!(
            [0.0, 3.0, 7.1, 99.0].map(|most| Unit::Count.top(most)),
            [2.0, 4.0, 8.0, 100.0]
        );
        assert_eq!((Unit::Share.top(0.2), Unit::Seconds.top(0.0)), (1.0, 1e-3));
        for unit in [Unit::Count, Unit::PerSecond, Unit::Seconds, Unit::Share] {
            assert_eq!(Unit::named(unit.as_str()), Some(unit));
        }
    }
}
