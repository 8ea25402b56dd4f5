//! What needs no worker: probes of this replica, and the list of models.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::Proxy;
use super::relay::ResponseBody;
use crate::api::error::ErrorKind;
use crate::api::models::Catalog;
use crate::api::{ApiError, Endpoint};
use crate::cluster::Fleet;

impl Proxy {
    /// The answer, if the endpoint is one that no worker is asked for.
    pub(super) fn local(&self, endpoint: Endpoint, path: &str) -> Option<Response<ResponseBody>> {
        Some(match endpoint {
            Endpoint::Live => plain(StatusCode::OK, "ok\n"),
            Endpoint::Ready if self.parts.phase.is_ready() => plain(StatusCode::OK, "ready\n"),
            Endpoint::Ready => plain(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            Endpoint::Models => {
                let fleet = self.parts.cluster.fleet();
                json(self.catalog(&fleet).list())
            }
            Endpoint::Model => self.model(path),
            Endpoint::Chat
            | Endpoint::Completions
            | Endpoint::Embeddings
            | Endpoint::Passthrough => return None,
        })
    }

    fn model(&self, path: &str) -> Response<ResponseBody> {
        let id = path.strip_prefix("/v1/models/").unwrap_or_default();
        // The official client writes the slash of `org/model` as `%2F`.
        let id = percent_encoding::percent_decode_str(id).decode_utf8_lossy();
        let fleet = self.parts.cluster.fleet();
        match self.catalog(&fleet).one(&id) {
            Some(body) => json(body),
            None => ApiError::new(ErrorKind::ModelNotFound, "this model is not served")
                .response()
                .map(ResponseBody::from),
        }
    }

    fn catalog<'a>(&'a self, fleet: &'a Fleet) -> Catalog<'a> {
        Catalog::new(fleet.models(), &self.parts.cluster.settings().models)
    }
}

/// Nothing follows on this connection.
pub(super) fn close_after(response: &mut Response<ResponseBody>) {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
}

fn plain(status: StatusCode, text: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn json(body: Bytes) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(body));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
