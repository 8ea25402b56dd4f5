//! `GET /cache`.

use std::sync::Arc;

use http::StatusCode;

use super::Admin;
use super::answer::{Answer, json};
use super::page::Page;
use super::query::Query;
use crate::api::ApiError;
use crate::api::error::ErrorKind;

impl Admin {
    pub(super) async fn describe_caches(&self, query: &Query<'_>) -> Result<Answer, ApiError> {
        let limit = Page::of(query)?.limit();
        let caches = Arc::clone(&self.caches);
        let top = tokio::task::spawn_blocking(move || caches.top(limit)).await;
        let top = top.map_err(|_| ApiError::new(ErrorKind::Internal, "it could not be counted"))?;
        Ok(json(StatusCode::OK, &top))
    }
}
