//! Bad requests get vLLM 0.32's answers, as captured; accepted forms are read.

use super::super::body;
use super::*;

fn parse(kind: Kind, body: &str) -> Result<Generation, ApiError> {
    let models = ["tiny-llama".to_owned()];
    let rules = Rules {
        models: &models,
        model_len: 4_096,
        answer_tokens: 64,
    };
    Generation::parse(kind, Some("application/json"), body.as_bytes(), &rules)
}

#[test]
fn refusals_are_byte_for_byte_those_of_vllm() {
    let too_long = format!(
        r#"{{"model":"tiny-llama","messages":[{{"role":"user","content":"{}"}}]}}"#,
        "word ".repeat(6_000)
    );
    let cases = [
        (
            "[]",
            400,
            r#"{"error":{"message":"1 validation error:\n  {'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid dictionary or object to extract fields from', 'input': '<list of 0 items>'}","type":"Bad Request","param":"body","code":400}}"#,
        ),
        (
            r#"{"model":"tiny-llama", "messages": [}"#,
            400,
            r#"{"error":{"message":"1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.36', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}","type":"Bad Request","param":"body.36","code":400}}"#,
        ),
        (
            "",
            400,
            r#"{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}","type":"Bad Request","param":"body","code":400}}"#,
        ),
        (
            r#"{"model":"tiny-llama","messages":[{"role":"user","content":"hi"}],"max_tokens":9999}"#,
            400,
            r#"{"error":{"message":"max_tokens=9999 cannot be greater than max_model_len=4096. Please request fewer output tokens. (parameter=max_tokens, value=9999)","type":"BadRequestError","param":"max_tokens","code":400}}"#,
        ),
        (
            r#"{"model":"tiny-llama","messages":[]}"#,
            400,
            r#"{"error":{"message":"Cannot apply chat template to an empty conversation. Provide at least one message.","type":"BadRequestError","param":null,"code":400}}"#,
        ),
        (
            r#"{"model":"tiny-llama","messages":[{"role":"user","content":"hi"}],"n":0}"#,
            400,
            r#"{"error":{"message":"n must be at least 1, got 0.","type":"BadRequestError","param":null,"code":400}}"#,
        ),
        (
            r#"{"model":"tiny-llama","messages":[{"role":"user","content":"hi"}],"max_tokens":-1}"#,
            400,
            r#"{"error":{"message":"max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)","type":"BadRequestError","param":"max_tokens","code":400}}"#,
        ),
        (
            r#"{"model":"tiny-llama"}"#,
            400,
            r#"{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 1 items>'}","type":"Bad Request","param":"body.messages","code":400}}"#,
        ),
        (
            r#"{"model":"tiny-llama","messages":[{"role":"user","content":"hi"}],"stream_options":{"include_usage":true}}"#,
            400,
            r#"{"error":{"message":"Stream options can only be defined when `stream=True`. (parameter=stream_options)","type":"BadRequestError","param":"stream_options","code":400}}"#,
        ),
        (
            r#"{"model":"tiny-llama","messages":[{"role":"user","content":"hi"}],"temperature":-2}"#,
            400,
            r#"{"error":{"message":"temperature must be non-negative, got -2.0. (parameter=temperature, value=-2.0)","type":"BadRequestError","param":"temperature","code":400}}"#,
        ),
        (
            &too_long,
            400,
            r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=4097)","type":"BadRequestError","param":"input_tokens","code":400}}"#,
        ),
        (
            r#"{"model":"nope","messages":[{"role":"user","content":"hi"}]}"#,
            404,
            r#"{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny-llama.","type":"NotFoundError","param":"model","code":404}}"#,
        ),
        (
            r#"{"model":"tiny-llama","messages":[{"role":"user","content":"hi"}],"max_tokens":"ten"}"#,
            400,
            r#"{"error":{"message":"1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'ten'}","type":"Bad Request","param":"body.max_tokens","code":400}}"#,
        ),
        (
            r#"{"model":"tiny-llama","messages":"hi"}"#,
            400,
            r#"{"error":{"message":"1 validation error:\n  {'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list', 'input': 'hi'}","type":"Bad Request","param":"body.messages","code":400}}"#,
        ),
    ];
    for (request, status, expected) in cases {
        let error = parse(Kind::Chat, request).expect_err(request);
        assert_eq!(
            (error.status, body::error(&error).as_str()),
            (status, expected),
            "{request}"
        );
    }
}

#[test]
fn content_type_must_be_json() {
    let models = ["m".to_owned()];
    let rules = Rules {
        models: &models,
        model_len: 4_096,
        answer_tokens: 64,
    };
    for wrong in [None, Some("text/plain")] {
        let error = Generation::parse(Kind::Chat, wrong, b"{}", &rules).expect_err("refused");
        assert_eq!(
            body::error(&error),
            r#"{"error":{"message":"1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed","type":"Bad Request","param":null,"code":400}}"#
        );
    }
}

#[test]
fn prompt_forms() {
    let cases = [
        (r#"{"prompt":"abcd"}"#, vec![Prompt::text("abcd")]),
        (
            r#"{"prompt":["ab","cd"]}"#,
            vec![Prompt::text("ab"), Prompt::text("cd")],
        ),
        (r#"{"prompt":[5,6,7]}"#, vec![Prompt::token_ids(&[5, 6, 7])]),
        (
            r#"{"prompt":[[5,6],[7]]}"#,
            vec![Prompt::token_ids(&[5, 6]), Prompt::token_ids(&[7])],
        ),
    ];
    for (request, expected) in cases {
        let parsed = parse(Kind::Completion, request).expect(request);
        assert_eq!(parsed.prompts, expected, "{request}");
        assert_eq!(parsed.model, "tiny-llama", "a missing model is accepted");
    }
    for wrong in [
        r#"{"prompt":[]}"#,
        r#"{"prompt":[true]}"#,
        r#"{"prompt":[-1]}"#,
        r#"{"prompt":3}"#,
    ] {
        assert!(parse(Kind::Completion, wrong).is_err(), "{wrong}");
    }
}

#[test]
fn answer_length() {
    let request =
        |extra: &str| format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{extra}}}"#);
    for (extra, tokens, cut) in [
        ("", 64, false),
        (r#","max_tokens":7"#, 7, true),
        (r#","max_tokens":7,"max_completion_tokens":9"#, 9, true),
    ] {
        let parsed = parse(Kind::Chat, &request(extra)).expect(extra);
        assert_eq!(
            (parsed.answer_tokens, parsed.cut_by_length),
            (tokens, cut),
            "{extra}"
        );
    }
}

#[test]
fn a_message_is_continued_to_the_length_of_one_answer() {
    let request = |flags: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"hi"}},{{"role":"assistant","content":" abc def"}}]{flags}}}"#
        )
    };
    let open = r#","continue_final_message":true,"add_generation_prompt":false"#;
    let parsed = parse(Kind::Chat, &request(open)).expect("vLLM's flags");
    assert_eq!((parsed.answer_tokens, parsed.cut_by_length), (62, false));
    let parsed = parse(Kind::Chat, &request("")).expect("a next turn");
    assert_eq!(parsed.answer_tokens, 64);
    let both = r#","continue_final_message":true,"add_generation_prompt":true"#;
    let error = parse(Kind::Chat, &request(both)).expect_err("one excludes the other");
    assert_eq!(error.status, 400);
}

#[test]
fn an_answer_that_is_given_is_not_said_twice() {
    let chat = |messages: &str| {
        format!(r#"{{"messages":[{messages}],"vllm_xargs":{{"answer":"one two"}}}}"#)
    };
    let open = r#"{"role":"user","content":"hi"},{"role":"assistant","content":"one "}],"continue_final_message":true,
        "add_generation_prompt":false,"x":["#;
    let closed = r#"{"role":"user","content":"hi"},{"role":"assistant","content":"one "}"#;
    let other = open.replace("one ", "1 ");
    for (messages, expected) in [(open, "two"), (closed, "one two"), (&*other, "")] {
        let parsed = parse(Kind::Chat, &chat(messages)).expect(messages);
        assert_eq!(parsed.given_answer, expected, "{messages}");
    }
    for (fields, expected) in [
        (r#""answer":"one two""#, "one two"),
        (r#""answer":"one two","answer_at":2"#, "one two"),
        (r#""answer":"one two","answer_at":1"#, ""),
        (r#""answer":"i two","answer_at":1"#, " two"),
        (r#""answer":"one two","answer_at":9"#, "one two"),
        (r#""other":1"#, ""),
    ] {
        let body = format!(r#"{{"prompt":"hi","vllm_xargs":{{{fields}}}}}"#);
        let parsed = parse(Kind::Completion, &body).expect(fields);
        assert_eq!(parsed.given_answer, expected, "{fields}");
    }
    let error = parse(
        Kind::Completion,
        r#"{"prompt":"hi","vllm_xargs":{"answer":"é"}}"#,
    );
    assert_eq!(error.expect_err("not in tokens of 4 bytes").status, 400);
}

proptest::proptest! {
    /// Any bytes and any JSON get an answer, never a panic.
    #[test]
    fn any_body_is_answered(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
        let text = String::from_utf8_lossy(&bytes);
        for kind in [Kind::Chat, Kind::Completion, Kind::Embedding] {
            for field in ["messages", "prompt", "input", "max_tokens", "n", "vllm_xargs"] {
                let wrapped = format!(r#"{{"prompt":"x","input":"x","messages":[{{"role":"user"}}],"{field}":{text}}}"#);
                for body in [&*text, &wrapped] {
                    if let Err(error) = parse(kind, body) {
                        proptest::prop_assert!((400..500).contains(&error.status));
                    }
                }
            }
        }
    }
}
