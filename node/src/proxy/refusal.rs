//! What a client sees when no answer can be shown: the worker's own word where there is one, else ours.

use bytes::Bytes;
use grapevine_placement::NoWorker;
use http::{HeaderValue, Response, header, response};

use super::attempt::Failure;
use super::record::{Outcome, Record};
use super::relay::ResponseBody;
use crate::api::ApiError;
use crate::api::error::{ErrorKind, retry_after};

/// No answer that may be shown.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The router's own word.
    Own(ApiError),
    /// The last worker's word, passed on.
    Worker(Box<response::Parts>, Bytes),
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self::Own(error)
    }
}

impl Refusal {
    /// What the client gets of the last failure.
    pub(super) fn of(failure: Failure) -> Self {
        match failure {
            Failure::Status(parts, bytes) => Self::Worker(parts, bytes),
            Failure::Refused(status, bytes) => {
                let mut parts = Response::new(()).into_parts().0;
                parts.status = status;
                let json = HeaderValue::from_static("application/json");
                parts.headers.insert(header::CONTENT_TYPE, json);
                Self::Worker(Box::new(parts), bytes)
            }
            Failure::Late => too_late().into(),
            Failure::Connect(_) => {
                ApiError::new(ErrorKind::NoWorker, "no worker could be reached; try again").into()
            }
            Failure::Closed(_) => ApiError::new(
                ErrorKind::UpstreamFailed,
                "every worker that was tried broke off before it answered",
            )
            .into(),
        }
    }

    /// All workers were tried, or none is usable.
    pub(super) fn exhausted(last: Option<Failure>, no_worker: NoWorker) -> Self {
        match last {
            Some(failure) => Self::of(failure),
            None => ApiError::new(ErrorKind::NoWorker, no_worker.to_string()).into(),
        }
    }

    /// Ends the request with it.
    pub(super) fn response(self, mut record: Record) -> Response<ResponseBody> {
        match self {
            Self::Own(error) => {
                record.own_error(&error);
                error.response().map(ResponseBody::from)
            }
            Self::Worker(mut parts, bytes) => {
                if let Some(after) = retry_after(parts.status) {
                    let headers = &mut parts.headers;
                    headers
                        .entry(header::RETRY_AFTER)
                        .or_insert_with(|| HeaderValue::from(after.as_secs()));
                }
                record.status = Some(parts.status);
                record.finish(Outcome::Error);
                Response::from_parts(*parts, bytes.into())
            }
        }
    }
}

/// The limit for a first token, or for the whole request, is reached.
pub(super) fn too_late() -> ApiError {
    ApiError::new(
        ErrorKind::UpstreamTimeout,
        "no worker produced a first token in time",
    )
}
