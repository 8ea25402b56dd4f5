//! Faults and repairs of each node, and the condition of each replica: one row for each node, on the run's
//! axis.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::super::record::{Mark, MarkKind, Record, ReplicaSample, ReplicaState, Sample};
use grapevine_bench::charts::{Axis, describe, n};

const WIDTH: f64 = 1_460.0;
const LEFT: f64 = 110.0;
const RIGHT: f64 = 1_436.0;
const TOP: f64 = 8.0;
const ROW: f64 = 22.0;
/// With more marks than this their texts would overlap; the table has them.
const LABELS_MAX: usize = 40;
/// Width of a character of a label, in the SVG's units.
const CHARACTER: f64 = 6.2;

/// Condition of a replica, for its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Well,
    /// Its ring differs from that of most others.
    Apart,
    NotReady,
    Silent,
    Stopped,
}

impl Condition {
    const ALL: [Self; 5] = [
        Self::Well,
        Self::Apart,
        Self::NotReady,
        Self::Silent,
        Self::Stopped,
    ];

    fn class(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Apart => "apart",
            Self::NotReady => "unready",
            Self::Silent => "silent",
            Self::Stopped => "stopped",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Well => "ready, ring as the others'",
            Self::Apart => "another ring than the others",
            Self::NotReady => "not ready",
            Self::Silent => "does not answer",
            Self::Stopped => "stopped by the scenario",
        }
    }

    fn of(replica: &ReplicaSample, common: Option<&str>) -> Self {
        match (replica.state, &replica.seen) {
            (ReplicaState::Stopped, _) => Self::Stopped,
            (ReplicaState::Silent, _) | (_, None) => Self::Silent,
            (_, Some(seen)) if !seen.ready => Self::NotReady,
            (_, Some(seen)) if Some(seen.ring.as_str()) != common => Self::Apart,
            _ => Self::Well,
        }
    }
}

/// The ring digest that most replicas of a sample hold; on a tie, the first by name.
fn common_ring(sample: &Sample) -> Option<&str> {
    let held = |ring: &str| {
        let seen = sample.replicas.iter().filter_map(|one| one.seen.as_ref());
        seen.filter(|seen| seen.ring == ring).count()
    };
    let rings = sample.rings().into_iter().rev();
    rings.max_by_key(|ring| held(ring))
}

/// Times over which one replica had a condition: from, until.
fn conditions(record: &Record, name: &str) -> Vec<(u64, u64, Condition)> {
    let mut stretches: Vec<(u64, u64, Condition)> = Vec::new();
    for (index, sample) in record.samples.iter().enumerate() {
        let Some(replica) = sample.replicas.iter().find(|one| one.name == name) else {
            continue;
        };
        let next = record.samples.get(index + 1);
        let until = next.map_or(record.duration_ms, |next| next.at_ms);
        let condition = Condition::of(replica, common_ring(sample));
        match stretches.last_mut() {
            Some(last) if last.2 == condition && last.1 == sample.at_ms => last.1 = until,
            _ => stretches.push((sample.at_ms, until.max(sample.at_ms), condition)),
        }
    }
    stretches
}

/// A row of the picture: its name, and its marks on as many lines as they need so that none covers another.
struct Row<'a> {
    name: &'a str,
    is_replica: bool,
    /// Each with the line that it lies on.
    marks: Vec<(usize, &'a Mark)>,
    lines: usize,
}

fn rows(record: &Record) -> Vec<Row<'_>> {
    let replicas: BTreeSet<&str> = record
        .samples
        .iter()
        .flat_map(|sample| &sample.replicas)
        .map(|replica| replica.name.as_str())
        .collect();
    let others = record.marks.iter().filter_map(|mark| mark.node.as_deref());
    let others: BTreeSet<&str> = others.filter(|name| !replicas.contains(name)).collect();
    let cluster = record.marks.iter().any(|mark| mark.node.is_none());
    let cluster = cluster.then_some("cluster");
    let names = cluster.into_iter().map(|name| (name, None, false));
    let names = names
        .chain(replicas.into_iter().map(|name| (name, Some(name), true)))
        .chain(others.into_iter().map(|name| (name, Some(name), false)));
    names
        .map(|(name, node, is_replica)| {
            let marks = record.marks.iter();
            let marks = marks.filter(|mark| mark.node.as_deref() == node);
            stacked(name, is_replica, marks.collect(), record)
        })
        .collect()
}

/// Puts each mark on the first line where there is room.
fn stacked<'a>(name: &'a str, is_replica: bool, marks: Vec<&'a Mark>, record: &Record) -> Row<'a> {
    let axis = axis(record);
    let mut ends: Vec<f64> = Vec::new();
    let mut placed = Vec::with_capacity(marks.len());
    for mark in marks {
        let from = axis.x(mark.at_ms);
        let mut until = axis.x(mark_end(mark, record));
        if record.marks.len() <= LABELS_MAX {
            until = until.max(from + 16.0 + CHARACTER * mark.text.chars().count() as f64);
        }
        // A label at the right edge lies left of its mark.
        let from = if until > RIGHT {
            from - (until - RIGHT)
        } else {
            from
        };
        let line = ends.iter().position(|end| *end <= from);
        let line = line.unwrap_or_else(|| {
            ends.push(0.0);
            ends.len() - 1
        });
        ends[line] = until;
        placed.push((line, mark));
    }
    Row {
        name,
        is_replica,
        marks: placed,
        lines: ends.len().max(usize::from(!is_replica)),
    }
}

/// A fault without an end lasts as long as the run, a phase until the next; the others are moments.
fn mark_end(mark: &Mark, record: &Record) -> u64 {
    let is_next = |next: &&Mark| next.kind == MarkKind::Phase && next.at_ms > mark.at_ms;
    let next_phase = || record.marks.iter().find(is_next).map(|next| next.at_ms);
    match (mark.until_ms, mark.kind) {
        (Some(until), _) => until,
        (None, MarkKind::Fault) => record.duration_ms,
        (None, MarkKind::Phase) => next_phase().unwrap_or(record.duration_ms),
        (None, MarkKind::Heal | MarkKind::Note) => mark.at_ms,
    }
}

fn axis(record: &Record) -> Axis {
    Axis {
        until_ms: record.duration_ms,
        left: LEFT,
        right: RIGHT,
    }
}

pub(super) fn draw(record: &Record) -> Markup {
    let axis = axis(record);
    let rows = rows(record);
    let height_of = |row: &Row| ROW * (row.lines + usize::from(row.is_replica)) as f64 + 6.0;
    let below = |top: &mut f64, row: &Row| {
        *top += height_of(row);
        Some(*top)
    };
    let bottoms: Vec<f64> = rows.iter().scan(TOP, below).collect();
    let bottom = bottoms.last().copied().unwrap_or(TOP);
    html! {
        figure.timeline {
            figcaption {
                strong { "What happened" }
                @for condition in Condition::ALL {
                    " " span.key {
                        svg.swatch viewBox="0 0 26 10" aria-hidden="true" {
                            rect class=(condition.class()) width="26" height="10" {}
                            @if condition == Condition::Silent {
                                rect fill="url(#hatch)" width="26" height="10" {}
                            }
                        }
                        (condition.text())
                    }
                }
                " " span.key {
                    svg.swatch viewBox="0 0 26 10" aria-hidden="true" { rect.fault width="26" height="10" {} }
                    "fault"
                }
            }
            svg viewBox={ "0 0 " (WIDTH) " " (n(bottom + 22.0)) } role="img" data-left=(LEFT) data-right=(RIGHT) {
                title { "Faults, repairs and the condition of each replica over time; the table of events has the same as text" }
                defs {
                    pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                        rect.hatch width="3" height="6" {}
                    }
                }
                (axis.marks(&record.marks, TOP, bottom))
                @for (row, end) in rows.iter().zip(&bottoms) {
                    @let start = end - height_of(row);
                    text class="label name" x=(LEFT - 8.0) y=(n(start + 15.0)) text-anchor="end" { (row.name) }
                    line class="grid" x1=(LEFT) x2=(RIGHT) y1=(n(end - 3.0)) y2=(n(end - 3.0)) {}
                    @if row.is_replica {
                        @for (from, until, condition) in conditions(record, row.name) {
                            @let x = axis.x(from);
                            rect class=(condition.class()) x=(n(x)) y=(n(start + 4.0))
                                width=(n((axis.x(until) - x).max(1.0))) height=(n(ROW - 8.0)) {
                                title { (row.name) ": " (condition.text()) }
                            }
                            @if condition == Condition::Silent {
                                rect fill="url(#hatch)" x=(n(x)) y=(n(start + 4.0))
                                    width=(n((axis.x(until) - x).max(1.0))) height=(n(ROW - 8.0)) {}
                            }
                        }
                    }
                    @let offset = start + if row.is_replica { ROW } else { 0.0 };
                    @for (line, mark) in &row.marks {
                        (draw_mark(mark, &axis, record, offset + ROW * *line as f64))
                    }
                }
                (axis.labels(bottom))
                line class="cursor" y1=(TOP) y2=(n(bottom)) {}
            }
        }
    }
}

fn draw_mark(mark: &Mark, axis: &Axis, record: &Record, top: f64) -> Markup {
    let from = axis.x(mark.at_ms);
    let long = axis.x(mark_end(mark, record)) - from;
    let middle = top + ROW / 2.0;
    let label = record.marks.len() <= LABELS_MAX;
    let width = CHARACTER * mark.text.chars().count() as f64;
    let (x, anchor) = if from + 10.0 + width > RIGHT {
        (from - 6.0, "end")
    } else {
        (from + if long > 3.0 { 5.0 } else { 9.0 }, "start")
    };
    html! {
        @if long > 3.0 {
            rect class=(mark.kind.as_str()) x=(n(from)) y=(n(top + 3.0)) width=(n(long)) height=(n(ROW - 6.0)) rx="3" {
                title { (describe(mark)) }
            }
        } @else {
            path class=(mark.kind.as_str()) d={ "M" (n(from)) " " (n(middle - 6.0)) "l6 6l-6 6l-6 -6Z" } {
                title { (describe(mark)) }
            }
        }
        @if label {
            text class="label text" x=(n(x)) y=(n(middle + 4.0)) text-anchor=(anchor) { (mark.text) }
        }
    }
}
