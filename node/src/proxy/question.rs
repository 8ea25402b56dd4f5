//! From a request to the question that placement answers: which pool, which key.
//!
//! The same code serves requests and `POST /explain`, so an explanation cannot differ from the deed.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use grapevine_placement::{ClusterSettings, Key, KeyBuilder, KeySettings};
use http::HeaderMap;

use super::caller::{Caller, NamedTenant};
use super::worker_body::WorkerBody;
use crate::api::Endpoint;
use crate::api::error::{ApiError, ErrorKind};
use crate::api::request::{BodyView, Content, Message, Prompt, Text};
use crate::cluster::{Cluster, Fleet, Pool};

/// Names the session whose turns belong together; replaces the anchor that the text gives.
const SESSION_HEADERS: [&str; 1] = ["x-session-id"];
/// Name a user, a tenant or a flow: wider than a session, so only `consistent_hash` looks at them.
/// Not `x-request-id` or `x-trace-id`, which differ per request.
const USER_HEADERS: [&str; 3] = ["x-user-id", "x-tenant-id", "x-correlation-id"];

/// Most bytes of `cache_salt`, and of the tenant header's value.
pub const SALT_BYTES_MAX: usize = 1_024;

/// What placement has to answer.
#[derive(Debug)]
pub struct Question {
    /// Where the model's workers are.
    pub pool: Arc<Pool>,
    /// Where the prompt lives.
    pub key: Key,
    /// The client asked for a stream.
    pub stream: bool,
    /// Where the body names an alias in place of the pool's model.
    alias_at: Option<Range<usize>>,
}

impl Question {
    /// Reads the request of `caller`.
    ///
    /// # Errors
    /// 400 for a body that cannot be read or a salt that is too long, 404 for a model that nobody serves or that the
    /// caller may not ask for, 403 for a request that names none from a caller who may ask for some only, 503 for a
    /// cluster without workers.
    pub fn of(
        cluster: &Cluster,
        endpoint: Endpoint,
        headers: &HeaderMap,
        body: &[u8],
        caller: Caller<'_>,
    ) -> Result<Self, ApiError> {
        let view = BodyView::parse(endpoint, body)?;
        caller.may_ask_for(view.model.as_ref().map(|model| &*model.0))?;
        let settings = cluster.settings();
        let salt = salt_of(
            caller.tenant(settings.tenant_header.as_deref(), headers),
            &view,
        )?;
        let key_of = |model: &str| {
            let mut builder = KeyBuilder::new(&settings.key, model, &salt);
            name_sessions(&mut builder, headers, &view);
            add_text(&mut builder, &view, body);
            builder.finish()
        };
        let fleet = cluster.fleet();
        let pool = pool_of(&fleet, settings, &view, endpoint, |name| {
            key_of(name).home()
        })?;
        // The pool of all workers has no model: its requests keep the name that they came with.
        let is_alias = |asked: &Text<'_>| {
            asked.0 != pool.model() && settings.models.targets_of(&asked.0).is_some()
        };
        let alias_at = match &view.model {
            Some(asked) if is_alias(asked) => view.model_at(body),
            _ => None,
        };
        Ok(Self {
            key: key_of(pool.model()),
            pool,
            stream: view.stream,
            alias_at,
        })
    }

    /// The body as workers get it: an alias gives way to the pool's model, all other bytes stay as they came.
    pub fn body_of(&self, bytes: Bytes) -> WorkerBody {
        match &self.alias_at {
            Some(at) => WorkerBody::with_text(&bytes, at.clone(), self.pool.model()),
            None => WorkerBody::unchanged(bytes),
        }
    }
}

/// The workers that may answer. `split_key` gives the key of the conversation under a name.
fn pool_of(
    fleet: &Fleet,
    settings: &ClusterSettings,
    view: &BodyView<'_>,
    endpoint: Endpoint,
    split_key: impl Fn(&str) -> u64,
) -> Result<Arc<Pool>, ApiError> {
    if fleet.is_empty() {
        return Err(ApiError::new(
            ErrorKind::NoWorker,
            "the cluster has no workers; add one with `grapevine workers add URL`",
        ));
    }
    let Some(asked) = &view.model else {
        return Ok(fleet.whole());
    };
    let targets = settings.models.targets_of(&asked.0);
    // Only a choice needs the key: it costs a second pass over the prompt.
    let split_key = match targets {
        Some([_, _, ..]) => split_key(&asked.0),
        _ => 0,
    };
    let served = |model: &str| fleet.pool(model).is_some();
    let model = settings.target_of(&asked.0, split_key, served);
    match model.and_then(|model| fleet.pool(model)) {
        Some(pool) => Ok(pool),
        None if fleet.models_unknown() > 0 && fleet.models().next().is_none() => {
            Err(ApiError::new(
                ErrorKind::NoWorker,
                "no worker has said yet which models it serves; try again",
            ))
        }
        // An unknown path may use `model` for anything; the worker knows. An alias no worker knows.
        None if !endpoint.needs_model() && targets.is_none() => Ok(fleet.whole()),
        None => Err(no_such_model(&asked.0)),
    }
}

/// The same for a model that is not there and for one that the client may not know of.
pub(super) fn no_such_model(asked: &str) -> ApiError {
    let mut error = ApiError::new(
        ErrorKind::ModelNotFound,
        format!(
            "the model `{}` does not exist, or this client may not use it; GET /v1/models lists what is served",
            shortened(asked)
        ),
    );
    error.param = Some("model");
    error
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

/// A client's text in a message back to it: bounded.
fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 100;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn name_sessions(builder: &mut KeyBuilder, headers: &HeaderMap, view: &BodyView<'_>) {
    let header = |names: &[&str]| {
        names
            .iter()
            .find_map(|name| headers.get(*name))
            .map(|value| value.as_bytes().to_vec())
    };
    let body = |text: &Option<Text<'_>>| text.as_ref().map(|text| text.0.as_bytes().to_vec());
    let session = header(&SESSION_HEADERS)
        .or_else(|| body(&view.session_params_id))
        .or_else(|| body(&view.session_id));
    if let Some(session) = session {
        builder.session(session);
    }
    let user = header(&USER_HEADERS)
        .or_else(|| body(&view.user))
        .or_else(|| body(&view.user_id));
    if let Some(user) = user {
        builder.user(user);
    }
}

fn add_text(builder: &mut KeyBuilder, view: &BodyView<'_>, body: &[u8]) {
    if let Some(tools) = view.tools {
        builder.tools(tools.get().as_bytes());
    }
    match (&view.messages, &view.prompt) {
        (Some(messages), _) => messages.iter().for_each(|m| add_message(builder, m)),
        (None, Some(prompt)) => add_prompt(builder, prompt),
        // Nothing that we know: equal bodies still go to one worker.
        (None, None) => builder.text(body),
    }
}

/// Estimated tokens of a chat's tools and first messages, counted as its key counts them.
pub(crate) fn tokens_of(settings: &KeySettings, view: &BodyView<'_>, messages: usize) -> u32 {
    let mut builder = KeyBuilder::new(settings, "", b"");
    if let Some(tools) = view.tools {
        builder.tools(tools.get().as_bytes());
    }
    let all = view.messages.as_deref().unwrap_or_default();
    let first = &all[..messages.min(all.len())];
    first.iter().for_each(|m| add_message(&mut builder, m));
    builder.finish().prompt_tokens()
}

/// The key of a body, without a cluster that serves it.
#[cfg(test)]
pub(crate) fn key_for_tests(endpoint: Endpoint, headers: &HeaderMap, body: &[u8]) -> Key {
    let view = BodyView::parse(endpoint, body).expect("a body for the endpoint");
    let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
    name_sessions(&mut builder, headers, &view);
    add_text(&mut builder, &view, body);
    builder.finish()
}

fn add_message(builder: &mut KeyBuilder, message: &Message<'_>) {
    builder.begin_message(&message.role.0);
    match &message.content {
        Content::Text(text) => builder.text(text.0.as_bytes()),
        Content::Parts(parts) => {
            for part in parts {
                match &part.text {
                    Some(text) => builder.text(text.0.as_bytes()),
                    None => builder.text(part.raw),
                }
            }
        }
        Content::None => {}
    }
    if let Some(calls) = message.tool_calls {
        builder.text(calls.get());
    }
    builder.end_message();
}

fn add_prompt(builder: &mut KeyBuilder, prompt: &Prompt<'_>) {
    match prompt {
        Prompt::Text(text) => builder.text(text.0.as_bytes()),
        Prompt::Tokens(ids) => builder.token_ids(ids),
        Prompt::Batch(prompts) => prompts.for_each(|p| add_prompt(builder, &p)),
        Prompt::Raw(json) => builder.text(json),
    }
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
        let view = BodyView::parse(Endpoint::Passthrough, body.as_bytes()).expect("any body");
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
