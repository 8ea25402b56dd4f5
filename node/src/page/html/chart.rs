//! A chart as SVG, drawn here: nothing is fetched for it. Pure.

use std::fmt::Write as _;
use std::time::Duration;

use maud::{Markup, html};

use super::clock;
use crate::page::history::marks::Kind;
use crate::page::model::charts::{Chart, Line};

/// Inner size of a chart, in its own units.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 96.0;
/// Room for the labels of the axes.
const LEFT: f64 = 50.0;
const TOP: f64 = 14.0;
const BELOW: f64 = 18.0;
/// Times with a label on the axis.
const TIMES: u32 = 4;
/// Without a sample for so long, the line is broken.
const GAP: Duration = Duration::from_secs(25);

/// A chart with its title, its legend and what it shows in words.
pub(super) fn figure(chart: &Chart) -> Markup {
    let most = most(chart);
    html! {
        figure {
            figcaption {
                b { (chart.title) }
                ul.legend {
                    @for (at, line) in chart.lines.iter().enumerate() {
                        li {
                            svg.swatch viewBox="0 0 24 8" aria-hidden="true" {
                                path class={ "line c" (at) } d="M0 4h24" {}
                            }
                            (line.name) " " b { (latest(line, chart)) }
                        }
                    }
                }
            }
            svg viewBox={ "0 0 " (LEFT + WIDTH + 8.0) " " (TOP + HEIGHT + BELOW) } role="img" aria-label=(in_words(chart)) {
                (grid(chart, most))
                (marks(chart))
                @for (at, line) in chart.lines.iter().enumerate() {
                    path class={ "line c" (at) } d=(path(line, chart, most)) {}
                }
                @if !has_points(chart) {
                    text.label x=(LEFT + WIDTH / 2.0) y=(TOP + HEIGHT / 2.0) text-anchor="middle" { "nothing yet" }
                }
            }
        }
    }
}

fn grid(chart: &Chart, most: f64) -> Markup {
    html! {
        @for part in [0.0, 0.5, 1.0] {
            @let y = TOP + HEIGHT * (1.0 - part);
            path.grid d={ "M" (LEFT) " " (y) "h" (WIDTH) } {}
            text.label x=(LEFT - 5.0) y=(y + 4.0) text-anchor="end" { (chart.unit.written(most * part)) }
        }
        @for n in 0..=TIMES {
            @let x = LEFT + WIDTH * f64::from(n) / f64::from(TIMES);
            @let ago = chart.span.as_secs() * u64::from(TIMES - n) / u64::from(TIMES);
            @let anchor = match n { 0 => "start", n if n == TIMES => "end", _ => "middle" };
            text.label x=(x) y=(TOP + HEIGHT + 14.0) text-anchor=(anchor) {
                (&clock(chart.until_unix_s.saturating_sub(ago))[..5])
            }
        }
    }
}

/// Each kind has a shape of its own at the top of its line.
fn marks(chart: &Chart) -> Markup {
    html! {
        @for (at, kind) in &chart.marks {
            @let x = x(*at, chart);
            @let shape = match kind {
                Kind::Fault => "l-4-8h8z",
                Kind::Repair => "m-4 0l4-8 4 8z",
                Kind::Change => "l-4-4 4-4 4 4z",
            };
            path class={ "mark " (kind.as_str()) } d={ "M" (x) " " (TOP) "v" (HEIGHT) } {}
            path class={ "shape " (kind.as_str()) } d={ "M" (x) " " (TOP - 2.0) (shape) } {}
        }
    }
}

/// Whole units, each from the one before: as short as a path can be.
fn path(line: &Line, chart: &Chart, most: f64) -> String {
    let mut path = String::with_capacity(line.points.len() * 5);
    let mut before: Option<(Duration, i64, i64)> = None;
    for (at, value) in &line.points {
        if !value.is_finite() {
            before = None;
            continue;
        }
        let share = (f64::from(*value) / most).clamp(0.0, 1.0);
        let (x, y) = (x(*at, chart), (TOP + HEIGHT * (1.0 - share)).round() as i64);
        let follows = before.filter(|(last, ..)| at.saturating_sub(*last) < GAP);
        // Writing into a string cannot fail. A point alone is shown by the round end of its line.
        let _ = match follows {
            Some((_, from, level)) if level == y => write!(path, "h{}", x - from),
            Some((_, from, level)) => write!(path, "l{} {}", x - from, y - level),
            None => write!(path, "M{x} {y}h0"),
        };
        before = Some((*at, x, y));
    }
    path
}

fn x(at: Duration, chart: &Chart) -> i64 {
    let ago = chart.until.saturating_sub(at).as_secs_f64();
    let share = 1.0 - (ago / chart.span.as_secs_f64()).min(1.0);
    (LEFT + WIDTH * share).round() as i64
}

/// The greatest value of the axis: a round number above all of them.
fn most(chart: &Chart) -> f64 {
    let values = chart.lines.iter().flat_map(|line| &line.points);
    let values = values.map(|(_, value)| f64::from(*value));
    chart
        .unit
        .top(values.filter(|value| value.is_finite()).fold(0.0, f64::max))
}

fn has_points(chart: &Chart) -> bool {
    let points = chart.lines.iter().flat_map(|line| &line.points);
    points.clone().any(|(_, value)| value.is_finite())
}

/// The latest value, unless it is so old that the line would be broken.
fn latest(line: &Line, chart: &Chart) -> String {
    let is_new = |at: Duration| chart.until.saturating_sub(at) < GAP;
    match line.points.last() {
        Some((at, value)) if value.is_finite() && is_new(*at) => {
            chart.unit.written(f64::from(*value))
        }
        _ => "–".to_owned(),
    }
}

fn in_words(chart: &Chart) -> String {
    let of = |line: &Line| {
        let values = line.points.iter().map(|(_, value)| f64::from(*value));
        let most = values.filter(|value| value.is_finite()).reduce(f64::max);
        let most = most.map_or("–".to_owned(), |most| chart.unit.written(most));
        let now = latest(line, chart);
        format!("{} {now} now, {most} at most", line.name)
    };
    let lines: Vec<String> = chart.lines.iter().map(of).collect();
    let minutes = chart.span.as_secs() / 60;
    format!(
        "{}, last {minutes} minutes: {}",
        chart.title,
        lines.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::model::charts::Unit;

    fn chart(points: &[(u64, f32)]) -> Chart {
        let points = points
            .iter()
            .map(|(s, value)| (Duration::from_secs(*s), *value));
        Chart {
            id: "c",
            title: "T",
            unit: Unit::Seconds,
            lines: vec![Line {
                name: "n",
                points: points.collect(),
            }],
            marks: vec![(Duration::from_secs(3_600), Kind::Fault)],
            until: Duration::from_secs(3_600),
            span: Duration::from_secs(3_600),
            until_unix_s: 86_400 * 20_000 + 3_600,
        }
    }

    #[test]
    fn lines_break_where_nothing_was_observed_and_where_no_sample_is() {
        let chart = chart(&[(0, 0.5), (10, 0.5), (20, f32::NAN), (30, 1.0), (1_830, 1.0)]);
        let path = path(&chart.lines[0], &chart, 1.0);
        assert_eq!(path, "M50 62h0h1M53 14h0M233 14h0");
        let drawn = figure(&chart).0;
        assert!(drawn.contains("n – now, 1 s at most"), "{drawn}");
        assert!(
            drawn.contains(">00:00<") && drawn.contains(">01:00<"),
            "{drawn}"
        );
        assert!(drawn.contains("mark fault"), "{drawn}");
    }

    #[test]
    fn what_ended_long_ago_is_not_now() {
        let now = |at| figure(&chart(&[(at, 0.5)])).0.contains("n 500 ms now");
        assert_eq!([3_590, 3_560, 30].map(now), [true, false, false]);
    }

    #[test]
    fn an_hour_of_points_is_a_few_kilobytes() {
        let points: Vec<_> = (0..360).map(|n| (n * 10, (n * 37 % 100) as f32)).collect();
        let drawn = figure(&chart(&points)).0;
        assert!(drawn.len() < 5_000, "{}", drawn.len());
        assert!(figure(&chart(&[])).0.contains("nothing yet"));
    }
}
