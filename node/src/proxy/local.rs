//! What needs no worker: probes of this replica, and the list of models.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};

use super::Proxy;
use super::own_words::no_such_model;
use super::response::ResponseBody;
use crate::api::error::{Dialect, ErrorKind};
use crate::api::models::Catalog;
use crate::api::{ApiError, Endpoint};
use crate::http::{headers, request_id};
use crate::metrics::refusals::CONNECTIONS_BUSY;
use crate::readiness::AGAIN_AFTER_S;
use crate::seats::Short;
use crate::tenants::ApiKey;

impl Proxy {
    /// The answer, if the endpoint is one that no worker is asked for.
    ///
    /// `key`: the client's. Probes of this replica need none; lists show what the key may ask for.
    pub(super) fn local(
        &self,
        endpoint: Endpoint,
        path: &str,
        key: &Result<Option<Arc<ApiKey>>, ApiError>,
    ) -> Option<Response<ResponseBody>> {
        Some(match endpoint {
            Endpoint::Live => plain(StatusCode::OK, "ok\n"),
            Endpoint::Ready => {
                let (is_ready, body) = self.readiness.body();
                let mut response = json(body.into());
                if !is_ready {
                    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    let headers = response.headers_mut();
                    headers.insert(header::RETRY_AFTER, AGAIN_AFTER_S);
                }
                response
            }
            Endpoint::Models | Endpoint::Model => match key {
                Ok(key) => self.models(endpoint, path, key.as_deref()),
                Err(error) => {
                    self.dispatch.metrics.refusals.own_error(error.kind);
                    refused(error, Dialect::OpenAi)
                }
            },
            _ => return None,
        })
    }

    /// The answer on a connection for which there is no place; none for probes of this replica.
    pub fn turn_away(&self, head: &Parts, short: Short) -> Option<Response<ResponseBody>> {
        let endpoint = Endpoint::of(&head.method, head.uri.path(), &[]);
        if matches!(endpoint, Ok(Endpoint::Live | Endpoint::Ready)) {
            return None;
        }
        let (message, limit) = match short {
            Short::Places => (
                "all connections of this replica are busy; try again",
                CONNECTIONS_BUSY,
            ),
            Short::PlacesOfAddress => (
                "this client has as many connections as it may have, all of them busy; try again",
                "connections_per_address",
            ),
        };
        let error = ApiError::new(ErrorKind::Overloaded, message);
        let refusals = &self.dispatch.metrics.refusals;
        refusals.own_error(error.kind);
        refusals.limit_reached(limit);
        if short == Short::Places && self.crowded.allows_line() {
            tracing::warn!(
                "requests are turned away: all connections of clients are busy; more replicas, a greater \
                 limits.connections, or more open files (ulimit -n) make room"
            );
        }
        let dialect = Dialect::of(head.uri.path());
        let status = self.dispatch.admission.no_room_status().status();
        let mut response = refused_as(&error, status, dialect);
        let id = request_id::of(&head.headers, &self.request_id_headers.now());
        response.headers_mut().insert(headers::REQUEST_ID, id);
        if let Some(cors) = &*self.cors.now() {
            let origin = head.headers.get(header::ORIGIN);
            cors.tell(origin, response.headers_mut());
        }
        Some(response)
    }

    fn models(
        &self,
        endpoint: Endpoint,
        path: &str,
        key: Option<&ApiKey>,
    ) -> Response<ResponseBody> {
        let fleet = self.dispatch.cluster.fleet();
        let mut catalog = Catalog::new(fleet.models(), &self.dispatch.cluster.settings().models);
        if let Some(key) = key {
            catalog.retain(|name| key.may_ask_for(Some(name)));
        }
        let said = |model: &str| fleet.card_of(model);
        if endpoint == Endpoint::Models {
            return json(catalog.list(&said));
        }
        let id = path.strip_prefix("/v1/models/").unwrap_or_default();
        // The official client writes the slash of `org/model` as `%2F`.
        let id = percent_encoding::percent_decode_str(id).decode_utf8_lossy();
        match catalog.one(&id, &said) {
            Some(body) => json(body),
            None => {
                let error = no_such_model(&id);
                self.dispatch.metrics.refusals.own_error(error.kind);
                error.response().map(ResponseBody::from)
            }
        }
    }
}

/// Refused by its head alone.
pub(super) fn refused(error: &ApiError, dialect: Dialect) -> Response<ResponseBody> {
    refused_as(error, error.kind.status(), dialect)
}

fn refused_as(error: &ApiError, status: StatusCode, dialect: Dialect) -> Response<ResponseBody> {
    let mut response = error.response_as(status, dialect).map(ResponseBody::from);
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
