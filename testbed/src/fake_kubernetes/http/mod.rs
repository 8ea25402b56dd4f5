//! The rim: sockets, TLS, HTTP, and the bytes of watches.

mod control;
mod discovery;
mod line;
mod resource;
mod route;
mod server;
mod watch;

pub(super) use control::serve as serve_control;
pub(super) use server::serve;

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde_json::Value;

use super::refusal::Refusal;

/// Body of every answer.
pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

fn json(status: u16, value: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(value.to_string())).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status.try_into().expect("our statuses are valid");
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn refuse(refusal: &Refusal) -> Response<Body> {
    let mut response = json(refusal.code, &refusal.status());
    if let Some(seconds) = refusal.retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}
