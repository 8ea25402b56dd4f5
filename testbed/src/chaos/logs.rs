//! Panics and errors in the logs of processes.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::PathBuf;

use anyhow::Context;

/// Lines that are kept; further ones are counted.
const LINES_MAX: usize = 20;
/// Characters that are kept of a line.
const LINE_CHARS: usize = 300;

/// Panics and errors of all logs.
#[derive(Debug, Default)]
pub(crate) struct Loud {
    pub(crate) count: usize,
    /// The first lines, each after the name of its process.
    pub(crate) lines: Vec<String>,
}

/// A panic, or an error whose line has none of the `expected` parts.
fn is_loud(line: &str, expected: &[&str]) -> bool {
    let error = line.contains(" ERROR ") || line.contains("\"level\":\"ERROR\"");
    let is_expected = || expected.iter().any(|part| line.contains(part));
    line.contains("panicked at") || (error && !is_expected())
}

/// Reads whole logs, line by line. A process that has written nothing yet has no log.
pub(crate) fn loud(logs: &[(String, PathBuf)], expected: &[&str]) -> anyhow::Result<Loud> {
    let mut found = Loud::default();
    for (name, path) in logs {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let mut log = BufReader::new(file);
        let mut line = Vec::new();
        while log.read_until(b'\n', &mut line).context("log")? > 0 {
            let text = String::from_utf8_lossy(&line);
            if is_loud(&text, expected) {
                found.count += 1;
                if found.lines.len() < LINES_MAX {
                    let text: String = text.trim_end().chars().take(LINE_CHARS).collect();
                    found.lines.push(format!("{name}: {text}"));
                }
            }
            line.clear();
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_always_count_and_errors_unless_expected() {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let log = dir.path().join("r1.log");
        let text = "2026 INFO fine\n2026 ERROR clock is off\n2026 ERROR bad\nthread panicked at clock\n\
                    {\"level\":\"ERROR\",\"x\":1}\n\u{1b}[31m 2026 WARN ERRORS\n";
        std::fs::write(&log, text).expect("written");
        let logs = [
            ("r1".to_owned(), log),
            ("r2".to_owned(), dir.path().join("none")),
        ];
        let found = loud(&logs, &["clock"]).expect("read");
        assert_eq!(found.count, 3, "{found:?}");
        assert_eq!(loud(&logs, &[]).expect("read").count, 4);
        assert!(found.lines[0].starts_with("r1: 2026 ERROR bad"));
    }
}
