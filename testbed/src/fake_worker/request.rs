//! OpenAI requests as vLLM reads them: what is checked, in which order, and the error for each.
//!
//! Pure. Error texts and types are those of vLLM 0.32 (captured): two families, `Bad Request` from the schema
//! check and `BadRequestError` from vLLM's own checks. Unknown fields are ignored and a missing model is
//! accepted, as in vLLM.

use serde_json::{Value, json};

use super::prompt::{Close, Prompt, TOKEN_BYTES};

/// A refusal in vLLM's shape: `{"error":{"message","type","param","code"}}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) message: String,
    pub(super) param: Option<String>,
}

impl ApiError {
    /// vLLM's own checks.
    pub(super) fn invalid(message: String, param: Option<&str>) -> Self {
        Self {
            status: 400,
            kind: "BadRequestError",
            message,
            param: param.map(str::to_owned),
        }
    }

    /// The schema check, which runs before vLLM's own checks.
    fn schema(detail: &str, param: Option<&str>) -> Self {
        Self {
            status: 400,
            kind: "Bad Request",
            message: format!("1 validation error:\n  {detail}"),
            param: param.map(str::to_owned),
        }
    }

    fn field(kind: &str, field: &str, message: &str, input: &str) -> Self {
        let loc = if field.is_empty() {
            "body".to_owned()
        } else {
            format!("body.{field}")
        };
        let detail =
            format!("{{'type': '{kind}', 'loc': '{loc}', 'msg': '{message}', 'input': '{input}'}}");
        Self::schema(&detail, Some(&loc))
    }

    pub(super) fn not_found(message: &str) -> Self {
        Self {
            status: 404,
            kind: "NotFoundError",
            message: message.to_owned(),
            param: None,
        }
    }

    pub(super) fn unavailable(message: &str) -> Self {
        Self {
            status: 503,
            kind: "Service Unavailable",
            message: message.to_owned(),
            param: None,
        }
    }

    pub(super) fn internal(message: &str) -> Self {
        Self {
            status: 500,
            kind: "InternalServerError",
            message: message.to_owned(),
            param: None,
        }
    }

    /// What vLLM 0.33 says of an engine that is dead.
    pub(super) fn engine_dead() -> Self {
        Self::internal("The server had an error while processing your request.")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Completion,
    Embedding,
    /// Anthropic's messages.
    Messages,
}

/// A checked request.
#[derive(Debug, PartialEq)]
pub(super) struct Generation {
    pub(super) kind: Kind,
    /// Name used in replies.
    pub(super) model: String,
    /// At least one; more than one only for completions and embeddings.
    pub(super) prompts: Vec<Prompt>,
    /// Choices per prompt, at least 1.
    pub(super) choices: u32,
    /// Answer length in tokens; 0 for embeddings.
    pub(super) answer_tokens: u32,
    /// The answer ends because of `max_tokens`, not by itself.
    pub(super) cut_by_length: bool,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// Usage in every event.
    pub(super) continuous_usage: bool,
    /// Separates caches: model and the request's `cache_salt`.
    pub(super) salt: String,
    /// Beginning of the first choice's answer, ASCII; empty: the worker generates all of it.
    pub(super) given_answer: String,
    /// `kv_transfer_params`, if it is an object.
    pub(super) kv_transfer_params: Option<Value>,
    /// SGLang's `bootstrap_host`, `bootstrap_port` and `bootstrap_room`.
    pub(super) bootstrap: [Value; 3],
    /// Embeddings as base64 of little-endian floats.
    pub(super) base64: bool,
    /// Embedding length.
    pub(super) dimensions: u32,
}

/// Limits and names that a request is checked against.
pub(super) struct Rules<'a> {
    pub(super) models: &'a [String],
    pub(super) model_len: u32,
    /// Answer length without `max_tokens`.
    pub(super) answer_tokens: u32,
}

/// Sequences that one request may ask for; vLLM has no such limit, a test tool needs one.
const SEQUENCES_MAX: usize = 1_024;

impl Generation {
    /// Reads a request body for `kind`.
    pub(super) fn parse(
        kind: Kind,
        content_type: Option<&str>,
        body: &[u8],
        rules: &Rules<'_>,
    ) -> Result<Self, ApiError> {
        if !content_type
            .is_some_and(|value| value.to_ascii_lowercase().starts_with("application/json"))
        {
            return Err(ApiError::schema(
                "Unsupported Media Type: Only 'application/json' is allowed",
                None,
            ));
        }
        let body = json_object(body)?;
        let prompts = prompts(kind, &body)?;
        let max_tokens = max_tokens(kind, &body)?;
        let choices = choices(kind, &body)?;
        if let Some(temperature) = body["temperature"].as_f64().filter(|t| *t < 0.0) {
            return Err(ApiError::invalid(
                format!(
                    "temperature must be non-negative, got {temperature:?}. (parameter=temperature, value={temperature:?})"
                ),
                Some("temperature"),
            ));
        }
        let stream = body["stream"].as_bool().unwrap_or(false) && kind != Kind::Embedding;
        if !stream && !body["stream_options"].is_null() && kind != Kind::Embedding {
            return Err(ApiError::invalid(
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
                    .into(),
                Some("stream_options"),
            ));
        }
        if prompts.len() * choices as usize > SEQUENCES_MAX {
            return Err(ApiError::invalid(
                format!("more than {SEQUENCES_MAX} sequences in one request"),
                None,
            ));
        }
        let model = model(&body, rules.models)?;
        let longest = prompts.iter().map(Prompt::tokens).max().unwrap_or(1);
        // A continued answer ends where it would have ended.
        let said = if kind == Kind::Chat {
            begun(&body).len() / TOKEN_BYTES
        } else {
            0
        };
        let said = u32::try_from(said).unwrap_or(u32::MAX);
        let rules = &Rules {
            answer_tokens: rules.answer_tokens.saturating_sub(said).max(1),
            ..*rules
        };
        let answer_tokens = check_length(longest, max_tokens, rules, kind)?;
        let options = &body["stream_options"];
        Ok(Self {
            kind,
            salt: format!(
                "{model}\0{}",
                body["cache_salt"].as_str().unwrap_or_default()
            ),
            model,
            given_answer: given_answer(kind, &body)?,
            prompts,
            choices,
            answer_tokens,
            cut_by_length: max_tokens.is_some() || answer_tokens < rules.answer_tokens,
            stream,
            include_usage: options["include_usage"].as_bool().unwrap_or(false),
            continuous_usage: options["continuous_usage_stats"].as_bool().unwrap_or(false),
            kv_transfer_params: body
                .get("kv_transfer_params")
                .filter(|p| p.is_object())
                .cloned(),
            bootstrap: ["host", "port", "room"]
                .map(|name| body[format!("bootstrap_{name}")].clone()),
            base64: body["encoding_format"].as_str() == Some("base64"),
            dimensions: body["dimensions"].as_u64().unwrap_or(16).clamp(1, 4_096) as u32,
        })
    }

    /// A hash of the prompt of each sequence: prompts in order, choices of a prompt next to each other.
    pub(super) fn contents(&self) -> Vec<u64> {
        let choices = self.choices as usize;
        let content = |prompt: &Prompt| std::iter::repeat_n(prompt.content(&self.salt), choices);
        self.prompts.iter().flat_map(content).collect()
    }

    /// Prompt tokens of all prompts, each counted once.
    pub(super) fn prompt_tokens(&self) -> u32 {
        self.prompts.iter().map(Prompt::tokens).sum()
    }
}

pub(super) fn json_object(body: &[u8]) -> Result<Value, ApiError> {
    if body.is_empty() {
        return Err(ApiError::field("missing", "", "Field required", "None"));
    }
    let value: Value = serde_json::from_slice(body).map_err(|e| {
        let offset = byte_offset(body, e.line(), e.column());
        let loc = format!("body.{offset}");
        let detail = format!(
            "{{'type': 'json_invalid', 'loc': '{loc}', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {{'error': 'Expecting value'}}}}"
        );
        ApiError::schema(&detail, Some(&loc))
    })?;
    match &value {
        Value::Object(_) => Ok(value),
        other => Err(ApiError::field(
            "model_attributes_type",
            "",
            "Input should be a valid dictionary or object to extract fields from",
            &input(other),
        )),
    }
}

/// Byte offset of a 1-based line and column, where serde_json stopped.
fn byte_offset(body: &[u8], line: usize, column: usize) -> usize {
    let line_start = match line {
        0 | 1 => 0,
        _ => memchr::memchr_iter(b'\n', body)
            .nth(line - 2)
            .map_or(0, |at| at + 1),
    };
    line_start + column.saturating_sub(1)
}

/// How the schema check quotes a wrong value.
fn input(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("<list of {} items>", items.len()),
        Value::Object(fields) => format!("<dict of {} items>", fields.len()),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn prompts(kind: Kind, body: &Value) -> Result<Vec<Prompt>, ApiError> {
    let field = match kind {
        Kind::Chat => return chat_prompt(body).map(|prompt| vec![prompt]),
        Kind::Messages => return anthropic_prompt(body).map(|prompt| vec![prompt]),
        Kind::Completion => "prompt",
        Kind::Embedding => "input",
    };
    let wrong = |value: &Value| {
        ApiError::field(
            "string_type",
            field,
            "Input should be a valid string",
            &input(value),
        )
    };
    match &body[field] {
        Value::Null => Err(missing(field, body)),
        Value::String(text) => Ok(vec![Prompt::text(text)]),
        Value::Array(items) if items.is_empty() => Err(wrong(&body[field])),
        Value::Array(items) if items.iter().all(Value::is_u64) => {
            Ok(vec![token_ids(items).ok_or_else(|| wrong(&body[field]))?])
        }
        Value::Array(items) => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(Prompt::text(text)),
                Value::Array(ids) => token_ids(ids).ok_or_else(|| wrong(item)),
                other => Err(wrong(other)),
            })
            .collect(),
        other => Err(wrong(other)),
    }
}

fn token_ids(items: &[Value]) -> Option<Prompt> {
    let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Vec<u32> = items.iter().map(id).collect::<Option<_>>()?;
    Some(Prompt::token_ids(&ids))
}

pub(super) fn chat_prompt(body: &Value) -> Result<Prompt, ApiError> {
    match &body["messages"] {
        Value::Null => Err(missing("messages", body)),
        Value::Array(messages) if messages.is_empty() => Err(ApiError::invalid(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
                .into(),
            None,
        )),
        Value::Array(messages) => match messages.iter().position(|message| !message.is_object()) {
            None => Ok(Prompt::chat(messages, body.get("tools"), close(body)?)),
            Some(at) => Err(ApiError::field(
                "dict_type",
                &format!("messages.{at}"),
                "Input should be a valid dictionary",
                &input(&messages[at]),
            )),
        },
        other => Err(ApiError::field(
            "list_type",
            "messages",
            "Input should be a valid list",
            &input(other),
        )),
    }
}

/// The prompt of Anthropic's messages, whose `system` stands beside them.
pub(super) fn anthropic_prompt(body: &Value) -> Result<Prompt, ApiError> {
    let mut messages = body["messages"].as_array().cloned().unwrap_or_default();
    if messages.is_empty() {
        return Err(missing("messages", body));
    }
    if !body["system"].is_null() {
        messages.insert(0, json!({ "role": "system", "content": body["system"] }));
    }
    Ok(Prompt::chat(
        &messages,
        body.get("tools"),
        Close::NewMessage,
    ))
}

fn flag(body: &Value, field: &str, default: bool) -> bool {
    body[field].as_bool().unwrap_or(default)
}

fn close(body: &Value) -> Result<Close, ApiError> {
    let begins_new = flag(body, "add_generation_prompt", true);
    match (flag(body, "continue_final_message", false), begins_new) {
        (true, true) => Err(ApiError::invalid(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.".into(),
            None,
        )),
        (true, false) => Ok(Close::OpenMessage),
        (false, true) => Ok(Close::NewMessage),
        (false, false) => Ok(Close::Plain),
    }
}

/// The text of the message that a chat asks to continue; empty if there is none.
fn begun(body: &Value) -> &str {
    if !flag(body, "continue_final_message", false) {
        return "";
    }
    let messages = body["messages"].as_array();
    let last = messages.and_then(|messages| messages.last());
    let text = last.and_then(|message| message["content"].as_str());
    text.unwrap_or_default()
}

/// The answer that a replay asks for, from `vllm_xargs`, vLLM's field for extensions. `answer` is its text. For a
/// completion, `answer_at` is the byte of the prompt at which the answer begins; by default the length of the prompt.
/// A request that continues an answer already holds a part of it, which is removed here; if it holds a different
/// text, the result is empty.
fn given_answer(kind: Kind, body: &Value) -> Result<String, ApiError> {
    let extra = &body["vllm_xargs"];
    let Some(answer) = extra["answer"].as_str() else {
        return Ok(String::new());
    };
    if !answer.is_ascii() {
        return Err(ApiError::invalid(
            "vllm_xargs.answer must be ASCII.".into(),
            Some("vllm_xargs"),
        ));
    }
    let held = match kind {
        Kind::Chat => begun(body),
        Kind::Completion => {
            let prompt = body["prompt"].as_str().unwrap_or_default();
            let at = extra["answer_at"].as_u64();
            at.and_then(|at| prompt.get(usize::try_from(at).ok()?..))
                .unwrap_or_default()
        }
        Kind::Embedding | Kind::Messages => return Ok(String::new()),
    };
    Ok(answer.strip_prefix(held).unwrap_or_default().to_owned())
}

pub(super) fn missing(field: &str, body: &Value) -> ApiError {
    ApiError::field("missing", field, "Field required", &input(body))
}

fn integer(body: &Value, field: &str) -> Result<Option<i64>, ApiError> {
    match &body[field] {
        Value::Null => Ok(None),
        Value::Number(number) if number.is_i64() => Ok(number.as_i64()),
        other => Err(ApiError::field(
            "int_parsing",
            field,
            "Input should be a valid integer, unable to parse string as an integer",
            &input(other),
        )),
    }
}

fn max_tokens(kind: Kind, body: &Value) -> Result<Option<u32>, ApiError> {
    let newer = match kind {
        Kind::Chat => integer(body, "max_completion_tokens")?,
        Kind::Completion | Kind::Messages => None,
        Kind::Embedding => return Ok(Some(0)),
    };
    match newer.or(integer(body, "max_tokens")?) {
        Some(n) if n < 1 => Err(ApiError::invalid(
            format!("max_tokens must be at least 1, got {n}. (parameter=max_tokens, value={n})"),
            Some("max_tokens"),
        )),
        Some(n) => Ok(Some(u32::try_from(n).unwrap_or(u32::MAX))),
        None => Ok(None),
    }
}

fn choices(kind: Kind, body: &Value) -> Result<u32, ApiError> {
    if kind == Kind::Messages {
        return Ok(1);
    }
    match integer(body, "n")? {
        Some(n) if n < 1 && kind != Kind::Embedding => Err(ApiError::invalid(
            format!("n must be at least 1, got {n}."),
            None,
        )),
        Some(n) if kind != Kind::Embedding => Ok(u32::try_from(n).unwrap_or(u32::MAX)),
        _ => Ok(1),
    }
}

pub(super) fn model(body: &Value, served: &[String]) -> Result<String, ApiError> {
    match body["model"].as_str() {
        None => Ok(served.first().cloned().unwrap_or_default()),
        Some(asked) if served.iter().any(|name| name == asked) => Ok(asked.to_owned()),
        Some(asked) => Err(ApiError {
            status: 404,
            kind: "NotFoundError",
            message: format!(
                "The model `{asked}` does not exist. Valid aliases: {}.",
                served.join(", ")
            ),
            param: Some("model".into()),
        }),
    }
}

/// Checks prompt and answer against the context length; returns the answer length.
fn check_length(
    prompt_tokens: u32,
    max_tokens: Option<u32>,
    rules: &Rules<'_>,
    kind: Kind,
) -> Result<u32, ApiError> {
    let limit = rules.model_len;
    if let Some(asked) = max_tokens.filter(|asked| *asked > limit) {
        return Err(ApiError::invalid(
            format!(
                "max_tokens={asked} cannot be greater than max_model_len={limit}. Please request fewer output tokens. (parameter=max_tokens, value={asked})"
            ),
            Some("max_tokens"),
        ));
    }
    let answer_min = u32::from(kind != Kind::Embedding);
    if prompt_tokens > limit - answer_min.min(limit) {
        let at_least = limit + 1;
        return Err(ApiError::invalid(
            format!(
                "This model's maximum context length is {limit} tokens. However, your prompt contains at least {at_least} input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value={at_least})"
            ),
            Some("input_tokens"),
        ));
    }
    let room = limit - prompt_tokens;
    match max_tokens {
        None => Ok(rules.answer_tokens.clamp(1, room)),
        Some(asked) if asked > room => Err(ApiError::invalid(
            format!(
                "This model's maximum context length is {limit} tokens. However, you requested {asked} output tokens and your prompt contains {prompt_tokens} input tokens, for a total of {} tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value={prompt_tokens})",
                u64::from(asked) + u64::from(prompt_tokens)
            ),
            Some("input_tokens"),
        )),
        Some(asked) => Ok(asked),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
