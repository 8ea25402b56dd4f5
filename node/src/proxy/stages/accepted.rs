//! From the head of a request to the body and what it asks for: the states before a worker is looked for.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Uri, header};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::asked::Asked;
use crate::admission::Ask;
use crate::api::{ApiError, Endpoint};
use crate::cache::{self, Answer as KeptAnswer, Found};
use crate::hops;
use crate::proxy::attempt::Outgoing;
use crate::proxy::body::{self, BodyLimits, HeldBody};
use crate::proxy::caller::Caller;
use crate::proxy::deaths::Company;
use crate::proxy::holders::Wanted;
use crate::proxy::question::{Asking, Early, Question};
use crate::proxy::realtime::watch::Terms as SessionTerms;
use crate::proxy::realtime::{self, Opening, Session};
use crate::proxy::record::Record;
use crate::proxy::worker_body::WorkerBody;
use crate::proxy::{Proxy, headers, refusal};
use crate::tenants::{Key, X_API_KEY};

/// A request for a worker; nothing of its body is read yet.
#[derive(Debug)]
pub(in crate::proxy) struct Accepted {
    pub(super) head: Parts,
    pub(super) body: Incoming,
    pub(super) endpoint: Endpoint,
    pub(super) key: Option<Arc<Key>>,
    pub(super) deadline: Option<Instant>,
}

/// A request that this replica has room for.
#[derive(Debug)]
pub(in crate::proxy) struct Admitted {
    pub(super) accepted: Accepted,
    pub(super) waits_by: Ask,
}

/// A request whose body is read, and where its answer comes from.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one lives at a time, on the stack of its request"
)]
pub(in crate::proxy) enum Source {
    /// The response cache has it.
    Kept(Arc<KeptAnswer>),
    /// A worker has to be asked.
    Worker(Asked),
}

impl Accepted {
    /// `key`: the client's, where there are keys; `deadline`: the end of the whole request.
    pub(in crate::proxy) fn new(
        head: Parts,
        body: Incoming,
        endpoint: Endpoint,
        key: Option<Arc<Key>>,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            head,
            body,
            endpoint,
            key,
            deadline,
        }
    }

    /// What of it is a WebSocket handshake.
    ///
    /// # Errors
    /// See [`Proxy::opening`].
    pub(in crate::proxy) fn opening(&self, proxy: &Proxy) -> Result<Option<Opening>, ApiError> {
        match self.endpoint {
            Endpoint::Realtime => proxy.opening(&self.head).map(Some),
            _ => Ok(None),
        }
    }

    /// Takes a place to be read, among the requests of this replica; waits for one if it must.
    ///
    /// # Errors
    /// What [`Admission::admit`](crate::admission::Admission::admit) refuses.
    pub(in crate::proxy) async fn admit(
        self,
        proxy: &Proxy,
        record: &mut Record,
    ) -> Result<Admitted, ApiError> {
        let admission = &proxy.parts.admission;
        let key = self.key.as_ref();
        let length = self.body.size_hint().exact();
        let waits_by = admission.ask(
            key.map(|key| &**key),
            &self.head.headers,
            length,
            self.deadline,
        );
        record.tenant = key.map(|key| Arc::clone(key.tenant()));
        record.priority = waits_by.class();
        let models = proxy.parts.cluster.fleet().pools().len();
        match admission.admit(key, &waits_by, models).await {
            Ok(admitted) => {
                record.admission = Some(admitted.permit);
                record.waited(admitted.queued);
                record.quota = admitted.quota;
                Ok(Admitted {
                    accepted: self,
                    waits_by,
                })
            }
            Err(refused) => {
                record.quota = refused.quota;
                Err(refused.error)
            }
        }
    }
}

impl Admitted {
    /// Reads the body and what it asks for, and takes a place of its model for it; waits for one if it must.
    ///
    /// # Errors
    /// What [`body::read`], [`Question::of`] and [`Admission::enter`] refuse.
    pub(in crate::proxy) async fn ask(
        self,
        proxy: &Proxy,
        record: &mut Record,
    ) -> Result<Source, ApiError> {
        let Accepted {
            mut head,
            body,
            endpoint,
            key,
            deadline,
        } = self.accepted;
        let limits = BodyLimits {
            coding: headers::take_coding(&mut head.headers),
            ..BodyLimits::of(
                endpoint.traits().form,
                &proxy.parts.limits,
                &proxy.parts.timeouts,
            )
        };
        let caller = key.as_deref().map_or(Caller::Anybody, Caller::Keyed);
        let cluster = &proxy.parts.cluster;
        let mut early = Early::of(endpoint, &head.headers)?;
        let look = |so_far: &[u8]| early.look(so_far, cluster, caller);
        let body = body::read(body, limits, &proxy.byte_budget, look)
            .await
            .map_err(|refused| {
                if let Some(limit) = refused.limit {
                    proxy.parts.metrics.limit_reached(limit);
                }
                refused.error
            })?;
        let read = Instant::now();
        let asking = Asking {
            endpoint,
            path: head.uri.path(),
            headers: &head.headers,
            body: &body.bytes,
            upload: early.upload(),
            caller,
        };
        let mut question = Question::of(cluster, &asking)?;
        record.model = Some(question.pool.label());
        if let Some(left) = proxy.parts.quarantine.holds(head.uri.path(), &body.bytes) {
            proxy.parts.metrics.query_of_death("refused");
            return Err(refusal::quarantined(left));
        }
        let failovers = &proxy.parts.failovers;
        let failover = failovers.wanted(&head.headers, question.pool.model())?;
        if let Some(cache) = &proxy.parts.cache {
            let found = cache.find(&kept_as(proxy, &head, caller, &question, &body));
            record.cache = Some(found.as_str());
            match found {
                Found::Hit(answer) => return Ok(Source::Kept(answer)),
                Found::Miss(recording) | Found::Bypass(_, Some(recording)) => {
                    record.recording = Some(Box::new(recording));
                }
                Found::Bypass(_, None) => {}
            }
        }
        let thought = read.elapsed();
        let waits_by = self.waits_by.holding(body.bytes.len());
        enter(proxy, record, key.as_ref(), &mut question, &waits_by).await?;
        let sent = question.body_of(body.bytes.clone());
        let explained = head.headers.contains_key(headers::EXPLAIN);
        let outgoing = Outgoing {
            repeatable: endpoint.traits().repeatable || head.method == Method::GET,
            stream: question.stream,
            ..outgoing(head, sent, record.request_id(), key.is_some())
        };
        let holder = match &question.response {
            None => None,
            Some(id) => {
                let wanted = Wanted {
                    id,
                    pool: &question.pool,
                    caller: key.as_deref().map_or(Caller::Anybody, Caller::Keyed),
                    headers: &outgoing.headers,
                };
                Some(proxy.holder_of(wanted).await?)
            }
        };
        Ok(Source::Worker(Asked {
            explained,
            outgoing,
            holder,
            tenant: key.as_ref().map(|key| key.tenant().number()),
            question,
            body,
            endpoint,
            deadline,
            waits_by,
            failover,
            thought,
            company: Company::default(),
            session: None,
            _counted: proxy.retries.request(),
        }))
    }
}

/// The permit becomes one of the model; waits for that if it must.
async fn enter(
    proxy: &Proxy,
    record: &mut Record,
    key: Option<&Arc<Key>>,
    question: &mut Question,
    waits_by: &Ask,
) -> Result<(), ApiError> {
    let Some(permit) = &mut record.admission else {
        return Ok(());
    };
    let model = question.pool.label();
    let admission = &proxy.parts.admission;
    let waited = admission.enter(permit, key, &model, waits_by).await?;
    record.waited(waited);
    if waited.is_some() {
        question.renew(&proxy.parts.cluster);
    }
    Ok(())
}

impl Admitted {
    /// A session instead of a request with a body: only its handshake is sent.
    ///
    /// # Errors
    /// What [`Question::of`] and [`Admission::enter`] refuse.
    pub(in crate::proxy) async fn session(
        self,
        opening: Opening,
        proxy: &Proxy,
        record: &mut Record,
    ) -> Result<Asked, ApiError> {
        let Accepted {
            mut head,
            endpoint,
            key,
            deadline,
            ..
        } = self.accepted;
        let read = Instant::now();
        let caller = key.as_deref().map_or(Caller::Anybody, Caller::Keyed);
        let cluster = &proxy.parts.cluster;
        let body = opening.as_body();
        let asking = Asking {
            endpoint,
            path: head.uri.path(),
            headers: &head.headers,
            body: &body,
            upload: None,
            caller,
        };
        let mut question = Question::of(cluster, &asking)?;
        record.model = Some(question.pool.label());
        let thought = read.elapsed();
        enter(proxy, record, key.as_ref(), &mut question, &self.waits_by).await?;
        let explained = head.headers.contains_key(headers::EXPLAIN);
        let target = head
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str());
        let terms = SessionTerms::of(cluster, key.as_ref(), question.pool.model());
        if terms.is_some() {
            // What is to be read is not compressed.
            head.headers.remove(header::SEC_WEBSOCKET_EXTENSIONS);
        }
        let target = realtime::target_with(target, question.pool.model());
        if let Ok(renamed) = target.parse() {
            head.uri = renamed;
        }
        let nothing = WorkerBody::unchanged(Bytes::new());
        Ok(Asked {
            explained,
            outgoing: Outgoing {
                // Nothing has been said in it yet.
                repeatable: true,
                upgrade: Some(opening.accept),
                ..outgoing(head, nothing, record.request_id(), key.is_some())
            },
            question,
            body: HeldBody {
                bytes: Bytes::new(),
                reserved: proxy.byte_budget.reserve(),
            },
            endpoint,
            deadline,
            waits_by: self.waits_by,
            failover: false,
            thought,
            company: Company::default(),
            holder: None,
            tenant: None,
            session: Some(Session {
                place: opening.place,
                terms,
            }),
            _counted: proxy.retries.request(),
        })
    }
}

/// What the response cache has to know of a request.
fn kept_as<'a>(
    proxy: &'a Proxy,
    head: &'a Parts,
    caller: Caller<'a>,
    question: &'a Question,
    body: &'a HeldBody,
) -> cache::Asked<'a> {
    let tenant_header = proxy.parts.cluster.settings().tenant_header.as_deref();
    let tenant = caller.tenant(tenant_header, &head.headers);
    cache::Asked {
        method: &head.method,
        path: head.uri.path(),
        query: head.uri.query(),
        headers: &head.headers,
        model: question.pool.model(),
        tenant: tenant.map_or(&b""[..], |(name, _)| name),
        // Without keys nobody has checked it before a worker does; with them it is this replica's alone.
        authorization: match caller {
            Caller::Anybody => head.headers.get(header::AUTHORIZATION),
            Caller::Keyed(_) | Caller::Tenant(_) => None,
        },
        body: &body.bytes,
    }
}

/// The request as every worker gets it; a client's key, where there are keys, is for nobody but this replica.
fn outgoing(head: Parts, body: WorkerBody, id: &HeaderValue, has_key: bool) -> Outgoing {
    let mut headers = head.headers;
    headers::clean_request(&mut headers);
    if has_key {
        headers.remove(header::AUTHORIZATION);
        headers.remove(X_API_KEY);
    }
    headers.insert(headers::REQUEST_ID, id.clone());
    hops::sign(&mut headers);
    Outgoing {
        method: head.method,
        // A client may send an absolute URI; workers get its path.
        target: head
            .uri
            .into_parts()
            .path_and_query
            .map_or_else(Uri::default, Uri::from),
        headers,
        body,
        stream: false,
        upgrade: None,
        repeatable: false,
    }
}
