//! The terminal: taken, drawn on, and given back as it was, whatever ends the program.

use std::io;
use std::thread;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::app::App;
use super::views;
use crate::cli::failure::Failure;

/// A terminal in our hands. Dropping it gives it back; a panic does, too, before it is told.
pub(super) struct Terminal {
    screen: DefaultTerminal,
    events: mpsc::Receiver<Event>,
    is_left: bool,
}

/// Keys that wait to be read; a held key fills it, and its further repeats wait in the system.
const EVENTS_MAX: usize = 64;
/// How often the thread that reads keys looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(200);

impl Terminal {
    /// Takes the terminal of standard output.
    /// Errors: there is none that can be used.
    pub(super) fn take() -> Result<Self, Failure> {
        let screen = ratatui::try_init().map_err(|error| {
            // It may be half taken.
            ratatui::restore();
            failed(&error)
        })?;
        let (keys, events) = mpsc::channel(EVENTS_MAX);
        thread::spawn(move || read(&keys));
        Ok(Self {
            screen,
            events,
            is_left: false,
        })
    }

    /// Draws all of it; what did not change is not sent.
    /// Errors: the terminal is gone.
    pub(super) fn draw(&mut self, app: &mut App) -> Result<(), Failure> {
        let drawn = self.screen.draw(|frame| {
            let area = frame.area();
            views::draw(app, area, frame.buffer_mut());
        });
        drawn.map(drop).map_err(|error| failed(&error))
    }

    /// The next key or change of size; none when the terminal is gone.
    pub(super) async fn event(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// One that waits already.
    pub(super) fn waiting(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Gives it back.
    /// Errors: the terminal is gone.
    pub(super) fn leave(mut self) -> Result<(), Failure> {
        self.is_left = true;
        ratatui::try_restore().map_err(|error| failed(&error))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if !self.is_left {
            ratatui::restore();
        }
    }
}

/// Waits for a signal that ends a program. In raw mode Ctrl-C is a key.
pub(super) async fn told_to_end() {
    let kinds = [
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::interrupt(),
    ];
    let [Ok(mut terminate), Ok(mut hangup), Ok(mut interrupt)] = kinds.map(signal) else {
        // Without handlers the system ends the program by itself.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Hands keys on until nobody wants them. A thread, since a read of the terminal cannot be ended from outside.
fn read(keys: &mpsc::Sender<Event>) {
    while !keys.is_closed() {
        let read = match event::poll(LOOK) {
            Ok(true) => event::read(),
            Ok(false) => continue,
            Err(error) => Err(error),
        };
        let Ok(read) = read else {
            return;
        };
        if keys.blocking_send(read).is_err() {
            return;
        }
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::Refused(format!("the terminal cannot be used: {error}"))
}
