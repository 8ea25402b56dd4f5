//! What a body says, borrowed from its bytes: one parse, no copy of a prompt unless JSON escapes force it.
//!
//! Only the fields that placement needs are looked at. Everything else is the worker's business, and the
//! bytes go on as they came.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::Endpoint;
use super::error::{ApiError, ErrorKind};
pub use super::prompt::{Batch, Prompt};

/// Most parts of one message's content. Each costs memory of its own, forty times what its shortest JSON does.
const PARTS_MAX: usize = 16 * 1024;
/// Most messages and parts of one body together.
const ELEMENTS_MAX: usize = 64 * 1024;

/// A string that borrows from the body when it holds no escapes.
///
/// `Option<Cow<str>>` would always copy: serde borrows only through a visitor of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: de::Error>(self, v: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(v)))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(v.to_owned())))
            }
            fn visit_string<E: de::Error>(self, v: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(v)))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Content of a message: text, parts, or nothing (an assistant turn that only calls tools).
#[derive(Debug, Default)]
pub enum Content<'a> {
    /// A plain string.
    Text(Text<'a>),
    /// The list of parts. Text parts count by their text, others by their JSON.
    Parts(Vec<Part<'a>>),
    /// `null`, or not there.
    #[default]
    None,
}

/// One part of a message's content.
#[derive(Debug)]
pub struct Part<'a> {
    /// Text of a `text` part.
    pub text: Option<Text<'a>>,
    /// The part as it stands in the body, for every other type.
    pub raw: &'a str,
}

/// One message of a chat.
#[derive(Debug, serde::Deserialize)]
pub struct Message<'a> {
    /// `system`, `user`, `assistant`, `tool`, ...
    #[serde(borrow)]
    pub role: Text<'a>,
    /// What it says.
    #[serde(borrow, default)]
    pub content: Content<'a>,
    /// Calls that an assistant turn made, as JSON.
    #[serde(borrow, default)]
    pub tool_calls: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a list of content parts, or null")
            }
            fn visit_borrowed_str<E: de::Error>(self, v: &'de str) -> Result<Self::Value, E> {
                Ok(Content::Text(Text(Cow::Borrowed(v))))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Self::Value, E> {
                Ok(Content::Text(Text(Cow::Owned(v.to_owned()))))
            }
            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(Content::None)
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Self::Value, S::Error> {
                let mut parts = Vec::with_capacity(seq.size_hint().unwrap_or(2));
                while let Some(raw) = seq.next_element::<&RawValue>()? {
                    if parts.len() == PARTS_MAX {
                        let message = format!("a message has more than {PARTS_MAX} parts");
                        return Err(de::Error::custom(message));
                    }
                    parts.push(Part::of(raw).map_err(de::Error::custom)?);
                }
                Ok(Content::Parts(parts))
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

impl<'a> Part<'a> {
    fn of(raw: &'a RawValue) -> Result<Self, serde_json::Error> {
        #[derive(serde::Deserialize)]
        struct TextPart<'a> {
            #[serde(borrow, default)]
            r#type: Option<Text<'a>>,
            #[serde(borrow, default)]
            text: Option<Text<'a>>,
        }
        let raw_text = raw.get();
        // A bare string among the parts is accepted by some servers; it counts as it stands.
        if !raw_text.starts_with('{') {
            return Ok(Self {
                text: None,
                raw: raw_text,
            });
        }
        let part: TextPart<'a> = serde_json::from_str(raw_text)?;
        let is_text = part.r#type.is_none_or(|t| t.0 == "text");
        Ok(Self {
            text: part.text.filter(|_| is_text),
            raw: raw_text,
        })
    }
}

/// `messages`, counted.
struct Messages<'a>(Vec<Message<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Messages<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MessagesVisitor;
        impl<'de> Visitor<'de> for MessagesVisitor {
            type Value = Messages<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of messages")
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Self::Value, S::Error> {
                let mut messages = Vec::new();
                let mut elements = 0;
                while let Some(message) = seq.next_element::<Message<'de>>()? {
                    elements += 1 + match &message.content {
                        Content::Parts(parts) => parts.len(),
                        _ => 0,
                    };
                    if elements > ELEMENTS_MAX {
                        return Err(de::Error::custom(format!(
                            "there are more than {ELEMENTS_MAX} messages and parts"
                        )));
                    }
                    messages.push(message);
                }
                Ok(Messages(messages))
            }
        }
        deserializer.deserialize_seq(MessagesVisitor)
    }
}

/// The fields of a body that placement reads.
#[derive(Debug, Default)]
pub struct BodyView<'a> {
    /// `model`.
    pub model: Option<Text<'a>>,
    /// `model` as it stands in the body.
    pub model_json: Option<&'a RawValue>,
    /// `messages`.
    pub messages: Option<Vec<Message<'a>>>,
    /// `prompt`, or for embeddings and the like `input`.
    pub prompt: Option<Prompt<'a>>,
    /// `tools`, as JSON.
    pub tools: Option<&'a RawValue>,
    /// `stream`.
    pub stream: bool,
    /// `session_params.session_id`.
    pub session_params_id: Option<Text<'a>>,
    /// `user`.
    pub user: Option<Text<'a>>,
    /// `session_id`.
    pub session_id: Option<Text<'a>>,
    /// `user_id`.
    pub user_id: Option<Text<'a>>,
    /// `cache_salt`: vLLM gives requests with different ones different cache blocks.
    pub cache_salt: Option<Text<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for BodyView<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BodyVisitor;
        impl<'de> Visitor<'de> for BodyVisitor {
            type Value = BodyView<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                #[derive(serde::Deserialize)]
                struct SessionParams<'a> {
                    #[serde(borrow, default)]
                    session_id: Option<Text<'a>>,
                }
                let mut view = BodyView::default();
                while let Some(name) = map.next_key::<Text<'de>>()? {
                    match &*name.0 {
                        "model" => {
                            let raw: &'de RawValue = map.next_value()?;
                            let model = serde_json::from_str(raw.get())
                                .map_err(|_| de::Error::custom("`model` is no string"))?;
                            once(&mut view.model, model, "model")?;
                            view.model_json = Some(raw);
                        }
                        "messages" => {
                            let messages: Option<Messages<'de>> = map.next_value()?;
                            once(&mut view.messages, messages.map(|m| m.0), "messages")?;
                        }
                        "prompt" => once(&mut view.prompt, map.next_value()?, "prompt")?,
                        // A body has `prompt` or `input`, never both in any API that we know.
                        "input" if view.prompt.is_none() => view.prompt = map.next_value()?,
                        "tools" => once(&mut view.tools, map.next_value()?, "tools")?,
                        "stream" => view.stream = map.next_value::<Option<bool>>()? == Some(true),
                        "user" => view.user = text_or_none(&mut map)?,
                        "session_id" => view.session_id = text_or_none(&mut map)?,
                        "cache_salt" => view.cache_salt = text_or_none(&mut map)?,
                        "user_id" => view.user_id = text_or_none(&mut map)?,
                        "session_params" => {
                            let raw: &RawValue = map.next_value()?;
                            view.session_params_id =
                                serde_json::from_str::<SessionParams<'de>>(raw.get())
                                    .ok()
                                    .and_then(|params| params.session_id);
                        }
                        _ => {
                            map.next_value::<de::IgnoredAny>()?;
                        }
                    }
                }
                Ok(view)
            }
        }
        deserializer.deserialize_map(BodyVisitor)
    }
}

/// A repeated field is refused: which of the two counts differs between JSON readers, and a router that
/// reads another model than the worker does would send the request to the wrong pool.
fn once<T, E: de::Error>(
    slot: &mut Option<T>,
    value: Option<T>,
    name: &'static str,
) -> Result<(), E> {
    if slot.is_some() {
        return Err(E::duplicate_field(name));
    }
    *slot = value;
    Ok(())
}

/// Session-like fields only help; a value that is no string is left to the worker.
fn text_or_none<'de, M: MapAccess<'de>>(map: &mut M) -> Result<Option<Text<'de>>, M::Error> {
    let raw: &'de RawValue = map.next_value()?;
    Ok(serde_json::from_str(raw.get()).ok())
}

impl<'a> BodyView<'a> {
    /// Where the value of `model` stands in `body`, the bytes that this view was parsed from; quotes included.
    pub fn model_at(&self, body: &[u8]) -> Option<Range<usize>> {
        let json = self.model_json?.get();
        // The value borrows from the body, so the distance of their beginnings is its place.
        let start = (json.as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
        let at = start..start + json.len();
        (body.get(at.clone())? == json.as_bytes()).then_some(at)
    }

    /// The view of a JSON object of which only the model can be read.
    fn outline(body: &'a [u8]) -> Option<Self> {
        // An array would be read as the fields in their order.
        if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return None;
        }
        let outline: Outline<'a> = serde_json::from_slice(body).ok()?;
        let model: Text<'a> = serde_json::from_str(outline.model.get()).ok()?;
        (!model.0.is_empty()).then(|| Self {
            model: Some(model),
            model_json: Some(outline.model),
            stream: outline.stream.is_some_and(|json| json.get() == "true"),
            ..Self::default()
        })
    }

    /// Reads a body for an endpoint.
    ///
    /// # Errors
    /// 400 in OpenAI's shape when the endpoint needs a JSON object with a model and the body is not one.
    /// An object with a model whose other fields have forms that are not known here gives a view of the model
    /// alone: a worker's own words about it are better than ours.
    /// Other endpoints take any body: what is no JSON object gives an empty view.
    pub fn parse(endpoint: Endpoint, body: &'a [u8]) -> Result<Self, ApiError> {
        if !endpoint.needs_model() {
            return Ok(serde_json::from_slice(body).unwrap_or_default());
        }
        let view: Self = match serde_json::from_slice(body) {
            Ok(view) => view,
            Err(error) if error.is_data() => {
                return Self::outline(body).ok_or_else(|| json_error(body, &error));
            }
            Err(error) => return Err(json_error(body, &error)),
        };
        match &view.model {
            Some(model) if !model.0.is_empty() => {}
            _ => {
                return Err(ApiError::invalid(
                    "model",
                    "you must provide a model parameter",
                ));
            }
        }
        match endpoint {
            Endpoint::Chat if view.messages.is_none() => Err(ApiError::invalid(
                "messages",
                "you must provide a messages parameter",
            )),
            _ => Ok(view),
        }
    }
}

/// What is read of an object whose other fields have unknown forms. No field twice, for the reason above.
#[derive(serde::Deserialize)]
struct Outline<'a> {
    #[serde(borrow)]
    model: &'a RawValue,
    #[serde(borrow)]
    stream: Option<&'a RawValue>,
    #[serde(rename = "messages")]
    _messages: Option<de::IgnoredAny>,
    #[serde(rename = "prompt")]
    _prompt: Option<de::IgnoredAny>,
    #[serde(rename = "tools")]
    _tools: Option<de::IgnoredAny>,
}

fn json_error(body: &[u8], error: &serde_json::Error) -> ApiError {
    let message = if body.is_empty() {
        "the body is empty; send a JSON object".to_owned()
    } else {
        match error.classify() {
            serde_json::error::Category::Data => {
                let what = without_values(&error.to_string());
                format!("the body does not have the expected form: {what}")
            }
            _ => format!("could not parse the JSON body of your request: {error}"),
        }
    };
    ApiError::new(ErrorKind::InvalidRequest, message)
}

/// serde quotes a value of the wrong type, which may be a prompt; what was expected in its place says enough.
fn without_values(message: &str) -> String {
    match message.rsplit_once(", expected ") {
        Some((found, expected)) if found.starts_with("invalid ") => format!("expected {expected}"),
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proxy::question::key_for_tests;

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
            ("{\"messages\":[]}", "model"),
            ("{\"model\":\"\",\"messages\":[]}", "model"),
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
            let error = BodyView::parse(Endpoint::Chat, body.as_bytes()).expect_err(body);
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
        let view = chat(r#"{"model":"a","messages":[],"stream":"yes"}"#);
        assert!(!view.stream);
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
                    for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Passthrough] {
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

    proptest! {
        #[test]
        fn any_bytes_are_a_view_or_a_400(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            json in r#"[\[\]{}",:0-9a-e\\u ]{0,80}"#,
            field in "(model|messages|prompt|input|tools|session_params|x)",
        ) {
            let bodies = [bytes, format!(r#"{{"model":"m","{field}":{json}}}"#).into_bytes()];
            for body in bodies {
                for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Passthrough] {
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
    fn passthrough_takes_any_body() {
        let view = BodyView::parse(Endpoint::Passthrough, b"\xff\xfe").expect("any bytes");
        assert!(view.model.is_none());
    }
}
