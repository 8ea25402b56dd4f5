//! Bodies against the text of the captures (vLLM 0.32.0, tiny-llama).

use super::super::request::Rules;
use super::*;

fn request(kind: Kind, body: &str) -> Generation {
    let models = ["tiny-llama".to_owned()];
    let rules = Rules {
        models: &models,
        model_len: 4_096,
        answer_tokens: 64,
    };
    Generation::parse(kind, Some("application/json"), body.as_bytes(), &rules).expect("valid")
}

fn in_reply<'a>(request: &'a Generation, id: &'a str, created: u64) -> Bodies<'a> {
    Bodies {
        request,
        id,
        created,
    }
}

fn used(prompt: u32, completion: u32) -> Usage {
    Usage {
        prompt,
        completion,
        cached: 0,
        created: 0,
    }
}

const CHAT: &str = r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":4,"stream":true"#;

#[test]
fn chat_events() {
    let plain = request(Kind::Chat, &format!("{CHAT}}}"));
    let bodies = in_reply(&plain, "chatcmpl-bea611c28da8f99a", 1_795_235_225);
    let usage = used(19, 4);
    assert_eq!(
        bodies.role_event(0, usage),
        r#"{"id":"chatcmpl-bea611c28da8f99a","object":"chat.completion.chunk","created":1795235225,"model":"tiny-llama","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}"#
    );
    assert_eq!(
        bodies.token_event(0, " argument", None, usage),
        r#"{"id":"chatcmpl-bea611c28da8f99a","object":"chat.completion.chunk","created":1795235225,"model":"tiny-llama","choices":[{"index":0,"delta":{"content":" argument"},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#
    );
    assert_eq!(
        bodies.token_event(0, " define", Some("length"), usage),
        r#"{"id":"chatcmpl-bea611c28da8f99a","object":"chat.completion.chunk","created":1795235225,"model":"tiny-llama","choices":[{"index":0,"delta":{"content":" define"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}],"system_fingerprint":"vllm-0.32.0-8999ff28"}"#
    );
}

#[test]
fn chat_events_with_usage() {
    let body = format!(
        r#"{CHAT},"stream_options":{{"include_usage":true,"continuous_usage_stats":true}}}}"#
    );
    let with_usage = request(Kind::Chat, &body);
    let bodies = in_reply(&with_usage, "chatcmpl-b8de5eb00d66751f", 1_795_235_225);
    let usage = used(19, 4);
    assert_eq!(
        bodies.role_event(
            0,
            Usage {
                completion: 0,
                ..usage
            }
        ),
        r#"{"id":"chatcmpl-b8de5eb00d66751f","object":"chat.completion.chunk","created":1795235225,"model":"tiny-llama","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":19,"total_tokens":19,"completion_tokens":0,"completion_tokens_details":null},"prompt_token_ids":null,"prompt_text":null}"#
    );
    assert_eq!(
        bodies.token_event(0, "lock", Some("length"), usage),
        r#"{"id":"chatcmpl-b8de5eb00d66751f","object":"chat.completion.chunk","created":1795235225,"model":"tiny-llama","choices":[{"index":0,"delta":{"content":"lock"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}],"usage":{"prompt_tokens":19,"total_tokens":23,"completion_tokens":4,"completion_tokens_details":null}}"#
    );
    assert_eq!(
        bodies.usage_event(usage),
        r#"{"id":"chatcmpl-b8de5eb00d66751f","object":"chat.completion.chunk","created":1795235225,"model":"tiny-llama","choices":[],"usage":{"prompt_tokens":19,"total_tokens":23,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}},"system_fingerprint":"vllm-0.32.0-8999ff28"}"#
    );
}

#[test]
fn completion_events() {
    let body = r#"{"prompt":"What is a list?","max_tokens":4,"stream":true,"stream_options":{"include_usage":true}}"#;
    let parsed = request(Kind::Completion, body);
    let bodies = in_reply(&parsed, "cmpl-b232ae2073a43de8", 1_795_235_227);
    let usage = used(7, 4);
    assert_eq!(
        bodies.token_event(0, "atement", Some("length"), usage),
        r#"{"id":"cmpl-b232ae2073a43de8","object":"text_completion","created":1795235227,"model":"tiny-llama","choices":[{"index":0,"text":"atement","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}"#
    );
    assert_eq!(
        bodies.usage_event(usage),
        r#"{"id":"cmpl-b232ae2073a43de8","object":"text_completion","created":1795235227,"model":"tiny-llama","choices":[],"usage":{"prompt_tokens":7,"total_tokens":11,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0}},"system_fingerprint":"vllm-0.32.0-8999ff28"}"#
    );
}

#[test]
fn plain_bodies() {
    let chat = request(
        Kind::Chat,
        r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":2}"#,
    );
    let bodies = in_reply(&chat, "chatcmpl-my-req-7", 1_795_236_303);
    let usage = used(6, 2);
    assert_eq!(
        bodies.plain(&[" recip deriv".into()], "length", usage, "null"),
        r#"{"id":"chatcmpl-my-req-7","object":"chat.completion","created":1795236303,"model":"tiny-llama","choices":[{"index":0,"message":{"role":"assistant","content":" recip deriv","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-8999ff28","usage":{"prompt_tokens":6,"total_tokens":8,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0,"multimodal_tokens":null},"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#
    );
    let batch = request(
        Kind::Completion,
        r#"{"prompt":[[5,6,7],[8,9,10]],"max_tokens":2,"n":1}"#,
    );
    let bodies = in_reply(&batch, "cmpl-9b7ea640ad3e8c52", 1_795_235_227);
    let usage = used(6, 4);
    assert_eq!(
        bodies.plain(
            &["byies".into(), " idefined".into()],
            "length",
            usage,
            "null"
        ),
        r#"{"id":"cmpl-9b7ea640ad3e8c52","object":"text_completion","created":1795235227,"model":"tiny-llama","choices":[{"index":0,"text":"byies","logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null},{"index":1,"text":" idefined","logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-8999ff28","usage":{"prompt_tokens":6,"total_tokens":10,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":null,"multimodal_tokens":null},"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#
    );
}

#[test]
fn overload_event() {
    let refused = ApiError::unavailable(
        "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
    );
    assert_eq!(
        error_event(&refused),
        r#"{"error": {"message": "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.", "type": "Service Unavailable", "param": null, "code": 503}}"#
    );
}

#[test]
fn base64_vectors() {
    // RFC 4648, section 10
    for (plain, coded) in [
        ("", ""),
        ("f", "Zg=="),
        ("fo", "Zm8="),
        ("foo", "Zm9v"),
        ("foob", "Zm9vYg=="),
        ("foobar", "Zm9vYmFy"),
    ] {
        assert_eq!(base64(plain.as_bytes()), coded);
    }
}
