//! One chart of the last hour, with what happened on the same axis of time. Pure.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Widget as _};
use serde_json::Value;

use super::{Theme, cut};
use crate::page::model::Standing;
use crate::page::model::charts::Unit;
use crate::shown::{field, rows};

/// Without a value for so many seconds a line is broken.
const GAP_S: f64 = 25.0;
/// Lines differ by their colours, and by their dots where there is no colour.
const LOOKS: [(Color, Marker, &str); 4] = [
    (Color::Blue, Marker::Braille, "⣿"),
    (Color::Magenta, Marker::Dot, "•"),
    (Color::Cyan, Marker::Bar, "▄"),
    (Color::Yellow, Marker::Block, "█"),
];
/// Lines of a chart that are drawn below its title and legend, at least.
pub(super) const PLOT_MIN: u16 = 4;

/// Draws a chart of `GET /history`.
pub(super) fn draw(chart: &Value, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let unit = Unit::named(chart["unit"].as_str().unwrap_or_default()).unwrap_or(Unit::Count);
    let span = chart["span_s"].as_f64().unwrap_or(0.0).max(1.0);
    let (title, rest) = cut(area, 1);
    Line::styled(field(chart, "title"), theme.head()).render(title, buffer);
    let (legend, rest) = cut(rest, 1);
    let lines = rows(chart, "lines");
    Line::from(legend_of(lines, unit, theme)).render(legend, buffer);
    if rest.height < PLOT_MIN || rest.width < 20 {
        return;
    }
    let pieces: Vec<(usize, Vec<(f64, f64)>)> = lines
        .iter()
        .enumerate()
        .flat_map(|(at, line)| pieces(line, span).into_iter().map(move |piece| (at, piece)))
        .collect();
    let values = pieces
        .iter()
        .flat_map(|(_, piece)| piece)
        .map(|(_, value)| *value);
    let top = unit.top(values.fold(0.0, f64::max));
    let marks = marks(chart, span, top);
    let dataset = |(at, piece): &'_ (usize, Vec<(f64, f64)>)| {
        let (colour, marker, _) = LOOKS[at % LOOKS.len()];
        // A point alone has no line.
        let kind = if piece.len() > 1 {
            GraphType::Line
        } else {
            GraphType::Scatter
        };
        (marker, kind, theme.coloured(colour))
    };
    let drawn = pieces.iter().map(|piece| {
        let (marker, kind, style) = dataset(piece);
        Dataset::default()
            .data(&piece.1)
            .marker(marker)
            .graph_type(kind)
            .style(style)
    });
    let marked = marks.iter().map(|(marker, style, points)| {
        let set = Dataset::default()
            .data(points)
            .graph_type(GraphType::Scatter);
        set.marker(*marker).style(theme.of(*style))
    });
    let until = chart["until_s"].as_u64().unwrap_or(0);
    let since = until.saturating_sub(span as u64);
    let times = [since, since + span as u64 / 2, until].map(clock);
    Chart::new(drawn.chain(marked).collect())
        .legend_position(None)
        .x_axis(
            Axis::default()
                .bounds([0.0, span])
                .labels(times)
                .style(theme.soft()),
        )
        .y_axis(
            Axis::default()
                .bounds([0.0, top])
                .labels(["0".to_owned(), unit.written(top)])
                .style(theme.soft()),
        )
        .render(rest, buffer);
}

/// The names of the lines with their latest values.
fn legend_of<'a>(lines: &[Value], unit: Unit, theme: Theme) -> Vec<Span<'a>> {
    let mut spans = Vec::new();
    for (line, (colour, _, dot)) in lines.iter().zip(LOOKS.iter().cycle()) {
        let latest = rows(line, "points").last();
        // An older one says nothing of now: that of a worker that has left.
        let latest = latest.filter(|point| point[0].as_f64().is_some_and(|ago| ago < GAP_S));
        let latest = latest.and_then(|point| point[1].as_f64());
        let latest = latest.map_or("–".to_owned(), |value| unit.written(value));
        spans.push(Span::styled(format!("{dot} "), theme.coloured(*colour)));
        spans.push(Span::raw(format!("{} {latest}   ", field(line, "name"))));
    }
    spans
}

/// The parts of a line between gaps, in seconds since the left edge.
fn pieces(line: &Value, span: f64) -> Vec<Vec<(f64, f64)>> {
    let mut pieces: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut is_open = false;
    for point in rows(line, "points") {
        let (Some(ago), value) = (point[0].as_f64(), point[1].as_f64()) else {
            continue;
        };
        let x = span - ago;
        let Some(value) = value.filter(|_| x >= 0.0) else {
            is_open = false;
            continue;
        };
        match pieces.last_mut().filter(|_| is_open) {
            Some(piece) if piece.last().is_some_and(|(last, _)| x - last < GAP_S) => {
                piece.push((x, value))
            }
            _ => pieces.push(vec![(x, value)]),
        }
        is_open = true;
    }
    pieces
}

type Marks = (Marker, Standing, Vec<(f64, f64)>);

/// What happened, at the upper edge: each kind has a sign of its own.
fn marks(chart: &Value, span: f64, top: f64) -> [Marks; 3] {
    let of = |kind: &str| {
        let marks = rows(chart, "marks")
            .iter()
            .filter(|mark| mark["kind"] == kind);
        let at = marks.filter_map(|mark| Some((span - mark["ago_s"].as_f64()?, top)));
        at.collect::<Vec<_>>()
    };
    [
        (Marker::Custom('◆'), Standing::Meant, of("change")),
        (Marker::Custom('▲'), Standing::Well, of("repair")),
        (Marker::Custom('▼'), Standing::Bad, of("fault")),
    ]
}

/// `17:04`, of a second since 1970, in UTC.
fn clock(unix_s: u64) -> Span<'static> {
    let of_day = unix_s % 86_400;
    Span::styled(
        format!("{:02}:{:02}", of_day / 3_600, of_day / 60 % 60),
        Style::new(),
    )
}
