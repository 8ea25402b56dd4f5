//! What this replica is asked to be and to do: ready, and to read its configuration again.

use http::{StatusCode, header};
use tokio::sync::oneshot;

use super::Admin;
use super::answer::{Answer, answer, json};
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::readiness::AGAIN_AFTER_S;

impl Admin {
    pub(super) async fn reload(&self) -> Result<Answer, ApiError> {
        let busy = || {
            let busy = "the configuration is being read, or this replica is ending; try again";
            ApiError::new(ErrorKind::Overloaded, busy)
        };
        let (wish, outcome) = oneshot::channel();
        self.reload.try_send(wish).map_err(|_| busy())?;
        match outcome.await.map_err(|_| busy())? {
            Ok(reloaded) => Ok(json(StatusCode::OK, &reloaded)),
            Err(error) => Err(ApiError::new(ErrorKind::InvalidRequest, error)),
        }
    }

    pub(super) fn readyz(&self) -> Answer {
        let (is_ready, body) = self.readiness.body();
        if is_ready {
            return answer(StatusCode::OK, "application/json", body.into());
        }
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let mut answer = answer(status, "application/json", body.into());
        let headers = answer.headers_mut();
        headers.insert(header::RETRY_AFTER, AGAIN_AFTER_S);
        answer
    }
}
