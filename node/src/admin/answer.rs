//! Answers of the admin API.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

use crate::api::ApiError;
use crate::api::error::ErrorKind;

/// One that is whole; the page has others, which go on.
pub(super) type Answer = Response<Full<Bytes>>;

pub(super) fn not_found(message: &'static str) -> ApiError {
    ApiError::new(ErrorKind::NotFound, message)
}

pub(super) fn json<T: Serialize>(status: StatusCode, value: &T) -> Answer {
    let body = serde_json::to_vec(value).expect("descriptions always serialise");
    answer(status, "application/json", body.into())
}

pub(super) fn text(status: StatusCode, text: &'static str) -> Answer {
    answer(
        status,
        "text/plain; charset=utf-8",
        Bytes::from_static(text.as_bytes()),
    )
}

pub(super) fn answer(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
