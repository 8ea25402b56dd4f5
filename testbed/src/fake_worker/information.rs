//! What a worker says of itself: health, metrics, models, tokens of a text.

use serde_json::json;

use super::connection::Request;
use super::prompt::Prompt;
use super::reply::{Ended, JSON, Reply};
use super::request::{self, ApiError};
use super::worker::Worker;
use super::{body, kv_events, metrics};

/// Answers a request that the engine has no part in.
pub(super) async fn serve(
    worker: &Worker,
    request: &Request,
    path: &str,
    reply: &mut Reply<'_>,
) -> Result<(), Ended> {
    let answer = match path {
        "/health" | "/ping" => return reply.plain(200, "", b"").await,
        "/metrics" => {
            return reply
                .plain(
                    200,
                    metrics::CONTENT_TYPE,
                    metrics::render(worker).as_bytes(),
                )
                .await;
        }
        "/version" => json!({ "version": "0.32.0" }),
        "/load" => json!({ "server_load": worker.ledger.in_flight() }),
        "/is_sleeping" => json!({ "is_sleeping": worker.is_sleeping() }),
        "/v1/models" => models(worker),
        "/kv_event_sources" => {
            let ranks = worker.ranks.iter();
            kv_events::sources(ranks.filter_map(|rank| rank.pacer.publisher()))
        }
        _ => match tokenize(worker, &request.body) {
            Ok(answer) => answer,
            Err(error) => {
                return reply
                    .plain(error.status, JSON, body::error(&error).as_bytes())
                    .await;
            }
        },
    };
    reply.plain(200, JSON, answer.to_string().as_bytes()).await
}

fn models(worker: &Worker) -> serde_json::Value {
    let model = |name: &String| {
        json!({
            "id": name, "object": "model", "created": worker.started_unix, "owned_by": "vllm",
            "root": worker.config.models[0], "parent": null, "max_model_len": worker.config.model_len(),
            "permission": [{
                "id": "modelperm-fake", "object": "model_permission", "created": worker.started_unix,
                "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
                "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false,
                "organization": "*", "group": null, "is_blocking": false,
            }],
        })
    };
    let data: Vec<_> = worker.config.models.iter().map(model).collect();
    json!({ "object": "list", "data": data })
}

fn tokenize(worker: &Worker, body: &[u8]) -> Result<serde_json::Value, ApiError> {
    let body = request::json_object(body)?;
    let prompt = match body["prompt"].as_str() {
        Some(text) => Prompt::text(text),
        None => request::chat_prompt(&body)?,
    };
    let tokens = prompt.ids();
    Ok(json!({
        "count": tokens.len(), "max_model_len": worker.config.model_len(),
        "tokens": tokens, "token_strs": null,
    }))
}
