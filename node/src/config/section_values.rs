//! What the layers set in one section, each value with its origin.

use std::collections::BTreeMap;

use super::error::{Origin, Problem};
use super::setting::{Setting, Value};

/// A value and where it was written.
#[derive(Debug, Clone)]
struct SourcedValue {
    value: Value,
    origin: Origin,
}

/// What was set in one section.
#[derive(Debug)]
pub(crate) struct SectionValues {
    section: &'static str,
    /// Where a missing key is missing.
    pub(crate) origin: Origin,
    entries: BTreeMap<&'static str, SourcedValue>,
}

impl SectionValues {
    pub(super) fn new(section: &'static str, origin: Origin) -> Self {
        Self {
            section,
            origin,
            entries: BTreeMap::new(),
        }
    }

    /// The section's name, without brackets.
    pub(super) fn section(&self) -> &'static str {
        self.section
    }

    /// Lays a value over that of an earlier layer.
    pub(super) fn set(&mut self, key: &'static str, value: Value, origin: Origin) {
        self.entries.insert(key, SourcedValue { value, origin });
    }

    /// Where a key was written; none when it kept its default.
    pub(crate) fn origin_of(&self, key: &str) -> Option<&Origin> {
        self.entries.get(key).map(|entry| &entry.origin)
    }

    /// Whether a key was written as a list of nothing.
    pub(crate) fn is_empty_list(&self, key: &str) -> bool {
        let entry = self.entries.get(key);
        entry.is_some_and(|entry| matches!(&entry.value, Value::List(list) if list.is_empty()))
    }

    /// The checked value of a key, if some layer set it well.
    pub(crate) fn take<T: Setting>(
        &self,
        key: &'static str,
        check: impl Fn(&T) -> Result<(), String>,
        problems: &mut Vec<Problem>,
    ) -> Option<T> {
        let entry = self.entries.get(key)?;
        let checked = T::parse(&entry.value).and_then(|value| check(&value).map(|()| value));
        match checked {
            Ok(value) => Some(value),
            Err(what) => {
                problems.push(Problem {
                    origin: entry.origin.clone(),
                    key: format!("{}.{key}", self.section),
                    what,
                });
                None
            }
        }
    }
}
