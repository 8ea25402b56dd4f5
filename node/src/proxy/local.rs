//! What needs no worker: probes of this replica, and the list of models.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::Proxy;
use super::relay::ResponseBody;
use crate::api::error::ErrorKind;
use crate::api::models::Catalog;
use crate::api::{ApiError, Endpoint};
use crate::tenants::Key;

impl Proxy {
    /// The answer, if the endpoint is one that no worker is asked for.
    ///
    /// `key`: whose request it is. Probes of this replica need none; lists show what the key may ask for.
    pub(super) fn local(
        &self,
        endpoint: Endpoint,
        path: &str,
        key: &Result<Option<Arc<Key>>, ApiError>,
    ) -> Option<Response<ResponseBody>> {
        Some(match endpoint {
            Endpoint::Live => plain(StatusCode::OK, "ok\n"),
            Endpoint::Ready if self.parts.phase.is_ready() => plain(StatusCode::OK, "ready\n"),
            Endpoint::Ready => plain(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            Endpoint::Models | Endpoint::Model => match key {
                Ok(key) => self.models(endpoint, path, key.as_deref()),
                Err(error) => refused(error),
            },
            Endpoint::Chat
            | Endpoint::Completions
            | Endpoint::Embeddings
            | Endpoint::Passthrough => return None,
        })
    }

    fn models(&self, endpoint: Endpoint, path: &str, key: Option<&Key>) -> Response<ResponseBody> {
        let fleet = self.parts.cluster.fleet();
        let mut catalog = Catalog::new(fleet.models(), &self.parts.cluster.settings().models);
        if let Some(key) = key {
            catalog.retain(|name| key.may_ask_for(Some(name)));
        }
        if endpoint == Endpoint::Models {
            return json(catalog.list());
        }
        let id = path.strip_prefix("/v1/models/").unwrap_or_default();
        // The official client writes the slash of `org/model` as `%2F`.
        let id = percent_encoding::percent_decode_str(id).decode_utf8_lossy();
        match catalog.one(&id) {
            Some(body) => json(body),
            None => ApiError::new(ErrorKind::ModelNotFound, "this model is not served")
                .response()
                .map(ResponseBody::from),
        }
    }
}

/// Refused by its head alone.
pub(super) fn refused(error: &ApiError) -> Response<ResponseBody> {
    let mut response = error.response().map(ResponseBody::from);
    // What follows on this connection may be the body of the refused request.
    close_after(&mut response);
    response
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
