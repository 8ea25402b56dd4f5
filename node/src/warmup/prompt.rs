//! Prompt: what is kept of a request, so that another worker can compute the same prefix.
//!
//! Pure. The body is cut at the end of the message in which the warm part ends, or within a text at the warm mark.
//! Fields that change what the model reads stay, byte for byte; everything else goes, and one token is asked for.

use std::sync::Arc;

use bytes::Bytes;
use grapevine_placement::{Key, KeySettings, Link};
use serde_json::value::RawValue;

use crate::api::Endpoint;
use crate::api::json::RawObject;
use crate::api::request::{BodyView, ChatMessage, Prompt};
use crate::api::text::tokens_of;

/// Fields of a request that change what the model reads, or whose cache it is.
const KEPT: [&str; 9] = [
    "tools",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
    "add_generation_prompt",
    "add_special_tokens",
    "mm_processor_kwargs",
];
/// The user message after a shared prefix that has no user message yet: many chat templates refuse such a conversation.
const SOMEBODY: &str = r#"{"role":"user","content":"."}"#;
/// Bytes of text under one link of a key.
const LINK_BYTES: usize = 256;

/// A request that a worker took.
pub(super) struct Asked<'a> {
    pub(super) endpoint: Endpoint,
    /// The model's name at the worker.
    pub(super) model: Arc<str>,
    pub(super) body: &'a [u8],
    pub(super) key: &'a Key,
    pub(super) settings: &'a KeySettings,
}

/// A prefix that many requests share, as a request of its own.
pub(super) struct HotPrompt {
    /// Where the warm part ends: names the prefix.
    pub(super) mark: u64,
    pub(super) model: Arc<str>,
    pub(super) endpoint: Endpoint,
    pub(super) body: Bytes,
    /// Where it lives. Without the session that its first client named.
    pub(super) key: Key,
}

/// Why a prompt is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotKept {
    /// Its body would have more bytes than one may have.
    TooLarge,
    /// Its text is of a form that cannot be cut.
    Unreadable,
}

impl HotPrompt {
    /// Bytes that it takes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.body.len() + size_of::<Self>() + size_of_val(self.key.marks())
    }

    /// Length of the warm part, in tokens.
    pub(super) fn warm_tokens(&self) -> u32 {
        let mut marks = self.key.marks().iter();
        let mark = marks.find(|mark| mark.hash == self.mark);
        mark.map_or(self.key.prompt_tokens(), |mark| mark.tokens)
    }

    /// Path of its endpoint.
    pub(super) fn path(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "/v1/chat/completions",
            _ => "/v1/completions",
        }
    }
}

/// Cuts a request behind its warm part, which ends at the mark `depth` of its key.
pub(super) fn cut(asked: &Asked<'_>, depth: Link, bytes_max: usize) -> Result<HotPrompt, NotKept> {
    let unreadable = |_| NotKept::Unreadable;
    let view = BodyView::parse(asked.endpoint, asked.body).map_err(|_| NotKept::Unreadable)?;
    let fields = RawObject::parse(asked.body).ok_or(NotKept::Unreadable)?;
    // A prompt whose beginning the worker cuts off is not the prefix that its text shows.
    if fields.get("truncate_prompt_tokens").is_some() {
        return Err(NotKept::Unreadable);
    }
    let (name, text, tokens) = match asked.endpoint {
        Endpoint::Chat => {
            let messages = view.messages.as_deref().ok_or(NotKept::Unreadable)?;
            let count = messages_to(asked.settings, &view, messages, depth.tokens);
            let raw = fields.get("messages").ok_or(NotKept::Unreadable)?;
            let raw: Vec<&RawValue> = serde_json::from_str(raw).map_err(unreadable)?;
            let kept = raw.get(..count).ok_or(NotKept::Unreadable)?;
            let mut kept: Vec<&str> = kept.iter().map(|message| message.get()).collect();
            if !messages[..count].iter().any(|of| of.role.0 == "user") {
                kept.push(SOMEBODY);
            }
            let bytes: usize = kept.iter().map(|message| message.len() + 1).sum();
            if bytes > bytes_max {
                return Err(NotKept::TooLarge);
            }
            let tokens = tokens_of(asked.settings, &view, count);
            ("messages", format!("[{}]", kept.join(",")), tokens)
        }
        _ if view.tools.is_some() => return Err(NotKept::Unreadable),
        _ => {
            let prompt = view.prompt.as_ref().ok_or(NotKept::Unreadable)?;
            let text = text_to(asked.settings, prompt, depth.tokens, bytes_max)?;
            ("prompt", text, depth.tokens)
        }
    };
    let model = serde_json::to_string(&*asked.model).map_err(unreadable)?;
    let mut body = format!(r#"{{"model":{model},"{name}":{text}"#);
    for field in KEPT {
        if let Some(value) = fields.get(field) {
            add(&mut body, field, value);
        }
    }
    // The only choice that some templates look at; the others ask for more than one token.
    if let Some(value) = fields.get("tool_choice").filter(|v| *v == r#""none""#) {
        add(&mut body, "tool_choice", value);
    }
    add(&mut body, "max_tokens", "1");
    if asked.endpoint == Endpoint::Chat {
        add(&mut body, "max_completion_tokens", "1");
    }
    add(&mut body, "stream", "false");
    body.push('}');
    if body.len() > bytes_max {
        return Err(NotKept::TooLarge);
    }
    Ok(HotPrompt {
        mark: depth.hash,
        model: Arc::clone(&asked.model),
        endpoint: asked.endpoint,
        body: body.into(),
        key: shortened(asked.key, tokens).ok_or(NotKept::Unreadable)?,
    })
}

fn add(body: &mut String, name: &str, value: &str) {
    body.push_str(",\"");
    body.push_str(name);
    body.push_str("\":");
    body.push_str(value);
}

/// Fewest messages that hold so many tokens.
fn messages_to(
    settings: &KeySettings,
    view: &BodyView<'_>,
    messages: &[ChatMessage<'_>],
    tokens: u32,
) -> usize {
    let (mut too_few, mut enough) = (None, messages.len());
    while too_few.map_or(0, |count: usize| count + 1) < enough {
        let from = too_few.map_or(0, |count| count + 1);
        let middle = from + (enough - from) / 2;
        if tokens_of(settings, view, middle) < tokens {
            too_few = Some(middle);
        } else {
            enough = middle;
        }
    }
    enough
}

/// The beginning of a text or of a list of token ids, as JSON.
fn text_to(
    settings: &KeySettings,
    prompt: &Prompt<'_>,
    tokens: u32,
    bytes_max: usize,
) -> Result<String, NotKept> {
    let tokens = tokens as usize;
    let json = match prompt {
        Prompt::Text(text) => {
            let bytes = tokens * usize::from(settings.bytes_per_token.get());
            let bytes = bytes.next_multiple_of(LINK_BYTES).min(text.0.len());
            let end = (bytes..).find(|&at| text.0.is_char_boundary(at));
            let end = end.unwrap_or(text.0.len());
            (end <= bytes_max).then(|| serde_json::to_string(&text.0[..end]))
        }
        Prompt::Tokens(ids) => {
            let ids = &ids[..tokens.min(ids.len())];
            (ids.len() <= bytes_max).then(|| serde_json::to_string(ids))
        }
        Prompt::Batch(_) | Prompt::Raw(_) => return Err(NotKept::Unreadable),
    };
    let json = json.ok_or(NotKept::TooLarge)?;
    json.map_err(|_| NotKept::Unreadable)
}

/// The key of the first `tokens` of a prompt: marks depend on what is before them alone.
fn shortened(key: &Key, tokens: u32) -> Option<Key> {
    let mut parts = key.parts();
    parts.marks.retain(|mark| mark.tokens <= tokens);
    let last = parts.marks.last()?;
    if parts.session.take().is_some() {
        parts.home = last.hash;
    }
    parts.group = parts.group.filter(|group| group.tokens <= tokens);
    parts.prompt_tokens = tokens.min(parts.prompt_tokens);
    parts.stable_tokens = parts.stable_tokens.min(parts.prompt_tokens);
    Key::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::text::key_for_tests;

    const LARGE: usize = 1 << 20;

    fn key_of(endpoint: Endpoint, body: &str) -> Key {
        key_for_tests(endpoint, &HeaderMap::new(), body.as_bytes())
    }

    fn cut_at(
        endpoint: Endpoint,
        body: &str,
        depth: Link,
        bytes_max: usize,
    ) -> Result<HotPrompt, NotKept> {
        let key = key_of(endpoint, body);
        let asked = Asked {
            endpoint,
            model: "org/real".into(),
            body: body.as_bytes(),
            key: &key,
            settings: &KeySettings::default(),
        };
        cut(&asked, depth, bytes_max)
    }

    fn text(of: &HotPrompt) -> &str {
        std::str::from_utf8(&of.body).expect("JSON is UTF-8")
    }

    #[test]
    fn chats_are_cut_behind_the_message_that_is_shared() {
        let system = "rule ".repeat(600);
        let first = r#"{ "role": "user", "content": [{"type": "text", "text": "hi\u00e9"}] }"#;
        let body = format!(
            r#"{{"messages": [{{"role":"system","content":"{system}"}},{first},{{"role":"assistant","content":"yes"}}],
            "model": "alias", "stream": true, "temperature": 0.5, "tools": [ {{"a": 1}} ], "n": 2,
            "chat_template_kwargs": {{"enable_thinking" : false}}, "cache_salt": "s\"alt", "max_tokens": 900,
            "response_format": {{"type": "json_object"}}, "tool_choice": "auto", "user": "me"}}"#
        );
        let key = key_of(Endpoint::Chat, &body);
        let system_end = key.group().expect("there is a system message");
        let marks = key.marks();
        let depth = *marks
            .iter()
            .rfind(|m| m.tokens <= system_end.tokens)
            .expect("marks");
        let kept = cut_at(Endpoint::Chat, &body, depth, LARGE).expect("kept");
        let expected = format!(
            r#"{{"model":"org/real","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"."}}],"tools":[ {{"a": 1}} ],"cache_salt":"s\"alt","chat_template_kwargs":{{"enable_thinking" : false}},"max_tokens":1,"max_completion_tokens":1,"stream":false}}"#
        );
        assert_eq!(text(&kept), expected);
        assert_eq!(kept.path(), "/v1/chat/completions");
        assert_eq!(kept.mark, depth.hash);
        // Its key is the beginning of the request's own.
        assert_eq!(kept.key.marks(), &marks[..kept.key.marks().len()]);
        assert_eq!(kept.key.marks().last(), Some(&depth));
        assert_eq!(kept.key.prompt_tokens(), system_end.tokens);
        // A mark beyond the system message takes the user's message with it, as it was written.
        let deeper = Link {
            hash: 1,
            tokens: system_end.tokens + 1,
        };
        let kept = cut_at(Endpoint::Chat, &body, deeper, LARGE).expect("kept");
        let messages = format!(r#"[{{"role":"system","content":"{system}"}},{first}]"#);
        assert!(
            text(&kept).contains(&format!(r#""messages":{messages},"tools""#)),
            "{}",
            text(&kept)
        );
    }

    #[test]
    fn every_message_end_is_found() {
        let messages: Vec<Value> = (0..9)
            .map(|n| json!({ "role": "user", "content": format!("{n} {}", "word ".repeat(100 * (n + 1))) }))
            .collect();
        let body = json!({ "model": "m", "messages": messages, "tools": ["t".repeat(900)] });
        let body = body.to_string();
        let view = BodyView::parse(Endpoint::Chat, body.as_bytes()).expect("a chat");
        let settings = KeySettings::default();
        let all = view.messages.as_deref().expect("messages");
        for count in 0..=messages.len() {
            let end = tokens_of(&settings, &view, count);
            assert_eq!(messages_to(&settings, &view, all, end), count);
            let next = (count + 1).min(messages.len());
            assert_eq!(messages_to(&settings, &view, all, end + 1), next);
        }
    }

    #[test]
    fn texts_are_cut_at_the_mark() {
        // Two bytes a letter, so that the mark lies within none, and escapes that the client need not have made.
        let long = "\u{e9}\"".repeat(2_000);
        let body = json!({ "model": "m", "prompt": long, "echo": true, "add_special_tokens": false, "cache_salt": "x" });
        let body = body.to_string();
        let key = key_of(Endpoint::Completions, &body);
        let depth = key.marks()[3];
        let kept = cut_at(Endpoint::Completions, &body, depth, LARGE).expect("kept");
        let read: Value = serde_json::from_slice(&kept.body).expect("JSON");
        let prompt = read["prompt"].as_str().expect("a text");
        assert!(long.starts_with(prompt));
        assert!(prompt.len() >= depth.tokens as usize * 4 && prompt.len() < long.len());
        assert_eq!(kept.path(), "/v1/completions");
        let rest = r#","cache_salt":"x","add_special_tokens":false,"max_tokens":1,"stream":false}"#;
        assert!(text(&kept).ends_with(rest), "{}", text(&kept));
        // A request for the kept text has the same marks.
        let again = key_of(Endpoint::Completions, text(&kept));
        assert_eq!(again.marks()[..4], key.marks()[..4]);
        assert_eq!(kept.key.marks(), &key.marks()[..4]);

        let ids: Vec<u32> = (0..1_000).collect();
        let body = json!({ "model": "m", "prompt": ids }).to_string();
        let depth = key_of(Endpoint::Completions, &body).marks()[1];
        let kept = cut_at(Endpoint::Completions, &body, depth, LARGE).expect("kept");
        let read: Value = serde_json::from_slice(&kept.body).expect("JSON");
        assert_eq!(read["prompt"], json!(ids[..depth.tokens as usize]));
    }

    #[test]
    fn what_cannot_be_cut_or_is_too_large_is_not_kept() {
        let words = "word ".repeat(1_000);
        let chat = json!({ "model": "m", "messages": [{ "role": "user", "content": words }] });
        let depth = key_of(Endpoint::Chat, &chat.to_string()).marks()[0];
        let refused = |endpoint, body: &Value, bytes_max| {
            cut_at(endpoint, &body.to_string(), depth, bytes_max).err()
        };
        assert_eq!(refused(Endpoint::Chat, &chat, 10_000), None);
        let too_large = Some(NotKept::TooLarge);
        assert_eq!(refused(Endpoint::Chat, &chat, 5_000), too_large);
        let text = json!({ "model": "m", "prompt": words });
        assert_eq!(refused(Endpoint::Completions, &text, 10_000), None);
        assert_eq!(refused(Endpoint::Completions, &text, 100), too_large);
        let batch = json!({ "model": "m", "prompt": [words, words] });
        let unreadable = Some(NotKept::Unreadable);
        assert_eq!(refused(Endpoint::Completions, &batch, LARGE), unreadable);
        let mut truncated = chat;
        truncated["truncate_prompt_tokens"] = 100.into();
        assert_eq!(refused(Endpoint::Chat, &truncated, LARGE), unreadable);
    }
}
