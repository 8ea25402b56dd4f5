//! The last hour: of the cluster, of one worker, of one replica. Pure.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Widget as _;

use super::{Theme, chart, cut};
use crate::cli::top::app::{App, Subject};
use crate::cli::top::picture::Picture;
use crate::shown::{clean, rows};

/// Narrower charts show nothing.
const WIDTH: u16 = 56;
/// Higher ones show no more.
const HEIGHT: u16 = 12;

pub(super) fn draw(
    app: &mut App,
    picture: &Picture,
    theme: Theme,
    area: Rect,
    buffer: &mut Buffer,
) {
    let (head, area) = cut(area, 1);
    let of = match &app.of {
        Subject::Cluster => "the cluster, as this replica counts".to_owned(),
        Subject::Worker(id) => format!("worker {}; Esc: back", clean(id)),
        Subject::Replica(id) => format!("replica {}; Esc: back", clean(id)),
    };
    let text = format!("{of}; ▼ fault ▲ repair ◆ change; times are UTC");
    Line::styled(text, theme.soft()).render(head, buffer);
    let charts = rows(&picture.history, "charts");
    if charts.is_empty() {
        let text = "no history: it came within the last seconds, or there are too many to keep one of each";
        Line::raw(text).render(area, buffer);
        return;
    }
    let columns = (area.width / WIDTH).clamp(1, 3);
    let lines = charts.len().div_ceil(usize::from(columns));
    let height = area.height / u16::try_from(lines).unwrap_or(u16::MAX).max(1);
    let height = height
        .clamp(chart::PLOT_MIN + 3, HEIGHT)
        .min(area.height.max(1));
    let shown = usize::from((area.height / height).max(1));
    app.page = shown;
    app.row = app.row.min(lines.saturating_sub(shown));
    let first = app.row * usize::from(columns);
    let width = area.width / columns;
    for (at, chart) in charts.iter().skip(first).enumerate() {
        let Ok(at) = u16::try_from(at) else {
            return;
        };
        let (column, line) = (at % columns, at / columns);
        let place = Rect {
            x: area.x + column * width,
            y: area.y.saturating_add(line.saturating_mul(height)),
            width: width.saturating_sub(1),
            height: height.saturating_sub(1),
        };
        if usize::from(line) >= shown {
            return;
        }
        chart::draw(chart, theme, place.intersection(area), buffer);
    }
}
