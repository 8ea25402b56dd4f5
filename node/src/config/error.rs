//! What is wrong with a configuration, where it was written, and what to write instead.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from. Later layers win: file, then environment, then flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A place in the configuration file; line and column count from 1.
    File {
        /// The file as it was named on the command line.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
    },
    /// A variable of the environment.
    Environment(String),
    /// A flag, without its dashes.
    Flag(&'static str),
    /// No single place: settings that do not fit together, or something missing.
    Whole,
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => {
                write!(out, "{}:{line}:{column}", path.display())
            }
            Self::Environment(name) => write!(out, "environment variable {name}"),
            Self::Flag(name) => write!(out, "--{name}"),
            Self::Whole => write!(out, "configuration"),
        }
    }
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it was written.
    pub origin: Origin,
    /// The setting as `section.key`; a section in brackets; empty for a mistake of syntax.
    pub key: String,
    /// What is wrong and what to write instead.
    pub what: String,
}

impl Problem {
    /// Whether this mistake may be all that is behind the other one, which settings of a section make together: both are
    /// in one section, this one is a section whose name was meant for that one, or it hides which sections there are.
    pub(super) fn spoils(&self, other: &Self) -> bool {
        self.hides(other.key.split('.').next().unwrap_or_default())
    }

    /// Whether settings of this section may be there that could not be read.
    pub fn hides(&self, section: &str) -> bool {
        // [[worker]] and [workers] make one list.
        let one = |section: &str| section.trim_end_matches('s').to_owned();
        let is_it = |written: &str| one(written) == one(section);
        let own = self.key.split('.').next().unwrap_or_default();
        match self.key.strip_prefix('[') {
            Some(written) => {
                let written = written.trim_matches(['[', ']']);
                let meant = nearest(written, super::sections().map(|(section, ..)| section));
                is_it(written) || meant.is_some_and(is_it)
            }
            None => self.key.is_empty() || is_it(own),
        }
    }
}

/// Orders problems as their files are read: those of one file by line and column, files as they were met, and what has
/// no place in a file behind.
pub fn in_order_of_place(mut problems: Vec<Problem>) -> Vec<Problem> {
    let mut files: Vec<PathBuf> = Vec::new();
    for problem in &problems {
        if let Origin::File { path, .. } = &problem.origin
            && !files.contains(path)
        {
            files.push(path.clone());
        }
    }
    problems.sort_by_key(|problem| match &problem.origin {
        Origin::File { path, line, column } => {
            let file = files.iter().position(|known| known == path);
            (file.unwrap_or(files.len()), *line, *column)
        }
        _ => (files.len(), 0, 0),
    });
    problems
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: ", self.origin)?;
        if !self.key.is_empty() {
            write!(out, "{}: ", self.key)?;
        }
        out.write_str(&self.what)
    }
}

/// Why there is no configuration. The process has started nothing yet.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {path}: {cause}")]
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// Every mistake that was found, one a line.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    lines.join("\n")
}

/// The known name nearest to a misspelt one, if any is near enough to be meant.
pub(super) fn nearest<'a>(
    written: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(written, name), name))
        .filter(|(distance, name)| *distance <= name.len().max(written.len()) / 3 + 1)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}
