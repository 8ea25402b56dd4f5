//! Tables of replicas and workers. Columns stand in the order of what they are worth: the last ones go first where
//! there is no room. Pure.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;
use serde_json::Value;

use super::{Theme, sign};
use crate::cli::top::app::App;
use crate::cli::top::picture::Picture;
use crate::page::model::Standing;
use crate::page::model::replicas;
use crate::page::model::workers::{self, short};

/// Between two columns.
const GAP: u16 = 2;
/// A name longer than this is cut off while other columns want room.
const NAME_MAX: u16 = 36;

type Cell = (String, Style);

/// Draws the replicas, the worst first; returns how many lines it took.
pub(super) fn replicas(
    picture: &Picture,
    theme: Theme,
    app: Option<&mut App>,
    area: Rect,
    buffer: &mut Buffer,
) -> u16 {
    let cluster = &picture.cluster;
    let doubt = |is: bool| {
        if is {
            theme.of(Standing::Doubtful)
        } else {
            Style::new()
        }
    };
    let all = replicas::sorted(cluster);
    let cells = |replica: &Value| {
        let row = replicas::row(cluster, replica);
        let ring = match (row.is_other_ring, row.is_other_settings) {
            (true, _) => format!("{} (another)", row.ring),
            (false, true) => format!("{} (other settings)", row.ring),
            (false, false) => row.ring,
        };
        vec![
            (row.id, Style::new()),
            (
                format!("{} {}", sign(row.standing), row.state),
                theme.of(row.standing),
            ),
            (row.heard, doubt(row.is_silent)),
            (ring, doubt(row.is_other_ring || row.is_other_settings)),
            (row.certificate, doubt(row.is_certificate_short)),
            (row.version, doubt(row.is_other_version)),
            (row.admin, Style::new()),
            (row.registry, theme.soft()),
        ]
    };
    let heads = [
        "REPLICA",
        "STATE",
        "HEARD FROM HERE",
        "RING",
        "CERTIFICATE",
        "VERSION",
        "ADMIN",
        "REGISTRY",
    ];
    draw(&heads, (&all, cells), theme, app, area, buffer)
}

/// Draws the workers, the worst first, then the busiest; returns how many lines it took.
pub(super) fn workers(
    picture: &Picture,
    theme: Theme,
    app: Option<&mut App>,
    area: Rect,
    buffer: &mut Buffer,
) -> u16 {
    let all = workers::sorted(&picture.workers);
    let cells = |worker: &Value| {
        let row = workers::row(worker);
        let load = match row.most {
            Some(most) => format!("{} of {most}", short(row.in_flight)),
            None => short(row.in_flight),
        };
        let hits = row
            .hit_rate
            .map_or("–".to_owned(), |share| format!("{:.0} %", share * 100.0));
        let is_closed = row.breaker == "closed";
        let breaker = if is_closed {
            Style::new()
        } else {
            theme.of(Standing::Doubtful)
        };
        vec![
            (row.id, Style::new()),
            (
                format!("{} {}", sign(row.standing), row.state),
                theme.of(row.standing),
            ),
            (load, Style::new()),
            (row.here.to_string(), theme.soft()),
            (hits, Style::new()),
            (row.breaker, breaker),
            (row.role, Style::new()),
            (row.models, Style::new()),
            (row.notes.join("; "), theme.soft()),
            (row.sources, theme.soft()),
        ]
    };
    let heads = [
        "WORKER",
        "STATE",
        "IN FLIGHT",
        "HERE",
        "HITS",
        "BREAKER",
        "ROLE",
        "MODELS",
        "NOTES",
        "SOURCES",
    ];
    draw(&heads, (&all, cells), theme, app, area, buffer)
}

/// Draws as much as there is room for; with an app its selected row stands out, and is among what is drawn. Cells are
/// made of what is drawn alone: there may be thousands of others.
fn draw(
    heads: &[&str],
    (all, cells): (&[&Value], impl Fn(&Value) -> Vec<Cell>),
    theme: Theme,
    app: Option<&mut App>,
    area: Rect,
    buffer: &mut Buffer,
) -> u16 {
    if area.is_empty() {
        return 0;
    }
    let room = usize::from(area.height - 1);
    let selected = app.map(|app| {
        app.page = room.max(1);
        app.row = app.row.min(all.len().saturating_sub(1));
        app.row
    });
    let first = selected.map_or(0, |selected| (selected + 1).saturating_sub(room));
    let shown = all.iter().skip(first).take(room);
    let rows: Vec<_> = shown.map(|row| cells(row)).collect();
    let columns = columns(heads, &rows, area);
    let mut line = |y: u16, cells: &[Cell]| {
        for ((text, style), (x, width)) in cells.iter().zip(&columns) {
            put(text, *style, Rect::new(*x, y, *width, 1), buffer);
        }
    };
    let named: Vec<Cell> = heads
        .iter()
        .map(|head| ((*head).to_owned(), theme.head()))
        .collect();
    line(area.y, &named);
    let mut y = area.y;
    for cells in &rows {
        y += 1;
        line(y, cells);
    }
    if let Some(selected) = selected.filter(|_| !rows.is_empty() && room > 0) {
        let at = u16::try_from(selected - first).unwrap_or(0) + 1;
        let row = Rect {
            y: area.y + at,
            height: 1,
            ..area
        };
        buffer.set_style(row, Style::new().add_modifier(Modifier::REVERSED));
    }
    let left = all.len().saturating_sub(room);
    if selected.is_none() && left > 0 && room > 0 {
        // The last line says what it hides.
        let at = Rect {
            y,
            height: 1,
            ..area
        };
        buffer.set_style(at, Style::reset());
        let more = format!("and {} more", left + 1);
        put(
            &format!("{more:<width$}", width = usize::from(area.width)),
            theme.soft(),
            at,
            buffer,
        );
    }
    y - area.y + 1
}

/// Where each column that has room begins, and how wide it is.
fn columns(heads: &[&str], rows: &[Vec<Cell>], area: Rect) -> Vec<(u16, u16)> {
    let natural = |column: usize| {
        let cells = rows.iter().map(|row| Span::raw(&*row[column].0).width());
        let width = cells.max().unwrap_or(0).max(heads[column].len());
        u16::try_from(width).unwrap_or(u16::MAX)
    };
    let mut found = Vec::new();
    let (mut x, end) = (area.x, area.right());
    for column in 0..heads.len() {
        let wanted = match column {
            0 => natural(0).min(NAME_MAX.max(area.width / 3)),
            _ => natural(column),
        };
        let left = end.saturating_sub(x);
        // A piece of the first two is better than nothing; of the others it would mislead.
        if left == 0 || column > 1 && wanted > left {
            break;
        }
        found.push((x, wanted.min(left)));
        x = x.saturating_add(wanted).saturating_add(GAP);
    }
    found
}

/// Writes a text into one line; what does not fit ends with an ellipsis.
fn put(text: &str, style: Style, at: Rect, buffer: &mut Buffer) {
    let width = usize::from(at.width);
    let (end, _) = buffer.set_stringn(at.x, at.y, text, width, style);
    if Span::raw(text).width() > width && end > at.x {
        buffer.set_stringn(end - 1, at.y, "…", 1, style);
    }
}
