//! Served models: the names of all models that requests find workers for.

use std::sync::Arc;

/// Names of models, each once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServedModels {
    /// Sorted.
    names: Vec<Arc<str>>,
}

impl FromIterator<Arc<str>> for ServedModels {
    fn from_iter<I: IntoIterator<Item = Arc<str>>>(names: I) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        Self { names }
    }
}

impl ServedModels {
    /// How many they are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.names.len()).unwrap_or(u32::MAX)
    }

    /// It is one of them.
    pub fn has(&self, model: &str) -> bool {
        let names = &self.names;
        names.binary_search_by(|name| (**name).cmp(model)).is_ok()
    }
}
