//! Views that are lists of lines: who hears whom, rings, agreement, events. Pure.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget as _};

use super::{Theme, sign};
use crate::cli::events::Event;
use crate::cli::top::app::App;
use crate::cli::top::picture::Picture;
use crate::page::model::{Standing, reason_in_words, rings as of_rings};
use crate::shown::links::{Cell, Matrix};
use crate::shown::words::{count, moment};
use crate::shown::{clean, field, rows};

/// Replicas in the table of who hears whom: those of which something is wrong first.
const LINKS_SHOWN: usize = 32;
/// Widest bar, in columns.
const BAR: f64 = 20.0;

/// Draws lines from the first that is wanted.
pub(super) fn draw(lines: Vec<Line<'_>>, app: &mut App, area: Rect, buffer: &mut Buffer) {
    let room = usize::from(area.height);
    app.page = room.max(1);
    app.row = app.row.min(lines.len().saturating_sub(room));
    let shown: Vec<_> = lines.into_iter().skip(app.row).take(room).collect();
    Paragraph::new(shown).render(area, buffer);
}

/// Who hears whom, as each tells by itself.
pub(super) fn links<'a>(picture: &Picture, theme: Theme) -> Vec<Line<'a>> {
    let matrix = Matrix::of(&picture.links, LINKS_SHOWN);
    if matrix.ids.len() < 2 {
        return Vec::new();
    }
    let widths = matrix.ids.iter().map(|id| Span::raw(&**id).width().max(3));
    let widths: Vec<_> = widths.collect();
    let first = widths.iter().copied().max().unwrap_or(0).max("HEARS".len());
    let mut head = format!("{:first$}", "HEARS");
    for (id, width) in matrix.ids.iter().zip(&widths) {
        head.push_str(&format!("  {id:width$}"));
    }
    let mut lines = vec![Line::default(), Line::styled(head, theme.head())];
    for (id, row) in matrix.ids.iter().zip(&matrix.rows) {
        let mut spans = vec![Span::raw(format!("{id:first$}"))];
        for (cell, width) in row.iter().zip(&widths) {
            let style = match cell {
                Cell::Itself => theme.soft(),
                Cell::Heard(_) => theme.of(Standing::Well),
                Cell::Unheard => theme.of(Standing::Bad),
                Cell::Untold => theme.of(Standing::Doubtful),
            };
            spans.push(Span::styled(format!("  {:width$}", cell.word()), style));
        }
        lines.push(Line::from(spans));
    }
    if matrix
        .rows
        .iter()
        .flatten()
        .any(|cell| *cell == Cell::Untold)
    {
        let text = "?: it is not heard by the asked replica, or its release does not tell";
        lines.push(Line::styled(text, theme.soft()));
    }
    if matrix.more > 0 {
        let text = format!("and {} more {}", matrix.more, matrix.rest_in_words());
        lines.push(Line::styled(text, theme.soft()));
    }
    lines
}

/// Who owns what.
pub(super) fn rings<'a>(picture: &Picture, theme: Theme) -> Vec<Line<'a>> {
    let digest = field(&picture.rings, "digest");
    let mut lines = vec![Line::raw(format!(
        "digest of all rings {digest}; a share is the part of all prefixes whose home a worker is"
    ))];
    let listed = of_rings::listed(&picture.rings);
    for ring in &listed.rows {
        lines.push(Line::default());
        let role = match ring.role.as_str() {
            "any" => String::new(),
            role => format!(" ({role})"),
        };
        let text = format!(
            "{}{role}: {} workers, policy {}, digest {}",
            ring.model, ring.count, ring.policy, ring.digest
        );
        lines.push(Line::styled(text, theme.head()));
        if ring.panics {
            let text = format!(
                "{} more than half are bad: health is not believed",
                sign(Standing::Bad)
            );
            lines.push(Line::styled(text, theme.of(Standing::Bad)));
        }
        let shares = || ring.owners.rows.iter().map(|(_, share)| *share);
        let widest = shares().fold(1e-9, f64::max);
        for (worker, share) in &ring.owners.rows {
            lines.push(Line::raw(format!(
                "{:5.1} %  {:20}  {worker}",
                share * 100.0,
                bar(share / widest)
            )));
        }
        if ring.owners.more > 0 {
            let text = format!(
                "{:5.1} %  {} more together",
                ring.rest * 100.0,
                ring.owners.more
            );
            lines.push(Line::styled(text, theme.soft()));
        }
    }
    if listed.more > 0 {
        lines.push(Line::styled(
            format!("and {} more rings", listed.more),
            theme.soft(),
        ));
    }
    lines
}

fn bar(share: f64) -> String {
    "█".repeat((share * BAR).round().clamp(0.0, BAR) as usize)
}

/// Whether replicas decide alike, and why not.
pub(super) fn agreement<'a>(picture: &Picture, theme: Theme, width: u16) -> Vec<Line<'a>> {
    let cluster = &picture.cluster;
    let digests = format!(
        "{} of {} live replicas have the ring {} and the settings of {}",
        field(cluster, "agreeing"),
        field(cluster, "live"),
        field(cluster, "digest"),
        field(cluster, "replica"),
    );
    let compared = match cluster["agreement"].as_f64() {
        None => "nothing was compared yet: it needs requests, and another replica that is ready"
            .to_owned(),
        Some(ratio) => format!(
            "of the last {} requests compared, a peer would have chosen the same worker for {:.1} %",
            field(cluster, "agreement_samples"),
            ratio * 100.0,
        ),
    };
    let mut lines = vec![Line::raw(digests), Line::raw(compared), Line::default()];
    let reasons = rows(&picture.history, "agreement").iter();
    let reasons: Vec<_> = reasons
        .map(|row| (field(row, "reason"), row["count"].as_u64().unwrap_or(0)))
        .collect();
    let all: u64 = reasons.iter().map(|(_, count)| count).sum();
    if all == 0 {
        return lines;
    }
    lines.push(Line::styled("In the last hour", theme.head()));
    for (reason, count) in reasons.iter().filter(|(_, count)| *count > 0) {
        let share = *count as f64 / all as f64;
        let is_bad = reason == "settings" || reason == "membership";
        let style = if is_bad {
            theme.of(Standing::Doubtful)
        } else {
            Style::new()
        };
        let bar = if width >= 60 {
            format!("{:20}  ", bar(share))
        } else {
            String::new()
        };
        let text = format!(
            "{:5.1} %  {bar}{count:>8}  {}",
            share * 100.0,
            reason_in_words(reason)
        );
        lines.push(Line::styled(text, style));
    }
    lines
}

/// What happened, below whom of those that saw it nobody could ask.
pub(super) fn events<'a>(picture: &Picture, theme: Theme) -> Vec<Line<'a>> {
    let mut lines: Vec<_> = picture
        .not_asked
        .iter()
        .map(|why| {
            let text = format!("{} not asked: {}", sign(Standing::Doubtful), clean(why));
            Line::styled(text, theme.of(Standing::Doubtful))
        })
        .collect();
    lines.extend(happened(picture, theme));
    lines
}

/// What happened, in so many lines: who was not asked is one, so that it hides nothing.
pub(super) fn latest<'a>(picture: &Picture, theme: Theme, room: usize) -> Vec<Line<'a>> {
    let mut lines = happened(picture, theme);
    let not_asked = picture.not_asked.len();
    if not_asked > 0 {
        lines.truncate(room.saturating_sub(1).max(1));
        let who = count(not_asked, "replica");
        let text = format!(
            "{} {who} not asked: view 7, or `grapevine events`",
            sign(Standing::Doubtful)
        );
        lines.push(Line::styled(text, theme.of(Standing::Doubtful)));
    }
    lines.truncate(room);
    lines
}

/// The latest first: that is what somebody looks for.
fn happened<'a>(picture: &Picture, theme: Theme) -> Vec<Line<'a>> {
    if picture.events.is_empty() {
        let text = "nothing in the last hour, or since these replicas started";
        return vec![Line::styled(text, theme.soft())];
    }
    let latest = picture.events.iter().rev();
    latest.map(|event| line(event, theme)).collect()
}

/// One event.
fn line<'a>(event: &Event, theme: Theme) -> Line<'a> {
    let (mark, standing) = match event.kind.as_str() {
        "fault" => ("▼", Standing::Bad),
        "repair" => ("▲", Standing::Well),
        _ => ("◆", Standing::Meant),
    };
    let time = humantime::format_rfc3339_seconds(moment(event.at_s)).to_string();
    let time = time.get(11..19).unwrap_or_default().to_owned();
    let kind = format!("  {mark} {:6}  ", event.kind);
    let text = clean(&format!("{} {}", event.who, event.text)).into_owned();
    Line::from(vec![
        Span::raw(time),
        Span::styled(kind, theme.of(standing)),
        Span::raw(text),
        Span::styled(
            format!("  seen by {}", clean(&event.seen_by.join(", "))),
            theme.soft(),
        ),
    ])
}
