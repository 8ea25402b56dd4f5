//! From a request to the question that placement answers: which pool, which key.
//!
//! The same code serves requests and `POST /explain`, so an explanation cannot differ from the deed.

use std::sync::Arc;

use grapevine_placement::{Key, KeyBuilder};
use http::HeaderMap;

use crate::api::Endpoint;
use crate::api::error::{ApiError, ErrorKind};
use crate::api::request::{BodyView, Content, Message, Prompt};
use crate::cluster::{Cluster, Fleet, Pool};

/// Names the session whose turns belong together; replaces the anchor that the text gives.
const SESSION_HEADERS: [&str; 1] = ["x-session-id"];
/// Name a user, a tenant or a flow: wider than a session, so only `consistent_hash` looks at them.
/// Not `x-request-id` or `x-trace-id`, which differ per request.
const USER_HEADERS: [&str; 3] = ["x-user-id", "x-tenant-id", "x-correlation-id"];

/// What placement has to answer.
#[derive(Debug)]
pub struct Question {
    /// Where the model's workers are.
    pub pool: Arc<Pool>,
    /// Where the prompt lives.
    pub key: Key,
    /// The client asked for a stream.
    pub stream: bool,
}

impl Question {
    /// Reads the request.
    ///
    /// # Errors
    /// 400 for a body that cannot be read, 404 for a model that nobody serves, 503 for a cluster without
    /// workers.
    pub fn of(
        cluster: &Cluster,
        endpoint: Endpoint,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Self, ApiError> {
        let view = BodyView::parse(endpoint, body)?;
        let fleet = cluster.fleet();
        let pool = pool_of(&fleet, &view, endpoint)?;
        let mut builder = KeyBuilder::new(&cluster.settings().key, pool.model(), b"");
        name_sessions(&mut builder, headers, &view);
        add_text(&mut builder, &view, body);
        Ok(Self {
            pool,
            key: builder.finish(),
            stream: view.stream,
        })
    }
}

fn pool_of(fleet: &Fleet, view: &BodyView<'_>, endpoint: Endpoint) -> Result<Arc<Pool>, ApiError> {
    if fleet.is_empty() {
        return Err(ApiError::new(
            ErrorKind::NoWorker,
            "the cluster has no workers; add one with `grapevine workers add URL`",
        ));
    }
    let Some(model) = &view.model else {
        return Ok(fleet.whole());
    };
    match fleet.pool(&model.0) {
        Some(pool) => Ok(pool),
        None if fleet.models_unknown() > 0 && fleet.models().next().is_none() => {
            Err(ApiError::new(
                ErrorKind::NoWorker,
                "no worker has said yet which models it serves; try again",
            ))
        }
        // An unknown path may use `model` for anything; the worker knows.
        None if !endpoint.needs_model() => Ok(fleet.whole()),
        None => {
            let mut error = ApiError::new(
                ErrorKind::ModelNotFound,
                format!(
                    "the model `{}` does not exist; GET /v1/models lists what is served",
                    shortened(&model.0)
                ),
            );
            error.param = Some("model");
            Err(error)
        }
    }
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
    let body = |text: &Option<crate::api::request::Text<'_>>| {
        text.as_ref().map(|text| text.0.as_bytes().to_vec())
    };
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
        Prompt::Batch(prompts) => prompts.iter().for_each(|p| add_prompt(builder, p)),
        Prompt::Raw(json) => builder.text(json),
    }
}
