//! Streams that are cut anywhere, against the same streams uncut. The workers are a model that knows one answer
//! and goes on with it from wherever the prompt ends.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::Endpoint;

const PROMPT: &str = "Say it.";
const PROMPT_TOKENS: usize = 5;
const ROOM: Room = Room {
    text_bytes: 10_000,
    event_bytes: 10_000,
};
/// Tokens that end and begin with blanks, hold escapes and more than ASCII, and look like the protocol.
const TOKENS: [&str; 8] = [
    " Hello",
    "  ",
    "wörld",
    ".\n\n",
    "\n\u{a0}",
    "data: [DONE]\n\n",
    "\"🦀 ",
    "\n",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counts {
    None,
    AtEnd,
    Always,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    endpoint: Endpoint,
    counts: Counts,
    limit: Option<u64>,
}

impl Case {
    fn is_chat(self) -> bool {
        self.endpoint == Endpoint::Chat
    }

    fn body(self) -> Value {
        let mut body = if self.is_chat() {
            json!({ "messages": [{ "role": "user", "content": PROMPT }] })
        } else {
            json!({ "prompt": PROMPT, "max_tokens": null })
        };
        body["stream"] = true.into();
        if self.counts != Counts::None {
            let always = self.counts == Counts::Always;
            body["stream_options"] =
                json!({ "include_usage": true, "continuous_usage_stats": always });
        }
        if let Some(limit) = self.limit {
            body["max_tokens"] = limit.into();
        }
        body
    }

    fn continuation(self) -> Continuation {
        let body = Bytes::from(self.body().to_string());
        let ask = Ask::read(self.endpoint, body).expect("it has text");
        Continuation::new(ask.expect("continuable"), ROOM)
    }

    /// The stream of worker `number` for this body.
    fn serve(self, body: &Value, number: usize) -> Vec<u8> {
        let carried = if self.is_chat() {
            let messages = body["messages"].as_array().expect("messages");
            match &messages[1..] {
                [] => "",
                [begun] => {
                    assert_eq!(body["continue_final_message"], true);
                    assert_eq!(body["add_generation_prompt"], false);
                    assert_eq!(begun["role"], "assistant");
                    begun["content"].as_str().expect("text")
                }
                more => panic!("{more:?}"),
            }
        } else {
            let prompt = body["prompt"].as_str().expect("text");
            prompt.strip_prefix(PROMPT).expect("the prompt")
        };
        let answer = TOKENS.concat();
        assert!(answer.starts_with(carried), "{carried:?}");
        let (mut pieces, mut at) = (Vec::new(), 0);
        for token in TOKENS {
            at += token.len();
            if at > carried.len() {
                pieces.push(&answer[carried.len().max(at - token.len())..at]);
            }
        }
        let prompt_tokens = PROMPT_TOKENS + TOKENS.len() - pieces.len();
        let limit = body["max_tokens"].as_u64().unwrap_or(u64::MAX);
        let cut = pieces.len() as u64 > limit;
        pieces.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        self.events(
            &pieces,
            prompt_tokens,
            if cut { "length" } else { "stop" },
            number,
        )
    }

    fn events(self, pieces: &[&str], prompt: usize, finish: &str, number: usize) -> Vec<u8> {
        let kind = if self.is_chat() {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        let mut events = Vec::new();
        let mut event = |choices: Value, completion: Option<usize>| {
            let mut event = json!({
                "id": format!("id-{number}"), "object": kind, "created": number, "model": format!("m-{number}"),
                "choices": choices,
            });
            if let Some(completion) = completion {
                event["usage"] = json!({
                    "prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion,
                });
            }
            write_event(&mut events, event.to_string().as_bytes());
        };
        let always = |count: usize| (self.counts == Counts::Always).then_some(count);
        if self.is_chat() {
            let delta = json!({ "role": "assistant", "content": "" });
            event(
                json!([{ "index": 0, "delta": delta, "finish_reason": null }]),
                always(0),
            );
        }
        for (at, piece) in pieces.iter().enumerate() {
            let finish = (at + 1 == pieces.len()).then_some(finish);
            let choice = if self.is_chat() {
                json!({ "index": 0, "delta": { "content": piece }, "finish_reason": finish })
            } else {
                json!({ "index": 0, "text": piece, "finish_reason": finish })
            };
            event(json!([choice]), always(at + 1));
        }
        if self.counts != Counts::None {
            event(json!([]), Some(pieces.len()));
        }
        write_event(&mut events, b"[DONE]");
        events
    }
}

/// What a client makes of the bytes that it got.
#[derive(Debug, Default, PartialEq)]
struct Read {
    text: String,
    roles: usize,
    finishes: Vec<String>,
    usage: Option<Value>,
    done: usize,
    ids: Vec<Value>,
}

impl Read {
    fn of(bytes: &[u8]) -> Self {
        let mut read = Self::default();
        for (_, block) in split(bytes) {
            for data in data_of(block) {
                assert_eq!(read.done, 0, "the end mark is the end");
                if data == b"[DONE]" {
                    read.done += 1;
                    continue;
                }
                let event: Value = serde_json::from_slice(data).expect("whole events");
                let id = json!([event["id"], event["created"], event["model"]]);
                if read.ids.last() != Some(&id) {
                    read.ids.push(id);
                }
                let choice = &event["choices"][0];
                let delta = &choice["delta"];
                let text = delta["content"].as_str().or(choice["text"].as_str());
                read.text.push_str(text.unwrap_or_default());
                read.roles += usize::from(delta.get("role").is_some());
                let finish = choice["finish_reason"].as_str();
                read.finishes.extend(finish.map(str::to_owned));
                if choice.is_null() {
                    assert_eq!(read.usage, None, "counted once");
                    read.usage = Some(event["usage"].clone());
                }
            }
        }
        read
    }
}

/// Runs a case with workers that break off after these bytes, the last one not; every worker's bytes come in
/// chunks of `chunk`. Gives what the client has at the end, or why there was none.
fn run(case: Case, cuts: &[usize], chunk: usize) -> Result<Vec<u8>, (Reason, Vec<u8>)> {
    let mut continuation = case.continuation();
    let mut client = Vec::new();
    let mut body = case.body();
    for number in 0.. {
        let stream = case.serve(&body, number);
        let cut = cuts
            .get(number)
            .map_or(stream.len(), |cut| cut % (stream.len() + 1));
        for bytes in stream[..cut].chunks(chunk) {
            let taken = continuation.take(Bytes::copy_from_slice(bytes));
            assert_eq!(taken.then, Then::More);
            client.extend_from_slice(&taken.pass);
        }
        if client.ends_with(b"data: [DONE]\n\n") {
            break;
        }
        match continuation.go_on() {
            Ok(Next::Ask(next)) => body = serde_json::from_slice(&next).expect("JSON"),
            Ok(Next::End(bytes)) => {
                client.extend_from_slice(&bytes);
                break;
            }
            Err(reason) => return Err((reason, client)),
        }
    }
    Ok(client)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for endpoint in [Endpoint::Chat, Endpoint::Completions] {
        for counts in [Counts::None, Counts::AtEnd, Counts::Always] {
            for limit in [None, Some(6)] {
                cases.push(Case {
                    endpoint,
                    counts,
                    limit,
                });
            }
        }
    }
    cases
}

/// Compares a joined stream with the one of a worker that did not break.
fn assert_same(case: Case, joined: &[u8], unbroken: &Read, what: &str) {
    let joined = Read::of(joined);
    if case.limit.is_some() {
        // Blanks that are said again cost tokens again, so a limit may come sooner, never later.
        assert!(
            unbroken.text.starts_with(&joined.text),
            "{what}: {joined:?}"
        );
    } else {
        assert_eq!(joined.text, unbroken.text, "{what}");
        assert_eq!(joined.finishes, unbroken.finishes, "{what}");
    }
    assert_eq!((joined.done, joined.finishes.len()), (1, 1), "{what}");
    assert_eq!(joined.roles, unbroken.roles, "{what}");
    assert_eq!(joined.ids.len(), 1, "{what}: {:?}", joined.ids);
    assert_eq!(joined.usage.is_some(), unbroken.usage.is_some(), "{what}");
    if let Some(usage) = &joined.usage {
        let count = |name: &str| usage[name].as_u64().expect("a number");
        let sum = count("prompt_tokens") + count("completion_tokens");
        assert_eq!(count("total_tokens"), sum, "{what}");
        let limit = case.limit.unwrap_or(u64::MAX);
        assert!(count("completion_tokens") <= limit, "{what}: {usage}");
        if !case.is_chat() || case.counts == Counts::Always {
            assert_eq!(
                count("prompt_tokens"),
                PROMPT_TOKENS as u64,
                "{what}: {usage}"
            );
        }
        if !case.is_chat() {
            assert_eq!(joined.usage, unbroken.usage, "{what}");
        }
    }
}

#[test]
fn cut_at_any_byte_the_client_reads_the_unbroken_answer() {
    for case in cases() {
        let unbroken = case.serve(&case.body(), 0);
        let (length, unbroken) = (unbroken.len(), Read::of(&unbroken));
        // A debug build has no time for every byte of every case.
        let step = if case.limit.is_none() && case.counts == Counts::Always {
            1
        } else {
            17
        };
        for cut in (0..=length).step_by(step) {
            let what = format!("{case:?} cut at {cut} of {length}");
            match run(case, &[cut], usize::MAX) {
                Ok(joined) => assert_same(case, &joined, &unbroken, &what),
                Err((reason, client)) => {
                    // Whole but for counts that nobody knows.
                    assert_eq!(reason, Reason::UsageLost, "{what}");
                    assert_eq!(case.counts, Counts::AtEnd, "{what}");
                    assert_eq!(Read::of(&client).finishes.len(), 1, "{what}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cut_again_and_again_in_any_chunks(
        case in prop::sample::select(cases()),
        cuts in prop::collection::vec(0..4_000usize, 0..6),
        chunk in 1..400usize,
    ) {
        match run(case, &cuts, chunk) {
            Ok(joined) => {
                let unbroken = Read::of(&case.serve(&case.body(), 0));
                assert_same(case, &joined, &unbroken, "many cuts");
            }
            Err((reason, client)) => {
                prop_assert!(matches!(reason, Reason::UsageLost | Reason::Spent), "{reason:?}");
                let read = Read::of(&client);
                prop_assert!(TOKENS.concat().starts_with(&read.text));
                prop_assert!(read.roles <= 1 && read.done == 0);
            }
        }
    }

    #[test]
    fn any_bytes_are_survived_and_those_of_a_first_worker_pass(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..20),
    ) {
        let case = cases()[0];
        let mut first = case.continuation();
        let mut passed = Vec::new();
        for chunk in &chunks {
            let taken = first.take(chunk.clone().into());
            prop_assert_eq!(taken.then, Then::More);
            passed.extend_from_slice(&taken.pass);
        }
        passed.extend_from_slice(&first.flush());
        prop_assert_eq!(passed, chunks.concat());
        let mut later = case.continuation();
        prop_assert!(later.go_on().is_ok());
        for chunk in chunks {
            later.take(chunk.into());
        }
    }
}

/// A chat that has said " Hello" and can be continued.
fn begun() -> Continuation {
    let mut continuation = cases()[0].continuation();
    let taken = continuation.take(said("one", " Hello"));
    assert_eq!(taken.then, Then::More);
    continuation
}

fn said(id: &str, text: &str) -> Bytes {
    let data = json!({ "id": id, "choices": [{ "index": 0, "delta": { "content": text } }] });
    format!("data: {data}\n\n").into()
}

#[test]
fn a_workers_error_is_not_passed_on_and_what_came_before_it_is() {
    let mut continuation = begun();
    let mut bytes = said("one", " you").to_vec();
    bytes.extend_from_slice(b"data: {\"error\": {\"code\": 500}}\n\ndata: [DONE]\n\n");
    let taken = continuation.take(bytes.into());
    assert_eq!(
        (taken.pass, taken.then),
        (said("one", " you"), Then::Failed)
    );
    let Ok(Next::Ask(body)) = continuation.go_on() else {
        panic!("it goes on");
    };
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(body["messages"][1]["content"], " Hello you");
    let taken = continuation.take(said("two", "."));
    assert_eq!(taken.pass, said("one", "."));
}

#[test]
fn comments_pass_whoever_sends_them() {
    let mut continuation = begun();
    let comment = Bytes::from_static(b": keep-alive\n\n");
    assert_eq!(continuation.take(comment.clone()).pass, comment);
    continuation.go_on().expect("it goes on");
    assert_eq!(continuation.take(comment.clone()).pass, comment);
}

#[test]
fn an_answer_that_is_no_text_passes_on_and_is_not_continued() {
    let beyond = [
        (
            r#"{"choices":[{"index":0,"delta":{"reasoning":"hm"}}]}"#,
            Reason::Reasoning,
        ),
        (
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{}]}}]}"#,
            Reason::ToolCalls,
        ),
        (
            r#"{"choices":[{"index":1,"delta":{"content":"b"}}]}"#,
            Reason::Choices,
        ),
        ("{\"choices\":", Reason::Answer),
    ];
    for (data, reason) in beyond {
        let mut first = begun();
        // Behind it even a half event goes on at once: whoever is left alone is not held back here.
        let bytes = Bytes::from(format!("data: {data}\n\ndata: {{\"half"));
        let taken = first.take(bytes.clone());
        assert_eq!((taken.pass, taken.then), (bytes, Then::More), "{data}");
        assert_eq!(first.left_alone(), Some(reason), "{data}");
        let error = Bytes::from_static(b"data: {\"error\": {}}\n\n");
        assert_eq!(first.take(error.clone()).pass, error);
        assert_eq!(first.go_on(), Err(reason), "{data}");

        let mut later = begun();
        later.go_on().expect("it goes on");
        let taken = later.take(format!("data: {data}\n\n").into());
        assert_eq!(
            (taken.pass, taken.then),
            (Bytes::new(), Then::Lost(reason)),
            "{data}"
        );
    }
}

#[test]
fn what_is_kept_is_bounded() {
    let ask = || {
        let body = Bytes::from(cases()[0].body().to_string());
        Ask::read(Endpoint::Chat, body)
            .expect("text")
            .expect("continuable")
    };
    let room = Room {
        text_bytes: 8,
        event_bytes: 100,
    };
    let mut long = Continuation::new(ask(), room);
    long.take(said("one", "12345678"));
    assert!(
        matches!(long.go_on(), Ok(Next::Ask(_))),
        "just as long as it may be"
    );
    assert_eq!(
        long.take(said("two", "9")).pass,
        said("one", "9"),
        "it still goes on"
    );
    assert_eq!(long.go_on(), Err(Reason::TooLong));

    let mut wide = Continuation::new(ask(), room);
    let line = Bytes::from(vec![b'x'; 101]);
    assert_eq!(
        wide.take(line.clone()).pass,
        line,
        "passed without being held"
    );
    assert_eq!(wide.go_on(), Err(Reason::Answer));
    let mut later = Continuation::new(ask(), room);
    later.go_on().expect("it goes on");
    assert_eq!(later.take(line).then, Then::Lost(Reason::Answer));
}

#[test]
fn the_limit_is_lowered_by_what_the_worker_counted() {
    let counted = |counts: &str| {
        let body =
            r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":20,"min_tokens":9}"#;
        let ask = Ask::read(Endpoint::Chat, body.into()).expect("text");
        let mut continuation = Continuation::new(ask.expect("continuable"), ROOM);
        for text in ["a", "b", ""] {
            let choices = json!([{ "index": 0, "delta": { "content": text } }]);
            let event = format!("data: {{\"choices\":{choices}{counts}}}\n\n");
            continuation.take(event.into());
        }
        let Ok(Next::Ask(body)) = continuation.go_on() else {
            panic!("it goes on");
        };
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        (body["max_tokens"].as_u64(), body["min_tokens"].as_u64())
    };
    assert_eq!(counted(""), (Some(17), Some(6)), "one an event");
    let reported = r#","usage":{"prompt_tokens":1,"completion_tokens":7}"#;
    assert_eq!(counted(reported), (Some(13), Some(2)), "as reported");
}
