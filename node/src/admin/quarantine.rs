//! Requests that no worker gets: shown, and lifted on every replica.

use http::StatusCode;

use super::Admin;
use super::answer::{Answer, json, not_found};
use crate::api::ApiError;

impl Admin {
    pub(super) fn list_quarantine(&self) -> Answer {
        let marks = self.quarantine.list();
        json(StatusCode::OK, &serde_json::json!({ "quarantine": marks }))
    }

    pub(super) fn lift(&self, hash: &str) -> Result<Answer, ApiError> {
        match self.quarantine.lift(Some(&hash.to_ascii_lowercase())) {
            0 => Err(not_found(
                "no such mark at this replica; GET /quarantine lists them, by hash",
            )),
            lifted => Ok(self.lifted(lifted)),
        }
    }

    pub(super) fn lifted(&self, count: usize) -> Answer {
        for _ in 0..count {
            self.metrics.marks.query_of_death("lifted");
        }
        if count > 0 {
            tracing::info!(count, "marks of requests that ended workers were lifted");
        }
        json(StatusCode::OK, &serde_json::json!({ "lifted": count }))
    }
}
