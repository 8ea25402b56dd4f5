//! Asks a stalled worker for one token, until it delivers one: only that proves an engine, and a client's request
//! should not have to wait for the answer.
//!
//! At most one such request at a time, with growing pauses, and none to a worker that is not stalled. A worker that
//! takes no completions is asked for an embedding; one that refuses that, too (a key of the client's, other tasks), is
//! tried with clients' requests instead. `vigil` asks the same of workers on which requests wait in silence.

use std::time::Duration;

use http::HeaderValue;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::time::sleep;

use super::health_metrics::TokenProbeResult;
use super::probe_parts::ProbeParts;
use super::worker::Worker;
use crate::http::{headers, request_id};
use crate::metrics::ResultLabels;

/// After a question without an answer; each pause is twice the one before.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest pause: a worker that is back is found within it.
const PAUSE_MAX: Duration = Duration::from_secs(4);
/// Largest answer that is read, in bytes. One token takes some hundred.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Asks whenever the worker is found stalled, until it is not.
pub(super) async fn when_stalled(worker: &Worker, parts: &ProbeParts) {
    loop {
        let mut pause = PAUSE;
        // It may have been found before this was asked for the first time.
        while worker.health.awaits_token() {
            match ask_and_count(worker, parts).await {
                TokenProbeResult::Token => {}
                TokenProbeResult::Refusal => worker.health.try_with_clients(),
                TokenProbeResult::Nothing => sleep(pause).await,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        worker.health.stall_found().await;
    }
}

/// Asks once; a token is reported to the worker's health.
pub(super) async fn ask_and_count(worker: &Worker, parts: &ProbeParts) -> TokenProbeResult {
    let outcome = ask(worker, parts).await;
    let result = outcome.as_str();
    let labels = ResultLabels { result };
    let counters = &parts.metrics.health.token_probes;
    counters.get_or_create(&labels).inc();
    if outcome == TokenProbeResult::Token {
        worker.health.delivered();
    }
    outcome
}

/// Asks in one way after the other, until one is not refused as such.
async fn ask(worker: &Worker, parts: &ProbeParts) -> TokenProbeResult {
    let Some(model) = worker.models.load().first().cloned() else {
        return TokenProbeResult::Refusal;
    };
    let token = serde_json::json!({ "model": model, "prompt": "1", "max_tokens": 1 });
    let embedding = serde_json::json!({ "model": model, "input": "1" });
    match ask_at("/v1/completions", &token, worker, parts).await {
        TokenProbeResult::Refusal => ask_at("/v1/embeddings", &embedding, worker, parts).await,
        other => other,
    }
}

async fn ask_at(path: &str, body: &Value, worker: &Worker, parts: &ProbeParts) -> TokenProbeResult {
    let connector = &worker.connector;
    let request = connector.request(Method::POST, &worker.address, path);
    let Ok(request) = request.await else {
        return TokenProbeResult::Nothing;
    };
    let mut request = request
        .header(headers::REQUEST_ID, request_id::of_token_probe())
        .timeout(parts.config.look().token_timeout)
        .json(body);
    if let Some(rank) = worker.address.rank() {
        request = request.header(headers::RANK, HeaderValue::from(rank));
    }
    match request.send().await {
        // A plain answer is given once it is complete.
        Ok(response) if response.status() == StatusCode::OK => read(response).await,
        Ok(response) if is_refusal(response.status()) => TokenProbeResult::Refusal,
        Ok(_) | Err(_) => TokenProbeResult::Nothing,
    }
}

/// Whether the request itself was refused. A full queue, or a server that has given up, is no refusal.
fn is_refusal(status: StatusCode) -> bool {
    status.is_client_error()
        && status != StatusCode::TOO_MANY_REQUESTS
        && status != StatusCode::REQUEST_TIMEOUT
}

async fn read(mut response: reqwest::Response) -> TokenProbeResult {
    let mut bytes = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
            return TokenProbeResult::Nothing;
        }
        bytes.extend_from_slice(&chunk);
    }
    if has_token(&bytes) {
        TokenProbeResult::Token
    } else {
        TokenProbeResult::Nothing
    }
}

/// Whether this is a completion of at least one token, or an embedding.
fn has_token(answer: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        choices: Vec<IgnoredAny>,
        #[serde(default)]
        data: Vec<IgnoredAny>,
        usage: Option<Usage>,
    }
    #[derive(Deserialize)]
    struct Usage {
        completion_tokens: Option<u64>,
    }
    serde_json::from_slice::<Answer>(answer).is_ok_and(|answer| {
        let counted = answer.usage.and_then(|usage| usage.completion_tokens);
        let completed = !answer.choices.is_empty() && counted != Some(0);
        completed || !answer.data.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_choice_that_counts() {
        let table: &[(&str, bool)] = &[
            (
                r#"{"choices":[{"text":"2"}],"usage":{"completion_tokens":1,"prompt_tokens":1}}"#,
                true,
            ),
            (r#"{"choices":[{"text":""}]}"#, true),
            (
                r#"{"choices":[{"text":""}],"usage":{"completion_tokens":0}}"#,
                false,
            ),
            (r#"{"choices":[]}"#, false),
            (
                r#"{"object":"list","data":[{"index":0,"embedding":[0.5]}],"usage":{"prompt_tokens":1,"completion_tokens":0}}"#,
                true,
            ),
            (r#"{"object":"list","data":[]}"#, false),
            (r#"{"error":{"message":"engine dead"}}"#, false),
            ("", false),
        ];
        for (answer, expected) in table {
            assert_eq!(has_token(answer.as_bytes()), *expected, "{answer}");
        }
    }

    #[test]
    fn back_pressure_and_failures_are_no_refusals() {
        let refused = |code| is_refusal(StatusCode::from_u16(code).expect("a status"));
        assert!([400, 401, 404, 405, 422].into_iter().all(refused));
        assert!(![200, 408, 429, 500, 503].into_iter().any(refused));
    }
}
