//! Makes an event of a later worker one of the answer that the client has begun to read.

use serde_json::value::RawValue;

use crate::api::json::RawObject;
use crate::http::sse::Usage;

/// What all events of the client's answer share, as the first worker wrote it.
#[derive(Debug)]
pub(super) struct AnswerIdentity {
    /// `id`, `object`, `created`, `model`.
    pub(super) shared: [Option<Box<RawValue>>; 4],
    /// `system_fingerprint`, once an event had one.
    pub(super) fingerprint: Option<Box<RawValue>>,
}

const SHARED: [&str; 4] = ["id", "object", "created", "model"];

/// How an event differs from what the worker wrote, besides its identity.
#[derive(Debug, Default)]
pub(super) struct Change<'a> {
    /// Its text.
    pub(super) text: Option<&'a str>,
    /// It no longer names the role.
    pub(super) without_role: bool,
    /// Its token counts.
    pub(super) usage: Option<Usage>,
}

impl AnswerIdentity {
    /// The data of a later worker's event, with this identity. None for data that is no event.
    pub(super) fn rewritten(&self, data: &[u8], change: &Change<'_>) -> Option<Vec<u8>> {
        let mut event = RawObject::parse(data)?;
        for (name, ours) in SHARED.into_iter().zip(&self.shared) {
            if let Some(ours) = ours {
                event.set(name, ours);
            }
        }
        if let Some(ours) = &self.fingerprint
            && event.get("system_fingerprint").is_some()
        {
            event.set("system_fingerprint", ours);
        }
        if let Some(usage) = &change.usage {
            event.set("usage", &usage_json(usage));
        }
        if change.text.is_some() || change.without_role {
            let choices = event.get("choices")?.to_owned();
            event.set("choices", &[choice(&choices, change)?]);
        }
        Some(event.to_vec())
    }

    /// The event with the token counts of the whole answer, where its last worker could not send one.
    pub(super) fn usage_event(&self, usage: &Usage) -> Option<Vec<u8>> {
        let mut event = RawObject::parse(b"{}")?;
        for (name, ours) in SHARED.into_iter().zip(&self.shared) {
            event.set(name, ours.as_ref()?);
        }
        let choices: [u8; 0] = [];
        event.set("choices", &choices);
        event.set("usage", &usage_json(usage));
        Some(event.to_vec())
    }
}

/// The one choice of an event, changed.
fn choice(choices: &str, change: &Change<'_>) -> Option<Box<RawValue>> {
    let choices: Vec<&RawValue> = serde_json::from_str(choices).ok()?;
    let mut choice = RawObject::parse(choices.first()?.get().as_bytes())?;
    match choice.get("delta").map(str::to_owned) {
        Some(delta) => {
            let mut delta = RawObject::parse(delta.as_bytes())?;
            if change.without_role {
                delta.remove("role");
            }
            if let Some(text) = change.text {
                delta.set("content", &text);
            }
            choice.set("delta", &delta);
        }
        None => {
            if let Some(text) = change.text {
                choice.set("text", &text);
            }
        }
    }
    let json = String::from_utf8(choice.to_vec()).ok()?;
    RawValue::from_string(json).ok()
}

fn usage_json(usage: &Usage) -> serde_json::Value {
    let mut json = serde_json::json!({
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
    });
    if let Some(cached) = usage.cached_tokens {
        json["prompt_tokens_details"] = serde_json::json!({ "cached_tokens": cached });
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Option<Box<RawValue>> {
        RawValue::from_string(json.to_owned()).ok()
    }

    fn identity() -> AnswerIdentity {
        AnswerIdentity {
            shared: [raw("\"one\""), raw("\"chunk\""), raw("1"), raw("\"m\"")],
            fingerprint: raw("\"first\""),
        }
    }

    fn rewritten(data: &str, change: &Change<'_>) -> String {
        let data = identity().rewritten(data.as_bytes(), change);
        String::from_utf8(data.expect("an event")).expect("UTF-8")
    }

    #[test]
    fn an_event_takes_the_first_workers_identity_and_keeps_the_rest() {
        let data = r#"{"id":"two","created":2,"model":"m2","choices":[{"index":0,"delta":{"content":"x"},"odd":[1, 2]}],"system_fingerprint":"second","more":0.10}"#;
        assert_eq!(
            rewritten(data, &Change::default()),
            r#"{"id":"one","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"x"},"odd":[1, 2]}],"system_fingerprint":"first","more":0.10,"object":"chunk"}"#
        );
    }

    #[test]
    fn role_text_and_usage_change_where_they_stand() {
        let change = Change {
            text: Some("b\n"),
            without_role: true,
            usage: Some(Usage {
                prompt_tokens: 3,
                completion_tokens: 4,
                cached_tokens: None,
            }),
        };
        let data = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"a b"},"finish_reason":null}],"usage":{"prompt_tokens":9}}"#;
        let seen: serde_json::Value =
            serde_json::from_str(&rewritten(data, &change)).expect("JSON");
        assert_eq!(
            seen["choices"][0]["delta"],
            serde_json::json!({ "content": "b\n" })
        );
        assert_eq!(
            seen["usage"],
            serde_json::json!({ "prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4 })
        );
        let text = rewritten(r#"{"choices":[{"text":"a b"}]}"#, &change);
        assert!(text.contains(r#""choices":[{"text":"b\n"}]"#), "{text}");
    }

    #[test]
    fn a_usage_event_of_our_own() {
        let usage = Usage {
            prompt_tokens: 3,
            completion_tokens: 4,
            cached_tokens: Some(2),
        };
        let event = identity().usage_event(&usage).expect("a whole identity");
        assert_eq!(
            String::from_utf8(event).expect("UTF-8"),
            r#"{"id":"one","object":"chunk","created":1,"model":"m","choices":[],"usage":{"completion_tokens":4,"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2},"total_tokens":7}}"#
        );
    }
}
