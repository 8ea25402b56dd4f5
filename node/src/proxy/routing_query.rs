//! Routing query: what a request asks of placement, that is which pool and which key.
//!
//! The same code serves requests and `POST /explain`, so an explanation cannot differ from the deed.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use grapevine_gossip::worker::WorkerId;
use grapevine_placement::{ClusterSettings, Key, KeyBuilder, NoWorker};
use grapevine_transfer::body::Steers;
use http::{HeaderMap, HeaderValue, header};

use super::caller::{Caller, NamedTenant};
use super::own_words::{no_such_model, no_worker};
use super::owned_id;
use super::rank;
use crate::api::Endpoint;
use crate::api::endpoint::{Form, ID_BYTES_MAX, is_id};
use crate::api::error::{ApiError, ErrorKind};
use crate::api::json::Text;
use crate::api::multipart::{self, Scanner};
use crate::api::request::BodyView;
use crate::api::text::{add_text, name_sessions};
use crate::cluster::{Cluster, Fleet, Pool};
use crate::http::headers;
use crate::http::worker_body::WorkerBody;

/// Most bytes of `cache_salt`, and of the tenant header's value.
pub const SALT_BYTES_MAX: usize = 1_024;

/// A request as far as placement looks at it.
#[derive(Debug, Clone, Copy)]
pub struct RoutingInput<'a> {
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// Its path.
    pub path: &'a str,
    /// Its head.
    pub headers: &'a HeaderMap,
    /// All of its body.
    pub body: &'a [u8],
    /// What was seen of an upload in this body while it arrived.
    pub upload: Option<&'a Scanner>,
    /// The client that it is from.
    pub caller: Caller<'a>,
}

/// What placement has to answer.
#[derive(Debug)]
pub struct RoutingQuery {
    /// Where the model's workers are.
    pub pool: Arc<Pool>,
    /// Where the prompt lives.
    pub key: Key,
    /// The client asked for a stream.
    pub stream: bool,
    /// It asked for a response that is computed later: a worker's HTTP server answers, before its engine has begun.
    pub queued: bool,
    /// What it says of blocks of KV elsewhere.
    pub steers: Steers,
    /// The response that it is about, which one worker holds.
    pub response: Option<String>,
    /// The only worker that can answer: the one that holds the response.
    pub holder: Option<WorkerId>,
    /// The model that the client names, where that is an alias.
    pub asked_model: Option<Box<str>>,
    /// Where the body names an alias in place of the pool's model.
    alias: Option<Alias>,
    /// Where the body may be told the id of the response that it has stored.
    id_at: Option<usize>,
    /// The data-parallel rank that the client asks for, where that decides.
    rank: Option<u32>,
}

/// Where an alias stands in a body.
#[derive(Debug)]
enum Alias {
    /// As a JSON string, quotes included.
    Json(Range<usize>),
    /// As it is.
    Plain(Range<usize>),
}

impl RoutingQuery {
    /// Reads a request.
    /// Errors: 400 for a body that cannot be read, a salt that is too long, an id that no response has, a data-parallel
    /// rank that no worker has, or no model where there are several; 404 for a model that no worker serves or that the
    /// caller may not ask for; 403 for a request that names none, or an adapter beside it, from a caller who may ask for some only; 503 for a
    /// cluster without workers.
    pub fn of(cluster: &Cluster, input: &RoutingInput<'_>) -> Result<Self, ApiError> {
        let RoutingInput {
            endpoint,
            headers,
            caller,
            ..
        } = *input;
        let read = Read::of(input)?;
        let view = &read.view;
        let settings = cluster.settings();
        let salt = salt_in(settings, input, view)?;
        let key_of = |model: &str| key_of(settings, input, view, &salt, model);
        let fleet = cluster.fleet();
        let model = view.model.as_ref().map(|model| &*model.0);
        let choice = Choice {
            fleet: &fleet,
            settings,
            form: endpoint.traits().form,
            caller,
        };
        let pool = choice.pool(model, |name| key_of(name).home())?;
        caller.may_add_adapter(view.adapter)?;
        view.check_messages()?;
        let response = response_of(input, view)?;
        // The worker that holds a response may be one that cannot be used just now.
        let pool = match response {
            Some(_) => pool,
            None => pool.in_use(),
        };
        let asked_model = alias_in(settings, view, &pool).map(Box::from);
        Ok(Self {
            rank: rank::asked_for(headers, &pool)?,
            key: key_of(pool.model()),
            response,
            holder: None,
            alias: asked_model.as_ref().and(read.model_at),
            id_at: id_at(input, view)?,
            asked_model,
            stream: view.stream,
            steers: view.steers,
            queued: endpoint == Endpoint::Responses && view.background && !view.stream,
            pool,
        })
    }

    /// Where the response may lie that it is about: in its pool, or, where its model is an alias, in that of another target,
    /// since its input says nothing of the input that the response answered.
    pub fn pools_of_response(&self, cluster: &Cluster) -> Vec<Arc<Pool>> {
        // An alias may have its target's own name.
        let asked = self.asked_model.as_deref().unwrap_or(self.pool.model());
        let targets = cluster.settings().models.targets_of(asked);
        let fleet = cluster.fleet();
        let others = targets.unwrap_or_default().iter();
        let others = others.filter(|target| target.model != self.pool.model());
        let others = others.filter_map(|target| fleet.pool(&target.model));
        [Arc::clone(&self.pool)].into_iter().chain(others).collect()
    }

    /// The same, in that of these pools which has the worker that holds its response.
    /// Errors: as [`Self::of`], of the same input.
    pub fn at_holder(
        mut self,
        holder: WorkerId,
        pools: Vec<Arc<Pool>>,
        cluster: &Cluster,
        input: &RoutingInput<'_>,
    ) -> Result<Self, ApiError> {
        let has_it = |pool: &Arc<Pool>| pool.answering().any(|member| member.worker.id == holder);
        let found = pools.into_iter().find(has_it);
        if let Some(pool) = found.filter(|pool| pool.model() != self.pool.model()) {
            let (settings, read) = (cluster.settings(), Read::of(input)?);
            let salt = salt_in(settings, input, &read.view)?;
            self.rank = rank::asked_for(input.headers, &pool)?;
            self.key = key_of(settings, input, &read.view, &salt, pool.model());
            self.asked_model = alias_in(settings, &read.view, &pool).map(Box::from);
            self.alias = self.asked_model.as_ref().and(read.model_at);
            self.pool = pool;
        }
        self.pool = Arc::clone(&self.pool).holding(&holder);
        self.holder = Some(holder);
        Ok(self)
    }

    /// The same for the workers of now; the fleet may have changed while the request waited.
    /// Errors: as [`Self::pool_now`].
    pub fn renew(&mut self, cluster: &Cluster) -> Result<(), ApiError> {
        self.pool = self.pool_now(cluster)?;
        Ok(())
    }

    /// Its pool as it is now.
    /// Errors: nobody serves its model any more: what a new request for it gets, 404 or 503.
    pub fn pool_now(&self, cluster: &Cluster) -> Result<Arc<Pool>, ApiError> {
        let fleet = cluster.fleet();
        let pool = match self.pool.model() {
            "" => fleet.whole(),
            model => fleet
                .pool(model)
                .ok_or_else(|| self.served_no_more(cluster.settings(), &fleet))?,
        };
        Ok(match &self.holder {
            Some(holder) => pool.holding(holder),
            None if self.response.is_some() => pool,
            None => pool.in_use(),
        })
    }

    fn served_no_more(&self, settings: &ClusterSettings, fleet: &Fleet) -> ApiError {
        let model = self.pool.model();
        let asked = self.asked_model.as_deref().unwrap_or(model);
        let served = |model: &str| fleet.pool(model).is_some();
        match settings.target_of(asked, 0, served).is_some_and(served) {
            // Sent again it goes to another target of the alias.
            true => no_worker(NoWorker::Empty, model),
            false => nobody_serves(fleet, asked),
        }
    }

    /// Workers of this pool, by index, that the client does not want.
    pub fn other_ranks(&self, pool: &Pool) -> Vec<usize> {
        self.rank
            .map_or_else(Vec::new, |rank| rank::others(pool, rank))
    }

    /// The model as a header names it.
    /// Errors: 400 for one that engines would read differently there.
    pub fn model_in_head(&self) -> Result<HeaderValue, ApiError> {
        HeaderValue::from_str(self.pool.model()).map_err(|_| {
            let message =
                "the name of this model is not plain ASCII: it cannot be asked for at this path";
            ApiError::invalid("model", message.to_owned())
        })
    }

    /// The body as workers get it: an alias gives way to the pool's model, and a response that is stored for this tenant gets
    /// an id that carries it; all other bytes stay as they came.
    pub fn body_of(&self, bytes: Bytes, tenant: Option<u64>) -> WorkerBody {
        let body = self.body_for_model(bytes);
        match (self.id_at, tenant) {
            (Some(at), Some(tenant)) => {
                let id = owned_id::new(tenant);
                body.and_at(at, format!("\"request_id\":\"{id}\",").into())
            }
            _ => body,
        }
    }

    fn body_for_model(&self, bytes: Bytes) -> WorkerBody {
        let model = self.pool.model();
        match &self.alias {
            Some(Alias::Json(at)) => WorkerBody::with_text(&bytes, at.clone(), model),
            Some(Alias::Plain(at)) => {
                let model = Bytes::copy_from_slice(model.as_bytes());
                WorkerBody::with(&bytes, at.clone(), model)
            }
            None => WorkerBody::unchanged(bytes),
        }
    }
}

/// The alias that a body names in place of the pool's model. The pool of all workers has no model: its requests keep the
/// name that they came with.
fn alias_in<'a>(
    settings: &ClusterSettings,
    view: &'a BodyView<'_>,
    pool: &Pool,
) -> Option<&'a str> {
    let asked = view.model.as_ref().map(|model| &*model.0)?;
    let is_alias = asked != pool.model() && settings.models.targets_of(asked).is_some();
    is_alias.then_some(asked)
}

/// The key of a request under a model's name.
fn key_of(
    settings: &ClusterSettings,
    input: &RoutingInput<'_>,
    view: &BodyView<'_>,
    salt: &[u8],
    model: &str,
) -> Key {
    let mut builder = KeyBuilder::new(&settings.key, model, salt);
    name_sessions(&mut builder, input.headers, &settings.session_headers, view);
    match input.endpoint.traits().form {
        Form::Nothing => builder.text(input.path),
        _ => add_text(&mut builder, input.endpoint.traits().text, view, input.body),
    }
    builder.finish()
}

/// What a body says, and where it names its model.
struct Read<'a> {
    view: BodyView<'a>,
    model_at: Option<Alias>,
}

impl<'a> Read<'a> {
    fn of(input: &RoutingInput<'a>) -> Result<Self, ApiError> {
        let (headers, body) = (input.headers, input.body);
        let nothing = || Self {
            view: BodyView::default(),
            model_at: None,
        };
        match input.endpoint.traits().form {
            Form::Nothing => Ok(nothing()),
            Form::Multipart => Self::of_upload(input),
            Form::Any if multipart::is_multipart(headers) => Self::of_upload(input),
            Form::Any if body.is_empty() || !may_be_json(headers) => Ok(nothing()),
            Form::Any | Form::Json => {
                let mut view = BodyView::parse(input.endpoint, body)?;
                let model_at = view.model_at(body).map(Alias::Json);
                if input.endpoint == Endpoint::Invocations {
                    name_by_head(&mut view, headers, input.caller)?;
                }
                Ok(Self { view, model_at })
            }
        }
    }

    fn of_upload(input: &RoutingInput<'a>) -> Result<Self, ApiError> {
        let body = input.body;
        // Read once: an upload may be long.
        let mut scanner = match input.upload {
            Some(early) => early.clone(),
            None => Scanner::new(input.headers)?,
        };
        scanner.end(body)?;
        let at = scanner.model().filter(|at| !at.is_empty());
        let name = |at: &Range<usize>| std::str::from_utf8(&body[at.clone()]).ok();
        let model = at.as_ref().and_then(name);
        Ok(Self {
            view: BodyView {
                model: model.map(|name| Text(name.into())),
                stream: scanner.stream(),
                ..BodyView::default()
            },
            model_at: at.map(Alias::Plain),
        })
    }
}

/// SageMaker's clients may name the model in the head alone. Where head and body name two, engines differ in which they
/// take; and some do not read the head, so that it names none for a caller who may ask for some models only.
fn name_by_head<'a>(
    view: &mut BodyView<'a>,
    head: &'a HeaderMap,
    caller: Caller<'_>,
) -> Result<(), ApiError> {
    let is_bound = matches!(caller, Caller::Keyed(key) if !key.may_ask_for(None));
    for value in head.get_all(headers::ADAPTER) {
        let name = std::str::from_utf8(value.as_bytes()).ok();
        match (name, &view.model) {
            (Some(""), _) => {}
            (Some(_), None) if is_bound => {}
            (Some(name), None) => view.model = Some(Text(name.into())),
            (Some(name), Some(model)) if name == model.0 => {}
            _ => {
                let message = format!("{} names another model", headers::ADAPTER);
                return Err(ApiError::invalid("model", message));
            }
        }
    }
    Ok(())
}

/// The response that a request is about. An id of another form is refused, although a client may have chosen it for a
/// worker to use: its owner is not noted, so every client could ask for it.
fn response_of(input: &RoutingInput<'_>, view: &BodyView<'_>) -> Result<Option<String>, ApiError> {
    let (param, id) = match (input.endpoint, &view.previous_response) {
        (Endpoint::Response, _) => ("response_id", input.path.split('/').nth(3).unwrap_or("")),
        (Endpoint::Responses, Some(id)) => ("previous_response_id", &*id.0),
        _ => return Ok(None),
    };
    match is_id(id) {
        true => Ok(Some(id.to_owned())),
        false => Err(ApiError::invalid(
            param,
            format!("an id of a response has 1 to {ID_BYTES_MAX} letters, digits, `_` and `-`"),
        )),
    }
}

/// Where the id of the response may be told that a request has stored; none where it has none stored, or says one itself.
/// Errors: 400 for an id that only a replica makes: with that of another tenant's response it would take its place at
/// the worker.
fn id_at(input: &RoutingInput<'_>, view: &BodyView<'_>) -> Result<Option<usize>, ApiError> {
    let (Endpoint::Responses, Caller::Keyed(_)) = (input.endpoint, input.caller) else {
        return Ok(None);
    };
    if let Some(id) = &view.request_id {
        return match id {
            Some(id) if owned_id::has_form(&id.0) => Err(ApiError::invalid(
                "request_id",
                "ids of this form are made here; leave `request_id` out, or choose one of another form".to_owned(),
            )),
            _ => Ok(None),
        };
    }
    let behind = memchr::memchr(b'{', input.body).map(|brace| brace + 1);
    // Into an empty object nothing goes that a comma follows.
    let is_empty = |at: usize| input.body[at..].trim_ascii_start().starts_with(b"}");
    Ok(behind.filter(|at| !view.stores_nothing && !is_empty(*at)))
}

/// Would a worker read the body of an opened path as JSON? Without a word about its type, perhaps.
fn may_be_json(headers: &HeaderMap) -> bool {
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter().peekable();
    let names_json = |kind: &HeaderValue| {
        kind.as_bytes()
            .to_ascii_lowercase()
            .windows(4)
            .any(|word| word == b"json")
    };
    kinds.peek().is_none() || kinds.any(names_json)
}

/// Looks at an upload while it arrives, so that one for a model that is not there ends before it has come.
#[derive(Debug)]
pub(super) struct Early {
    scanner: Option<Scanner>,
    /// The model is known, and may be asked for.
    is_known: bool,
}

impl Early {
    /// Errors: 400 for a head that says no boundary.
    pub(super) fn of(endpoint: Endpoint, headers: &HeaderMap) -> Result<Self, ApiError> {
        let is_upload = match endpoint.traits().form {
            Form::Multipart => true,
            Form::Any => multipart::is_multipart(headers),
            Form::Json | Form::Nothing => false,
        };
        let scanner = is_upload.then(|| Scanner::new(headers));
        Ok(Self {
            scanner: scanner.transpose()?,
            is_known: false,
        })
    }

    /// What it has seen so far, of an upload.
    pub(super) fn upload(&self) -> Option<&Scanner> {
        self.scanner.as_ref()
    }

    /// Looks at all bytes so far.
    /// Errors: 400 and 404 as [`RoutingQuery::of`], as soon as it is known.
    pub(super) fn look(
        &mut self,
        so_far: &[u8],
        cluster: &Cluster,
        caller: Caller<'_>,
    ) -> Result<(), ApiError> {
        let Some(scanner) = &mut self.scanner else {
            return Ok(());
        };
        scanner.advance(so_far)?;
        let at = scanner.model().filter(|at| !at.is_empty());
        let Some(at) = at.filter(|_| !self.is_known) else {
            return Ok(());
        };
        // Once is enough.
        self.is_known = true;
        let name = std::str::from_utf8(&so_far[at]).unwrap_or_default();
        caller.may_ask_for(Some(name))?;
        let fleet = cluster.fleet();
        let served = |model: &str| fleet.pool(model).is_some();
        let is_there = cluster
            .settings()
            .target_of(name, 0, served)
            .is_some_and(served);
        // Which worker, and whether there is one at all, is the question that follows the upload.
        if is_there || fleet.models().next().is_none() {
            Ok(())
        } else {
            Err(no_such_model(name))
        }
    }
}

/// What a pool is chosen from.
struct Choice<'a> {
    fleet: &'a Fleet,
    settings: &'a ClusterSettings,
    form: Form,
    caller: Caller<'a>,
}

impl Choice<'_> {
    /// The workers that may answer. `split_key` gives the key of the conversation under a name.
    fn pool(
        &self,
        asked: Option<&str>,
        split_key: impl Fn(&str) -> u64,
    ) -> Result<Arc<Pool>, ApiError> {
        let fleet = self.fleet;
        if fleet.workers().next().is_none() {
            return Err(no_workers());
        }
        let Some(asked) = asked else {
            return self.without_model();
        };
        self.caller.may_ask_for(Some(asked))?;
        let targets = self.settings.models.targets_of(asked);
        // Only a choice needs the key: it costs a second pass over the prompt.
        let split_key = match targets {
            Some([_, _, ..]) => split_key(asked),
            _ => 0,
        };
        let served = |model: &str| fleet.pool(model).is_some();
        let model = self.settings.target_of(asked, split_key, served);
        match model.and_then(|model| fleet.pool(model)) {
            Some(pool) => Ok(pool),
            None => Err(nobody_serves(fleet, asked)),
        }
    }

    /// Of a request that names no model. Where a body has one, it may be left out only while there is no choice:
    /// every worker would take its own first model for it.
    fn without_model(&self) -> Result<Arc<Pool>, ApiError> {
        if self.form == Form::Nothing {
            // It is about a response, and so for the one worker that holds it: the search for that one asks
            // what this caller may ask.
            return Ok(self.fleet.whole());
        }
        if self.form == Form::Any {
            self.caller.may_ask_for(None)?;
            return Ok(self.fleet.whole());
        }
        match self.fleet.pools() {
            [] => Err(nothing_known()),
            [only] => {
                // A client that may not have it does not learn its name.
                if self.caller.may_ask_for(Some(only.model())).is_err() {
                    self.caller.may_ask_for(None)?;
                }
                Ok(Arc::clone(only))
            }
            _ => {
                self.caller.may_ask_for(None)?;
                Err(ApiError::invalid(
                    "model",
                    "you must provide a model parameter; GET /v1/models lists what is served",
                ))
            }
        }
    }
}

/// No worker of this fleet serves the model.
fn nobody_serves(fleet: &Fleet, asked: &str) -> ApiError {
    if fleet.workers().next().is_none() {
        no_workers()
    } else if fleet.models().next().is_none() {
        nothing_known()
    } else {
        no_such_model(asked)
    }
}

fn no_workers() -> ApiError {
    ApiError::new(
        ErrorKind::NoWorker,
        "this replica knows of no workers: it has just started, or none was added yet (`grapevine workers add URL`)",
    )
}

fn nothing_known() -> ApiError {
    ApiError::new(
        ErrorKind::NoWorker,
        "no worker has named a model so far that can be used; try again",
    )
}

fn salt_in(
    settings: &ClusterSettings,
    input: &RoutingInput<'_>,
    view: &BodyView<'_>,
) -> Result<Vec<u8>, ApiError> {
    let named_by = settings.tenant_header.as_deref();
    salt_of(input.caller.tenant(named_by, input.headers), view)
}

/// What must not share prefixes: the body's `cache_salt` and the tenant, each with its length in front, so that
/// neither reads as a part of the other. Empty without both.
fn salt_of(tenant: Option<NamedTenant<'_>>, view: &BodyView<'_>) -> Result<Vec<u8>, ApiError> {
    let body = view.cache_salt.as_ref().map_or("", |salt| &*salt.0);
    let (tenant, source) = tenant.unwrap_or_default();
    if body.len() > SALT_BYTES_MAX {
        return Err(ApiError::invalid(
            "cache_salt",
            format!(
                "cache_salt has {} bytes; at most {SALT_BYTES_MAX} are taken",
                body.len()
            ),
        ));
    }
    if tenant.len() > SALT_BYTES_MAX {
        let message = format!(
            "the tenant in {source} has {} bytes; at most {SALT_BYTES_MAX} are taken",
            tenant.len()
        );
        return Err(ApiError::new(ErrorKind::InvalidRequest, message));
    }
    if body.is_empty() && tenant.is_empty() {
        return Ok(Vec::new());
    }
    let mut salt = Vec::with_capacity(body.len() + tenant.len() + 16);
    for field in [body.as_bytes(), tenant] {
        salt.extend_from_slice(&(field.len() as u64).to_le_bytes());
        salt.extend_from_slice(field);
    }
    Ok(salt)
}

#[cfg(test)]
mod tests {
    use grapevine_placement::{KeySettings, Link};

    use super::*;

    fn salt(cache_salt: Option<&str>, tenant: Option<&str>) -> Result<Vec<u8>, ApiError> {
        let body = cache_salt.map_or_else(
            || "{}".to_owned(),
            |salt| serde_json::json!({ "cache_salt": salt }).to_string(),
        );
        let view = BodyView::parse(Endpoint::Opened, body.as_bytes()).expect("any body");
        salt_of(tenant.map(|tenant| (tenant.as_bytes(), "x-tenant")), &view)
    }

    fn links(salt: &[u8]) -> Vec<Link> {
        let mut builder = KeyBuilder::new(&KeySettings::default(), "m", salt);
        builder.begin_message("user");
        builder.text("a common prompt ".repeat(100));
        builder.finish().into_links()
    }

    #[test]
    fn equal_prompts_with_another_salt_have_no_common_link() {
        let salts = [
            (None, None),
            (Some("a"), None),
            (None, Some("a")),
            (Some("ab"), Some("c")),
            (Some("a"), Some("bc")),
            (Some("abc"), None),
            (None, Some("abc")),
        ];
        let salts = salts.map(|(body, tenant)| salt(body, tenant).expect("short"));
        let keys: Vec<Vec<Link>> = salts.iter().map(|salt| links(salt)).collect();
        for (index, key) in keys.iter().enumerate() {
            for other in &keys[..index] {
                assert!(key.iter().all(|link| !other.contains(link)));
            }
        }
        assert_eq!(links(&salt(Some(""), Some("")).expect("short")), keys[0]);
        assert_eq!(links(&salt(Some("a"), None).expect("short")), keys[1]);
    }

    #[test]
    fn an_upload_that_was_read_while_it_came_is_not_read_again() {
        let mut headers = HeaderMap::new();
        let kind = HeaderValue::from_static("multipart/form-data; boundary=a");
        headers.insert(header::CONTENT_TYPE, kind);
        let part = "--a\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n";
        let body = format!("{part}--a--\r\n");
        let mut early = Early::of(Endpoint::Transcription, &headers).expect("an upload");
        let scanner = early.scanner.as_mut().expect("an upload");
        scanner.advance(part.as_bytes()).expect("so far so good");
        // Bytes that were looked at may be anything by now.
        let body = body.replacen("--a", "xxx", 1);
        let read = |upload| {
            let read = Read::of(&RoutingInput {
                endpoint: Endpoint::Transcription,
                path: "/v1/audio/transcriptions",
                headers: &headers,
                body: body.as_bytes(),
                upload,
                caller: Caller::Anybody,
            });
            read.map(|read| read.view.model.map(|name| name.0.into_owned()))
        };
        let model = read(early.upload()).expect("the rest is good");
        assert_eq!(model.as_deref(), Some("m"));
        assert!(read(None).is_err(), "from its beginning it is malformed");
        let nothing = Early::of(Endpoint::Chat, &headers).expect("no upload");
        assert!(nothing.upload().is_none());
    }

    #[test]
    fn long_salts_are_refused() {
        let long = "s".repeat(SALT_BYTES_MAX);
        let longer = format!("{long}s");
        assert!(salt(Some(&long), Some(&long)).is_ok());
        let error = salt(Some(&longer), None).expect_err("too long");
        assert_eq!(error.kind.status(), 400);
        assert_eq!(error.param, Some("cache_salt"));
        let error = salt(None, Some(&longer)).expect_err("too long");
        assert_eq!(error.kind.status(), 400);
        assert!(error.message.contains("x-tenant"), "{}", error.message);
    }
}
