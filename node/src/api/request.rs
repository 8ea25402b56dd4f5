//! What a body says, borrowed from its bytes: one parse, no copy of a prompt unless JSON escapes force it.
//!
//! Only the fields that placement needs are looked at. Everything else is the worker's business, and the
//! bytes go on as they came.
//!
//! The model decides which workers may see a request, so nothing else in a body has a say in how it is read: a field of
//! a form that is not known here is passed over, and a body whose model could be read in two ways, or not at all, is
//! refused.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::ops::Range;

use grapevine_transfer::body::{Steers, steering_of};
use grapevine_transfer::names_peers;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Deserializer as Json;
use serde_json::de::Read;
use serde_json::value::RawValue;

use super::Endpoint;
use super::endpoint::Form;
use super::error::{ApiError, ErrorKind};
use super::json::{NO_TEXT, Text, check_controls};
use super::message::Messages;
pub use super::message::{ChatMessage, Content, ContentPart};
pub use super::prompt::{Batch, Prompt};
use super::truth::is_true;

/// What some editors write before UTF-8. Readers may pass over it, and not all do (RFC 8259, section 8.1).
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The fields of a body that placement reads.
#[derive(Debug, Default)]
pub struct BodyView<'a> {
    /// `model`; none when it is not there, `null` or empty, which is the same to vLLM.
    pub model: Option<Text<'a>>,
    /// `model` as it stands in the body.
    pub model_json: Option<&'a RawValue>,
    /// `messages`.
    pub messages: Option<Vec<ChatMessage<'a>>>,
    /// It is a chat, and has none.
    pub lacks_messages: bool,
    /// `system`, as JSON: what Anthropic's messages begin with.
    pub system: Option<&'a RawValue>,
    /// `instructions`: what a response's input begins with.
    pub instructions: Option<Text<'a>>,
    /// `prompt`.
    pub prompt: Option<Prompt<'a>>,
    /// `input`.
    pub input: Option<Prompt<'a>>,
    /// `state`: what questions are about, in place of an input.
    pub state: Option<Prompt<'a>>,
    /// What SGLang, Cohere and vLLM's own paths have for a prompt, the first that is there: `text`, `texts`, `input_ids`,
    /// `token_ids`.
    pub text: Option<Prompt<'a>>,
    /// What all pairs of a rerank or score begin with, the first that is there: `query`, `queries`, `text_1`, `data_1`.
    pub query: Option<Prompt<'a>>,
    /// `tools`, as JSON.
    pub tools: Option<&'a RawValue>,
    /// `stream`, as loosely as vLLM reads it.
    pub stream: bool,
    /// `background`.
    pub background: bool,
    /// `request_id`, if it is there in whatever form: vLLM's name of the request, and of the response that it stores.
    pub request_id: Option<Option<Text<'a>>>,
    /// `store` is `false`: nothing of the response is kept.
    pub stores_nothing: bool,
    /// `previous_response_id`.
    pub previous_response: Option<Text<'a>>,
    /// `session_params.session_id`.
    pub session_params_id: Option<Text<'a>>,
    /// `user`.
    pub user: Option<Text<'a>>,
    /// `session_id`.
    pub session_id: Option<Text<'a>>,
    /// `user_id`.
    pub user_id: Option<Text<'a>>,
    /// What it says of blocks of KV elsewhere.
    pub steers: Steers,
    /// `cache_salt`: vLLM gives requests with different ones different cache blocks.
    pub cache_salt: Option<Text<'a>>,
    /// A field by which an engine computes with an adapter that `model` does not name, if one is there and not `null`:
    /// SGLang's `lora_path` and `lora_id`, llama.cpp's `lora`.
    pub adapter: Option<&'static str>,
}

/// Reads a view; `messages`, nearly all of most bodies, in the same pass, unless their form has turned out unknown.
struct Reader<'a> {
    messages: bool,
    /// The field whose value is being read, where a client is to be told its name: what it was at an error.
    field: &'a Cell<Option<&'static str>>,
}

impl Reader<'_> {
    /// Reads all of a body.
    fn read<'de, R: Read<'de>>(self, mut json: Json<R>) -> serde_json::Result<BodyView<'de>> {
        let view = self.deserialize(&mut json)?;
        json.end().map(|()| view)
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = BodyView<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = BodyView<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut view = BodyView::default();
        let mut met = Met::default();
        let mut has_messages = None;
        // Of each name, in the order in which they are preferred.
        let mut texts = [const { None }; 4];
        let mut queries = [const { None }; 4];
        while let Some(name) = map.next_key::<Text<'de>>()? {
            match &*name.0 {
                "model" => {
                    self.field.set(Some("model"));
                    let raw: &'de RawValue = map.next_value()?;
                    met.once(&mut view.model_json, Some(raw), "model")?;
                    view.model = optional_text(raw.get())
                        .map_err(|error| de::Error::custom(why_no_model(&error)))?
                        .filter(|model| !model.0.is_empty());
                    self.field.set(None);
                }
                "messages" => {
                    met.once(&mut has_messages, Some(()), "messages")?;
                    if self.messages {
                        let messages: Option<Messages<'de>> = map.next_value()?;
                        view.messages = messages.map(|messages| messages.0);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                "prompt" => met.once(&mut view.prompt, map.next_value()?, "prompt")?,
                "input" => met.once(&mut view.input, map.next_value()?, "input")?,
                "state" => met.once(&mut view.state, map.next_value()?, "state")?,
                "text" => met.once(&mut texts[0], map.next_value()?, "text")?,
                "texts" => met.once(&mut texts[1], map.next_value()?, "texts")?,
                "input_ids" => met.once(&mut texts[2], map.next_value()?, "input_ids")?,
                "token_ids" => met.once(&mut texts[3], map.next_value()?, "token_ids")?,
                "query" => met.once(&mut queries[0], map.next_value()?, "query")?,
                "queries" => met.once(&mut queries[1], map.next_value()?, "queries")?,
                "text_1" => met.once(&mut queries[2], map.next_value()?, "text_1")?,
                "data_1" => met.once(&mut queries[3], map.next_value()?, "data_1")?,
                "tools" => met.once(&mut view.tools, map.next_value()?, "tools")?,
                "system" => met.once(&mut view.system, map.next_value()?, "system")?,
                "stream" => view.stream = is_true(map.next_value::<&RawValue>()?.get()),
                "request_id" => {
                    let id = text_or_none(&mut map)?;
                    if id.as_ref().is_some_and(|id| names_peers(&id.0)) {
                        view.steers = Steers::Places;
                    }
                    met.once(&mut view.request_id, Some(id), "request_id")?;
                }
                // Those of `steering_names`, spelled out: they are found with the others.
                "kv_transfer_params"
                | "ec_transfer_params"
                | "bootstrap_host"
                | "bootstrap_port"
                | "bootstrap_room"
                | "disagg_prefill_dp_rank"
                | "vllm_xargs"
                | "extra_args"
                | "sampling_params" => {
                    let raw: &'de RawValue = map.next_value()?;
                    view.steers = view.steers.max(steering_of(&name.0, raw.get()));
                }
                "store" => view.stores_nothing = map.next_value::<&RawValue>()?.get() == "false",
                "background" => view.background = is_true(map.next_value::<&RawValue>()?.get()),
                "instructions" => {
                    let instructions = text_or_none(&mut map)?;
                    met.once(&mut view.instructions, instructions, "instructions")?;
                }
                "previous_response_id" => view.previous_response = text_or_none(&mut map)?,
                "user" => view.user = text_or_none(&mut map)?,
                "session_id" => view.session_id = text_or_none(&mut map)?,
                "cache_salt" => view.cache_salt = text_or_none(&mut map)?,
                "user_id" => view.user_id = text_or_none(&mut map)?,
                "lora_path" => view.adapter = named_or(view.adapter, "lora_path", &mut map)?,
                "lora_id" => view.adapter = named_or(view.adapter, "lora_id", &mut map)?,
                "lora" => view.adapter = named_or(view.adapter, "lora", &mut map)?,
                "session_params" => {
                    #[derive(serde::Deserialize)]
                    struct SessionParams<'a> {
                        #[serde(borrow, default)]
                        session_id: Option<Text<'a>>,
                    }
                    let raw: &'de RawValue = map.next_value()?;
                    let params = serde_json::from_str::<SessionParams<'de>>(raw.get());
                    view.session_params_id = params.ok().and_then(|params| params.session_id);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        view.text = texts.into_iter().flatten().next();
        view.query = queries.into_iter().flatten().next();
        Ok(view)
    }
}

/// Fields that were met in a body and must not come again. One may have come as `null`, which leaves its place empty.
#[derive(Default)]
struct Met {
    nulls: Vec<&'static str>,
}

impl Met {
    /// A repeated field is refused: which of the two counts differs between JSON readers, and a router that
    /// reads another model than the worker does would send the request to the wrong pool.
    fn once<T, E: de::Error>(
        &mut self,
        slot: &mut Option<T>,
        value: Option<T>,
        name: &'static str,
    ) -> Result<(), E> {
        if slot.is_some() || self.nulls.contains(&name) {
            return Err(E::duplicate_field(name));
        }
        if value.is_none() {
            self.nulls.push(name);
        }
        *slot = value;
        Ok(())
    }
}

/// A string or null, of JSON that is known to be valid: without a backslash a string stands as it is between its quotes.
fn optional_text(json: &str) -> serde_json::Result<Option<Text<'_>>> {
    let quoted = json
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    match quoted.filter(|text| !text.contains('\\')) {
        Some(text) => Ok(Some(Text(Cow::Borrowed(text)))),
        None => serde_json::from_str(json),
    }
}

/// What is wrong with the value of `model`, which is valid JSON.
fn why_no_model(error: &serde_json::Error) -> &'static str {
    match error.is_data() {
        true => "`model` is no string",
        false => "`model` has half of a surrogate pair, which is no character",
    }
}

/// Fields that only help; a value that is no string is left to the worker.
fn text_or_none<'de, M: MapAccess<'de>>(map: &mut M) -> Result<Option<Text<'de>>, M::Error> {
    let raw: &'de RawValue = map.next_value()?;
    Ok(serde_json::from_str(raw.get()).ok())
}

/// The name of a field whose value is not `null`, else what was there before.
fn named_or<'de, M: MapAccess<'de>>(
    before: Option<&'static str>,
    name: &'static str,
    map: &mut M,
) -> Result<Option<&'static str>, M::Error> {
    let raw: &'de RawValue = map.next_value()?;
    Ok(before.or((raw.get() != "null").then_some(name)))
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

    /// Reads the JSON body of an endpoint.
    ///
    /// # Errors
    /// 400 in OpenAI's shape for what is no JSON object, and for one whose model cannot be read in one way only.
    /// Other fields may have any form: a worker's own words about them are better than ours.
    pub fn parse(endpoint: Endpoint, body: &'a [u8]) -> Result<Self, ApiError> {
        if endpoint.traits().form == Form::Nothing {
            return Ok(Self::default());
        }
        check_controls(body).map_err(|error| json_error(body, &error, None))?;
        // Of text that is known to be UTF-8 no string is checked again. Elsewhere only strings that are read are.
        let text = simdutf8::basic::from_utf8(body).ok();
        let field = Cell::new(None);
        let read = |messages| {
            let reader = Reader {
                messages,
                field: &field,
            };
            match text {
                Some(text) => reader.read(Json::from_str(text)),
                None => reader.read(Json::from_slice(body)),
            }
        };
        match read(true) {
            Ok(view) => Ok(Self {
                lacks_messages: endpoint == Endpoint::Chat && view.messages.is_none(),
                ..view
            }),
            // A form that is not known is the worker's business; what is no text is none to any reader.
            Err(error) if error.is_data() && !is_no_text(&error) => {
                let param = field.take();
                read(false).map_err(|_| json_error(body, &error, param))
            }
            Err(error) => Err(json_error(body, &error, None)),
        }
    }

    /// Refuses a chat without messages; to be asked once its model is known to be served.
    ///
    /// # Errors
    /// 400 in OpenAI's shape.
    pub fn check_messages(&self) -> Result<(), ApiError> {
        match self.lacks_messages {
            true => Err(ApiError::invalid(
                "messages",
                "you must provide a messages parameter",
            )),
            false => Ok(()),
        }
    }
}

/// Whether a string was no text.
fn is_no_text(error: &serde_json::Error) -> bool {
    error.to_string().contains(NO_TEXT)
}

/// `param`: the field that is wrong, where that is known.
fn json_error(body: &[u8], error: &serde_json::Error, param: Option<&'static str>) -> ApiError {
    let message = if body.is_empty() {
        "the body is empty; send a JSON object".to_owned()
    } else if body.starts_with(BYTE_ORDER_MARK) {
        "the body begins with a byte order mark, which JSON does not have; send it without"
            .to_owned()
    } else {
        match error.classify() {
            serde_json::error::Category::Data if !is_no_text(error) => {
                let what = without_values(&error.to_string());
                format!("the body does not have the expected form: {what}")
            }
            _ => {
                let why = error.to_string();
                let half = match why.contains("hex escape") {
                    true => {
                        " (half of a surrogate pair, as \\ud83d without the escape that follows it, is no character)"
                    }
                    false => "",
                };
                format!("could not parse the JSON body of your request: {why}{half}")
            }
        }
    };
    match param {
        Some(param) => ApiError::invalid(param, message),
        None => ApiError::new(ErrorKind::InvalidRequest, message),
    }
}

/// serde quotes a value of the wrong type, which may be a prompt; what was expected in its place says enough.
fn without_values(message: &str) -> String {
    match message.rsplit_once(", expected ") {
        Some((found, expected)) if found.starts_with("invalid ") => format!("expected {expected}"),
        _ => message.to_owned(),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
