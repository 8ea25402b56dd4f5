//! From the text of a file to its workers: three forms, one kind of error, which names line, column and key. Pure.

use std::path::Path;

use super::tables::{Document, Listed};
use super::targets::Group;
use crate::picture::{PictureError, WORKERS_MAX};

const NO_LIST: &str = "the file is empty; for no workers at all write an empty list";

/// In which form a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Yaml,
    Toml,
}

/// What is wrong in a file, and where: `4:9: [0].labels.weight: …`.
#[derive(Debug, Default)]
struct Fault {
    /// From 1 on.
    line_and_column: Option<(usize, usize)>,
    key: String,
    what: String,
}

impl Format {
    /// The form that the name of a file stands for.
    /// Errors: none of them: the names that would be one.
    pub(super) fn of(path: &Path) -> Result<Self, String> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Ok(Self::Json),
            Some("yaml" | "yml") => Ok(Self::Yaml),
            Some("toml") => Ok(Self::Toml),
            _ => Err("the name shows no form; end it in .json, .yaml, .yml or .toml".to_owned()),
        }
    }

    /// The workers that `text` describes.
    /// Errors: the first fault, with its place: `line:column: key: what`.
    pub(super) fn read(self, text: &str) -> Result<Listed, String> {
        // Some editors put a byte order mark in front.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        // A file that somebody is about to write. YAML would take it for a list of none.
        if text.trim().is_empty() {
            return Err(NO_LIST.to_owned());
        }
        match self {
            Self::Json => listed(&read_json(text).map_err(Fault::into_text)?),
            Self::Yaml => listed(&read_yaml(text).map_err(Fault::into_text)?),
            Self::Toml => read_toml(text).map_err(Fault::into_text),
        }
    }
}

impl Fault {
    fn into_text(self) -> String {
        let place = self.line_and_column;
        let place = place.map_or_else(String::new, |(line, column)| format!("{line}:{column}: "));
        // `serde_path_to_error` writes the whole document as a dot, and a key that is not known yet as a question mark.
        let key = self.key.trim_end_matches(".?").trim_matches('.');
        let key = if key.is_empty() {
            String::new()
        } else {
            format!("{key}: ")
        };
        format!("{place}{key}{}", self.what)
    }
}

/// The workers of all groups. Counted before: targets that share long labels would need much more memory than the file.
fn listed(groups: &[Group]) -> Result<Listed, String> {
    let count = groups.iter().map(Group::len).sum();
    if count > WORKERS_MAX {
        return Err(PictureError::TooMany(count).to_string());
    }
    groups.iter().flat_map(Group::listed).collect()
}

fn read_json(text: &str) -> Result<Vec<Group>, Fault> {
    let fault = |key: String, error: serde_json::Error| {
        let (line, column) = (error.line(), error.column());
        let what = error.to_string();
        let place = format!(" at line {line} column {column}");
        let what = what.strip_suffix(&place).unwrap_or(&what).to_owned();
        // Of the first letter serde_json says column 0.
        let line_and_column = (line > 0).then_some((line, column.max(1)));
        Fault {
            line_and_column,
            key,
            what,
        }
    };
    let mut reader = serde_json::Deserializer::from_str(text);
    let groups = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| fault(error.path().to_string(), error.into_inner()))?;
    reader.end().map_err(|error| fault(String::new(), error))?;
    Ok(groups)
}

fn read_yaml(text: &str) -> Result<Vec<Group>, Fault> {
    let mut options = serde_saphyr::Options::default();
    options.with_snippet = false;
    let mut key = String::new();
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |reader| {
        serde_path_to_error::deserialize(reader).map_err(|error| {
            key = error.path().to_string();
            error.into_inner()
        })
    });
    let read: Option<Vec<Group>> = read.map_err(|error| {
        let place = error.location();
        let line_and_column = place.map(|at| (at.line() as usize, at.column() as usize));
        let what = error.to_string();
        let place = line_and_column
            .map(|(line, column)| format!(" at line {line}, column {column}"))
            .unwrap_or_default();
        let what = what.strip_suffix(&place).unwrap_or(&what).to_owned();
        Fault {
            line_and_column,
            key,
            what,
        }
    })?;
    // A file with nothing but comments.
    read.ok_or_else(|| Fault {
        what: NO_LIST.to_owned(),
        ..Fault::default()
    })
}

fn read_toml(text: &str) -> Result<Listed, Fault> {
    let fault = |key: String, error: toml::de::Error| {
        let line_and_column = error.span().map(|span| line_and_column(text, span.start));
        let what = error.message().to_owned();
        Fault {
            line_and_column,
            key,
            what,
        }
    };
    let reader = toml::Deserializer::parse(text).map_err(|error| fault(String::new(), error))?;
    let document: Document = serde_path_to_error::deserialize(reader)
        .map_err(|error| fault(error.path().to_string(), error.into_inner()))?;
    document.listed().map_err(|what| Fault {
        what,
        ..Fault::default()
    })
}

/// Both from 1 on, the column in characters.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    (line, before[start..].chars().count() + 1)
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
