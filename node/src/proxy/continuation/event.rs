//! One event of a streamed chat or completion, read as far as a continuation needs it.
//!
//! Field names are those of OpenAI's API and of vLLM 0.32.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::reason::Reason;
use crate::api::json::Text;
use crate::http::sse::{Usage, usage_of};

/// An event, borrowed from its JSON.
#[derive(Debug)]
pub(super) struct Event<'a> {
    /// `id`, `object`, `created`, `model`: equal in all events of an answer.
    pub(super) identity: [Option<&'a RawValue>; 4],
    /// `system_fingerprint`; vLLM sends it with the last event only.
    pub(super) fingerprint: Option<&'a RawValue>,
    /// It belongs to a choice: not the event that only reports usage.
    pub(super) speaks: bool,
    /// It names the role, as the first one of a chat does.
    pub(super) begins: bool,
    /// What it says; empty when it says nothing.
    pub(super) text: Cow<'a, str>,
    /// It has the reason for which the answer ends.
    pub(super) finishes: bool,
    /// Token counts, if it reports them.
    pub(super) usage: Option<Usage>,
}

/// What the data of an event may be.
#[derive(Debug)]
pub(super) enum Seen<'a> {
    /// The end mark.
    Done,
    /// The worker says that it failed: an error, or an answer that was aborted.
    Failed,
    /// A part of the answer.
    Event(Event<'a>),
    /// A part that cannot be continued.
    Beyond(Reason),
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
    #[serde(borrow, default)]
    created: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(borrow, default)]
    system_fingerprint: Option<&'a RawValue>,
    #[serde(borrow, default)]
    choices: Vec<RawChoice<'a>>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawChoice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow, default)]
    delta: Option<RawDelta<'a>>,
    #[serde(borrow, default)]
    text: Option<Text<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct RawDelta<'a> {
    #[serde(borrow, default)]
    role: Option<Text<'a>>,
    #[serde(borrow, default)]
    content: Option<Text<'a>>,
    #[serde(borrow, default)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow, default)]
    function_call: Option<&'a RawValue>,
    #[serde(borrow, default)]
    audio: Option<&'a RawValue>,
}

impl RawDelta<'_> {
    fn beyond(&self) -> Option<Reason> {
        let says = |value: Option<&RawValue>| {
            value.is_some_and(|value| !matches!(value.get(), "\"\"" | "[]"))
        };
        if says(self.reasoning) || says(self.reasoning_content) {
            Some(Reason::Reasoning)
        } else if says(self.tool_calls) || says(self.function_call) {
            Some(Reason::ToolCalls)
        } else if says(self.audio) {
            Some(Reason::Audio)
        } else {
            None
        }
    }
}

/// Reads the data of one event.
pub(super) fn read(data: &[u8]) -> Seen<'_> {
    if data == b"[DONE]" {
        return Seen::Done;
    }
    let Ok(event) = serde_json::from_slice::<RawEvent<'_>>(data) else {
        return Seen::Beyond(Reason::Answer);
    };
    if event.error.is_some() {
        return Seen::Failed;
    }
    let usage = event.usage.and_then(|_| usage_of(data));
    let mut choices = event.choices.into_iter();
    let choice = choices.next();
    if choices.next().is_some() || choice.as_ref().is_some_and(|choice| choice.index != 0) {
        return Seen::Beyond(Reason::Choices);
    }
    let mut seen = Event {
        identity: [event.id, event.object, event.created, event.model],
        fingerprint: event.system_fingerprint,
        speaks: choice.is_some(),
        begins: false,
        text: Cow::Borrowed(""),
        finishes: false,
        usage,
    };
    let Some(choice) = choice else {
        return Seen::Event(seen);
    };
    if let Some(finish) = choice.finish_reason {
        // What vLLM writes when the engine gave the request up; nothing else follows.
        if matches!(&*finish.0, "abort" | "error") {
            return Seen::Failed;
        }
        seen.finishes = true;
    }
    let text = match choice.delta {
        Some(delta) => {
            if let Some(reason) = delta.beyond() {
                return Seen::Beyond(reason);
            }
            seen.begins = delta.role.is_some();
            delta.content
        }
        None => choice.text,
    };
    if let Some(text) = text {
        seen.text = text.0;
    }
    Seen::Event(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(json: &str) -> Event<'_> {
        match read(json.as_bytes()) {
            Seen::Event(event) => event,
            other => panic!("{json}: {other:?}"),
        }
    }

    #[test]
    fn chats_and_completions_of_vllm() {
        let begin = event(
            r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":19,"total_tokens":19,"completion_tokens":0},"prompt_token_ids":null}"#,
        );
        assert!(begin.begins && begin.speaks && !begin.finishes && begin.text.is_empty());
        assert_eq!(begin.usage.map(|usage| usage.prompt_tokens), Some(19));
        let said = event(
            r#"{"id":"a","choices":[{"index":0,"delta":{"content":" x\n"},"finish_reason":"length"}],"system_fingerprint":"v"}"#,
        );
        assert!(said.finishes && said.text == " x\n" && said.usage.is_none());
        assert_eq!(said.fingerprint.map(RawValue::get), Some("\"v\""));
        let text = event(r#"{"choices":[{"index":0,"text":"y","finish_reason":null}]}"#);
        assert!(text.text == "y" && text.speaks && !text.begins);
        let usage = event(r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#);
        assert!(!usage.speaks && usage.usage.is_some());
    }

    #[test]
    fn what_is_no_text_is_said_so() {
        let delta = |delta: &str| format!(r#"{{"choices":[{{"index":0,"delta":{{{delta}}}}}]}}"#);
        for (json, expected) in [
            (delta(r#""reasoning":"hm""#), Reason::Reasoning),
            (delta(r#""reasoning_content":"hm""#), Reason::Reasoning),
            (delta(r#""tool_calls":[{}]"#), Reason::ToolCalls),
            (delta(r#""function_call":{}"#), Reason::ToolCalls),
            (delta(r#""audio":{}"#), Reason::Audio),
            (delta(r#""content":[]"#), Reason::Answer),
            (r#"{"choices":[{"index":1}]}"#.into(), Reason::Choices),
            (
                r#"{"choices":[{"index":0},{"index":0}]}"#.into(),
                Reason::Choices,
            ),
            ("{\"choices\":[".into(), Reason::Answer),
            ("7".into(), Reason::Answer),
        ] {
            let Seen::Beyond(reason) = read(json.as_bytes()) else {
                panic!("{json} was taken");
            };
            assert_eq!(reason, expected, "{json}");
        }
        for quiet in [
            r#""tool_calls":[]"#,
            r#""reasoning":"""#,
            r#""reasoning":null"#,
        ] {
            assert!(
                matches!(read(delta(quiet).as_bytes()), Seen::Event(_)),
                "{quiet}"
            );
        }
    }

    #[test]
    fn ends() {
        assert!(matches!(read(b"[DONE]"), Seen::Done));
        for failed in [
            r#"{"error": {"code": 500}}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}"#,
            r#"{"choices":[{"index":0,"text":"","finish_reason":"error"}]}"#,
        ] {
            assert!(matches!(read(failed.as_bytes()), Seen::Failed), "{failed}");
        }
        assert!(matches!(
            read(br#"{"error":null,"choices":[]}"#),
            Seen::Event(_)
        ));
    }
}
