//! What an answer says: tokens, usage, errors. Pure.
//!
//! Forms of errors: OpenAI's `{"error":{"message","type","code"}}`, and the same without the outer object, as older
//! vLLM has it.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Token counts that the reply reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt: u64,
    /// Answer tokens.
    pub completion: u64,
    /// Prompt tokens that a prefix cache supplied; `None` where the endpoint does not say.
    pub cached: Option<u64>,
}

/// A whole answer, or one event of a stream.
#[derive(Deserialize)]
pub(super) struct Event<'a> {
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    usage: Option<WireUsage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireUsage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<WireDetails>,
}

#[derive(Deserialize)]
struct WireDetails {
    cached_tokens: Option<u64>,
}

impl<'a> Event<'a> {
    /// `None` if it is no JSON object of this kind.
    pub(super) fn read(data: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    /// Whether it is an answer of this API at all.
    pub(super) fn is_answer(&self) -> bool {
        self.choices.is_some()
    }

    /// Whether it carries a part of the answer: not the role alone, not usage alone.
    pub(super) fn has_token(&self) -> bool {
        let is_some = |part: &Option<&RawValue>| {
            part.is_some_and(|part| !matches!(part.get(), "\"\"" | "[]" | "null"))
        };
        self.choices.iter().flatten().any(|choice| {
            is_some(&choice.text)
                || choice.delta.as_ref().is_some_and(|delta| {
                    let parts = [
                        &delta.content,
                        &delta.reasoning,
                        &delta.reasoning_content,
                        &delta.refusal,
                        &delta.tool_calls,
                    ];
                    parts.into_iter().any(is_some)
                })
        })
    }

    pub(super) fn usage(&self) -> Option<Usage> {
        let usage = self.usage.as_ref()?;
        let details = usage.prompt_tokens_details.as_ref();
        Some(Usage {
            prompt: usage.prompt_tokens,
            completion: usage.completion_tokens,
            cached: details.and_then(|details| details.cached_tokens),
        })
    }

    /// Code and message, if it is an error.
    pub(super) fn error(&self) -> Option<(String, String)> {
        self.error.as_ref().map(named)
    }

    /// The code of an error as it stands there, word or number; `none` without one.
    pub(super) fn error_code(&self) -> Option<String> {
        Some(match self.error.as_ref()?.get("code") {
            Some(Value::String(code)) => code.clone(),
            Some(code) if code.is_number() => code.to_string(),
            _ => "none".to_owned(),
        })
    }
}

/// Code and message of a refusal's body; empty where it has none.
pub(super) fn refusal(body: &[u8]) -> (String, String) {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    named(body.get("error").unwrap_or(&body))
}

/// A code that is a word says more than a number, which repeats the status; then the type of the error is taken.
fn named(error: &Value) -> (String, String) {
    let text = |key: &str| error.get(key).and_then(Value::as_str);
    let code = text("code").map(str::to_owned);
    let code = code.or_else(|| {
        let number = error.get("code").filter(|code| code.is_number());
        text("type")
            .map(str::to_owned)
            .or_else(|| number.map(Value::to_string))
    });
    let message = text("message").or(error.as_str()).unwrap_or_default();
    (code.unwrap_or_default(), message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_token(event: &str) -> bool {
        Event::read(event.as_bytes()).expect("JSON").has_token()
    }

    #[test]
    fn a_role_or_usage_alone_is_no_token() {
        for token in [
            r#"{"choices":[{"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant","reasoning_content":"\n"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
            r#"{"choices":[{"text":" b"}],"usage":null}"#,
        ] {
            assert!(has_token(token), "{token}");
        }
        for other in [
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"delta":{"content":null,"tool_calls":[]}}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":3}}"#,
        ] {
            assert!(!has_token(other), "{other}");
        }
    }

    #[test]
    fn cached_tokens_are_unknown_where_usage_does_not_tell() {
        let usage = |text: &str| Event::read(text.as_bytes()).expect("JSON").usage();
        let told = usage(
            r#"{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}"#,
        );
        let silent = usage(r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}"#);
        assert_eq!(told.expect("usage").cached, Some(0));
        assert_eq!(silent.expect("usage").cached, None);
    }

    #[test]
    fn errors_are_named_by_the_word_that_says_most() {
        let of = |body: &str| refusal(body.as_bytes());
        let pair = |code: &str, message: &str| (code.to_owned(), message.to_owned());
        let openai = r#"{"error":{"message":"m","type":"t","code":"no_worker"}}"#;
        assert_eq!(of(openai), pair("no_worker", "m"));
        let vllm = r#"{"object":"error","message":"m","type":"BadRequestError","code":400}"#;
        assert_eq!(of(vllm), pair("BadRequestError", "m"));
        assert_eq!(of(r#"{"error":{"code":503}}"#), pair("503", ""));
        assert_eq!(of("<html>"), pair("", ""));
    }
}
