//! Which endpoint answers which request, and who may ask.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Body, Incoming};

use super::answer::{Answer, json, not_found, text};
use super::body::read;
use super::gate::{self, GateRefusal};
use super::leases::wrong_credential;
use super::page::Page;
use super::pages::{self, Outgoing};
use super::query::{Query, decoded};
use super::{Admin, Port, methods};
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::metrics::{Form, ReasonLabels};

impl Admin {
    pub(super) async fn answer(
        self: &Arc<Self>,
        port: Port,
        request: Request<Incoming>,
    ) -> Response<Outgoing> {
        if port == Port::Admin && pages::is_page(request.uri().path()) {
            let (head, body) = request.into_parts();
            return self.page(&head, body).await;
        }
        let answer = match port {
            Port::Metrics => match self.metrics_only(&request) {
                Ok(form) => self.metrics(form).await,
                Err(error) => Err(error),
            },
            Port::Admin => self.route(request).await,
        };
        let answer: Answer = answer.unwrap_or_else(|error| error.response().map(Full::new));
        answer.map(Outgoing::Left)
    }

    fn metrics_only(&self, request: &Request<Incoming>) -> Result<Form, ApiError> {
        let gate = self.metrics_gate.now();
        gate.check_page(request.headers())
            .and_then(|()| gate.check_host(request.headers(), request.uri().authority()))
            .map_err(|refused| self.refusal(refused))?;
        match (methods::asked(request.method()), request.uri().path()) {
            (&Method::GET, "/metrics") => Ok(Form::asked_for(request.headers())),
            _ => Err(not_found("this port serves GET /metrics")),
        }
    }

    async fn route(self: &Arc<Self>, request: Request<Incoming>) -> Result<Answer, ApiError> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        self.admin_gate
            .now()
            .check_page(&head.headers)
            .map_err(|refused| self.refusal(refused))?;
        let method = methods::asked(&head.method);
        // Liveness and readiness are for probes, which carry no token and learn nothing else.
        match (method, segments.as_slice()) {
            (&Method::GET, ["healthz"]) => return Ok(text(StatusCode::OK, "ok\n")),
            (&Method::GET, ["readyz"]) => return Ok(self.readyz()),
            (_, ["leases", id]) if self.is_worker(&decoded(id)?, &head.headers) => {}
            (_, ["leases", _]) if self.is_wrong_credential(&head.headers) => {
                self.refused("token");
                return Err(wrong_credential());
            }
            _ => self.check_caller(&head)?,
        }
        gate::check_body(&head.method, &head.headers, !body.is_end_stream())
            .map_err(|refused| self.refusal(refused))?;
        let query = Query::of(&head.uri, methods::parameters(method, &segments))?;
        match (method, segments.as_slice()) {
            (&Method::GET, ["metrics"]) => self.metrics(Form::asked_for(&head.headers)).await,
            (&Method::GET, ["cluster"]) => Ok(json(StatusCode::OK, &self.describe_cluster())),
            (&Method::GET, ["about"]) => self.show_about().await,
            (&Method::GET, ["events"]) => Ok(json(StatusCode::OK, &self.describe_events())),
            (&Method::GET, ["history"]) => {
                Ok(json(StatusCode::OK, &self.describe_history(&query)?))
            }
            (&Method::GET, ["links"]) => Ok(json(StatusCode::OK, &self.describe_links())),
            (&Method::GET, ["ring"]) => Ok(json(StatusCode::OK, &self.describe_rings())),
            (&Method::GET, ["workers"]) => Ok(self.list_workers(&Page::of(&query)?).await),
            (&Method::POST, ["workers"]) => {
                self.add_worker(query.warms_up()?, &read(body).await?).await
            }
            (&Method::GET, ["workers", id]) => self.show_worker(&self.named(&decoded(id)?)).await,
            (&Method::PATCH, ["workers", id]) => {
                self.change_worker(&self.named(&decoded(id)?), &read(body).await?)
                    .await
            }
            (&Method::DELETE, ["workers", id]) => {
                self.remove_worker(&self.named(&decoded(id)?)).await
            }
            (&Method::POST, ["workers", id, "drain"]) => {
                self.drain_worker(&self.named(&decoded(id)?)).await
            }
            (&Method::POST, ["config", "reload"]) => self.reload().await,
            (&Method::GET, ["discovery"]) => Ok(self.describe_discovery()),
            (&Method::PUT, ["leases", id]) => {
                self.renew(&decoded(id)?, &query, &read(body).await?).await
            }
            (&Method::DELETE, ["leases", id]) => self.release(&decoded(id)?).await,
            (&Method::POST, ["add_worker"]) => {
                let url = query.require("url")?;
                self.add_worker_at(query.warms_up()?, url).await
            }
            (&Method::POST, ["remove_worker"]) => {
                self.remove_worker_at(query.require("url")?).await
            }
            (&Method::GET, ["list_workers"]) => Ok(self.list_urls(&Page::of(&query)?)),
            (&Method::GET, ["cache"]) => self.describe_caches(&query).await,
            (&Method::GET, ["quarantine"]) => Ok(self.list_quarantine()),
            (&Method::DELETE, ["quarantine"]) => Ok(self.lifted(self.quarantine.lift(None))),
            (&Method::DELETE, ["quarantine", hash]) => self.lift(&decoded(hash)?),
            (&Method::POST, ["explain"]) => self.explain(&query, &head.headers, &read(body).await?),
            (_, segments) => Err(methods::unserved(&head.method, segments)),
        }
    }

    pub(super) fn refusal(&self, refused: GateRefusal) -> ApiError {
        self.refused(refused.label());
        ApiError::new(ErrorKind::PermissionDenied, refused.to_string())
    }

    pub(super) fn refused(&self, reason: &'static str) {
        let refusals = &self.metrics.operators.admin_refusals;
        refusals.get_or_create(&ReasonLabels { reason }).inc();
    }
}
