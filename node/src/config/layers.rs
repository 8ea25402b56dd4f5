//! What lies over the defaults: file, environment and flags, as they were found.

use std::path::{Path, PathBuf};

use super::Config;
use super::error::{ConfigError, Origin};
use super::raw::Raw;
use super::section_values::SectionValues;
use super::table::Flag;

/// What lies over the defaults, lowest first.
#[derive(Default, Clone)]
pub struct Layers {
    /// The file, with its name for messages.
    pub file: Option<(PathBuf, String)>,
    /// The environment; variables that are not ours are passed over.
    pub environment: Vec<(String, String)>,
    /// Flags of the command line.
    pub(crate) flags: Vec<(Flag, Vec<String>)>,
}

/// Keys may stand in any of them.
impl std::fmt::Debug for Layers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Layers").finish_non_exhaustive()
    }
}

/// Why a file without anything in it is not taken over.
const EMPTIED: &str = "it is empty, and was not before: many programs empty a file before they write it. A comment in it \
                       means that it is to have no settings";

impl Layers {
    /// Reads the file.
    /// Errors: [`ConfigError::Unreadable`].
    pub fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|cause| ConfigError::Unreadable {
            path: path.to_owned(),
            cause,
        })?;
        self.file = Some((path.to_owned(), text));
        Ok(())
    }

    /// A variable of the environment, also one that is not ours.
    pub fn variable(&self, name: &str) -> Option<String> {
        let mut named = self.environment.iter().filter(|(own, _)| own == name);
        named.next().map(|(_, value)| value.clone())
    }

    /// Where a setting was written, for messages about it.
    pub fn origin_of(&self, section: &str, key: &str) -> Origin {
        self.raw().origin_of(section, key)
    }

    /// The same for a setting of the `[[worker]]` section with this index, from 0.
    pub fn origin_of_worker(&self, index: usize, key: &str) -> Origin {
        let raw = self.raw();
        let origin = |section: &SectionValues| section.origin_of(key).cloned();
        raw.workers
            .get(index)
            .and_then(origin)
            .unwrap_or(Origin::Whole)
    }

    pub(super) fn raw(&self) -> Raw {
        let mut raw = Raw::new();
        if let Some((path, text)) = &self.file {
            raw.add_file(path, text);
        }
        raw.add_environment(self.environment.iter().cloned());
        for (flag, words) in &self.flags {
            raw.add_flag(*flag, words.clone());
        }
        raw
    }

    /// The layers and the configuration as they are now: the file is read anew, environment and flags are those of the start.
    /// Errors: as [`Layers::read_file`] and [`Config::from_layers`]; a file that has nothing in it any more is
    /// unreadable, since all its workers would leave the cluster.
    pub fn again(mut self) -> Result<(Self, Config), ConfigError> {
        let is_blank = |text: &str| text.trim().is_empty();
        if let Some((path, before)) = self.file.take() {
            self.read_file(&path)?;
            let now = self.file.as_ref().map(|(_, text)| &**text);
            if !is_blank(&before) && now.is_some_and(is_blank) {
                let cause = std::io::Error::other(EMPTIED);
                return Err(ConfigError::Unreadable { path, cause });
            }
        }
        let config = Config::from_layers(self.clone())?;
        Ok((self, config))
    }
}
