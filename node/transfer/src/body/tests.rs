use super::*;

fn leg(one_token: bool, fields: &[(&'static str, &str)]) -> Leg {
    let json =
        |json: &str| serde_json::value::RawValue::from_string(json.to_owned()).expect("JSON");
    Leg {
        request_id: None,
        rank: None,
        one_token,
        fields: fields
            .iter()
            .map(|(name, value)| (*name, json(value)))
            .collect(),
    }
}

fn prefilled(form: Form, body: &str) -> String {
    let leg = leg(true, &[("kv_transfer_params", r#"{"a":1}"#)]);
    let body = prefill(form, body.as_bytes(), &leg).expect("an object");
    String::from_utf8(body).expect("text")
}

#[test]
fn a_prefill_of_completions_asks_for_one_token_and_no_stream() {
    let client = r#" { "model" : "m", "min_tokens":40, "max_tokens": 1024, "stream" :true, "stream_options": {"include_usage":true}, "temperature":1.50e0, "prompt": "a\u0062" } "#;
    assert_eq!(
        prefilled(Form::Completions, client),
        r#"{"model":"m","temperature":1.50e0,"prompt":"a\u0062","max_tokens":1,"min_tokens":1,"stream":false,"kv_transfer_params":{"a":1}}"#
    );
    // Only where the client wrote it, if only as null.
    for written in ["7", "null"] {
        let client = format!(r#"{{"max_completion_tokens":{written},"messages":[]}}"#);
        assert_eq!(
            prefilled(Form::Completions, &client),
            r#"{"messages":[],"max_tokens":1,"min_tokens":1,"stream":false,"max_completion_tokens":1,"kv_transfer_params":{"a":1}}"#
        );
    }
}

#[test]
fn a_prefill_of_responses_stores_nothing() {
    let client = r#"{"input":"x","store":true,"max_output_tokens":500,"max_tokens":3}"#;
    assert_eq!(
        prefilled(Form::Responses, client),
        r#"{"input":"x","max_tokens":3,"max_output_tokens":1,"store":false,"stream":false,"kv_transfer_params":{"a":1}}"#
    );
}

#[test]
fn a_prefill_of_messages_asks_for_one_token_and_no_stream() {
    let client = r#"{"max_tokens":500,"system":"be kind","stream":true,"thinking":{"type":"enabled","budget_tokens":99},"messages":[]}"#;
    assert_eq!(
        prefilled(Form::Messages, client),
        r#"{"system":"be kind","thinking":{"type":"enabled","budget_tokens":99},"messages":[],"max_tokens":1,"stream":false,"kv_transfer_params":{"a":1}}"#
    );
}

#[test]
fn a_prefill_of_generate_limits_its_sampling_params() {
    let one = r#""max_tokens":1,"min_tokens":1}"#;
    let cases = [
        (r#"{"token_ids":[1]}"#, format!("{{{one}")),
        (
            r#"{"token_ids":[1],"sampling_params":null}"#,
            format!("{{{one}"),
        ),
        (
            r#"{"sampling_params":{"max_tokens":9,"seed":7,"min_tokens":2},"token_ids":[1]}"#,
            format!(r#"{{"seed":7,{one}"#),
        ),
        (
            r#"{"token_ids":[1],"sampling_params":"odd"}"#,
            r#""odd""#.to_owned(),
        ),
    ];
    for (client, sampling) in cases {
        assert_eq!(
            prefilled(Form::Generate, client),
            format!(
                r#"{{"token_ids":[1],"sampling_params":{sampling},"stream":false,"kv_transfer_params":{{"a":1}}}}"#
            )
        );
    }
}

#[test]
fn fields_of_the_client_that_a_leg_sets_go_however_they_are_spelled() {
    let leg = leg(false, &[("kv_transfer_params", "2")]);
    let client = br#"{"kv_transfer_params":1,"a":1,"\u006bv_transfer_params":{"x":3},"a":2}"#;
    let body = decode(client, &leg).expect("an object");
    assert_eq!(body, br#"{"a":1,"a":2,"kv_transfer_params":2}"#);
}

#[test]
fn what_is_no_object_is_refused_without_repeating_it() {
    for body in [
        "",
        "[]",
        "{",
        r#""secret""#,
        r#"{"a":1}{"#,
        "{\"\\ud800\":1}",
        "{\"a\":NaN}",
    ] {
        let error = decode(body.as_bytes(), &leg(false, &[])).expect_err(body);
        assert!(
            error
                .to_string()
                .starts_with("the body is no JSON object: line ")
        );
        assert!(!error.to_string().contains("secret"));
    }
    decode(b"{\"a\":\"\xff\"}", &leg(false, &[])).expect_err("no UTF-8");
}

#[test]
fn what_cannot_be_divided_is_named() {
    use Form::{Completions, Generate, Messages, Responses};
    use Indivisible::*;
    let cases = [
        (
            Completions,
            r#"{"prompt":"a","n":1,"best_of":null,"echo":false,"prompt_logprobs":null}"#,
            None,
        ),
        (Completions, r#"{"n":2}"#, Some(Choices)),
        (Completions, r#"{"n":"2"}"#, Some(Choices)),
        (Completions, r#"{"n":2,"n":1}"#, None),
        (Completions, r#"{"n":1,"\u006e":3}"#, Some(Choices)),
        (Completions, r#"{"n":"many"}"#, None),
        (Completions, r#"{"best_of":4}"#, Some(BestOf)),
        (Completions, r#"{"use_beam_search":true}"#, Some(BeamSearch)),
        (Completions, r#"{"echo":"True"}"#, Some(Echo)),
        (Completions, r#"{"echo":1}"#, Some(Echo)),
        (
            Completions,
            r#"{"prompt_logprobs":0}"#,
            Some(PromptLogprobs),
        ),
        (Completions, r#"{"prompt":["a"]}"#, None),
        (Completions, r#"{"prompt":[]}"#, None),
        (Completions, r#"{"prompt":[1,2,3]}"#, None),
        (Completions, r#"{"prompt":[[1,2,3]]}"#, None),
        (Completions, r#"{"prompt":[[1],[2]]}"#, Some(SeveralPrompts)),
        (Completions, r#"{"prompt":["a","b"]}"#, Some(SeveralPrompts)),
        (
            Completions,
            r#"{"prompt_embeds":"AAAA"}"#,
            Some(PromptEmbeds),
        ),
        (Responses, r#"{"text":[1,{}],"input":"a"}"#, None),
        (Responses, r#"{"background":true}"#, Some(Background)),
        (
            Responses,
            r#"{"previous_response_id":"r"}"#,
            Some(PreviousResponse),
        ),
        (Generate, r#"{"text":["a","b"]}"#, Some(SeveralPrompts)),
        (Generate, r#"{"input_ids":[[1],[2]]}"#, Some(SeveralPrompts)),
        (Generate, r#"{"sampling_params":{"n":2}}"#, Some(Choices)),
        (
            Generate,
            r#"{"sampling_params":{"prompt_logprobs":1}}"#,
            Some(PromptLogprobs),
        ),
        (Completions, r#"{"sampling_params":{"n":2}}"#, None),
        (
            Completions,
            r#"{"truncate_prompt_tokens":-1}"#,
            Some(Truncation),
        ),
        (
            Generate,
            r#"{"truncate_prompt_tokens":"-1"}"#,
            Some(Truncation),
        ),
        (
            Completions,
            r#"{"truncate_prompt_tokens":0}"#,
            Some(Truncation),
        ),
        // The same number of tokens for both legs.
        (Completions, r#"{"truncate_prompt_tokens":100}"#, None),
        (Completions, r#"{"truncate_prompt_tokens":null}"#, None),
        (Responses, r#"{"truncation":"auto"}"#, Some(Truncation)),
        (Responses, r#"{"truncation":null}"#, Some(Truncation)),
        (Responses, r#"{"truncation":"disabled"}"#, None),
        (Completions, r#"{"truncation":"auto"}"#, None),
        (
            Completions,
            r#"{"tool_choice":"required"}"#,
            Some(ForcedTool),
        ),
        (
            Completions,
            r#"{"tool_choice":{"type":"function","function":{"name":"f"}}}"#,
            Some(ForcedTool),
        ),
        (Responses, r#"{"tool_choice":"required"}"#, Some(ForcedTool)),
        (
            Completions,
            r#"{"tool_choice":"required","n":2}"#,
            Some(Choices),
        ),
        (Completions, r#"{"tool_choice":"auto","tools":[{}]}"#, None),
        (Completions, r#"{"tool_choice":"none","tools":[{}]}"#, None),
        (Completions, r#"{"tool_choice":null}"#, None),
        (
            Messages,
            r#"{"tool_choice":{"type":"any"}}"#,
            Some(ForcedTool),
        ),
        (
            Messages,
            r#"{"tool_choice":{"name":"f","\u0074ype":"tool"}}"#,
            Some(ForcedTool),
        ),
        (Messages, r#"{"tool_choice":{"type":"auto"}}"#, None),
        (Messages, r#"{"tool_choice":{"type":"none"}}"#, None),
        (Messages, r#"{"tool_choice":{"type":7}}"#, None),
        (Messages, r#"{"tool_choice":"any"}"#, None),
        // What the engine does not read there.
        (
            Messages,
            r#"{"n":2,"echo":true,"truncation":"auto","prompt":["a","b"]}"#,
            None,
        ),
    ];
    for (form, body, why) in cases {
        assert_eq!(indivisible(form, body.as_bytes()), Ok(why), "{body}");
    }
    indivisible(Completions, b"[").expect_err("no object");
    for why in Indivisible::ALL {
        assert!(why.to_string().contains(' ') && !why.as_str().contains(' '));
    }
}

#[test]
fn a_client_that_steers_blocks_is_seen_wherever_it_writes_it() {
    let steering = [
        r#"{"kv_transfer_params":{}}"#,
        r#"{"\u006bv_transfer_params":{"do_remote_prefill":true}}"#,
        r#"{"kv_transfer_params":{"x":1},"kv_transfer_params":null}"#,
        r#"{"bootstrap_room":7}"#,
        r#"{"bootstrap_host":["a"]}"#,
        r#"{"bootstrap_port":1}"#,
        r#"{"ec_transfer_params":{}}"#,
        r#"{"vllm_xargs":{"kv_transfer_params":{}}}"#,
        r#"{"sampling_params":{"kv_transfer_params":{}}}"#,
        r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}}}}"#,
        r#"{"request_id":"a___decode_addr_10.0.0.9:1"}"#,
    ];
    for body in steering {
        assert!(carries_transfer(body.as_bytes()), "{body}");
    }
    let plain = [
        r#"{"kv_transfer_params":null}"#,
        r#"{"vllm_xargs":{"a":1},"request_id":"mine"}"#,
        r#"{"messages":[{"content":"kv_transfer_params"}]}"#,
        r#"{"sampling_params":3}"#,
        "[",
    ];
    for body in plain {
        assert!(!carries_transfer(body.as_bytes()), "{body}");
    }
}

#[test]
fn hints_name_no_place() {
    let body = |fields: &str| format!("{{\"model\":\"m\",{fields}}}");
    for (fields, expected) in [
        (
            r#""kv_transfer_params":{"lmcache.tag.user":"a","lmcache.ttl":60}"#,
            Steers::Hints,
        ),
        (
            r#""kv_transfer_params":{"\u006cmcache.ttl":60}"#,
            Steers::Hints,
        ),
        (r#""kv_transfer_params":{}"#, Steers::Hints),
        (
            r#""vllm_xargs":{"kv_transfer_params":{"lmcache.skip_save":true}}"#,
            Steers::Hints,
        ),
        (
            r#""kv_transfer_params":{"lmcache.ttl":60,"disagg_spec":{}}"#,
            Steers::Places,
        ),
        (
            r#""kv_transfer_params":{"lmcache":{"host":"10.0.0.9"}}"#,
            Steers::Places,
        ),
        (
            r#""kv_transfer_params":{"remote_host":"10.0.0.9"}"#,
            Steers::Places,
        ),
        (r#""kv_transfer_params":"{}""#, Steers::Places),
        (r#""kv_transfer_params":[]"#, Steers::Places),
        (
            r#""kv_transfer_params":{"lmcache.ttl":1},"kv_transfer_params":{"remote_port":1}"#,
            Steers::Places,
        ),
        (r#""ec_transfer_params":{"lmcache.ttl":60}"#, Steers::Places),
        (
            r#""sampling_params":{"extra_args":{"bootstrap_room":1}}"#,
            Steers::Places,
        ),
        (
            r#""sampling_params":{"\u0065xtra_args":{"bootstrap_room":1}}"#,
            Steers::Places,
        ),
        (r#""sampling_params":{"temperature":0}"#, Steers::Nothing),
        (
            r#""vllm_xargs":{"a":"transfer"},"extra_args":null"#,
            Steers::Nothing,
        ),
    ] {
        let body = body(fields);
        let mut most = Steers::Nothing;
        let shown = object::each(body.as_bytes(), |member| {
            let known = steering_names().any(|name| name == member.name);
            let steers = steering_of(&member.name, member.value);
            assert!(known || steers == Steers::Nothing, "{}", member.name);
            most = most.max(steers);
        });
        shown.expect("an object");
        assert_eq!(most, expected, "{body}");
    }
}
