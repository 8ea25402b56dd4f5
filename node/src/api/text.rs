//! What of a request makes its key: the session that it names, and its text, wherever its endpoint has that.
//!
//! The same words in another form have the same key: a chat, a message and a response that say the same are the same
//! to a worker's cache.

#[cfg(test)]
use grapevine_placement::Key;
use grapevine_placement::{KeyBuilder, KeySettings};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::value::RawValue;

#[cfg(test)]
use crate::api::Endpoint;
use crate::api::endpoint::TextIn;
use crate::api::json::Text;
use crate::api::message::{ELEMENTS_MAX, InputItem};
use crate::api::prompt::first_elements;
use crate::api::request::{BodyView, ChatMessage, Content, Prompt};

/// The session that a request belongs to; a worker repeats it with the KV events of what the request stores.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("x-session-id");
/// Name the session whose turns belong together; replaces the anchor that the text gives. The second is SMG's.
pub(crate) static SESSION_HEADERS: [HeaderName; 2] =
    [SESSION, HeaderName::from_static("x-smg-routing-key")];
/// Name a user, a tenant or a flow: wider than a session, so only `consistent_hash` looks at them.
/// Not `x-request-id` or `x-trace-id`, which differ per request.
pub(crate) static USER_HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-user-id"),
    HeaderName::from_static("x-tenant-id"),
    HeaderName::from_static("x-correlation-id"),
];

/// Tells the key which session and which user the request names. An empty name is none: it would be one session for all
/// who leave it empty, and the next place is looked at.
///
/// `further`: headers that name a session where [`SESSION_HEADERS`] do not.
pub(crate) fn name_sessions<'a>(
    builder: &mut KeyBuilder,
    headers: &'a HeaderMap,
    further: &[String],
    view: &'a BodyView<'_>,
) {
    let said = |value: Option<&'a HeaderValue>| {
        let value = value.map(HeaderValue::as_bytes);
        value.filter(|value| !value.is_empty())
    };
    let header = |names: &[HeaderName]| names.iter().find_map(|name| said(headers.get(name)));
    let body = |text: &'a Option<Text<'_>>| {
        let text = text.as_ref().map(|text| text.0.as_bytes());
        text.filter(|text| !text.is_empty())
    };
    let session = header(&SESSION_HEADERS)
        .or_else(|| further.iter().find_map(|name| said(headers.get(name))))
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

/// Most bytes of a body that stand for it where there is no text.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Adds what a worker's cache may hold of the request.
pub(crate) fn add_text(builder: &mut KeyBuilder, text: TextIn, view: &BodyView<'_>, body: &[u8]) {
    if text == TextIn::Body {
        builder.leaves_nothing();
    }
    let has_place = !matches!(text, TextIn::Body | TextIn::Unknown);
    let prompt = match text {
        TextIn::Body | TextIn::Unknown => None,
        TextIn::Messages => view.prompt.as_ref(),
        TextIn::Input => view.input.as_ref().or(view.state.as_ref()),
        TextIn::Prompt => [&view.prompt, &view.input, &view.text]
            .into_iter()
            .find_map(Option::as_ref),
        TextIn::Query => view.query.as_ref(),
    };
    let messages = view.messages.as_ref().filter(|_| has_place);
    if messages.is_none() && prompt.is_none() {
        // Nothing that we know: equal bodies still go to one worker.
        return builder.text(&body[..body.len().min(BODY_BYTES_MAX)]);
    }
    if let Some(tools) = view.tools {
        builder.tools(tools.get().as_bytes());
    }
    match (messages, prompt) {
        (Some(messages), _) => {
            if let Some(system) = view.system {
                add_system(builder, system);
            }
            messages.iter().for_each(|m| add_message(builder, m));
        }
        (None, Some(input)) if text == TextIn::Input => {
            if let Some(instructions) = &view.instructions {
                builder.begin_message("system");
                builder.text(instructions.0.as_bytes());
                builder.end_message();
            }
            add_input(builder, input);
        }
        (None, Some(prompt)) => add_prompt(builder, prompt),
        (None, None) => {}
    }
}

/// Anthropic's system prompt: a text or a list of parts, read as a chat's system message.
fn add_system(builder: &mut KeyBuilder, json: &RawValue) {
    builder.begin_message("system");
    match serde_json::from_str::<Content<'_>>(json.get()) {
        Ok(content) => add_content(builder, &content),
        Err(_) => builder.text(json.get()),
    }
    builder.end_message();
}

/// The input of a response: what a user says, or messages and other items in their order; of a decision any JSON. What is
/// behind so many of them as a chat may have counts as one item: each one costs more than its bytes do, on a thread that
/// serves others.
fn add_input(builder: &mut KeyBuilder, input: &Prompt<'_>) {
    match input {
        Prompt::Text(text) => {
            builder.begin_message("user");
            builder.text(text.0.as_bytes());
            builder.end_message();
        }
        Prompt::Raw(json) if json.starts_with('[') => {
            let mut elements = 0;
            let rest = first_elements(json, |json| {
                let (message, cost) = InputItem::read(json);
                elements += cost;
                match message {
                    _ if elements > ELEMENTS_MAX => return false,
                    Some(message) => add_message(builder, &message),
                    None => add_item(builder, json),
                }
                true
            });
            if let Some(rest) = rest {
                add_item(builder, rest);
            }
        }
        other => add_prompt(builder, other),
    }
}

fn add_item(builder: &mut KeyBuilder, json: &str) {
    builder.begin_message("item");
    builder.text(json);
    builder.end_message();
}

pub(crate) fn add_message(builder: &mut KeyBuilder, message: &ChatMessage<'_>) {
    builder.begin_message(&message.role.0);
    add_content(builder, &message.content);
    if let Some(calls) = message.tool_calls {
        builder.text(calls.get());
    }
    builder.end_message();
}

fn add_content(builder: &mut KeyBuilder, content: &Content<'_>) {
    match content {
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
}

fn add_prompt(builder: &mut KeyBuilder, prompt: &Prompt<'_>) {
    match prompt {
        Prompt::Text(text) => builder.text(text.0.as_bytes()),
        Prompt::Tokens(ids) => builder.token_ids(ids),
        Prompt::Batch(prompts) => prompts.for_each(|p| add_prompt(builder, &p)),
        Prompt::Raw(json) => builder.text(json),
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
    name_sessions(&mut builder, headers, &[], &view);
    add_text(&mut builder, endpoint.traits().text, &view, body);
    builder.finish()
}
