//! `POST /explain`: where the request in the body would go, and why, without sending it.

use bytes::Bytes;
use grapevine_placement::Explanation;
use http::{HeaderMap, Method, StatusCode};
use serde::Serialize;

use super::page::PAGE;
use super::query::Query;
use super::{Admin, Answer, json};
use crate::api::Endpoint;
use crate::api::error::ApiError;
use crate::cluster::Pool;
use crate::proxy::caller::Caller;
use crate::proxy::routing_query::{RoutingInput, RoutingQuery};

#[derive(Debug, Serialize)]
struct Explained<'a> {
    replica: &'a str,
    model: &'a str,
    policy: &'static str,
    worker: Option<&'a str>,
    reason: &'static str,
    home: Option<&'a str>,
    /// Position on the ring.
    key: String,
    digest: String,
    prompt_tokens: u32,
    expected_tokens: u32,
    panic: bool,
    /// How many workers were considered; `order` has the first of them.
    workers: usize,
    order: Vec<Row<'a>>,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    worker: &'a str,
    verdict: &'static str,
    /// Milliseconds, in policy `prefix`.
    cost: Option<f64>,
    /// Expected milliseconds to the first token.
    first_token_ms: f64,
    in_flight: f64,
    limit: Option<f64>,
    pending_prefill_tokens: f64,
    context_tokens: f64,
    expected_tokens: u32,
}

impl Admin {
    /// `?path=` names the endpoint (chat completions when absent); `?load=ignore` answers as in a quiet cluster;
    /// `?tenant=` asks on behalf of a tenant, as its key would.
    pub(super) fn explain(
        &self,
        query: &Query<'_>,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Answer, ApiError> {
        let path = query.value("path");
        let path = path.as_deref().unwrap_or("/v1/chat/completions");
        let with_load = match query.value("load").as_deref() {
            None | Some("now") => true,
            Some("ignore") => false,
            Some(_) => return Err(ApiError::invalid("load", "load is `now` or `ignore`")),
        };
        let endpoint = Endpoint::of(&Method::POST, path, &[])?;
        let tenant = query.value("tenant");
        let caller = tenant.as_deref().map_or(Caller::Anybody, Caller::Tenant);
        let input = RoutingInput {
            endpoint,
            path,
            headers,
            body,
            upload: None,
            caller,
        };
        let routing = RoutingQuery::of(&self.cluster, &input)?;
        let explanation = self.cluster.explain(&routing.pool, &routing.key, with_load);
        Ok(json(
            StatusCode::OK,
            &self.described(&routing, &explanation),
        ))
    }

    fn described<'a>(
        &'a self,
        routing: &'a RoutingQuery,
        explanation: &Explanation,
    ) -> Explained<'a> {
        let pool = &routing.pool;
        let decision = explanation.decision.as_ref();
        let rows = explanation.rows.iter().take(PAGE).map(|row| Row {
            worker: name(pool, row.index),
            verdict: row.verdict.as_str(),
            cost: row.cost,
            first_token_ms: row.first_token_ms,
            in_flight: row.load.requests,
            limit: row.limit,
            pending_prefill_tokens: row.load.prefill_tokens,
            context_tokens: row.load.context_tokens,
            expected_tokens: row.expected_tokens,
        });
        Explained {
            replica: &self.replica,
            model: pool.model(),
            policy: pool.policy().policy.as_str(),
            worker: decision.ok().map(|d| name(pool, d.worker)),
            reason: decision.map_or_else(|e| e.as_str(), |d| d.reason.as_str()),
            home: decision.ok().map(|d| name(pool, d.home)),
            key: format!("{:016x}", routing.key.home()),
            digest: self.cluster.fleet().digest().to_string(),
            prompt_tokens: routing.key.prompt_tokens(),
            expected_tokens: decision.map_or(0, |d| d.expected_tokens),
            panic: explanation.panic,
            workers: explanation.rows.len(),
            order: rows.collect(),
        }
    }
}

fn name(pool: &Pool, index: usize) -> &str {
    &pool.members()[index].worker.label
}
