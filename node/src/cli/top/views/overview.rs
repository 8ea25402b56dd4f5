//! The first view: how it goes, the worst replicas and workers, three charts, and what happened last. Pure.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Widget as _};

use super::{Theme, below, chart, cut, lists, table};
use crate::cli::status;
use crate::cli::top::picture::Picture;
use crate::page::model::Standing;
use crate::shown::{field, rows};

/// Charts of `GET /history` that stand here, if there is room.
const CHARTS: [&str; 3] = ["requests", "first-token", "load"];
const CHART_HEIGHT: u16 = 9;
/// Below this the charts go, rather than rows of tables.
const ROOM_FOR_CHARTS: u16 = 28;
/// Events that stand here, at least, where there is room for more than tables.
const EVENTS: u16 = 5;

pub(super) fn draw(picture: &Picture, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let lines = facts(picture, theme);
    let (at, mut area) = cut(area, u16::try_from(lines.len()).unwrap_or(u16::MAX));
    Paragraph::new(lines).render(at, buffer);
    let has_charts = area.height >= ROOM_FOR_CHARTS && area.width >= 60;
    let charts = if has_charts { CHART_HEIGHT + 1 } else { 0 };
    let events = if area.height >= 16 { EVENTS + 2 } else { 0 };
    let tables = area.height.saturating_sub(charts + events);
    let replicas = rows(&picture.cluster, "replicas").len();
    let replicas = u16::try_from(replicas)
        .unwrap_or(u16::MAX)
        .saturating_add(1)
        .min((tables / 2).max(2));
    for part in [Part::Replicas, Part::Workers] {
        let (at, _) = match part {
            Part::Replicas => cut(area, replicas),
            Part::Workers => cut(area, tables.saturating_sub(replicas + 1)),
        };
        let used = match part {
            Part::Replicas => table::replicas(picture, theme, None, at, buffer),
            Part::Workers => table::workers(picture, theme, None, at, buffer),
        };
        area = below(area, used + 1);
    }
    if has_charts {
        let (at, rest) = cut(area, CHART_HEIGHT);
        some_charts(picture, theme, at, buffer);
        area = below(rest, 1);
    }
    let Some(room) = usize::from(area.height)
        .checked_sub(1)
        .filter(|room| *room > 0)
    else {
        return;
    };
    let (head, area) = cut(area, 1);
    Line::styled("WHAT HAPPENED", theme.head()).render(head, buffer);
    Paragraph::new(lists::latest(picture, theme, room)).render(area, buffer);
}

enum Part {
    Replicas,
    Workers,
}

/// How it goes, and what does not fit a table.
fn facts<'a>(picture: &Picture, theme: Theme) -> Vec<Line<'a>> {
    let cluster = &picture.cluster;
    let mut lines = Vec::new();
    for twin in rows(cluster, "twins") {
        let text = format!(
            "✖ two processes run as {}: {} counts, {} is cut off and not ready; end one of them",
            field(twin, "id"),
            field(twin, "kept"),
            field(twin, "cut_off"),
        );
        lines.push(Line::styled(text, theme.of(Standing::Bad)));
    }
    let missing = field(cluster, "missing");
    if !missing.is_empty() && missing != "-" {
        let text = format!(
            "✖ {} takes no requests: {missing}",
            field(cluster, "replica")
        );
        lines.push(Line::styled(text, theme.of(Standing::Bad)));
    }
    lines.extend(status::minute(&cluster["minute"]).map(Line::raw));
    let mut rings = format!(
        "ring {}, {} of {} live replicas agree",
        field(cluster, "digest"),
        field(cluster, "agreeing"),
        field(cluster, "live"),
    );
    if let Some(ratio) = cluster["agreement"].as_f64() {
        rings.push_str(&format!(
            "; a peer chose the same worker for {:.1} % of requests",
            ratio * 100.0
        ));
    }
    lines.push(Line::raw(rings));
    lines.push(Line::default());
    lines
}

fn some_charts(picture: &Picture, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let all = rows(&picture.history, "charts").iter();
    let charts: Vec<_> = all
        .filter(|chart| CHARTS.contains(&chart["id"].as_str().unwrap_or_default()))
        .collect();
    let room = usize::from(area.width / 50).clamp(1, CHARTS.len());
    let width = area.width / u16::try_from(room).unwrap_or(1);
    let mut x = area.x;
    for chart in charts.into_iter().take(room) {
        let at = Rect {
            x,
            width: width.saturating_sub(1),
            ..area
        };
        chart::draw(chart, theme, at.intersection(area), buffer);
        x += width;
    }
}
