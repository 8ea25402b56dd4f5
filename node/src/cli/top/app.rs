//! What is shown: the view, the selected row, and what keys do about it. Pure.

use std::time::Duration;

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::picture::Picture;
use super::view::View;
use crate::cli::failure::Failure;
use crate::page::model::{replicas, workers};
use crate::shown::field;
use crate::shown::summary::Summary;

/// Of whom the last hour is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    Cluster,
    Worker(String),
    Replica(String),
}

/// What is to be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) view: View,
    pub(super) of: Subject,
    /// Another number: at once.
    pub(super) again: u64,
}

/// Whether the user has seen enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    Yes,
    No,
}

/// Everything that decides what is drawn.
pub(super) struct App {
    pub(super) view: View,
    pub(super) of: Subject,
    pub(super) picture: Option<Picture>,
    /// Its sentence: made once, of thousands of rows it may be.
    pub(super) headline: Option<Summary>,
    /// So old a picture is not shown as that of now.
    pub(super) stale_after: Duration,
    /// Why there is no newer picture.
    pub(super) failure: Option<String>,
    pub(super) is_coloured: bool,
    pub(super) is_help: bool,
    /// First row that is shown, or the selected one where rows can be selected.
    pub(super) row: usize,
    /// Rows that fitted when it was drawn last.
    pub(super) page: usize,
    again: u64,
}

impl App {
    pub(super) fn new(view: View, is_coloured: bool) -> Self {
        Self {
            view,
            of: Subject::Cluster,
            picture: None,
            headline: None,
            stale_after: Duration::MAX,
            failure: None,
            is_coloured,
            is_help: false,
            row: 0,
            page: 1,
            again: 0,
        }
    }

    pub(super) fn wanted(&self) -> Wanted {
        Wanted {
            view: self.view,
            of: self.of.clone(),
            again: self.again,
        }
    }

    /// There is a newer picture.
    pub(super) fn show(&mut self, picture: Picture) {
        self.headline = Some(picture.headline());
        self.picture = Some(picture);
        self.failure = None;
    }

    /// There is one, or there is none; the former one stays then.
    pub(super) fn answered(&mut self, answer: Result<Picture, Failure>) {
        match answer {
            Ok(picture) => self.show(picture),
            Err(failure) => self.failure = Some(failure.to_string()),
        }
    }

    /// What a key does; everything else that a terminal tells leads to nothing but another drawing.
    pub(super) fn on_event(&mut self, event: &Event) -> Done {
        let Event::Key(key) = event else {
            return Done::No;
        };
        if key.kind == KeyEventKind::Release {
            return Done::No;
        }
        if is_end(key) {
            return Done::Yes;
        }
        // Any key ends the help.
        if std::mem::take(&mut self.is_help) {
            return Done::No;
        }
        match key.code {
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.is_help = true,
            KeyCode::Char(digit @ '1'..='7') => {
                let at = digit as usize - '1' as usize;
                self.go(View::ALL[at]);
            }
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.go(self.view.next(1)),
            KeyCode::BackTab | KeyCode::Left => self.go(self.view.next(View::ALL.len() - 1)),
            KeyCode::Down | KeyCode::Char('j') => self.row = self.row.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.row = self.row.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.row = self.row.saturating_add(self.page),
            KeyCode::PageUp => self.row = self.row.saturating_sub(self.page),
            KeyCode::Home | KeyCode::Char('g') => self.row = 0,
            KeyCode::End | KeyCode::Char('G') => self.row = usize::MAX,
            KeyCode::Enter => self.open(),
            KeyCode::Esc | KeyCode::Backspace => self.back(),
            KeyCode::Char('r') => self.again += 1,
            _ => {}
        }
        Done::No
    }

    fn go(&mut self, view: View) {
        self.view = view;
        self.of = Subject::Cluster;
        self.row = 0;
    }

    /// The hour of what is selected.
    fn open(&mut self) {
        let Some(picture) = &self.picture else {
            return;
        };
        let of = match self.view {
            View::Replicas => {
                let all = replicas::sorted(&picture.cluster);
                all.get(self.row)
                    .map(|row| Subject::Replica(field(row, "id")))
            }
            View::Workers => {
                let all = workers::sorted(&picture.workers);
                all.get(self.row)
                    .map(|row| Subject::Worker(field(row, "id")))
            }
            _ => None,
        };
        if let Some(of) = of {
            self.go(View::Hour);
            self.of = of;
        }
    }

    fn back(&mut self) {
        let to = match self.of {
            Subject::Cluster => View::Overview,
            Subject::Worker(_) => View::Workers,
            Subject::Replica(_) => View::Replicas,
        };
        self.go(to);
    }
}

fn is_end(key: &KeyEvent) -> bool {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c' | 'd') => is_control,
        KeyCode::Char('q') => true,
        _ => false,
    }
}
