//! What is drawn, from top to bottom: what is wrong, the views' names, one view, and where this was asked. Pure.
//!
//! Any size is drawn: what has no room is left out, the least important first.

mod chart;
mod help;
mod hour;
mod lists;
mod overview;
mod table;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget as _, Wrap};

use super::app::App;
use super::picture::Picture;
use super::view::View;
use crate::page::model::Standing;
use crate::shown::{clean, field};

/// Lines that the headline may take.
const HEADLINE_MAX: u16 = 4;

/// How things look; without colours by weight alone. A sign and a word stand beside each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Theme {
    is_coloured: bool,
}

impl Theme {
    fn of(self, standing: Standing) -> Style {
        let (colour, modifier) = match standing {
            Standing::Bad => (Color::Red, Modifier::BOLD),
            Standing::Doubtful => (Color::Yellow, Modifier::BOLD),
            Standing::Meant => (Color::Cyan, Modifier::empty()),
            Standing::Well => (Color::Green, Modifier::empty()),
        };
        self.coloured(colour).add_modifier(modifier)
    }

    fn coloured(self, colour: Color) -> Style {
        match self.is_coloured {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    fn head(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn soft(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }
}

fn sign(standing: Standing) -> &'static str {
    match standing {
        Standing::Bad => "✖",
        Standing::Doubtful => "▲",
        Standing::Meant => "◆",
        Standing::Well => "●",
    }
}

/// The whole screen.
pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let theme = theme(app);
    if app.is_help {
        help::draw(theme, area, buffer);
        return;
    }
    let area = headline(app, area, buffer);
    let area = tabs(app, area, buffer);
    // The last line is worth more than the last row of a table, but not more than the only one.
    let (area, foot) = match area.height {
        0 | 1 => (area, None),
        height => {
            let foot = Rect {
                y: area.y + height - 1,
                height: 1,
                ..area
            };
            (
                Rect {
                    height: height - 1,
                    ..area
                },
                Some(foot),
            )
        }
    };
    view(app, area, buffer);
    if let Some(foot) = foot {
        footer(app, foot, buffer);
    }
}

/// What is wrong, and the view: what is printed once.
pub(super) fn draw_body(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let area = headline(app, area, buffer);
    let area = below(area, 1);
    view(app, area, buffer);
}

/// A buffer as text.
pub(super) fn plain(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut text = String::new();
    for y in area.top()..area.bottom() {
        let mut line = String::new();
        let mut skip = 0;
        for x in area.left()..area.right() {
            let symbol = buffer[(x, y)].symbol();
            if skip == 0 {
                line.push_str(symbol);
            }
            // A wide letter takes the next cell, too.
            let width = Span::raw(symbol).width();
            skip = if skip > 0 {
                skip - 1
            } else {
                width.saturating_sub(1)
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn theme(app: &App) -> Theme {
    Theme {
        is_coloured: app.is_coloured,
    }
}

/// What is left of an area below so many lines.
fn below(area: Rect, lines: u16) -> Rect {
    let lines = lines.min(area.height);
    Rect {
        y: area.y + lines,
        height: area.height - lines,
        ..area
    }
}

/// The first lines of an area, and what is left.
fn cut(area: Rect, lines: u16) -> (Rect, Rect) {
    let height = lines.min(area.height);
    (Rect { height, ..area }, below(area, lines))
}

fn headline(app: &App, area: Rect, buffer: &mut Buffer) -> Rect {
    let theme = theme(app);
    let known = app
        .picture
        .as_ref()
        .map(Picture::age)
        .zip(app.headline.as_ref());
    let (standing, text) = match (known, &app.failure) {
        // What is known is old: it is not to look well.
        (Some((age, known)), why) if why.is_some() || age > app.stale_after => {
            let text = format!("not live, of {} s ago: {}", age.as_secs(), known.text);
            (Standing::Bad, text)
        }
        (Some((_, known)), _) => {
            let standing = match known.is_wrong {
                true => Standing::Bad,
                false => Standing::Well,
            };
            (standing, known.text.clone())
        }
        (None, Some(why)) => (Standing::Bad, why.clone()),
        (None, None) => (Standing::Doubtful, "asking ...".to_owned()),
    };
    let text = format!("{} {}", sign(standing), clean(&text));
    let width = usize::from(area.width.max(1));
    // Words do not fill lines: a quarter more.
    let lines = (Span::raw(&*text).width() * 5 / 4).div_ceil(width).max(1);
    let lines = match Span::raw(&*text).width() <= width {
        true => 1,
        false => u16::try_from(lines)
            .unwrap_or(HEADLINE_MAX)
            .clamp(2, HEADLINE_MAX),
    };
    let (at, rest) = cut(area, lines);
    let style = theme.of(standing).add_modifier(Modifier::BOLD);
    Paragraph::new(text)
        .style(style)
        .wrap(Wrap { trim: true })
        .render(at, buffer);
    rest
}

fn tabs(app: &App, area: Rect, buffer: &mut Buffer) -> Rect {
    if area.height < 3 {
        return area;
    }
    let theme = theme(app);
    let (at, rest) = cut(area, 1);
    let width = |short: bool| -> usize {
        let title = |view: &View| 4 + if short { 0 } else { view.as_str().len() };
        View::ALL.iter().map(title).sum()
    };
    let is_short = width(false) > usize::from(at.width);
    let mut spans = Vec::new();
    for (number, view) in View::ALL.into_iter().enumerate() {
        let is_this = view == app.view;
        let text = match is_short && !is_this {
            true => format!(" {} ", number + 1),
            false => format!(" {} {} ", number + 1, view.as_str()),
        };
        let style = match is_this {
            true => theme.head().add_modifier(Modifier::REVERSED),
            false => theme.soft(),
        };
        spans.push(Span::styled(text, style));
        spans.push(Span::raw(" "));
    }
    Line::from(spans).render(at, buffer);
    rest
}

fn footer(app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = theme(app);
    let mut spans = Vec::new();
    if let Some(why) = &app.failure {
        let text = format!("✖ {} ", clean(why));
        spans.push(Span::styled(text, theme.of(Standing::Bad)));
    }
    if let Some(picture) = &app.picture {
        if let Some(notice) = picture.notice.as_ref().filter(|_| app.failure.is_none()) {
            let text = format!("▲ {} ", clean(notice));
            spans.push(Span::styled(text, theme.of(Standing::Doubtful)));
        }
        let (replica, asked) = (field(&picture.cluster, "replica"), clean(&picture.asked));
        let age = picture.age().as_secs();
        let text = format!("seen by {replica} at {asked}, {age} s ago · ? keys · q end");
        spans.push(Span::styled(text, theme.soft()));
    }
    Line::from(spans).render(area, buffer);
}

fn view(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let theme = theme(app);
    let Some(picture) = app.picture.take() else {
        return;
    };
    match app.view {
        View::Overview => overview::draw(&picture, theme, area, buffer),
        View::Replicas => replicas(app, &picture, theme, area, buffer),
        View::Workers => {
            table::workers(&picture, theme, Some(app), area, buffer);
        }
        View::Hour => hour::draw(app, &picture, theme, area, buffer),
        View::Rings => lists::draw(lists::rings(&picture, theme), app, area, buffer),
        View::Agreement => lists::draw(
            lists::agreement(&picture, theme, area.width),
            app,
            area,
            buffer,
        ),
        View::Events => lists::draw(lists::events(&picture, theme), app, area, buffer),
    }
    app.picture = Some(picture);
}

/// The replicas, and below them who hears whom.
fn replicas(app: &mut App, picture: &Picture, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let links = lists::links(picture, theme);
    let links_height = u16::try_from(links.len()).unwrap_or(u16::MAX);
    let most = area.height / 2;
    let table_height = area.height - links_height.min(most);
    let (at, rest) = cut(area, table_height);
    let used = table::replicas(picture, theme, Some(app), at, buffer);
    let rest = Rect {
        y: at.y + used,
        height: at.height - used + rest.height,
        ..rest
    };
    Paragraph::new(links).render(rest, buffer);
}
