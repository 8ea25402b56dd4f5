//! Replies, framing, cache accounting, metrics, limits.

use super::*;

/// Data of the SSE events in a chunked body, having checked that each event is one chunk.
fn events(body: &str) -> Vec<String> {
    let mut rest = body;
    let mut events = Vec::new();
    loop {
        let (size, after) = rest.split_once("\r\n").expect("a chunk size");
        let size = usize::from_str_radix(size, 16).expect("hexadecimal");
        if size == 0 {
            assert_eq!(after, "\r\n");
            return events;
        }
        let (chunk, after) = after.split_at(size);
        let data = chunk
            .strip_prefix("data: ")
            .and_then(|c| c.strip_suffix("\n\n"));
        events.push(
            data.unwrap_or_else(|| panic!("not one event: {chunk:?}"))
                .to_owned(),
        );
        rest = after.strip_prefix("\r\n").expect("end of chunk");
    }
}

#[tokio::test]
async fn a_stream_is_framed_like_vllms() {
    let worker = fast().await;
    let mut body = chat(true, 3);
    body["stream_options"] = json!({"include_usage": true});
    let (head, body) = ask(
        &worker,
        "/v1/chat/completions",
        "x-request-id: my-req-8\r\n",
        &body,
    )
    .await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\ndate: "), "{head}");
    for line in [
        "server: uvicorn",
        "content-type: text/event-stream; charset=utf-8",
        "transfer-encoding: chunked",
        "connection: close",
    ] {
        assert!(head.contains(&format!("\r\n{line}")), "{line} in {head}");
    }
    let events = events(&body);
    assert_eq!(events.len(), 6, "role, 3 tokens, usage, [DONE]");
    assert_eq!(events[5], "[DONE]");
    let parsed: Vec<Value> = events[..5]
        .iter()
        .map(|e| e.parse().expect("JSON"))
        .collect();
    assert!(
        parsed
            .iter()
            .all(|event| event["id"] == "chatcmpl-my-req-8")
    );
    assert_eq!(
        parsed[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert_eq!(parsed[3]["choices"][0]["finish_reason"], "length");
    assert_eq!(parsed[4]["usage"]["completion_tokens"], 3);
}

#[tokio::test]
async fn plain_and_streamed_answers_are_the_same_text() {
    let worker = fast().await;
    for (path, request, pointers) in [
        (
            "/v1/chat/completions",
            chat(false, 5),
            ["/choices/0/message/content", "/choices/0/delta/content"],
        ),
        (
            "/v1/completions",
            json!({"prompt": "hi", "max_tokens": 5}),
            ["/choices/0/text", "/choices/0/text"],
        ),
    ] {
        let (_, body) = ask(&worker, path, "", &request).await;
        let body: Value = body.parse().expect("JSON");
        let whole = body
            .pointer(pointers[0])
            .and_then(Value::as_str)
            .expect("text")
            .to_owned();
        let mut streamed = request.clone();
        streamed["stream"] = true.into();
        let (_, body) = ask(&worker, path, "", &streamed).await;
        let parts: String = events(&body)
            .iter()
            .filter_map(|event| {
                event
                    .parse::<Value>()
                    .ok()?
                    .pointer(pointers[1])?
                    .as_str()
                    .map(str::to_owned)
            })
            .collect();
        assert_eq!((parts.as_str(), parts.len()), (whole.as_str(), 20));
    }
}

#[tokio::test]
async fn repeated_prompts_hit_the_cache_and_the_books_agree() {
    let worker = fast().await;
    let request = json!({"prompt": "x".repeat(640), "max_tokens": 2});
    let mut cached = Vec::new();
    for _ in 0..3 {
        let (_, body) = ask(&worker, "/v1/completions", "", &request).await;
        let body: Value = body.parse().expect("JSON");
        assert_eq!(body["usage"]["prompt_tokens"], 160);
        cached.push(
            body["usage"]["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .expect("count"),
        );
    }
    assert_eq!(cached, [0, 144, 144], "whole blocks, never the last token");
    let stats = worker.stats();
    assert_eq!((stats.hit_tokens, stats.queried_tokens), (288, 480));
    let (_, page) = get(&worker, "/metrics").await;
    for line in [
        "vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"fake-model\"} 288.0",
        "vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"fake-model\"} 480.0",
        "vllm:generation_tokens_total{engine=\"0\",model_name=\"fake-model\"} 6.0",
        "vllm:num_requests_running{engine=\"0\",model_name=\"fake-model\"} 0.0",
        "vllm:request_success_total{engine=\"0\",model_name=\"fake-model\",finished_reason=\"length\"} 3.0",
        "# TYPE vllm:kv_cache_usage_perc gauge",
    ] {
        assert!(page.lines().any(|l| l == line), "{line} in\n{page}");
    }
    let log = worker.log();
    assert_eq!(
        log.iter()
            .map(|entry| entry.cached_tokens)
            .collect::<Vec<_>>(),
        cached
    );
    assert!(
        log.iter()
            .all(|entry| entry.complete && entry.tokens == 2 && entry.status == Some(200))
    );
}

#[tokio::test]
async fn several_prompts_and_choices_are_several_answers() {
    let worker = fast().await;
    let (_, body) = ask(
        &worker,
        "/v1/completions",
        "",
        &json!({"prompt": [[5, 6, 7], [8, 9, 10]], "max_tokens": 2, "n": 2}),
    )
    .await;
    let body: Value = body.parse().expect("JSON");
    let choices = body["choices"].as_array().expect("array");
    let texts: std::collections::HashSet<&str> =
        choices.iter().filter_map(|c| c["text"].as_str()).collect();
    assert_eq!((choices.len(), texts.len()), (4, 4));
    assert_eq!(
        (
            body["usage"]["prompt_tokens"].as_u64(),
            body["usage"]["completion_tokens"].as_u64()
        ),
        (Some(6), Some(8))
    );
}

#[tokio::test]
async fn other_endpoints() {
    let worker = fast().await;
    let (head, body) = get(&worker, "/health").await;
    assert!(head.starts_with("HTTP/1.1 200 OK") && body.is_empty());
    assert_eq!(get(&worker, "/version").await.1, r#"{"version":"0.32.0"}"#);
    let models: Value = get(&worker, "/v1/models").await.1.parse().expect("JSON");
    assert_eq!(models["data"][0]["id"], "fake-model");
    let tokens: Value = ask(&worker, "/tokenize", "", &json!({"prompt": "abcdefghi"}))
        .await
        .1
        .parse()
        .expect("JSON");
    assert_eq!(tokens["count"], 3);
    for (input, count) in [(json!("a"), 1), (json!(["a", "b"]), 2), (json!([1, 2]), 1)] {
        let (_, body) = ask(
            &worker,
            "/v1/embeddings",
            "",
            &json!({"input": input, "dimensions": 8}),
        )
        .await;
        let body: Value = body.parse().expect("JSON");
        assert_eq!(body["data"].as_array().map(Vec::len), Some(count));
        assert_eq!(
            body["data"][0]["embedding"].as_array().map(Vec::len),
            Some(8)
        );
    }
    let (head, body) = ask(&worker, "/v1/nope", "", &json!({})).await;
    assert!(head.starts_with("HTTP/1.1 404 ") && body == r#"{"detail":"Not Found"}"#);
    let (head, body) = get(&worker, "/v1/chat/completions").await;
    assert!(head.starts_with("HTTP/1.1 405 ") && head.contains("\r\nallow: POST"));
    assert_eq!(body, r#"{"detail":"Method Not Allowed"}"#);
}

#[tokio::test]
async fn the_key_guards_v1_alone() {
    let worker = start(Config {
        api_key: Some("sesame".into()),
        ..Config::default()
    })
    .await;
    let (head, body) = get(&worker, "/v1/models").await;
    assert!(head.starts_with("HTTP/1.1 401 ") && body == r#"{"error":"Unauthorized"}"#);
    assert!(
        get(&worker, "/metrics")
            .await
            .0
            .starts_with("HTTP/1.1 200 ")
    );
    let (head, _) = ask(
        &worker,
        "/v1/chat/completions",
        "authorization: Bearer sesame\r\n",
        &chat(false, 1),
    )
    .await;
    assert!(head.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn load_report_and_request_id_come_back_as_headers() {
    let worker = start(Config {
        request_id_headers: true,
        speed: 1_000.0,
        ..Config::default()
    })
    .await;
    let headers = "x-request-id: abc\r\nendpoint-load-metrics-format: JSON\r\n";
    let (head, _) = ask(&worker, "/v1/chat/completions", headers, &chat(false, 1)).await;
    assert!(head.contains("\r\nx-request-id: abc"), "{head}");
    assert!(head.contains("\r\nendpoint-load-metrics: JSON {\"named_metrics\": {\"num_requests_waiting\": 0.0, \"kv_cache_usage_perc\": 0.0}}"), "{head}");
}

#[tokio::test]
async fn overload_is_503_plain_and_200_with_an_error_event_streamed() {
    let engine = EngineConfig {
        running_max: 1,
        queued_requests_max: Some(1),
        ..EngineConfig::default()
    };
    let worker = start(Config {
        engine,
        ..Config::default()
    })
    .await;
    worker.freeze(true);
    let mut queued = Client::connect(&worker).await;
    queued
        .post("/v1/chat/completions", "", &chat(true, 2))
        .await;
    queued.until("\r\n\r\n").await; // its head came before admission
    let message = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.";
    let (head, body) = ask(&worker, "/v1/chat/completions", "", &chat(false, 2)).await;
    assert!(head.starts_with("HTTP/1.1 503 Service Unavailable"));
    assert_eq!(
        body,
        format!(
            r#"{{"error":{{"message":"{message}","type":"Service Unavailable","param":null,"code":503}}}}"#
        )
    );
    let (head, body) = ask(&worker, "/v1/chat/completions", "", &chat(true, 2)).await;
    assert!(head.starts_with("HTTP/1.1 200 OK"));
    let expected = format!(
        "cc\r\ndata: {{\"error\": {{\"message\": \"{message}\", \"type\": \"Service Unavailable\", \"param\": null, \"code\": 503}}}}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    );
    assert_eq!(body, expected, "byte for byte the capture");
    worker.freeze(false);
    queued.until("[DONE]").await;
    let (_, page) = get(&worker, "/metrics").await;
    assert!(
        page.contains("reason=\"max_num_queued_reqs\"} 2.0"),
        "{page}"
    );
}

#[tokio::test]
async fn http_oddities() {
    let worker = fast().await;
    let body = chat(false, 1).to_string();
    let (first, second) = body.split_at(10);
    let chunked = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x};ext=1\r\n{second}\r\n0\r\ntrailer: x\r\n\r\n",
        first.len(),
        second.len()
    );
    let expects = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for (request, reply) in [
        (chunked.as_str(), "HTTP/1.1 200 OK\r\n"),
        (&expects, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"),
        ("GET /health HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n"),
        ("NONSENSE\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n"),
        (
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\n",
        ),
    ] {
        let mut client = Client::connect(&worker).await;
        client.send(request.as_bytes()).await;
        let (bytes, end) = client.rest().await;
        assert!(
            bytes.starts_with(reply.as_bytes()),
            "{request:?} got {}",
            String::from_utf8_lossy(&bytes)
        );
        assert_eq!(end, End::Fin);
    }
}

#[tokio::test]
async fn a_connection_is_used_again_and_pipelined_requests_wait() {
    let worker = fast().await;
    let mut client = Client::connect(&worker).await;
    let request = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n";
    client.send(&[&request[..], &request[..]].concat()).await;
    client.until("0.32.0\"}").await;
    client.send(request).await;
    client.until("0.32.0\"}").await;
    assert_eq!(worker.stats().connections, 1);
}

#[tokio::test]
async fn a_restart_is_a_later_start_and_an_empty_cache() {
    let worker = start(Config {
        speed: 1_000.0,
        process_start_us: Some(1_795_235_079_150_000),
        ..Config::default()
    })
    .await;
    let (_, page) = get(&worker, "/metrics").await;
    let line = "\nprocess_start_time_seconds 1.79523507915e+09\n";
    assert!(page.contains(line), "as in the capture: {page}");
    let long = "one two three ".repeat(100);
    let body =
        json!({"model":"fake-model","max_tokens":1,"messages":[{"role":"user","content":long}]});
    for (restarted, hits) in [(false, false), (false, true), (true, false)] {
        if restarted {
            let (_, answer) = ask(&worker, "/_control/restart", "", &json!({})).await;
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            let start = answer["process_start_us"].as_u64();
            assert!(start >= Some(1_795_235_080_150_000), "{answer}");
        }
        let before = worker.stats().hit_tokens;
        ask(&worker, "/v1/chat/completions", "", &body).await;
        assert_eq!(worker.stats().hit_tokens > before, hits);
    }
    let (_, page) = get(&worker, "/metrics").await;
    assert!(!page.contains(line), "{page}");
}
