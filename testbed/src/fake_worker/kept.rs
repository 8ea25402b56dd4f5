//! The responses that a worker keeps to be asked for again.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use super::request::ApiError;

/// Responses that a worker keeps; vLLM has no limit.
pub(super) const KEPT_MAX: usize = 10_000;

/// Responses by their id, as they were answered.
#[derive(Default)]
pub(super) struct Kept(Mutex<BTreeMap<String, Value>>);

impl Kept {
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Value>> {
        self.0.lock()
    }

    /// As after a restart.
    pub(super) fn forget(&self) {
        self.lock().clear();
    }

    pub(super) fn get(&self, id: &str) -> Result<Value, ApiError> {
        let kept = self.lock().get(id).cloned();
        kept.ok_or_else(|| ApiError::not_found(&format!("Response with id '{id}' not found.")))
    }
}
