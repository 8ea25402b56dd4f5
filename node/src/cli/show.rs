//! Answers of the admin API as text on standard output.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Style};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::failure::Failure;
use crate::shown::seconds;
pub(super) use crate::shown::{field, rows};

/// Whether colours are wanted (no-color.org).
pub(super) fn wants_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A text for standard output, in bold and in this colour where a terminal shows it.
pub(super) fn in_colour(text: &str, colour: AnsiColor) -> String {
    if !wants_colours() || !io::stdout().is_terminal() {
        return text.to_owned();
    }
    let style = Style::new().bold().fg_color(Some(colour.into()));
    format!("{style}{text}{style:#}")
}

/// A column of a table: its heading, and the field it shows.
#[derive(Clone, Copy)]
pub(super) struct Column(pub(super) &'static str, pub(super) &'static str);

/// Prints aligned columns; a field that a row lacks is shown as a dash.
pub(super) fn print_table(columns: &[Column], rows: &[Value]) -> Result<(), Failure> {
    let heads = columns
        .iter()
        .map(|Column(head, _)| (*head).to_owned())
        .collect();
    let cells = |row: &Value| {
        columns
            .iter()
            .map(|Column(_, name)| field(row, name))
            .collect()
    };
    let lines: Vec<Vec<String>> = std::iter::once(heads)
        .chain(rows.iter().map(cells))
        .collect();
    print_aligned(&lines)
}

/// Says for how long a row has been so; what a dead replica reported last says nothing of it now.
pub(super) fn with_age(row: &mut Value) {
    let for_s = row["for_s"].as_u64();
    if let Some(for_s) = for_s.or_else(|| row["verdict_for_s"].as_u64()) {
        row["for"] = seconds(for_s).into();
    }
    if row["live"] == false {
        for name in ["ready", "leaving", "ring"] {
            row[name] = Value::Null;
        }
    }
}

/// Prints lines of as many cells each, one column below the other.
pub(super) fn print_aligned(lines: &[Vec<String>]) -> Result<(), Failure> {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    for line in lines {
        let padded = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        print_line(padded.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// Writes a line to standard error. That nobody reads it, as behind `2>&1 | tee log` when that has ended, must neither end
/// the program nor change its exit code.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

pub(super) fn print_json(value: &Value) -> Result<(), Failure> {
    print_line(&format!("{value:#}"))
}

/// Writes a line to standard output; a reader that left (`| head`) is no failure.
/// Errors: standard output cannot be written, as on a full disk.
pub fn print_line(line: &str) -> Result<(), Failure> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Refused(format!(
            "cannot write to standard output: {error}"
        ))),
        _ => Ok(()),
    }
}

/// Between two looks whether somebody reads.
const LOOK_EACH: Duration = Duration::from_secs(1);

/// Waits so long, or until nobody reads standard output any more (`| head`); whether somebody does. For commands that go
/// on for ever: they may have nothing to print for hours, and would not notice.
pub(super) async fn pause(time: Duration) -> bool {
    let until = Instant::now() + time;
    loop {
        if !is_read(&io::stdout()) {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        sleep(left.min(LOOK_EACH)).await;
    }
}

/// Whether the other end of a pipe, a socket or a terminal is there; a file is always read.
fn is_read(output: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(output, PollFlags::empty())];
    match poll(&mut polled, Some(&Timespec::default())) {
        Ok(_) => !polled[0]
            .revents()
            .intersects(PollFlags::ERR | PollFlags::HUP),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_left_is_noticed_without_a_line() {
        let (reader, writer) = io::pipe().expect("a pipe");
        assert!(is_read(&writer));
        drop(reader);
        assert!(!is_read(&writer));
        assert!(is_read(&tempfile::tempfile().expect("a file")));
    }
}
