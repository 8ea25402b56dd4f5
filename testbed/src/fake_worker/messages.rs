//! Replies to Anthropic's messages, in vLLM 0.32's form. Pure.

use serde_json::{Value, json};

use super::body::{Bodies, Usage};
use super::request::ApiError;

/// Name and data of an event.
type Event = (&'static str, String);

fn event(name: &'static str, mut data: Value) -> Event {
    data["type"] = name.into();
    (name, data.to_string())
}

/// As vLLM from 0.32 on counts where it tells of its cache: what was read from it, or written into it, is no part of
/// `input_tokens`.
fn whole_usage(usage: Usage) -> Value {
    let input = usage.prompt.saturating_sub(usage.created + usage.cached);
    json!({
        "input_tokens": input, "output_tokens": usage.completion, "cache_creation_input_tokens": usage.created,
        "cache_read_input_tokens": usage.cached,
    })
}

fn stop_reason(finish: &str) -> &'static str {
    match finish {
        "length" => "max_tokens",
        _ => "end_turn",
    }
}

/// An error behind the head of a stream.
pub(super) fn error_event(error: &ApiError) -> Event {
    let told = json!({ "type": error.kind, "message": error.message });
    event("error", json!({ "error": told }))
}

/// An event with one token.
pub(super) fn delta(text: &str) -> Event {
    let delta = json!({ "type": "text_delta", "text": text });
    event("content_block_delta", json!({ "delta": delta, "index": 0 }))
}

/// The events behind the last token.
pub(super) fn end(finish: &str, usage: Usage) -> [Event; 3] {
    let delta = json!({ "stop_reason": stop_reason(finish), "stop_sequence": null });
    let told = json!({ "delta": delta, "usage": whole_usage(usage) });
    [
        event("content_block_stop", json!({ "index": 0 })),
        event("message_delta", told),
        event("message_stop", json!({})),
    ]
}

impl Bodies<'_> {
    fn message(&self, content: Value, stop_reason: Option<&str>, usage: Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "content": content, "model": self.request.model,
            "stop_reason": stop_reason, "stop_sequence": null, "usage": usage,
        })
    }

    /// The events before the first token.
    pub(super) fn message_begins(&self, prompt_tokens: u32) -> [Event; 2] {
        let usage = json!({ "input_tokens": prompt_tokens, "output_tokens": 0 });
        let begun = self.message(json!([]), None, usage);
        let block = json!({ "type": "text", "text": "" });
        [
            event("message_start", json!({ "message": begun })),
            event(
                "content_block_start",
                json!({ "content_block": block, "index": 0 }),
            ),
        ]
    }

    /// The body of a plain reply; `transfer` is the JSON of `kv_transfer_params`.
    pub(super) fn whole_message(
        &self,
        text: &str,
        finish: &str,
        usage: Usage,
        transfer: &str,
    ) -> String {
        let content = json!([{ "type": "text", "text": text }]);
        let whole = self.message(content, Some(stop_reason(finish)), whole_usage(usage));
        // What it says of a transfer goes out as it was written.
        let whole = whole.to_string();
        let open = whole.strip_suffix('}').unwrap_or(&whole);
        format!(r#"{open},"kv_transfer_params":{transfer},"ec_transfer_params":null}}"#)
    }
}
