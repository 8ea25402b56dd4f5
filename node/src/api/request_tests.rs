use proptest::prelude::*;

use super::super::message::{ELEMENTS_MAX, PARTS_MAX};
use super::super::prompt::BATCH_MAX;
use std::borrow::Cow;

use super::*;
use crate::api::text::key_for_tests;

fn chat(body: &str) -> BodyView<'_> {
    BodyView::parse(Endpoint::Chat, body.as_bytes()).expect("valid")
}

#[test]
fn text_borrows_unless_escaped() {
    let view = chat(r#"{"model":"m","messages":[{"role":"user","content":"plain"}]}"#);
    let messages = view.messages.expect("messages");
    let Content::Text(Text(Cow::Borrowed("plain"))) = messages[0].content else {
        panic!("not borrowed: {:?}", messages[0].content);
    };
    let view = chat(r#"{"model":"m","messages":[{"role":"user","content":"a\nb"}]}"#);
    let messages = view.messages.expect("messages");
    let Content::Text(Text(Cow::Owned(text))) = &messages[0].content else {
        panic!("escapes must be undone");
    };
    assert_eq!(text, "a\nb");
}

#[test]
fn only_what_is_read_must_be_utf8() {
    let table: &[(&[u8], bool)] = &[
        (b"{\"model\":\"m\",\"x\":\"\xff\",\"messages\":[]}", true),
        (b"{\"model\":\"m\xff\",\"messages\":[]}", false),
        (
            b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}",
            false,
        ),
        (b"{\"model\":\"m\",\"messages\":[]} \xff", false),
    ];
    for (body, is_read) in table {
        let view = BodyView::parse(Endpoint::Chat, body);
        assert_eq!(view.is_ok(), *is_read, "{}", body.escape_ascii());
    }
}

#[test]
fn parts_count_by_text_or_by_json() {
    let view = chat(
        r#"{"model":"m","messages":[{"role":"user","content":[
            {"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"u"}}]}]}"#,
    );
    let messages = view.messages.expect("messages");
    let Content::Parts(parts) = &messages[0].content else {
        panic!("parts")
    };
    assert_eq!(parts[0].text.as_ref().map(|t| &*t.0), Some("look"));
    assert!(parts[1].text.is_none() && parts[1].raw.contains("image_url"));
}

#[test]
fn the_model_is_found_where_it_stands() {
    for (body, model, json) in [
        (r#" {"messages":[],"model" : "m" ,"x":1} "#, "m", r#""m""#),
        (
            r#"{"model":"org\/m","messages":[]}"#,
            "org/m",
            r#""org\/m""#,
        ),
        (
            r#"{"x":{"model":"other"},"mod\u0065l":"m","messages":[]}"#,
            "m",
            r#""m""#,
        ),
    ] {
        let view = chat(body);
        let at = view.model_at(body.as_bytes()).expect("there is a model");
        assert_eq!(&body[at.clone()], json);
        assert_eq!(view.model.expect("there is a model").0, model);
        assert!(body[..at.start].ends_with([':', ' ']));
    }
    assert_eq!(BodyView::default().model_at(b"{}"), None);
}

#[test]
fn prompt_forms() {
    let prompt = |json| {
        BodyView::parse(Endpoint::Completions, json)
            .expect("valid")
            .prompt
            .expect("prompt")
    };
    assert!(matches!(
        prompt(br#"{"model":"m","prompt":"a"}"#),
        Prompt::Text(_)
    ));
    assert!(matches!(
        prompt(br#"{"model":"m","prompt":[ 1,2]}"#),
        Prompt::Tokens(t) if t == [1, 2]
    ));
    let batch = |json| {
        let Prompt::Batch(batch) = prompt(json) else {
            panic!("no batch");
        };
        let mut seen = Vec::new();
        batch.for_each(|prompt| seen.push(format!("{prompt:?}")));
        seen
    };
    assert_eq!(
        batch(br#"{"model":"m","prompt":["a","b\n"]}"#),
        [r#"Text(Text("a"))"#, r#"Text(Text("b\n"))"#]
    );
    assert_eq!(
        batch(br#"{"model":"m","prompt":[[1], [2,3],[["x"]]]}"#),
        ["Tokens([1])", "Tokens([2, 3])", r#"Raw("[[\"x\"]]")"#]
    );
    // Behind as many as any worker takes at once, the rest is one piece.
    let many = |count: usize| format!(r#"{{"prompt":[{}"b"]}}"#, r#""a", "#.repeat(count));
    let (all, more) = (many(BATCH_MAX - 1), many(BATCH_MAX + 1));
    assert_eq!(batch(all.as_bytes()).len(), BATCH_MAX);
    let seen = batch(more.as_bytes());
    assert_eq!(seen.len(), BATCH_MAX + 1);
    assert_eq!(seen[BATCH_MAX], r#"Raw("\"a\", \"b\"]")"#);
    assert!(matches!(
        prompt(br#"{"model":"m","prompt":{"odd":1}}"#),
        Prompt::Raw(_)
    ));
}

#[test]
fn bad_bodies_name_what_is_wrong() {
    for (body, expected) in [
        ("", "empty"),
        ("{", "could not parse"),
        ("[1]", "expected form"),
        ("{\"model\":7,\"messages\":[]}", "expected form"),
        ("{\"model\":\"m\"}", "messages"),
        (
            "{\"model\":\"m\",\"model\":\"n\",\"messages\":[]}",
            "duplicate",
        ),
        (
            "{\"model\":\"m\",\"messages\":7,\"messages\":[]}",
            "expected form",
        ),
        ("[\"m\", true]", "expected form"),
        (
            "{\"model\":\"m\",\"messages\":[{\"content\":7}]",
            "expected form",
        ),
    ] {
        let view = BodyView::parse(Endpoint::Chat, body.as_bytes());
        let error = view.and_then(|view| view.check_messages()).expect_err(body);
        assert!(
            error.message.contains(expected),
            "{body:?} -> {}",
            error.message
        );
        assert_eq!(error.kind.status(), 400);
    }
}

#[test]
fn unknown_forms_are_left_to_the_worker() {
    for messages in [
        r#"[{"role":"user","content":7}]"#,
        r#"[{"content":"x"}]"#,
        r#"{"role":"user"}"#,
        "7",
    ] {
        let body = format!(r#"{{"stream":true,"messages":{messages},"model":"a"}}"#);
        let view = chat(&body);
        assert_eq!(view.model.as_ref().map(|model| &*model.0), Some("a"));
        assert!(view.stream && view.messages.is_none());
        let at = view.model_at(body.as_bytes()).expect("it is in the body");
        assert_eq!(&body[at], r#""a""#);
    }
    for (stream, expected) in [
        (r#""yes""#, true),
        ("1", true),
        (r#""maybe""#, false),
        ("[]", false),
    ] {
        let body = format!(r#"{{"model":"a","messages":[],"stream":{stream}}}"#);
        assert_eq!(chat(&body).stream, expected, "{stream}");
    }
}

#[test]
fn nesting_bombs_do_not_overflow() {
    const DEEP: usize = 200_000;
    for close in ["", "]"] {
        let nest = format!("{}{}", "[".repeat(DEEP), close.repeat(DEEP));
        let object = format!("{}1{}", "{\"a\":".repeat(DEEP), "}".repeat(DEEP));
        for field in ["messages", "prompt", "input", "tools", "user", "model", "x"] {
            for bomb in [&nest, &object] {
                let body = format!("{{\"model\":\"m\",\"{field}\":{bomb}}}");
                for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Opened] {
                    if BodyView::parse(endpoint, body.as_bytes()).is_ok() {
                        key_for_tests(endpoint, &http::HeaderMap::new(), body.as_bytes());
                    }
                }
            }
        }
        let part = format!(
            "{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":[{nest}]}}]}}"
        );
        let _ = BodyView::parse(Endpoint::Chat, part.as_bytes());
    }
}

#[test]
fn lists_that_cost_more_than_they_weigh_are_not_read() {
    let many = |element: &str, count: usize| vec![element; count].join(",");
    let read = |messages: String| {
        let body = format!("{{\"model\":\"m\",\"messages\":[{messages}]}}");
        chat(&body).messages.map(|messages| messages.len())
    };
    let message = r#"{"role":""}"#;
    assert_eq!(read(many(message, ELEMENTS_MAX)), Some(ELEMENTS_MAX));
    assert_eq!(read(many(message, ELEMENTS_MAX + 1)), None);
    let parts = |count| format!("{{\"role\":\"user\",\"content\":[{}]}}", many("1", count));
    assert_eq!(read(parts(PARTS_MAX)), Some(1));
    assert_eq!(read(parts(PARTS_MAX + 1)), None);
    assert_eq!(read(many(&parts(PARTS_MAX), 4)), None);
    // Neither many keys nor many short prompts cost anything.
    let keys: Vec<String> = (0..200_000).map(|n| format!("\"k{n}\":{n}")).collect();
    let batch = many("\"\"", 200_000);
    let body = format!(
        "{{\"model\":\"m\",{},\"prompt\":[{batch}]}}",
        keys.join(",")
    );
    key_for_tests(
        Endpoint::Completions,
        &http::HeaderMap::new(),
        body.as_bytes(),
    );
}

#[test]
fn items_behind_very_many_count_as_one() {
    let tokens = |before: &str, letter: &str| {
        let last = format!(r#"{{"role":"user","content":"{}"}}"#, letter.repeat(1_000));
        let body = format!(r#"{{"model":"m","input":[{before},{last}]}}"#);
        let headers = http::HeaderMap::new();
        key_for_tests(Endpoint::Responses, &headers, body.as_bytes()).prompt_tokens()
    };
    // Of a message that is read it does not count how its text is written.
    let is_read = |before: &str| tokens(before, "a") == tokens(before, "\\u0061");
    let many = |element: &str, count: usize| vec![element; count].join(",");
    let items = |count| format!("{{}},{}", many("0", count - 1));
    assert!(is_read(&items(ELEMENTS_MAX - 1)));
    assert!(!is_read(&items(ELEMENTS_MAX)));
    // What turns out to be no message has cost its parts all the same.
    for (role, parts) in [
        ("", PARTS_MAX),
        ("", PARTS_MAX + 1),
        ("\"role\":7,", PARTS_MAX),
    ] {
        let item = format!("{{{role}\"content\":[{}]}}", many("1", parts));
        assert!(is_read(&many(&item, 3)), "{role} {parts}");
        assert!(!is_read(&many(&item, 4)), "{role} {parts}");
    }
}

#[test]
fn pairs_have_the_key_of_what_they_begin_with() {
    for name in ["query", "queries", "text_1", "data_1"] {
        let home = |other: &str| {
            let body = format!(r#"{{"model":"m","{name}":"what is it?","data_2":["{other}"]}}"#);
            let headers = http::HeaderMap::new();
            key_for_tests(Endpoint::Score, &headers, body.as_bytes()).home()
        };
        assert_eq!(home("this"), home("that"), "{name}");
    }
}

#[test]
fn a_decision_is_keyed_by_what_it_is_about() {
    let home = |question: &str, about: &str| {
        let body =
            format!(r#"{{"questions":{{"q":{{"type":"{question}"}}}},"model":"m",{about}}}"#);
        key_for_tests(
            Endpoint::Decisions,
            &http::HeaderMap::new(),
            body.as_bytes(),
        )
        .home()
    };
    let long = "what happened ".repeat(200);
    let said = |text: &str| {
        format!(r#"[{{"role":"user","content":[{{"type":"input_text","text":"{text}"}}]}}]"#)
    };
    for (one, other) in [
        (
            format!(r#""state":"{long}""#),
            format!(r#""state":"no {long}""#),
        ),
        (
            format!(r#""state":{{"a":"{long}"}}"#),
            format!(r#""state":{{"b":"{long}"}}"#),
        ),
        (
            format!(r#""state":[7,{{"a":"{long}"}}]"#),
            format!(r#""state":[8,{{"a":"{long}"}}]"#),
        ),
        (
            format!(r#""input":{}"#, said(&long)),
            format!(r#""input":{}"#, said("no")),
        ),
    ] {
        assert_eq!(home("a", &one), home("b", &one), "{one}");
        assert_ne!(home("a", &one), home("a", &other), "{one}");
    }
    let plain = home("a", &format!(r#""input":"{long}""#));
    assert_eq!(plain, home("a", &format!(r#""input":{}"#, said(&long))));
}

/// Else all who leave a name empty would be one session, on one worker.
#[test]
fn an_empty_name_of_a_session_is_none() {
    let home = |headers: &[(&'static str, &'static str)], names: &str, text: &str| {
        let pairs = headers.iter().map(|(name, value)| {
            let value = http::HeaderValue::from_static(value);
            (http::HeaderName::from_static(name), value)
        });
        let body = format!(r#"{{"model":"m",{names}"prompt":"{text}"}}"#);
        key_for_tests(Endpoint::Completions, &pairs.collect(), body.as_bytes()).home()
    };
    let (long, other) = ("a prompt ".repeat(200), "another ".repeat(200));
    for (headers, names) in [
        (&[("x-session-id", "")][..], ""),
        (&[], r#""session_id":"","#),
        (&[], r#""session_params":{"session_id":""},"#),
    ] {
        assert_eq!(home(headers, names, &long), home(&[], "", &long), "{names}");
        assert_ne!(
            home(headers, names, &long),
            home(headers, names, &other),
            "{names}"
        );
    }
    let named = home(&[], r#""session_id":"s","#, &long);
    for (headers, names) in [
        (&[("x-session-id", ""), ("x-smg-routing-key", "s")][..], ""),
        (&[("x-session-id", "")], r#""session_id":"s","#),
        (
            &[],
            r#""session_params":{"session_id":""},"session_id":"s","#,
        ),
    ] {
        assert_eq!(home(headers, names, &other), named, "{headers:?} {names}");
    }
}

#[test]
fn a_field_that_a_prompt_is_read_from_is_there_once() {
    for name in [
        "prompt",
        "input",
        "text",
        "texts",
        "input_ids",
        "token_ids",
        "query",
        "queries",
        "text_1",
        "data_1",
        "state",
        "tools",
        "system",
        "instructions",
    ] {
        // To some readers the last one counts, and to some the first.
        for (first, second) in [("\"a\"", "\"b\""), ("null", "\"b\""), ("null", "null")] {
            let body = format!(r#"{{"model":"m","{name}":{first},"x":1,"{name}":{second}}}"#);
            let error = BodyView::parse(Endpoint::Generate, body.as_bytes()).expect_err(&body);
            let says = format!("duplicate field `{name}`");
            assert!(error.message.contains(&says), "{body}: {}", error.message);
        }
    }
    // Two names are no repetition, and the order does not matter.
    for body in [
        r#"{"text":"a","input_ids":[1],"query":"q","text_1":"t"}"#,
        r#"{"text_1":"t","query":"q","input_ids":[1],"text":"a"}"#,
    ] {
        let view = BodyView::parse(Endpoint::Generate, body.as_bytes()).expect("as it is");
        let is = |prompt: &Option<Prompt<'_>>, text: &str| matches!(prompt, Some(Prompt::Text(found)) if found.0 == text);
        assert!(is(&view.text, "a") && is(&view.query, "q"), "{body}");
    }
}

#[test]
fn an_adapter_beside_the_model_is_named_by_its_field() {
    for (fields, expected) in [
        (r#""x":1"#, None),
        (r#""lora_path":null,"lora":null"#, None),
        (r#""lora_path":"a""#, Some("lora_path")),
        (r#""lora_path":"a","lora_path":null"#, Some("lora_path")),
        (r#""lora_p\u0061th":["a",null]"#, Some("lora_path")),
        (r#""lora_id":"1""#, Some("lora_id")),
        (r#""lora":[{"id":0,"scale":1.0}]"#, Some("lora")),
        (r#""x":{"lora_path":"a"}"#, None),
    ] {
        for body in [
            format!(r#"{{"model":"m",{fields},"text":"t"}}"#),
            format!(r#"{{{fields},"messages":7,"model":"m"}}"#),
        ] {
            let view = BodyView::parse(Endpoint::Generate, body.as_bytes()).expect(&body);
            assert_eq!(view.adapter, expected, "{body}");
        }
    }
}

#[test]
fn errors_do_not_repeat_what_the_body_says() {
    const SECRET: &str = "canary, expected nothing";
    let mut refused = 0;
    for body in [
        format!(r#"{{"model":"m","messages":"{SECRET}"}}"#),
        format!(r#"{{"model":"m","messages":["{SECRET}"]}}"#),
        format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":["{SECRET}"]}}]}}]}}"#
        ),
        format!(r#"{{"model":"m","messages":[],"stream":"{SECRET}"}}"#),
        format!(r#"{{"model":["{SECRET}"],"messages":[]}}"#),
        format!(r#"{{"{SECRET}":1,"model":"m","messages":[1,"{SECRET}"]"#),
        format!(r#""{SECRET}""#),
    ] {
        if let Err(error) = BodyView::parse(Endpoint::Chat, body.as_bytes()) {
            assert!(!error.message.contains("canary"), "{}", error.message);
            assert!(error.message.contains("line 1"), "{}", error.message);
            refused += 1;
        }
    }
    assert!(refused >= 3, "{refused}");
}

#[test]
fn numbers_that_json_does_not_have_are_refused() {
    for number in ["NaN", "Infinity", "-Infinity", "01", "1.", "+1", "0x1"] {
        let body = format!(r#"{{"model":"m","messages":[],"temperature":{number}}}"#);
        assert!(
            BodyView::parse(Endpoint::Chat, body.as_bytes()).is_err(),
            "{number}"
        );
    }
}

#[test]
fn half_a_surrogate_pair_is_named() {
    for text in [r#""\ud83d""#, r#""\ud83d\n""#, r#""\ude00""#] {
        let error = serde_json::from_str::<String>(text).expect_err("no character");
        let message = json_error(text.as_bytes(), &error, None).message;
        assert!(message.contains("surrogate pair"), "{text}: {message}");
    }
}

#[test]
fn a_prompt_that_is_no_text_is_refused_in_these_words() {
    let refused = |body: &[u8]| {
        let error = BodyView::parse(Endpoint::Chat, body).expect_err("no text");
        error.message
    };
    let chat = |content: &str| {
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#)
    };
    for content in [r#""a\ud83d""#, r#"[{"type":"text","text":"\ude00"}]"#] {
        let message = refused(chat(content).as_bytes());
        let says =
            "could not parse the JSON body of your request: no text: half of a surrogate pair";
        assert!(message.starts_with(says), "{content}: {message}");
    }
    let mut body = chat(r#""a?""#).into_bytes();
    let at = body.iter().position(|byte| *byte == b'?').expect("there");
    body[at] = 0xff;
    let message = refused(&body);
    assert!(message.contains("bytes that are not UTF-8"), "{message}");
    let message = refused(chat("\"\\n\n\"").as_bytes());
    assert!(message.contains("control character"), "{message}");
}

#[test]
fn a_client_is_told_what_is_wrong_with_its_model() {
    for (body, param, says) in [
        (r#"{"model":1}"#, Some("model"), "no string"),
        (r#"{"model":["m"]}"#, Some("model"), "no string"),
        (r#"{"model":"\ud800"}"#, Some("model"), "surrogate pair"),
        (
            r#"{"model":"m","x":1,"model":"m"}"#,
            Some("model"),
            "duplicate field `model`",
        ),
        (
            r#"{"model":"m","messages":[],"messages":[]}"#,
            None,
            "duplicate field `messages`",
        ),
        (r#"{"model":}"#, None, "could not parse"),
        ("\u{feff}{\"model\":\"m\"}", None, "byte order mark"),
    ] {
        let error = BodyView::parse(Endpoint::Completions, body.as_bytes()).expect_err(body);
        assert_eq!(error.param, param, "{body}");
        assert!(error.message.contains(says), "{body}: {}", error.message);
    }
}

proptest! {
    /// Long texts are found in another way than all other strings, and are the same.
    #[test]
    fn a_text_is_what_an_ordinary_reader_finds_or_is_refused(
        text in r#"([a-zé ]{0,40}|\\[nt"\\/ux]|\\u00e9|\\ud83d\\ude00|\\ud83d|\\ude00|[\x00-\x1f\x7f"]){0,6}"#,
        between in "[ \n\t]{0,2}",
        in_parts in any::<bool>(),
    ) {
        let content = match in_parts {
            true => format!(r#"[{{"type":"text","text":"{text}"}}]"#),
            false => format!("\"{text}\""),
        };
        let body = format!(r#"{{{between}"model":"m","messages":[{{"role":"user","content":{between}{content}}}]}}"#);
        let read = serde_json::from_str::<serde_json::Value>(&body);
        let found = BodyView::parse(Endpoint::Chat, body.as_bytes());
        match (read, found) {
            (Ok(read), Ok(view)) => {
                let content = &read["messages"][0]["content"];
                let expected = if in_parts { &content[0]["text"] } else { content };
                let messages = view.messages.expect("of a form that is known");
                let text = match &messages[0].content {
                    Content::Text(text) => Some(&text.0),
                    Content::Parts(parts) => parts[0].text.as_ref().map(|text| &text.0),
                    Content::None => None,
                };
                prop_assert_eq!(text.map(|text| &**text), expected.as_str());
            }
            (Err(_), Err(error)) => {
                prop_assert!(error.message.starts_with("could not parse"), "{}", error.message);
            }
            (read, found) => prop_assert!(false, "{body:?}: {read:?} but {found:?}"),
        }
    }

    #[test]
    fn any_bytes_are_a_view_or_a_400(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        json in r#"[\[\]{}",:0-9a-e\\u ]{0,80}"#,
        field in "(model|messages|prompt|input|tools|session_params|x)",
    ) {
        let bodies = [bytes, format!(r#"{{"model":"m","{field}":{json}}}"#).into_bytes()];
        for body in bodies {
            for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Opened] {
                match BodyView::parse(endpoint, &body) {
                    Ok(_) => {
                        key_for_tests(endpoint, &http::HeaderMap::new(), &body);
                    }
                    Err(error) => prop_assert_eq!(error.kind.status(), 400),
                }
            }
        }
    }
}

#[test]
fn no_other_field_has_a_say_in_the_model() {
    let forms = [
        "null",
        "true",
        "7",
        "-1.5e3",
        r#""a""#,
        r#""\ud83d\ude00""#,
        "[]",
        "{}",
    ];
    let nested = [
        r#"[1,"a",[2]]"#,
        r#"[{"role":7}]"#,
        r#"{"model":"other"}"#,
        r#"[{"content":[{"text":1}]}]"#,
    ];
    let fields = [
        "messages",
        "prompt",
        "input",
        "state",
        "text",
        "query",
        "tools",
        "system",
        "stream",
        "instructions",
        "previous_response_id",
        "user",
        "session_id",
        "session_params",
        "cache_salt",
        "user_id",
        "x",
    ];
    for field in fields {
        for form in forms.iter().chain(&nested) {
            let model = r#""model":"mod\u0065l""#;
            let other = format!(r#""{field}":{form}"#);
            let prompt = r#""prompt":{"id":"pmpt_1"}"#;
            let bodies = [
                format!("{{{model},{other}}}"),
                format!("{{{other},{model}}}"),
                format!(r#"{{"input":"a",{other},{model},{prompt}}}"#),
            ];
            for body in bodies {
                for endpoint in Endpoint::ALL {
                    if matches!(endpoint.traits().form, Form::Nothing | Form::Multipart) {
                        continue;
                    }
                    match BodyView::parse(endpoint, body.as_bytes()) {
                        Ok(view) => {
                            let model = view.model.as_ref().map(|model| &*model.0);
                            assert_eq!(model, Some("model"), "{endpoint:?} {body}");
                            let at = view.model_at(body.as_bytes()).expect("it is there");
                            assert_eq!(&body[at], r#""mod\u0065l""#);
                        }
                        // Twice the same field, or a chat without messages.
                        Err(error) => assert!(
                            error.param == Some("messages") || error.message.contains("duplicate"),
                            "{endpoint:?} {body}: {}",
                            error.message
                        ),
                    }
                }
            }
        }
    }
}

#[test]
fn a_model_that_reads_in_two_ways_is_refused() {
    for body in [
        r#"{"model":"a","model":"b","input":"x"}"#,
        r#"{"model":"a","input":"x","mod\u0065l":"b"}"#,
        r#"{"model":null,"model":"b","input":"x"}"#,
        r#"{"model":["a"],"input":"x"}"#,
        r#"{"model":"a","input":"x"} {"model":"b"}"#,
        r#"{"model":"a","messages":7,"model":"b"}"#,
        r#"{"model":"a","x":NaN}"#,
        r#"["a"]"#,
        "\u{feff}{\"model\":\"a\"}",
        "model=a",
        "",
    ] {
        for endpoint in [
            Endpoint::Responses,
            Endpoint::Rerank,
            Endpoint::Tokenize,
            Endpoint::Opened,
        ] {
            let error = BodyView::parse(endpoint, body.as_bytes()).expect_err(body);
            assert_eq!(error.kind.status(), 400, "{body}");
        }
    }
    for body in [r#"{"input":"x"}"#, r#"{"model":null}"#, r#"{"model":""}"#] {
        let view = BodyView::parse(Endpoint::Responses, body.as_bytes()).expect(body);
        assert!(
            view.model.is_none(),
            "{body}: left to whoever knows the models"
        );
    }
}

/// Each name by which a body may steer transfers of blocks is looked at.
#[test]
fn what_steers_transfers_is_seen_in_the_one_pass() {
    let of = |body: &str| {
        let view = BodyView::parse(Endpoint::Chat, body.as_bytes());
        view.unwrap_or_else(|error| panic!("{body}: {error:?}"))
            .steers
    };
    for name in grapevine_transfer::body::steering_names() {
        let places = match name {
            "request_id" => "\"a___prefill_addr_10.0.0.9:1___decode_addr_10.0.0.9:2\"",
            "vllm_xargs" | "extra_args" | "sampling_params" => r#"{"bootstrap_host":"10.0.0.9"}"#,
            _ => "1",
        };
        for body in [
            format!("{{\"model\":\"m\",\"messages\":[],\"{name}\":{places}}}"),
            // Of a body whose messages are of an unknown form, too.
            format!("{{\"messages\":7,\"{name}\":{places},\"model\":\"m\"}}"),
            format!("{{\"{name}\":{places},\"{name}2\":null}}").replacen(
                &name[..1],
                &format!("\\u{:04x}", name.as_bytes()[0]),
                1,
            ),
        ] {
            assert_eq!(of(&body), Steers::Places, "{body}");
        }
        assert_eq!(of(&format!("{{\"{name}\":null}}")), Steers::Nothing);
    }
    let hints = r#"{"kv_transfer_params":{"lmcache.ttl":60}}"#;
    assert_eq!(of(hints), Steers::Hints);
    let told = r#"{"messages":[{"role":"user","content":"kv_transfer_params"}],"max_tokens":3}"#;
    assert_eq!(of(told), Steers::Nothing);
}
