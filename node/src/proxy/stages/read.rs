//! A request whose body is read, and what it asks for: the states before a worker is looked for.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Method, Version};
use tokio::time::Instant;

use super::accepted::{Accepted, Admitted};
use super::asked::Asked;
use super::outgoing::{headers_of, outgoing};
use crate::admission::{Admission, Ask};
use crate::api::{ApiError, Endpoint};
use crate::cache::{self, Answer as KeptAnswer, Found, ResponseCache};
use crate::cluster::Cluster;
use crate::cluster::quarantine::{KnownBy, Quarantine};
use crate::config::{LimitConfig, TimeoutConfig, TransferConfig};
use crate::http::{headers, hops};
use crate::live::Live;
use crate::proxy::body::{self, BodyLimits, HeldBody};
use crate::proxy::budget::Budget;
use crate::proxy::caller::Caller;
use crate::proxy::continuation::Failovers;
use crate::proxy::deaths::Company;
use crate::proxy::division::{self, Division, check_steering};
use crate::proxy::holders::{Finder, Wanted};
use crate::proxy::metrics::ProxyMetrics;
use crate::proxy::own_words::quarantined;
use crate::proxy::record::Record;
use crate::proxy::routing_query::{Early, RoutingInput, RoutingQuery};
use crate::tenants::ApiKey;
use crate::upstream::outgoing::Outgoing;

/// What it takes to read a request.
#[derive(Debug)]
pub(in crate::proxy) struct Reader<'a> {
    pub(in crate::proxy) cluster: &'a Cluster,
    pub(in crate::proxy) limits: Arc<LimitConfig>,
    pub(in crate::proxy) timeouts: Arc<TimeoutConfig>,
    pub(in crate::proxy) admission: &'a Admission,
    pub(in crate::proxy) quarantine: &'a Quarantine,
    pub(in crate::proxy) failovers: &'a Failovers,
    pub(in crate::proxy) transfer: &'a Live<TransferConfig>,
    pub(in crate::proxy) metrics: &'a ProxyMetrics,
}

/// What it takes to let a request that is read go on to a worker.
#[derive(Debug)]
pub(in crate::proxy) struct EntryParts<'a> {
    pub(in crate::proxy) admission: &'a Admission,
    pub(in crate::proxy) cluster: &'a Arc<Cluster>,
    pub(in crate::proxy) finder: &'a Finder,
    pub(in crate::proxy) budget: &'a Arc<Budget>,
    /// Stored responses get ids that carry their tenant.
    pub(in crate::proxy) marks_responses: bool,
}

/// A request whose body is read.
#[derive(Debug)]
pub(in crate::proxy) struct Read {
    head: Box<Parts>,
    body: HeldBody,
    known: KnownBy,
    query: RoutingQuery,
    endpoint: Endpoint,
    key: Option<Arc<ApiKey>>,
    deadline: Option<Instant>,
    waits_by: Ask,
    failover: bool,
    /// When the last byte was there.
    at: Instant,
}

/// A request for which the response cache was looked through.
#[derive(Debug)]
pub(in crate::proxy) enum Looked {
    /// It has the answer.
    Kept(Arc<KeptAnswer>),
    /// A worker has to be asked.
    Absent(Box<Read>),
}

impl Admitted {
    /// Reads the body and what it asks for.
    /// Errors: what [`body::read`] and [`RoutingQuery::of`] refuse, and a body that no worker gets.
    pub(in crate::proxy) async fn read(
        self,
        reader: &Reader<'_>,
        record: &mut Record,
    ) -> Result<Box<Read>, ApiError> {
        let Accepted {
            mut head,
            body,
            endpoint,
            key,
            deadline,
        } = self.accepted;
        let begun = Instant::now();
        let (cluster, metrics) = (reader.cluster, reader.metrics);
        let form = endpoint.traits().form;
        let limits = BodyLimits {
            coding: headers::take_coding(&mut head.headers),
            ..BodyLimits::of(form, &reader.limits, &reader.timeouts)
        };
        let caller = caller(key.as_ref());
        let mut early = Early::of(endpoint, &head.headers)?;
        let look = |so_far: &[u8]| early.look(so_far, cluster, caller);
        let admission = reader.admission;
        let is_crowded = || admission.is_crowded();
        let body = body::read(body, limits, admission.bodies(), is_crowded, look).await;
        let body = body.map_err(|refused| refused.counted(&metrics.refusals))?;
        let at = Instant::now();
        record.bytes_in = Some(body.bytes.len() as u64);
        let input = RoutingInput {
            endpoint,
            path: head.uri.path(),
            headers: &head.headers,
            body: &body.bytes,
            upload: early.upload(),
            caller,
        };
        let query = RoutingQuery::of(cluster, &input)?;
        record.asks_for(query.pool.label());
        record.asked_model = query.asked_model.clone();
        let may_steer = || reader.transfer.look().from_clients;
        check_steering(query.steers, Some(record.request_id()), may_steer)?;
        let (path, known) = (head.uri.path(), KnownBy::default());
        if let Some(left) = reader.quarantine.holds(path, &body.bytes, &known) {
            metrics.marks.query_of_death("refused");
            return Err(quarantined(left));
        }
        let failovers = reader.failovers;
        let failover = failovers.wanted(&head.headers, query.pool.model())?;
        Ok(Box::new(Read {
            waits_by: self
                .waits_by
                .holding(body.bytes.len())
                .after(at - begun, deadline),
            head,
            body,
            known,
            query,
            endpoint,
            key,
            deadline,
            failover,
            at,
        }))
    }
}

impl Read {
    /// Its client asks for a stream.
    pub(in crate::proxy) fn is_stream(&self) -> bool {
        self.query.stream
    }

    /// Looks for a kept answer; `tenant_header`: where a tenant without a key is named.
    pub(in crate::proxy) fn look_up(
        self: Box<Self>,
        cache: Option<&Arc<ResponseCache>>,
        tenant_header: Option<&str>,
        record: &mut Record,
    ) -> Looked {
        let Some(cache) = cache else {
            return Looked::Absent(self);
        };
        let found = cache.find(&self.kept_as(tenant_header));
        record.cache = Some(found.as_str());
        match found {
            Found::Hit(answer) => return Looked::Kept(answer),
            Found::Miss(recording) | Found::Bypass(_, Some(recording)) => {
                record.recording = Some(Box::new(recording));
            }
            Found::Bypass(_, None) => {}
        }
        Looked::Absent(self)
    }

    /// Takes a place of its model; waits for it if it must.
    /// Errors: what [`Admission::enter`] and [`Finder::holder_of`] refuse.
    pub(in crate::proxy) async fn enter(
        self: Box<Self>,
        entry: &EntryParts<'_>,
        record: &mut Record,
    ) -> Result<Box<Asked>, ApiError> {
        let Self {
            head,
            body,
            known,
            mut query,
            endpoint,
            key,
            deadline,
            waits_by,
            failover,
            mut at,
        } = *self;
        if query.response.is_some() {
            let begun = Instant::now();
            let input = RoutingInput {
                endpoint,
                path: head.uri.path(),
                headers: &head.headers,
                body: &body.bytes,
                upload: None,
                caller: caller(key.as_ref()),
            };
            query = entry.at_holder(query, &input, record).await?;
            at += begun.elapsed();
        }
        let mut division = division_of(endpoint, &query, &body, record)?;
        let now = Instant::now();
        let thought = now - at;
        if endpoint == Endpoint::Response {
            entry.model_without_waiting(&query, record);
        } else {
            entry
                .model(&mut query, key.as_ref(), &waits_by, now, record)
                .await?;
            if division.is_none() {
                // Its workers may have got roles while it waited.
                division = division_of(endpoint, &query, &body, record)?;
            }
        }
        let tenant = key.as_ref().map(|key| key.tenant().number());
        let owner = tenant.filter(|_| entry.marks_responses);
        let sent = query.body_of(body.bytes.clone(), owner);
        let explained = head.headers.contains_key(headers::EXPLAIN);
        let mut outgoing = Outgoing {
            // One that is computed later would be, twice, by a worker that had it and did not answer.
            repeatable: (endpoint.traits().repeatable && !query.queued)
                || head.method == Method::GET,
            stream: query.stream,
            one_value: endpoint.traits().computes && !query.queued,
            ..outgoing(head, sent, record.request_id(), key.is_some())
        };
        if endpoint == Endpoint::Invocations {
            // vLLM goes by it alone, and without it answers with its first model.
            let model = query.model_in_head()?;
            outgoing.headers.insert(headers::ADAPTER, model);
        }
        if let Some(urgency) = entry.admission.in_engines(waits_by.class()) {
            let urgency = HeaderValue::from_static(urgency);
            outgoing.headers.insert(headers::ENGINE_PRIORITY, urgency);
        }
        Ok(Box::new(Asked {
            explained,
            outgoing,
            division,
            tenant,
            query,
            body,
            known,
            endpoint,
            deadline,
            waits_by,
            failover,
            has_looked: false,
            thought,
            company: Company::default(),
            session: None,
            _counted: entry.budget.request(),
        }))
    }

    /// What the response cache has to know of it.
    fn kept_as<'a>(&'a self, tenant_header: Option<&'a str>) -> cache::Asked<'a> {
        let (head, caller) = (&self.head, caller(self.key.as_ref()));
        let tenant = caller.tenant(tenant_header, &head.headers);
        cache::Asked {
            method: &head.method,
            path: head.uri.path(),
            query: head.uri.query(),
            headers: &head.headers,
            model: self.query.pool.model(),
            tenant: tenant.map_or(&b""[..], |(name, _)| name),
            key_is_checked: self.key.is_some(),
            body: &self.body.bytes,
        }
    }
}

/// Whether a request can be divided; none where the workers of its pool take whole requests only.
fn division_of(
    endpoint: Endpoint,
    query: &RoutingQuery,
    body: &HeldBody,
    record: &Record,
) -> Result<Option<Division>, ApiError> {
    if query.pool.is_of_whole_workers() {
        return Ok(None);
    }
    division::check_id(record.request_id())?;
    let is_held = query.response.is_some();
    Division::of(endpoint, is_held, &body.bytes, &query.pool).map(Some)
}

impl EntryParts<'_> {
    /// The permit becomes one of the model; waits for that, from `now` on, if it must.
    pub(super) async fn model(
        &self,
        query: &mut RoutingQuery,
        key: Option<&Arc<ApiKey>>,
        waits_by: &Ask,
        now: Instant,
        record: &mut Record,
    ) -> Result<(), ApiError> {
        record.waits(now);
        let Some(permit) = &mut record.admission else {
            record.waited(None);
            return Ok(());
        };
        let model = query.pool.label();
        let entered = self.admission.enter(permit, key, &model, waits_by).await;
        let waited = *entered.as_ref().unwrap_or_else(|refused| &refused.queued);
        record.waited(waited);
        entered.map_err(|refused| refused.error)?;
        if waited.is_some() {
            query.renew(self.cluster)?;
        }
        Ok(())
    }
}

impl EntryParts<'_> {
    /// Finds the worker that holds the response which the request is about, and so the target of an alias: the client's new
    /// input may be drawn for another one.
    async fn at_holder(
        &self,
        query: RoutingQuery,
        input: &RoutingInput<'_>,
        record: &mut Record,
    ) -> Result<RoutingQuery, ApiError> {
        let Some(id) = &query.response else {
            return Ok(query);
        };
        let pools = query.pools_of_response(self.cluster);
        let (headers, has_key) = (input.headers.clone(), record.key.is_some());
        let mut headers = headers_of(headers, record.request_id(), has_key);
        hops::sign(&mut headers, Version::HTTP_11);
        let wanted = Wanted {
            id,
            pools: &pools,
            caller: input.caller,
            headers: &headers,
        };
        let holder = self.finder.holder_of(wanted).await?;
        let query = query.at_holder(holder, pools, self.cluster, input)?;
        record.asks_for(query.pool.label());
        record.asked_model = query.asked_model.clone();
        Ok(query)
    }
}

impl EntryParts<'_> {
    /// The same for a request that is only about what a worker holds: it waits for nobody's computing. Where its model has
    /// no place, it goes on without one.
    fn model_without_waiting(&self, query: &RoutingQuery, record: &mut Record) {
        if let Some(permit) = &mut record.admission {
            self.admission.enter_at_once(permit, &query.pool.label());
        }
    }
}

/// The client that a request is from.
pub(super) fn caller(key: Option<&Arc<ApiKey>>) -> Caller<'_> {
    key.map_or(Caller::Anybody, |key| Caller::Keyed(key))
}
