//! Endpoints with one plain answer, which is there at once: audio as text, `/classify`, `/pooling`, `/generate`. The
//! forms follow vLLM 0.32's protocol classes. They were not captured, because a model that generates text does not
//! serve them.
//!
//! A transcription depends on the bytes of the audio: the same file in the same language gives the same
//! words.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::connection::Request;
use super::prompt::Prompt;
use super::request::{self, ApiError};
use super::worker::Worker;

/// Tokens of a transcription and of a generated text.
const WORDS: u32 = 12;
/// Bytes of one second of audio: 16,000 samples of 16 bits.
const SECOND_BYTES: usize = 32_000;

/// `/v1/audio/transcriptions` and `/v1/audio/translations`.
pub(super) fn transcribe(worker: &Worker, request: &Request) -> Result<Value, ApiError> {
    let fields = fields(request)?;
    let text = |name: &str| {
        let value = fields.get(name).map(|value| String::from_utf8_lossy(value));
        value.map_or(Value::Null, |value| Value::from(&*value))
    };
    let asked = json!({ "model": text("model"), "language": text("language") });
    request::model(&asked, &worker.config.models)?;
    let Some(file) = fields.get("file") else {
        return Err(request::missing("file", &asked));
    };
    if text("stream") == "true" {
        let message = "this worker does not stream transcriptions. (parameter=stream)";
        return Err(ApiError::invalid(message.into(), Some("stream")));
    }
    let heard = xxhash_rust::xxh3::xxh3_64(file);
    let prompt = Prompt::text(&format!("{heard:016x} {asked}"));
    let words = prompt.answer(0).text(WORDS);
    let seconds = file.len().div_ceil(SECOND_BYTES);
    Ok(json!({ "text": words, "usage": { "type": "duration", "seconds": seconds } }))
}

/// `/classify`.
pub(super) fn classify(worker: &Worker, request: &Request) -> Result<Value, ApiError> {
    pooled(worker, request, "classify", |index, text| {
        let [yes] = text.embedding(1)[..] else {
            unreachable!("one number was asked for");
        };
        let yes = (yes + 1.0) / 2.0;
        let label = if yes < 0.5 { "LABEL_0" } else { "LABEL_1" };
        json!({ "index": index, "label": label, "probs": [1.0 - yes, yes], "num_classes": 2 })
    })
}

/// `/pooling`.
pub(super) fn pool(worker: &Worker, request: &Request) -> Result<Value, ApiError> {
    pooled(
        worker,
        request,
        "pooling",
        |index, text| json!({ "index": index, "object": "pooling", "data": text.embedding(16) }),
    )
}

fn pooled(
    worker: &Worker,
    request: &Request,
    prefix: &str,
    one: impl Fn(usize, &Prompt) -> Value,
) -> Result<Value, ApiError> {
    let asked = request::json_object(&request.body)?;
    let model = request::model(&asked, &worker.config.models)?;
    let texts = texts(&asked, "input")?;
    let prompts: Vec<Prompt> = texts.iter().map(|text| Prompt::text(text)).collect();
    let data: Vec<Value> = prompts
        .iter()
        .enumerate()
        .map(|(index, text)| one(index, text))
        .collect();
    let tokens: u32 = prompts.iter().map(Prompt::tokens).sum();
    let created = super::ledger::unix_us() / 1_000_000;
    Ok(json!({
        "id": format!("{prefix}-{:016x}", rand::random::<u64>()), "object": "list", "created": created,
        "model": model, "data": data,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": null },
    }))
}

/// `/generate`, of vLLM's plain demonstration server: the prompt and its continuation.
pub(super) fn generate(worker: &Worker, request: &Request) -> Result<Value, ApiError> {
    let asked = request::json_object(&request.body)?;
    request::model(&asked, &worker.config.models)?;
    let Some(prompt) = asked["prompt"].as_str() else {
        return Err(request::missing("prompt", &asked));
    };
    let tokens = asked["max_tokens"].as_u64().unwrap_or(u64::from(WORDS));
    let tokens = u32::try_from(tokens).unwrap_or(u32::MAX).clamp(1, 4_096);
    let more = Prompt::text(prompt).answer(0).text(tokens);
    Ok(json!({ "text": [format!("{prompt}{more}")] }))
}

/// A text, or a list of texts; any other value in the list becomes its JSON text.
pub(super) fn texts(asked: &Value, field: &str) -> Result<Vec<String>, ApiError> {
    let text = |item: &Value| {
        item.as_str()
            .map_or_else(|| item.to_string(), str::to_owned)
    };
    match &asked[field] {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(items) => Ok(items.iter().map(text).collect()),
        _ => Err(request::missing(field, asked)),
    }
}

/// The parts of `multipart/form-data` by their names (RFC 7578); of two with the same name, the last.
fn fields(request: &Request) -> Result<BTreeMap<String, Vec<u8>>, ApiError> {
    let wrong = |what: &str| {
        ApiError::invalid(format!("There was an error parsing the body: {what}"), None)
    };
    let kind = request.header("content-type").unwrap_or_default();
    let boundary = kind
        .strip_prefix("multipart/form-data")
        .and_then(|rest| rest.split("boundary=").nth(1))
        .map(|boundary| boundary.trim_matches('"'))
        .ok_or_else(|| wrong("no boundary"))?;
    let mark = format!("\r\n--{boundary}");
    // With a line end before it, the first boundary looks like the others.
    let body = [b"\r\n", &request.body[..]].concat();
    let marks: Vec<usize> = memchr::memmem::find_iter(&body, &mark).collect();
    let mut fields = BTreeMap::new();
    for pair in marks.windows(2) {
        let part = &body[pair[0] + mark.len()..pair[1]];
        let head_end = memchr::memmem::find(part, b"\r\n\r\n").ok_or_else(|| wrong("no head"))?;
        let head = String::from_utf8_lossy(&part[..head_end]);
        let name = head
            .split("; name=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        let name = name.ok_or_else(|| wrong("no name"))?;
        fields.insert(name.to_owned(), part[head_end + 4..].to_vec());
    }
    let is_whole = marks
        .last()
        .is_some_and(|last| body[last + mark.len()..].starts_with(b"--"));
    is_whole.then_some(fields).ok_or_else(|| wrong("no end"))
}
