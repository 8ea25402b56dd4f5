//! Split pairs over NIXL: legs written by hand against two workers, judged by the captures.

use super::*;

pub(super) const CHAT: &str = "/v1/chat/completions";

pub(super) fn config(connector: Connector, role: Role) -> Config {
    Config {
        speed: 1_000.0,
        engine: EngineConfig {
            block_tokens: 32,
            ..EngineConfig::default()
        },
        transfer: Some(TransferConfig {
            connector,
            role,
            // The captured model: 262,144 bytes in 16 blocks of 32 tokens.
            bytes_per_token: 512,
            closed_side_channel: Duration::from_millis(300),
            ..TransferConfig::default()
        }),
        ..Config::default()
    }
}

pub(super) struct Pair {
    pub(super) prefill: FakeWorker,
    pub(super) decode: FakeWorker,
}

pub(super) async fn pair(connector: Connector) -> Pair {
    Pair {
        prefill: start(config(connector, Role::Prefill)).await,
        decode: start(config(connector, Role::Decode)).await,
    }
}

/// A chat of exactly 497 tokens of four bytes, as captured.
pub(super) fn request() -> Value {
    let marks = "<|user|>\n\n<|assistant|>\n".len();
    let text = "0123456789".repeat(200);
    json!({"messages": [{"role": "user", "content": &text[..497 * 4 - marks]}], "max_tokens": 24})
}

pub(super) fn with(mut body: Value, params: Value) -> Value {
    body["kv_transfer_params"] = params;
    body
}

pub(super) fn prefill_body() -> Value {
    let mut body = with(
        request(),
        json!({
            "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
            "remote_block_ids": null, "remote_host": null, "remote_port": null,
        }),
    );
    body["max_tokens"] = 1.into();
    body["stream"] = false.into();
    body
}

pub(super) async fn post(worker: &FakeWorker, body: &Value) -> (u16, Value) {
    post_as(worker, "r", body).await
}

/// A chat under this request id.
pub(super) async fn post_as(worker: &FakeWorker, id: &str, body: &Value) -> (u16, Value) {
    let (head, text) = ask(worker, CHAT, &format!("x-request-id: {id}\r\n"), body).await;
    let status = head[9..12].parse().expect("a status");
    (status, text.parse().expect("JSON"))
}

impl Pair {
    /// The prefill leg; its answer's parameters.
    pub(super) async fn prefilled(&self) -> Value {
        let (status, answer) = post(&self.prefill, &prefill_body()).await;
        assert_eq!(status, 200, "{answer}");
        answer["kv_transfer_params"].clone()
    }

    pub(super) async fn decoded(&self, params: Value) -> (u16, Value) {
        post(&self.decode, &with(request(), params)).await
    }

    pub(super) fn held(&self) -> usize {
        let holds = self.prefill.holds();
        holds
            .iter()
            .filter(|hold| hold.state == HoldState::Held)
            .count()
    }

    pub(super) fn usage_of_prefill(&self) -> f64 {
        self.prefill.worker.ranks[0].pacer.gauges().cache_usage
    }

    pub(super) async fn alone(&self) -> Value {
        let worker = start(Config {
            speed: 1_000.0,
            ..Config::default()
        })
        .await;
        let (_, answer) = post(&worker, &request()).await;
        answer["choices"][0]["message"]["content"].clone()
    }
}

pub(super) fn text(answer: &Value) -> &Value {
    &answer["choices"][0]["message"]["content"]
}

/// What the decode worker answers when the blocks do not come (captured).
pub(super) fn internal() -> Value {
    json!({"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}})
}

#[tokio::test]
async fn a_pull_goes_as_captured() {
    let pair = pair(Connector::Nixl).await;
    let (_, raw) = ask(&pair.prefill, CHAT, "x-request-id: r\r\n", &prefill_body()).await;
    let engine = pair.prefill.engine_id(0).expect("it has one");
    let side = pair.prefill.side_channel().expect("it has one");
    let answer: Value = raw.parse().expect("JSON");
    let id = answer["kv_transfer_params"]["remote_request_id"].clone();
    let hex = id.as_str().and_then(|id| id.strip_prefix("chatcmpl-r-"));
    assert_eq!(hex.map(str::len), Some(8), "{id}");
    let captured = format!(
        r#""kv_transfer_params":{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]],"remote_engine_id":"{engine}","remote_request_id":{id},"remote_host":"127.0.0.1","remote_port":{},"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":497,"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0}},"ec_transfer_params""#,
        side.port()
    );
    assert!(raw.contains(&captured), "{captured}\nin\n{raw}");
    assert_eq!(
        answer["usage"].to_string(),
        r#"{"completion_tokens":1,"completion_tokens_details":null,"prompt_tokens":497,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":480,"multimodal_tokens":null},"total_tokens":498}"#
    );

    assert_eq!(pair.held(), 1);
    let (status, decoded) = pair.decoded(answer["kv_transfer_params"].clone()).await;
    assert_eq!(status, 200, "{decoded}");
    assert_eq!(decoded["kv_transfer_params"], Value::Null);
    assert_eq!(
        decoded["usage"].to_string(),
        r#"{"completion_tokens":24,"completion_tokens_details":null,"prompt_tokens":497,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0,"multimodal_tokens":null},"total_tokens":521}"#
    );
    assert_eq!(*text(&decoded), pair.alone().await);
    assert_eq!((pair.held(), pair.usage_of_prefill()), (0, 0.0));
    assert_eq!(pair.prefill.holds()[0].state, HoldState::Read);
}

#[tokio::test]
async fn counters_of_a_pull_are_those_captured() {
    let pair = pair(Connector::Nixl).await;
    let params = pair.prefilled().await;
    pair.decoded(params).await;
    // The capture ends with the same request to the prefill worker alone.
    post(&pair.prefill, &request()).await;
    let expected = [
        (
            &pair.prefill,
            vec![
                ("prefix_cache_queries_total", "", 994.0),
                ("prefix_cache_hits_total", "", 480.0),
                ("external_prefix_cache_queries_total", "", 514.0),
                (
                    "prompt_tokens_by_source_total",
                    ",source=\"local_compute\"",
                    514.0,
                ),
                (
                    "prompt_tokens_by_source_total",
                    ",source=\"local_cache_hit\"",
                    480.0,
                ),
                (
                    "prompt_tokens_cached_by_source_total",
                    ",source=\"device\"",
                    480.0,
                ),
            ],
        ),
        (
            &pair.decode,
            vec![
                ("nixl_xfer_time_seconds_count", "", 1.0),
                ("nixl_bytes_transferred_count", "", 1.0),
                ("nixl_bytes_transferred_sum", "", 262_144.0),
                ("prefix_cache_queries_total", "", 497.0),
                ("external_prefix_cache_queries_total", "", 497.0),
                ("external_prefix_cache_hits_total", "", 497.0),
                (
                    "prompt_tokens_by_source_total",
                    ",source=\"external_kv_transfer\"",
                    497.0,
                ),
                (
                    "prompt_tokens_cached_by_source_total",
                    ",source=\"p2p\"",
                    497.0,
                ),
            ],
        ),
    ];
    for (worker, lines) in expected {
        let (_, page) = get(worker, "/metrics").await;
        for (name, extra, value) in lines {
            let line =
                format!("vllm:{name}{{engine=\"0\",model_name=\"fake-model\"{extra}}} {value:?}\n");
            assert!(page.contains(&line), "{line} in {page}");
        }
    }
}

#[tokio::test]
async fn a_stream_decodes_as_well() {
    let pair = pair(Connector::Nixl).await;
    let params = pair.prefilled().await;
    let mut body = with(request(), params);
    body["stream"] = true.into();
    let (head, events) = ask(&pair.decode, CHAT, "", &body).await;
    assert!(head.starts_with("HTTP/1.1 200"));
    let said: String = events
        .split("\n\n")
        .filter_map(|event| {
            event
                .split_once("data: {")
                .map(|(_, rest)| format!("{{{rest}"))
        })
        .filter_map(|json| json.parse::<Value>().ok())
        .filter_map(|event| {
            event["choices"][0]["delta"]["content"]
                .as_str()
                .map(str::to_owned)
        })
        .collect();
    assert_eq!(Value::from(said), pair.alone().await);
}

#[tokio::test]
async fn a_decode_worker_without_parameters_computes_the_prompt() {
    let pair = pair(Connector::Nixl).await;
    let (status, answer) = post(&pair.decode, &request()).await;
    assert_eq!((status, text(&answer)), (200, &pair.alone().await));
    let details = &answer["usage"]["prompt_tokens_details"];
    assert_eq!(
        (&details["cached_tokens"], &details["created_cache_tokens"]),
        (&json!(0), &json!(480))
    );
    assert_eq!(pair.decode.log()[0].leg, None);
}

#[tokio::test]
async fn prefill_reports_what_it_had_and_decode_repeats_it() {
    let pair = pair(Connector::Nixl).await;
    pair.prefilled().await;
    let params = pair.prefilled().await;
    assert_eq!(params["remote_prefill_cached_tokens"], 480);
    assert_eq!(params["remote_block_ids"][0][0], 17);
    let (_, decoded) = pair.decoded(params).await;
    let details = &decoded["usage"]["prompt_tokens_details"];
    assert_eq!(details["cached_tokens"], 480);
    assert_eq!(pair.held(), 1, "nobody read those of the first");
}
