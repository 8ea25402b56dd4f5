//! `POST /explain`: where the request in the body would go, and why, without sending it.

use bytes::Bytes;
use grapevine_gossip::worker::Role;
use grapevine_placement::{Decision, Explanation};
use http::{HeaderMap, Method, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::Admin;
use super::answer::{Answer, json};
use super::page::PAGE;
use super::query::Query;
use crate::api::Endpoint;
use crate::api::error::ApiError;
use crate::cluster::quarantine::KnownBy;
use crate::cluster::{Halves, Pool};
use crate::config::DecodeAlone;
use crate::proxy::caller::Caller;
use crate::proxy::division::{Undivided, Way, check_steering, stays_whole};
use crate::proxy::own_words::quarantined;
use crate::proxy::routing_query::{RoutingInput, RoutingQuery};
use crate::shown::tenants::{MISSING, UNKNOWN};
use crate::upstream::Worker;

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
    /// Whose prompt it is.
    tenant: Option<&'a str>,
    /// What is known of that: `known`, `unknown`, `missing` or `none`.
    tenant_is: &'static str,
    expected_tokens: u32,
    /// More than half of the workers are bad, so their health is not believed: one of them may be named.
    panic: bool,
    /// How many workers were considered; `order` has the first of them.
    workers: usize,
    order: Vec<Row<'a>>,
    /// The way of a request for a model with prefill and decode workers, as the access log has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    split: Option<&'static str>,
    /// Of a request that is divided: the worker that computes its prompt; what stands above is about the one that
    /// answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill: Option<Leg<'a>>,
}

/// The half of a request that computes its prompt.
#[derive(Debug, Serialize)]
struct Leg<'a> {
    policy: &'static str,
    worker: Option<&'a str>,
    reason: &'static str,
    home: Option<&'a str>,
    expected_tokens: u32,
    panic: bool,
    workers: usize,
    order: Vec<Row<'a>>,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    worker: &'a str,
    verdict: &'static str,
    /// What this replica holds of it, `good` or what is wrong; `on_trial` where that was some time ago,
    /// and a request may show how it is now; `doubted` where another replica alone speaks against it.
    health: &'static str,
    /// Milliseconds, in policy `prefix`.
    cost: Option<f64>,
    /// Expected milliseconds to the first token.
    first_token_ms: f64,
    in_flight: f64,
    limit: Option<f64>,
    pending_prefill_tokens: f64,
    context_tokens: f64,
    expected_tokens: u32,
    /// Of a worker that publishes KV events and of a text that is known; else what is expected is evidence alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<Events>,
}

/// What a worker's KV events say of a prompt.
#[derive(Debug, Serialize)]
struct Events {
    /// It holds so many tokens of it, as the router estimates tokens.
    held_tokens: u32,
    /// So many could be looked up; of those behind them nobody knows which blocks they are. 0: it may hold more than
    /// what it is known to hold.
    of_tokens: u32,
    /// What it holds of an earlier prompt that begins this one, as it counts tokens itself.
    cached_tokens: u32,
    /// What it holds of the answer behind that; held as well, if this model's prompts have such answers in them.
    answer_tokens: u32,
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
        Ok(json(StatusCode::OK, &self.explained(query, headers, body)?))
    }

    /// The same as JSON.
    pub(super) fn explained(
        &self,
        query: &Query<'_>,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Value, ApiError> {
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
        if let Some(left) = self.quarantine.holds(path, body, &KnownBy::default()) {
            return Err(quarantined(left));
        }
        let pool = &routing.pool;
        let asked = Undivided {
            endpoint,
            is_held: routing.response.is_some(),
            body,
        };
        let transfer = self.transfer.now();
        check_steering(routing.steers, None, || transfer.from_clients)?;
        let way = asked.way(pool, &routing.key, &transfer)?;
        let named_by = self.cluster.settings().tenant_header.as_deref();
        let in_header = named_by.and_then(|name| headers.get(name)?.to_str().ok());
        let whose = self.whose(
            tenant
                .as_deref()
                .or(in_header)
                .filter(|name| !name.is_empty()),
        );
        let described = |pool, explanation: &Explanation, leg, split| {
            let described = self.described(&routing, pool, explanation, (whose, leg, split));
            Ok(serde_json::to_value(&described).expect("descriptions always serialise"))
        };
        let one = |split| {
            let others = routing.other_ranks(pool);
            let explanation = self.cluster.explain(pool, &routing.key, with_load, &others);
            described(pool, &explanation, None, split)
        };
        let halves = match (way, pool.halves()) {
            (Some(Way::Pair(_)), Some(halves)) => halves,
            (Some(Way::One(why)), _) => return one(Some(why)),
            _ => return one(None),
        };
        let whole = pool.role() == Role::Any;
        let divide = transfer.divide();
        let (first, second) = self.explain_pair(halves, &routing, with_load);
        let has_pair = first.decision.is_ok() && second.decision.is_ok();
        let (cluster, key) = (&self.cluster, &routing.key);
        let tried = (&[][..], &[][..]);
        if let Some(way) = stays_whole(cluster, pool, halves, key, &divide, tried, with_load) {
            return one(Some(way));
        }
        if !has_pair && whole {
            return one(Some("whole_no_pair"));
        }
        if !has_pair && transfer.decode_alone == DecodeAlone::Always {
            return one(Some("alone_no_prefill"));
        }
        let leg = Some(leg(&halves.prefill, &first));
        described(&halves.decode, &second, leg, Some("pair"))
    }

    /// Whether clients' prompts are those of tenants, be it by their keys or by a header: each tenant's go by themselves.
    pub(super) fn has_tenants(&self) -> bool {
        self.keys.are_configured() || self.cluster.settings().tenant_header.is_some()
    }

    /// A tenant that was named, with what is known of it.
    fn whose<'a>(&self, tenant: Option<&'a str>) -> (Option<&'a str>, &'static str) {
        let is_known = |name: &str| {
            let tenants = self.keys.tenants();
            tenants.iter().any(|(tenant, _)| **tenant.name() == *name)
        };
        let tenant_is = match tenant {
            None if self.has_tenants() => MISSING,
            None => "none",
            Some(name) if self.keys.are_configured() && !is_known(name) => UNKNOWN,
            Some(_) => "known",
        };
        (tenant, tenant_is)
    }

    /// Both choices, as a request makes them: a prefill worker for which no decode worker is left is passed over. If
    /// there is no pair at all, what the first prefill worker found.
    fn explain_pair(
        &self,
        halves: &Halves,
        routing: &RoutingQuery,
        with_load: bool,
    ) -> (Explanation, Explanation) {
        let explain = |pool, passed_over: &[usize]| {
            let cluster = &self.cluster;
            cluster.explain(pool, &routing.key, with_load, passed_over)
        };
        let other_ranks = routing.other_ranks(&halves.decode);
        let explain_decode = |strangers: &[usize]| {
            let passed_over = [strangers, &other_ranks].concat();
            explain(&halves.decode, &passed_over)
        };
        let mut without = halves.pairs.silent().to_vec();
        let mut found = None;
        loop {
            let first = explain(&halves.prefill, &without);
            let Ok(decision) = &first.decision else {
                let second = || explain_decode(&[]);
                return found.unwrap_or_else(|| (first, second()));
            };
            without.extend(halves.pairs.alike(decision.worker));
            let mut passed_over = halves.pairs.passed_over(decision.worker);
            let mut second = explain_decode(passed_over.next().unwrap_or_default());
            let is_well = |decision: &Decision| !decision.unreachable;
            if !second.decision.as_ref().is_ok_and(is_well)
                && let Some(strangers) = passed_over.next()
            {
                second = explain_decode(strangers);
            }
            if second.decision.is_ok() {
                return (first, second);
            }
            found.get_or_insert((first, second));
        }
    }

    fn described<'a>(
        &'a self,
        routing: &'a RoutingQuery,
        pool: &'a Pool,
        explanation: &Explanation,
        ((tenant, tenant_is), prefill, split): (
            (Option<&'a str>, &'static str),
            Option<Leg<'a>>,
            Option<&'static str>,
        ),
    ) -> Explained<'a> {
        let decision = explanation.decision.as_ref();
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
            tenant,
            tenant_is,
            expected_tokens: decision.map_or(0, |d| d.expected_tokens),
            panic: explanation.panic,
            workers: explanation.rows.len(),
            order: rows(pool, explanation),
            split,
            prefill,
        }
    }
}

fn leg<'a>(pool: &'a Pool, explanation: &Explanation) -> Leg<'a> {
    let decision = explanation.decision.as_ref();
    Leg {
        policy: pool.policy().policy.as_str(),
        worker: decision.ok().map(|d| name(pool, d.worker)),
        reason: decision.map_or_else(|e| e.as_str(), |d| d.reason.as_str()),
        home: decision.ok().map(|d| name(pool, d.home)),
        expected_tokens: decision.map_or(0, |d| d.expected_tokens),
        panic: explanation.panic,
        workers: explanation.rows.len(),
        order: rows(pool, explanation),
    }
}

fn rows<'a>(pool: &'a Pool, explanation: &Explanation) -> Vec<Row<'a>> {
    let rows = explanation.rows.iter().take(PAGE);
    let rows = rows.map(|row| Row {
        worker: name(pool, row.index),
        verdict: row.verdict.as_str(),
        health: health(&pool.members()[row.index].worker),
        cost: row.cost,
        first_token_ms: row.first_token_ms,
        in_flight: row.load.requests,
        limit: row.limit,
        pending_prefill_tokens: row.load.prefill_tokens,
        context_tokens: row.load.context_tokens,
        expected_tokens: row.expected_tokens,
        events: row.told.map(|told| Events {
            held_tokens: told.held_tokens,
            of_tokens: told.until_tokens,
            cached_tokens: told.cached_tokens,
            answer_tokens: told.answer_tokens,
        }),
    });
    rows.collect()
}

fn health(worker: &Worker) -> &'static str {
    let report = worker.health.report();
    if report.doubt.is_some() && !report.verdict.is_bad() {
        return "doubted";
    }
    match report.verdict.is_bad() && worker.health.claim().is_none() {
        true => "on_trial",
        false => report.verdict.as_str(),
    }
}

fn name(pool: &Pool, index: usize) -> &str {
    &pool.members()[index].worker.label
}
