//! Series over time as SVG: one panel, drawn over the faults of the run.
//!
//! The style sheet sets colours and line widths. The script shows values at the cursor; it reads the points
//! from JSON in the panel.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};
use serde_json::json;

use super::mark::{Mark, MarkKind};
use super::scale::{Scale, clock, clock_tenths, short, time_ticks};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 180.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 158.0;
/// Colours and dash patterns in the style sheet.
const COLOURS: usize = 6;
/// Stretches of time in one drawn series: of each, the least and the greatest point are drawn.
const STRETCHES: usize = 400;

/// The run's time, as all panels show it.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    pub until_ms: u64,
    pub left: f64,
    pub right: f64,
}

impl Axis {
    pub fn x(&self, ms: u64) -> f64 {
        let share = ms.min(self.until_ms) as f64 / self.until_ms.max(1) as f64;
        self.left + share * (self.right - self.left)
    }

    /// Faults as bands from `top` to `bottom`, everything else as lines.
    pub fn marks(&self, marks: &[Mark], top: f64, bottom: f64) -> Markup {
        html! {
            @for mark in marks {
                @let from = self.x(mark.at_ms);
                @if mark.kind == MarkKind::Fault {
                    @let until = self.x(mark.until_ms.unwrap_or(self.until_ms));
                    rect class="band" x=(n(from)) y=(n(top)) width=(n((until - from).max(1.5)))
                        height=(n(bottom - top)) {
                        title { (describe(mark)) }
                    }
                } @else {
                    line class={ "mark " (mark.kind.as_str()) } x1=(n(from)) x2=(n(from)) y1=(n(top)) y2=(n(bottom)) {
                        title { (describe(mark)) }
                    }
                }
            }
        }
    }

    /// Labels of the axis below `bottom`.
    pub fn labels(&self, bottom: f64) -> Markup {
        html! {
            @for ms in time_ticks(self.until_ms) {
                @let x = self.x(ms);
                line class="tick" x1=(n(x)) x2=(n(x)) y1=(n(bottom)) y2=(n(bottom + 4.0)) {}
                text class="label" x=(n(x)) y=(n(bottom + 15.0)) text-anchor="middle" { (clock(ms)) }
            }
        }
    }
}

/// Text and times of a mark.
pub fn describe(mark: &Mark) -> String {
    let node = mark.node.as_ref().map(|node| format!("{node}: "));
    let until = mark.until_ms.filter(|until| *until > mark.at_ms);
    let until = until.map(|until| format!(" to {}", clock_tenths(until)));
    format!(
        "{}{} ({} at {}{})",
        node.unwrap_or_default(),
        mark.text,
        mark.kind.as_str(),
        clock_tenths(mark.at_ms),
        until.unwrap_or_default()
    )
}

/// One figure over time. `None` is an unknown value and breaks the line.
#[derive(Debug, Clone)]
pub struct Series {
    pub name: String,
    pub shape: Shape,
    pub points: Vec<(u64, Option<f64>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Straight from point to point.
    Line,
    /// A value holds until the next; equal lines of several series are drawn side by side.
    Step,
    /// Bars from 0 up, so that a single failure is visible; none where the value is 0. In the colour of
    /// failures.
    Bars,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// From 0 to the greatest value.
    Needed,
    /// The same for counts: no halves on the axis.
    Whole,
    /// From 0 to this.
    Fixed(f64),
    /// Decades.
    Log,
}

/// A plot with its title and legend.
pub struct Panel {
    pub title: &'static str,
    /// Explains the figures to readers who do not know the code.
    pub about: &'static str,
    pub unit: &'static str,
    pub range: Range,
    pub series: Vec<Series>,
}

impl Panel {
    /// True if there is nothing to show.
    pub fn is_empty(&self) -> bool {
        let known = |series: &Series| series.points.iter().any(|(_, value)| value.is_some());
        !self.series.iter().any(known)
    }

    pub fn draw(&self, until_ms: u64, marks: &[Mark]) -> Markup {
        let axis = Axis {
            until_ms,
            left: LEFT,
            right: RIGHT,
        };
        let values = || self.series.iter().flat_map(|series| &series.points);
        let values = || values().filter_map(|(_, value)| *value);
        let scale = match self.range {
            Range::Needed => Scale::linear(values()),
            Range::Whole => Scale::whole(values()),
            Range::Fixed(most) => Scale::Linear(most),
            Range::Log => Scale::log(values()),
        };
        let y = |value: f64| BOTTOM - scale.share(value) * (BOTTOM - TOP);
        let shown: Vec<Series> = self.series.iter().map(Series::thinned).collect();
        html! {
            figure.plot {
                figcaption {
                    strong { (self.title) } " "
                    span.unit { (self.unit) }
                    @for (index, series) in self.series.iter().enumerate() {
                        " " span.key {
                            (swatch(index, series.shape))
                            (series.name) " " span.value {}
                        }
                    }
                }
                svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" data-left=(LEFT) data-right=(RIGHT) {
                    title { (self.title) ". " (self.about) }
                    (axis.marks(marks, TOP, BOTTOM))
                    @for tick in scale.ticks() {
                        line class="grid" x1=(LEFT) x2=(RIGHT) y1=(n(y(tick))) y2=(n(y(tick))) {}
                        text class="label" x=(LEFT - 5.0) y=(n(y(tick) + 4.0)) text-anchor="end" { (short(tick)) }
                    }
                    (axis.labels(BOTTOM))
                    @for (index, series) in shown.iter().enumerate() {
                        // Equal step lines are drawn slightly apart.
                        @let lift = if series.shape == Shape::Step { index as f64 * 1.6 } else { 0.0 };
                        @let place = |(ms, value): (u64, f64)| (axis.x(ms), y(value) - lift);
                        path class={ (colour(index, series.shape)) " " (series.shape.class()) }
                            d=(series.path(place)) {}
                    }
                    line class="cursor" y1=(TOP) y2=(BOTTOM) {}
                }
                p.about { (self.about) }
                script type="application/json" { (PreEscaped(points_json(&shown))) }
            }
        }
    }
}

impl Shape {
    fn class(self) -> &'static str {
        match self {
            Self::Line | Self::Step => "line",
            Self::Bars => "bars",
        }
    }
}

impl Series {
    pub fn new(
        name: impl Into<String>,
        shape: Shape,
        points: impl Iterator<Item = (u64, Option<f64>)>,
    ) -> Self {
        Self {
            name: name.into(),
            shape,
            points: points.collect(),
        }
    }

    /// Keeps no more points than can be seen: of each stretch of time the first least and the first greatest
    /// one, and the gaps.
    fn thinned(&self) -> Self {
        if self.points.len() <= 2 * STRETCHES {
            return self.clone();
        }
        let stretch = self.points.len().div_ceil(STRETCHES);
        let mut points = Vec::with_capacity(2 * STRETCHES);
        for part in self.points.chunks(stretch) {
            let known = || {
                let known = part.iter().enumerate();
                known.filter_map(|(at, (_, value))| value.map(|value| (at, value)))
            };
            let least = known().min_by(|a, b| a.1.total_cmp(&b.1));
            let most = known().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
            let gap = part.iter().position(|(_, value)| value.is_none());
            let mut keep: Vec<usize> = [least.map(|l| l.0), most.map(|m| m.0), gap]
                .into_iter()
                .flatten()
                .collect();
            keep.sort_unstable();
            keep.dedup();
            points.extend(keep.into_iter().map(|at| part[at]));
        }
        Self {
            points,
            ..self.clone()
        }
    }

    /// The `d` of an SVG path.
    fn path(&self, place: impl Fn((u64, f64)) -> (f64, f64)) -> String {
        let mut path = String::new();
        let mut drawing = false;
        for (ms, value) in &self.points {
            let Some(value) = value else {
                drawing = false;
                continue;
            };
            let (x, y) = place((*ms, *value));
            // Writing into a string cannot fail.
            let _ = match self.shape {
                Shape::Bars if *value > 0.0 => write!(path, "M{x:.1} {BOTTOM}V{y:.1}"),
                Shape::Bars => Ok(()),
                _ if !drawing => write!(path, "M{x:.1} {y:.1}h.1"),
                Shape::Step => write!(path, "H{x:.1}V{y:.1}"),
                Shape::Line => write!(path, "L{x:.1} {y:.1}"),
            };
            drawing = true;
        }
        path
    }
}

fn colour(index: usize, shape: Shape) -> String {
    match shape {
        Shape::Bars => "bad".to_owned(),
        _ => format!("c{}", index % COLOURS),
    }
}

fn swatch(index: usize, shape: Shape) -> Markup {
    html! {
        svg.swatch viewBox="0 0 26 10" aria-hidden="true" {
            path class={ (colour(index, shape)) " " (shape.class()) }
                d=(if shape == Shape::Bars { "M13 10V1" } else { "M0 5H26" }) {}
        }
    }
}

/// What the script reads: `[[[ms, value], ...], ...]`, unknown as `null`. No `<` can end the script element.
fn points_json(series: &[Series]) -> String {
    let rounded = |value: f64| (value * 1_000.0).round() / 1_000.0;
    let one = |series: &Series| {
        let points = series.points.iter();
        json!(
            points
                .map(|(ms, value)| json!([ms, value.map(rounded)]))
                .collect::<Vec<_>>()
        )
    };
    let all: Vec<_> = series.iter().map(one).collect();
    json!(all).to_string().replace('<', "\\u003c")
}

/// A coordinate, to a tenth.
pub fn n(value: f64) -> String {
    format!("{value:.1}")
}

/// Series by name, from the values that each sample has for each name.
pub fn by_name<'a>(
    shape: Shape,
    values: impl Iterator<Item = (u64, &'a str, Option<f64>)>,
) -> Vec<Series> {
    let mut series: BTreeMap<&str, Vec<(u64, Option<f64>)>> = BTreeMap::new();
    for (ms, name, value) in values {
        series.entry(name).or_default().push((ms, value));
    }
    let series = series.into_iter();
    series
        .map(|(name, points)| Series::new(name, shape, points.into_iter()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(shape: Shape, points: &[(u64, Option<f64>)]) -> Series {
        Series::new("s", shape, points.iter().copied())
    }

    #[test]
    fn lines_break_where_nobody_knows_and_bars_leave_zeros_out() {
        let points = [(0, Some(1.0)), (10, Some(2.0)), (20, None), (30, Some(0.0))];
        let place = |(ms, value): (u64, f64)| (ms as f64, value);
        let path = |shape| series(shape, &points).path(place);
        assert_eq!(path(Shape::Line), "M0.0 1.0h.1L10.0 2.0M30.0 0.0h.1");
        assert_eq!(path(Shape::Step), "M0.0 1.0h.1H10.0V2.0M30.0 0.0h.1");
        assert_eq!(path(Shape::Bars), "M0.0 158V1.0M10.0 158V2.0");
    }

    #[test]
    fn thinning_keeps_peaks_and_gaps() {
        let mut points: Vec<_> = (0..10_000).map(|at| (at, Some(5.0))).collect();
        points[4_321].1 = Some(90.0);
        points[7_654].1 = None;
        let thinned = series(Shape::Line, &points).thinned();
        assert!(thinned.points.len() <= 3 * STRETCHES);
        assert!(thinned.points.contains(&(4_321, Some(90.0))));
        assert!(thinned.points.contains(&(7_654, None)));
        assert!(thinned.points.is_sorted_by_key(|(ms, _)| *ms));
    }

    #[test]
    fn texts_cannot_leave_their_place() {
        let panel = Panel {
            title: "t",
            about: "a",
            unit: "u",
            range: Range::Needed,
            series: vec![Series::new(
                "<b>&\"",
                Shape::Line,
                [(0, Some(1.0))].into_iter(),
            )],
        };
        let mark = Mark {
            at_ms: 0,
            until_ms: None,
            kind: MarkKind::Fault,
            node: Some("<script>".into()),
            text: "</title>".into(),
        };
        let drawn = panel.draw(1_000, &[mark]).into_string();
        assert!(drawn.contains("&lt;b&gt;&amp;&quot;"), "{drawn}");
        assert!(!drawn.contains("<b>") && !drawn.contains("<script>"));
        assert_eq!(
            drawn.matches("</title>").count(),
            2,
            "its own and the panel's"
        );
    }
}
