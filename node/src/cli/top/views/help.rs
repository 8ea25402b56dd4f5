//! The keys, and what signs mean.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Widget as _};

use super::Theme;

const KEYS: [(&str, &str); 10] = [
    (
        "1 ... 7",
        "a view: overview, replicas, workers, rings, last hour, agreement, events",
    ),
    ("Tab, →, l", "the next view; Shift-Tab, ←: the one before"),
    ("↑ ↓, k j", "one row up or down"),
    ("PgUp, PgDn", "one page; Space: down"),
    ("Home, End", "the first and the last row; g and G, too"),
    (
        "Enter",
        "of replicas and workers: the last hour of the selected one",
    ),
    ("Esc", "back"),
    ("r", "ask now"),
    ("?", "these keys; any key ends them"),
    ("q, Ctrl-C", "end"),
];
const SIGNS: &str = "✖ does not work  ▲ somebody should look  ◆ as somebody wants it  ● works";

pub(super) fn draw(theme: Theme, area: Rect, buffer: &mut Buffer) {
    let mut lines = vec![Line::styled("grapevine top", theme.head()), Line::default()];
    for (key, what) in KEYS {
        lines.push(Line::raw(format!("{key:12}{what}")));
    }
    lines.push(Line::default());
    lines.push(Line::raw(SIGNS));
    Paragraph::new(lines).render(area, buffer);
}
