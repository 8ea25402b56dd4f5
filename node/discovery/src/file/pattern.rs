//! Where files of workers lie: a path, whose last part may be a pattern. Pure; `look.rs` lists folders.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A path to a file, or to several: its last part may have `*` (any characters, also none) and `?` (any one).
///
/// As in a shell, a pattern matches no name that begins with a dot: not `..data`, which Kubernetes keeps in a folder
/// that it mounts, and no editor's swap file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern(PathBuf);

/// Why a text is no [`PathPattern`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The path ends in `/`, `..`, or has nothing in it.
    #[error("{0:?} names no file; give a file, or a pattern such as {0}/*.json")]
    NoFile(String),
    /// A pattern stands in a folder's name.
    #[error("{0:?} has a pattern in a folder's name; it may stand in the last part only")]
    InFolder(String),
    /// What a shell takes for a pattern, and this does not.
    #[error("{0:?} has {1:?}: the patterns are * and ?, one path for each other spelling")]
    NotThis(String, char),
}

impl PathPattern {
    /// The path as it was given.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Folder and pattern of names in it; none if the path is that of one file.
    pub(super) fn folder(&self) -> Option<(&Path, &str)> {
        let name = self.name();
        let folder = self.0.parent().unwrap_or(Path::new(""));
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        has_wildcard(name).then_some((folder, name))
    }

    fn name(&self) -> &str {
        let name = self.0.file_name().and_then(|name| name.to_str());
        name.expect("a pattern was made of text with a last part")
    }
}

impl FromStr for PathPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let path = PathBuf::from(text);
        if path.file_name().is_none() || text.ends_with('/') {
            return Err(PatternError::NoFile(text.trim_end_matches('/').to_owned()));
        }
        let folder = path.parent().and_then(Path::to_str).unwrap_or_default();
        if has_wildcard(folder) {
            return Err(PatternError::InFolder(text.to_owned()));
        }
        // Taken as they stand they would name a file that is missing for ever.
        if let Some(odd) = text.chars().find(|c| "[]{}".contains(*c)) {
            return Err(PatternError::NotThis(text.to_owned(), odd));
        }
        Ok(Self(path))
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

fn has_wildcard(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Whether `name` is one that `pattern` stands for. In time of the product of their lengths at most.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    // Where the last star stands, and up to where it has eaten: only that one is ever tried again.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((at, eaten)) = star else {
                    return false;
                };
                star = Some((at, eaten + 1));
                (p, n) = (at + 1, eaten + 1);
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*.json", "a.json", true),
            ("*.json", ".json", false),
            ("*.json", "a.json~", false),
            ("*", "..data", false),
            (".*", ".hidden", true),
            ("w?.yaml", "w1.yaml", true),
            ("w?.yaml", "w.yaml", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("*ö*", "größe", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("**", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_stands_in_the_last_part_only() {
        let folder = |text: &str| {
            let pattern: PathPattern = text.parse().expect(text);
            pattern
                .folder()
                .map(|(folder, name)| (folder.to_owned(), name.to_owned()))
        };
        assert_eq!(folder("/etc/w.json"), None);
        let found = |folder: &str, name: &str| Some((PathBuf::from(folder), name.to_owned()));
        assert_eq!(folder("/etc/*.json"), found("/etc", "*.json"));
        assert_eq!(folder("*.json"), found(".", "*.json"));
        for bad in ["", "/", "/etc/", "..", "/etc/*/w.json", "w?/*.json"] {
            assert!(bad.parse::<PathPattern>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn other_patterns_of_shells_are_refused() {
        for bad in [
            "/etc/w/[ab].json",
            "/etc/w/*.{json,yaml}",
            "/etc/w{1}/a.json",
        ] {
            let refused = bad.parse::<PathPattern>().expect_err(bad);
            assert!(matches!(refused, PatternError::NotThis(..)), "{refused}");
        }
    }
}
