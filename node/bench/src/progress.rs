//! A progress bar on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

/// Time between lines when there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// Time between redraws of the message.
const MESSAGE_EVERY: Duration = Duration::from_millis(200);

/// Progress of a counted run, on stderr.
pub struct Progress {
    name: String,
    total: u64,
    bar: Option<ProgressBar>,
    told: Instant,
}

impl Progress {
    /// A run of `total` steps.
    pub fn new(name: &str, total: u64) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{prefix:<12} {wide_bar} {pos}/{len} {eta} {msg}")
                    .expect("the template is valid");
            ProgressBar::new(total)
                .with_style(style)
                .with_prefix(name.to_owned())
        });
        Self {
            name: name.to_owned(),
            total,
            bar,
            told: Instant::now(),
        }
    }

    /// Sets the number of done steps; `message` is only called when it will be shown.
    pub fn set(&mut self, done: u64, message: impl FnOnce() -> String) {
        let pause = if self.bar.is_some() {
            MESSAGE_EVERY
        } else {
            LINE_EVERY
        };
        let tell = self.told.elapsed() >= pause;
        if tell {
            self.told = Instant::now();
        }
        match &self.bar {
            Some(bar) => {
                bar.set_position(done);
                if tell {
                    bar.set_message(message());
                }
            }
            // A reader that left ends no measurement.
            None if tell => drop(writeln!(
                io::stderr(),
                "{} {done}/{} {}",
                self.name,
                self.total,
                message()
            )),
            None => {}
        }
    }

    /// Takes the bar off the screen.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
