//! `/v1/responses` and its subpaths, the count of tokens of messages, rerank and score, in the forms of vLLM 0.32 (captured, except
//! rerank and score, which only pooling models serve).
//!
//! They answer at once: only `generate`, which has most of the traffic, models the engine's time; of these paths the
//! engine computes a streamed response's prompt alone, behind the events that vLLM sends before it asks its engine.
//! Responses are kept in memory, as vLLM keeps them with `VLLM_ENABLE_RESPONSES_API_STORE`, so only the worker that made a
//! response has it.

use serde_json::{Value, json};

use super::body;
use super::connection::Request;
use super::generate::overloaded;
use super::kept::KEPT_MAX;
use super::ledger::{Leg, Open};
use super::plain::{self, texts};
use super::prompt::{Close, Prompt, TOKEN_BYTES};
use super::reply::{Ended, JSON, Reply};
use super::request::{self, ApiError};
use super::worker::Worker;
use crate::engine::{Kv, Sequence};

/// Serves a path of this file; `entry` records the request.
pub(super) async fn serve(
    worker: &Worker,
    request: &Request,
    reply: &mut Reply<'_>,
    entry: Option<&Open>,
) -> Result<(), Ended> {
    let answer = match request.path() {
        "/v1/responses" => respond(worker, request),
        "/v1/messages/count_tokens" => count(worker, request),
        "/detokenize" => detokenize(request),
        "/rerank" | "/v1/rerank" | "/v2/rerank" => rerank(worker, request),
        "/score" | "/v1/score" => score(worker, request),
        "/v1/audio/transcriptions" | "/v1/audio/translations" => {
            plain::transcribe(worker, request).map(Answer::from)
        }
        "/classify" => plain::classify(worker, request).map(Answer::from),
        "/pooling" => plain::pool(worker, request).map(Answer::from),
        "/generate" => plain::generate(worker, request).map(Answer::from),
        path => about(worker, path),
    };
    if let Some(entry) = entry {
        entry.update(|entry| {
            entry.tokens = answer.as_ref().map_or(0, |answer| answer.tokens);
            entry.leg = is_prefill_leg(&request.body).then_some(Leg::Prefill);
        });
    }
    let mut answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let text = body::error(&error);
            return reply.plain(error.status, JSON, text.as_bytes()).await;
        }
    };
    if let Some(events) = answer.events.take() {
        return stream(worker, answer, &events, reply, entry).await;
    }
    answer.keep(worker);
    let text = answer.json.to_string();
    reply.plain(200, JSON, text.as_bytes()).await
}

async fn stream(
    worker: &Worker,
    mut answer: Answer,
    events: &[Event],
    reply: &mut Reply<'_>,
    entry: Option<&Open>,
) -> Result<(), Ended> {
    reply.begin_stream().await?;
    let (early, late) = events.split_at(EARLY.min(events.len()));
    send(early, reply).await?;
    if let Some(prompt) = answer.prompt.take()
        && let Err(error) = compute(worker, prompt, reply).await?
    {
        if let Some(entry) = entry {
            entry.update(|entry| entry.tokens = 0);
        }
        let data = body::error_event(&error);
        reply.named_event("error", &data).await?;
        return reply.end_named().await;
    }
    answer.keep(worker);
    send(late, reply).await?;
    reply.end_named().await
}

/// Name and data of an event.
type Event = (&'static str, Value);

/// Events of a response that vLLM sends before its engine has the request: `response.created`, `response.in_progress`.
const EARLY: usize = 2;

async fn send(events: &[Event], reply: &mut Reply<'_>) -> Result<(), Ended> {
    for (name, data) in events {
        reply.named_event(name, &data.to_string()).await?;
    }
    Ok(())
}

/// Has the engine compute a prompt, and its first token; its refusal, if it does not take it.
async fn compute(
    worker: &Worker,
    prompt: Sequence,
    reply: &mut Reply<'_>,
) -> Result<Result<(), ApiError>, Ended> {
    let pacer = &worker.ranks[worker.idlest_rank() as usize].pacer;
    match pacer.submit_of(None, vec![prompt], Kv::Local) {
        Ok(mut ticket) => {
            reply.unless_gone(ticket.done()).await?;
            Ok(Ok(()))
        }
        Err(refusal) => Ok(Err(overloaded(refusal))),
    }
}

/// What the engine has to do before a response's first token.
fn sequence_of(worker: &Worker, model: &str, prompt: &Prompt) -> Sequence {
    let (answer_tokens, block_tokens) = (1, worker.config.engine.block_tokens);
    Sequence {
        id: 0,
        chain: prompt.chain(model, prompt.answer(0), answer_tokens, block_tokens),
        prompt_tokens: prompt.tokens(),
        answer_tokens,
    }
}

/// Whether it asks for a prompt to be kept for another engine: these endpoints do not, as in releases before 0.32.
fn is_prefill_leg(body: &[u8]) -> bool {
    let asked = request::json_object(body);
    asked.is_ok_and(|asked| asked["kv_transfer_params"]["do_remote_decode"] == true)
}

#[derive(Default)]
struct Answer {
    json: Value,
    /// If a stream was asked for.
    events: Option<Vec<Event>>,
    /// What the engine computes before the events behind the first [`EARLY`].
    prompt: Option<Sequence>,
    /// The id by which it can be read again.
    kept_as: Option<String>,
    tokens: u64,
}

impl Answer {
    /// It is computed: whoever asks for its id gets it from now on.
    fn keep(&mut self, worker: &Worker) {
        let mut kept = worker.responses.lock();
        if let Some(id) = self.kept_as.take()
            && kept.len() < KEPT_MAX
        {
            kept.insert(id, self.json.clone());
        }
    }
}

impl From<Value> for Answer {
    fn from(json: Value) -> Self {
        Self {
            json,
            ..Self::default()
        }
    }
}

fn wants_stream(asked: &Value) -> bool {
    asked["stream"].as_bool().unwrap_or(false)
}

/// The tokens of an answer to this prompt.
fn say(worker: &Worker, prompt: &Prompt, limit: &Value) -> Vec<String> {
    let own = u64::from(worker.config.answer_tokens);
    let count = limit.as_u64().unwrap_or(own).clamp(1, 4_096);
    let mut answer = prompt.answer(0);
    (0..count).map(|_| answer.next_token()).collect()
}

fn respond(worker: &Worker, request: &Request) -> Result<Answer, ApiError> {
    let asked = request::json_object(&request.body)?;
    if !asked["prompt"].is_null() {
        let message = "prompt template is not supported (parameter=prompt)";
        return Err(ApiError::invalid(message.into(), Some("prompt")));
    }
    let model = request::model(&asked, &worker.config.models)?;
    let mut messages = match asked["previous_response_id"].as_str() {
        Some(id) => worker.responses.get(id)?["input_messages"]
            .as_array()
            .cloned()
            .unwrap_or_default(),
        None => Vec::new(),
    };
    if let Some(instructions) = asked["instructions"].as_str() {
        messages.insert(0, json!({ "role": "system", "content": instructions }));
    }
    match &asked["input"] {
        Value::String(text) => messages.push(json!({ "role": "user", "content": text })),
        Value::Array(items) => {
            messages.extend(items.iter().filter(|item| item.is_object()).cloned())
        }
        _ => return Err(request::missing("input", &asked)),
    }
    let prompt = Prompt::chat(&messages, asked.get("tools"), Close::NewMessage);
    let words = say(worker, &prompt, &asked["max_output_tokens"]);
    let text = words.concat();
    messages.push(json!({ "role": "assistant", "content": text }));
    // vLLM lets the client choose it.
    let chosen = asked["request_id"].as_str().map(str::to_owned);
    let id = chosen.unwrap_or_else(|| format!("resp_{:016x}", rand::random::<u64>()));
    let item = format!("msg_{:016x}", rand::random::<u64>());
    let part = json!({ "annotations": [], "text": text, "type": "output_text", "logprobs": null });
    let done = json!({
        "id": item, "content": [part], "role": "assistant", "status": "completed", "type": "message", "phase": null,
    });
    let response = |output: Value, status: &str, usage: Value| {
        json!({
            "id": id, "created_at": super::ledger::unix_us() / 1_000_000, "model": model, "object": "response",
            "output": output, "status": status, "usage": usage, "previous_response_id": asked["previous_response_id"],
            "background": false, "error": null, "input_messages": messages,
        })
    };
    let (input, output) = (prompt.tokens(), words.len());
    let usage = json!({
        "input_tokens": input, "input_tokens_details": { "cached_tokens": 0 }, "output_tokens": output,
        "total_tokens": input as usize + output,
    });
    let whole = response(json!([done]), "completed", usage);
    let begun = response(json!([]), "in_progress", Value::Null);
    let events = events(&begun, &whole, &words, &done);
    Ok(Answer {
        json: whole,
        events: wants_stream(&asked).then_some(events),
        prompt: Some(sequence_of(worker, &model, &prompt)),
        kept_as: asked["store"].as_bool().unwrap_or(true).then_some(id),
        tokens: output as u64,
    })
}

/// The events of its stream, from the begun response to the whole one; `done`: the item that the words are.
fn events(begun: &Value, whole: &Value, words: &[String], done: &Value) -> Vec<Event> {
    let mut events = vec![
        ("response.created", json!({ "response": begun })),
        ("response.in_progress", json!({ "response": begun })),
        (
            "response.output_item.added",
            json!({ "item": { "id": done["id"], "content": [] }, "output_index": 0 }),
        ),
    ];
    events.extend(words.iter().map(|word| {
        (
            "response.output_text.delta",
            json!({ "content_index": 0, "delta": word, "item_id": done["id"] }),
        )
    }));
    events.push((
        "response.output_item.done",
        json!({ "item": done, "output_index": 0 }),
    ));
    events.push(("response.completed", json!({ "response": whole })));
    for (number, (name, data)) in events.iter_mut().enumerate() {
        data["sequence_number"] = number.into();
        data["type"] = (*name).into();
    }
    events
}

/// `GET /v1/responses/{id}` and its subpaths.
fn about(worker: &Worker, path: &str) -> Result<Answer, ApiError> {
    let rest = path.strip_prefix("/v1/responses/").unwrap_or_default();
    match rest.split_once('/') {
        None => worker.responses.get(rest).map(Answer::from),
        Some((id, "cancel")) => {
            worker.responses.get(id)?;
            Err(ApiError::invalid(
                "Cannot cancel a synchronous response.".into(),
                Some("response_id"),
            ))
        }
        Some(_) => Err(ApiError::not_found("Not Found")),
    }
}

fn count(worker: &Worker, request: &Request) -> Result<Answer, ApiError> {
    let asked = request::json_object(&request.body)?;
    request::model(&asked, &worker.config.models)?;
    let tokens = request::anthropic_prompt(&asked)?.tokens();
    Ok(json!({ "input_tokens": tokens }).into())
}

/// The text from which `/tokenize` made these tokens, except for the bit that it drops of each.
fn detokenize(request: &Request) -> Result<Answer, ApiError> {
    let asked = request::json_object(&request.body)?;
    let Some(ids) = asked["tokens"].as_array() else {
        return Err(request::missing("tokens", &asked));
    };
    let mut bytes = Vec::with_capacity(ids.len() * TOKEN_BYTES);
    for id in ids.iter().filter_map(Value::as_u64) {
        bytes.extend(
            (id as u32)
                .to_le_bytes()
                .into_iter()
                .filter(|byte| *byte != 0),
        );
    }
    Ok(json!({ "prompt": String::from_utf8_lossy(&bytes) }).into())
}

/// Similarity of two texts, in 0..1, the same on every worker.
fn likeness(query: &str, text: &str) -> f32 {
    let numbers = Prompt::text(&format!("{query}\0{text}")).embedding(1);
    f32::midpoint(numbers[0], 1.0)
}

fn rerank(worker: &Worker, request: &Request) -> Result<Answer, ApiError> {
    let asked = request::json_object(&request.body)?;
    let model = request::model(&asked, &worker.config.models)?;
    let query = texts(&asked, "query")?.concat();
    let documents = texts(&asked, "documents")?;
    let mut results: Vec<(usize, f32)> = documents
        .iter()
        .map(|text| likeness(&query, text))
        .enumerate()
        .collect();
    results.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let results: Vec<Value> = results
        .into_iter()
        .map(|(index, score)| {
            json!({ "index": index, "document": { "text": documents[index] }, "relevance_score": score })
        })
        .collect();
    let tokens: u32 = documents
        .iter()
        .map(|text| Prompt::text(text).tokens())
        .sum();
    let id = format!("rerank-{:016x}", rand::random::<u64>());
    Ok(json!({ "id": id, "model": model, "usage": { "total_tokens": tokens }, "results": results }).into())
}

fn score(worker: &Worker, request: &Request) -> Result<Answer, ApiError> {
    let asked = request::json_object(&request.body)?;
    let model = request::model(&asked, &worker.config.models)?;
    let first = texts(&asked, "text_1")?.concat();
    let data: Vec<Value> = texts(&asked, "text_2")?
        .iter()
        .enumerate()
        .map(|(index, text)| json!({ "index": index, "object": "score", "score": likeness(&first, text) }))
        .collect();
    let id = format!("score-{:016x}", rand::random::<u64>());
    let created = super::ledger::unix_us() / 1_000_000;
    Ok(
        json!({ "id": id, "object": "list", "created": created, "model": model, "data": data })
            .into(),
    )
}
