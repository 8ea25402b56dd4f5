//! Reply bodies, field for field in vLLM 0.32's order (captured).
//!
//! Pure. Written as format strings, not as `Serialize` types: the order and the many constant nulls matter,
//! and a test compares the text with the captures.

use serde_json::Value;

use super::request::{ApiError, Generation, Kind};

/// `system_fingerprint` of all replies.
const FINGERPRINT: &str = "vllm-0.32.0-8999ff28";

/// Token counts of a reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt: u32,
    pub(super) completion: u32,
    pub(super) cached: u32,
    /// Prompt tokens newly put into the cache.
    pub(super) created: u32,
}

/// Fields that all events and the body of one reply share.
pub(super) struct Bodies<'a> {
    pub(super) request: &'a Generation,
    pub(super) id: &'a str,
    /// Unix seconds.
    pub(super) created: u64,
}

/// A JSON string literal.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// `{"error":{...}}` as in plain replies.
pub(super) fn error(error: &ApiError) -> String {
    let param = error.param.as_deref().map_or("null".to_owned(), quoted);
    format!(
        r#"{{"error":{{"message":{},"type":{},"param":{param},"code":{}}}}}"#,
        quoted(&error.message),
        quoted(error.kind),
        error.status
    )
}

/// The same as data of an event, with the spaces that Python's `json.dumps` puts there.
pub(super) fn error_event(error: &ApiError) -> String {
    let param = error.param.as_deref().map_or("null".to_owned(), quoted);
    format!(
        r#"{{"error": {{"message": {}, "type": {}, "param": {param}, "code": {}}}}}"#,
        quoted(&error.message),
        quoted(error.kind),
        error.status
    )
}

impl Bodies<'_> {
    fn event_start(&self) -> String {
        let object = match self.request.kind {
            Kind::Chat => "chat.completion.chunk",
            _ => "text_completion",
        };
        format!(
            r#"{{"id":{},"object":"{object}","created":{},"model":{}"#,
            quoted(self.id),
            self.created,
            quoted(&self.request.model)
        )
    }

    /// `,"usage":{...}` of a stream with `continuous_usage_stats`, else nothing.
    fn running_usage(&self, usage: Usage) -> String {
        if !self.request.continuous_usage {
            return String::new();
        }
        format!(
            r#","usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},"completion_tokens_details":null}}"#,
            usage.prompt,
            usage.prompt + usage.completion,
            usage.completion
        )
    }

    /// The first event of each chat choice.
    pub(super) fn role_event(&self, index: usize, usage: Usage) -> String {
        format!(
            r#"{},"choices":[{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]{},"prompt_token_ids":null,"prompt_text":null}}"#,
            self.event_start(),
            self.running_usage(usage)
        )
    }

    /// An event with one token; `finish` on the last of its choice.
    pub(super) fn token_event(
        &self,
        index: usize,
        text: &str,
        finish: Option<&str>,
        usage: Usage,
    ) -> String {
        let reason = finish.map_or("null".to_owned(), quoted);
        let text = quoted(text);
        let choice = match self.request.kind {
            Kind::Chat => {
                let stop = finish.map_or("", |_| r#""stop_reason":null,"#);
                format!(
                    r#""delta":{{"content":{text}}},"logprobs":null,"finish_reason":{reason},{stop}"token_ids":null"#
                )
            }
            _ => format!(
                r#""text":{text},"logprobs":null,"finish_reason":{reason},"stop_reason":null,"prompt_token_ids":null,"token_ids":null"#
            ),
        };
        let fingerprint = match finish {
            Some(_) if !self.request.include_usage => {
                format!(r#","system_fingerprint":"{FINGERPRINT}""#)
            }
            _ => String::new(),
        };
        format!(
            r#"{},"choices":[{{"index":{index},{choice}}}]{}{fingerprint}}}"#,
            self.event_start(),
            self.running_usage(usage)
        )
    }

    /// The event of `include_usage`.
    pub(super) fn usage_event(&self, usage: Usage) -> String {
        let created = match self.request.kind {
            Kind::Chat => format!(r#","created_cache_tokens":{}"#, usage.created),
            _ => String::new(),
        };
        format!(
            r#"{},"choices":[],"usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}{created}}}}},"system_fingerprint":"{FINGERPRINT}"}}"#,
            self.event_start(),
            usage.prompt,
            usage.prompt + usage.completion,
            usage.completion,
            usage.cached
        )
    }

    /// The body of a plain reply; one text for each choice.
    /// `transfer` is the JSON of `kv_transfer_params`.
    pub(super) fn plain(
        &self,
        texts: &[String],
        finish: &str,
        usage: Usage,
        transfer: &str,
    ) -> String {
        let (object, created_cache, before, after) = match self.request.kind {
            Kind::Chat => (
                "chat.completion",
                usage.created.to_string(),
                "",
                r#","prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null"#,
            ),
            _ => (
                "text_completion",
                "null".to_owned(),
                r#""prompt_logprobs":null,"prompt_token_ids":null,"#,
                "",
            ),
        };
        let choice = |(index, text): (usize, &String)| {
            let text = quoted(text);
            let content = match self.request.kind {
                Kind::Chat => format!(
                    r#""message":{{"role":"assistant","content":{text},"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}}"#
                ),
                _ => format!(r#""text":{text}"#),
            };
            format!(
                r#"{{"index":{index},{content},"logprobs":null,"finish_reason":"{finish}","stop_reason":null,"token_ids":null,{before}"routed_experts":null}}"#
            )
        };
        let choices: Vec<String> = texts.iter().enumerate().map(choice).collect();
        format!(
            r#"{{"id":{},"object":"{object}","created":{},"model":{},"choices":[{}],"service_tier":null,"system_fingerprint":"{FINGERPRINT}","usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},"prompt_tokens_details":{{"cached_tokens":{},"created_cache_tokens":{created_cache},"multimodal_tokens":null}},"completion_tokens_details":null}}{after},"kv_transfer_params":{transfer},"ec_transfer_params":null,"metrics":null}}"#,
            quoted(self.id),
            self.created,
            quoted(&self.request.model),
            choices.join(","),
            usage.prompt,
            usage.prompt + usage.completion,
            usage.completion,
            usage.cached
        )
    }

    /// The body of an embeddings reply.
    pub(super) fn embeddings(&self, usage: Usage) -> String {
        let data: Vec<String> = (0..)
            .zip(&self.request.prompts)
            .map(|(index, prompt): (usize, _)| {
                let numbers = prompt.embedding(self.request.dimensions);
                let vector = if self.request.base64 {
                    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
                    quoted(&base64(&bytes))
                } else {
                    Value::from(numbers).to_string()
                };
                format!(r#"{{"index":{index},"object":"embedding","embedding":{vector}}}"#)
            })
            .collect();
        format!(
            r#"{{"id":{},"object":"list","created":{},"model":{},"data":[{}],"usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":0,"prompt_tokens_details":null}}}}"#,
            quoted(self.id),
            self.created,
            quoted(&self.request.model),
            data.join(","),
            usage.prompt,
            usage.prompt
        )
    }
}

/// Standard base64 with padding; the `openai` client asks for embeddings in it.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = (0..3).fold(0u32, |word, i| {
            word << 8 | u32::from(*group.get(i).unwrap_or(&0))
        });
        for digit in 0..4 {
            let significant = digit <= group.len();
            let index = (word >> (18 - 6 * digit)) & 63;
            text.push(if significant {
                char::from(ALPHABET[index as usize])
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
