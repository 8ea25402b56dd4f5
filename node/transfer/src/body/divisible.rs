//! Which requests cannot be divided: those whose decode would need more than the blocks of one prompt.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::steering::{Steers, steering_of};
use super::{BodyError, Form};
use crate::object;

/// Why a request cannot be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Indivisible {
    /// `n` above 1: the engine makes a request of each choice, and the blocks have one taker.
    Choices,
    /// `best_of` above 1: as with choices.
    BestOf,
    /// `use_beam_search`: as with choices.
    BeamSearch,
    /// `echo`: the answer begins with the prompt, with log probabilities that prefill alone computes.
    Echo,
    /// `prompt_logprobs`: prefill alone computes them.
    PromptLogprobs,
    /// More than one prompt: the engine makes a request of each.
    SeveralPrompts,
    /// `prompt_embeds`: engines count a remote prompt by its tokens, and here there are none.
    PromptEmbeds,
    /// `background`: the answer comes before the prompt is computed.
    Background,
    /// `previous_response_id`: one worker holds the conversation.
    PreviousResponse,
    /// `truncate_prompt_tokens` not above 0, `truncation` of a response: the engine cuts the prompt to what the longest
    /// answer leaves of its context. A prefill's answer has one token, so the two legs would keep different prompts.
    Truncation,
    /// `tool_choice` is `required` or names a tool: vLLM reads the whole answer as a call, and refuses a prefill's one
    /// token (400 or 500). No other choice would leave the prompt the same with every template. Not so for SGLang, whose
    /// prefill ends by itself.
    ForcedTool,
}

impl Indivisible {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Choices,
        Self::BestOf,
        Self::BeamSearch,
        Self::Echo,
        Self::PromptLogprobs,
        Self::SeveralPrompts,
        Self::PromptEmbeds,
        Self::Background,
        Self::PreviousResponse,
        Self::Truncation,
        Self::ForcedTool,
    ];

    /// Stable name, as a label of metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Choices => "choices",
            Self::BestOf => "best_of",
            Self::BeamSearch => "beam_search",
            Self::Echo => "echo",
            Self::PromptLogprobs => "prompt_logprobs",
            Self::SeveralPrompts => "several_prompts",
            Self::PromptEmbeds => "prompt_embeds",
            Self::Background => "background",
            Self::PreviousResponse => "previous_response",
            Self::Truncation => "truncation",
            Self::ForcedTool => "forced_tool",
        }
    }
}

impl fmt::Display for Indivisible {
    /// For the client: what in its request is the reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Choices => "`n` is more than 1",
            Self::BestOf => "`best_of` is more than 1",
            Self::BeamSearch => "`use_beam_search` is set",
            Self::Echo => "`echo` is set",
            Self::PromptLogprobs => "`prompt_logprobs` is set",
            Self::SeveralPrompts => "it has more than one prompt",
            Self::PromptEmbeds => "`prompt_embeds` is set",
            Self::Background => "`background` is set",
            Self::PreviousResponse => "`previous_response_id` is set",
            Self::Truncation => "its prompt is cut to what the answer leaves room for",
            Self::ForcedTool => "`tool_choice` makes it call a tool",
        })
    }
}

/// A field, when its value counts, and what then.
type Row = (&'static str, fn(&str) -> bool, Indivisible);

/// Fields of samplings: at the top level, or in `sampling_params`.
const SAMPLING: [Row; 4] = [
    ("n", is_over_one, Indivisible::Choices),
    ("best_of", is_over_one, Indivisible::BestOf),
    ("use_beam_search", is_true, Indivisible::BeamSearch),
    ("prompt_logprobs", is_set, Indivisible::PromptLogprobs),
];

/// Other fields at the top level.
const TOP: [Row; 10] = [
    ("echo", is_true, Indivisible::Echo),
    ("prompt", is_several, Indivisible::SeveralPrompts),
    ("text", is_several, Indivisible::SeveralPrompts),
    ("input_ids", is_several, Indivisible::SeveralPrompts),
    ("prompt_embeds", is_set, Indivisible::PromptEmbeds),
    ("background", is_true, Indivisible::Background),
    (
        "previous_response_id",
        is_set,
        Indivisible::PreviousResponse,
    ),
    ("truncate_prompt_tokens", is_rest, Indivisible::Truncation),
    ("truncation", is_not_disabled, Indivisible::Truncation),
    // The last one: it alone depends on the workers.
    ("tool_choice", is_forced, Indivisible::ForcedTool),
];

/// Fields of Anthropic's messages.
const MESSAGES: [Row; 1] = [("tool_choice", is_any_tool, Indivisible::ForcedTool)];

/// Why a request cannot be divided; none for one that can.
///
/// Values are read as engines read them: a name that is there twice by its last value, numbers and truths in texts. What
/// an engine refuses anyway is no reason.
/// Errors: [`BodyError`] for anything but a JSON object.
pub fn indivisible(form: Form, body: &[u8]) -> Result<Option<Indivisible>, BodyError> {
    Ok(look(form, body)?.indivisible)
}

/// What a body says about its way, all of it read in one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// See [`carries_transfer`](super::carries_transfer).
    pub carries_transfer: bool,
    /// See [`indivisible`].
    pub indivisible: Option<Indivisible>,
}

/// Looks at a body once for both questions.
/// Errors: [`BodyError`] for anything but a JSON object.
pub fn look(form: Form, body: &[u8]) -> Result<Look, BodyError> {
    let (mut top, mut sampling) = ([false; TOP.len()], [false; SAMPLING.len()]);
    let mut messages = [false; MESSAGES.len()];
    let (mut params, mut carries_transfer) = (None, false);
    object::each(body, |member| {
        let (name, value) = (&*member.name, member.value);
        carries_transfer |= steering_of(name, value) > Steers::Nothing;
        if form == Form::Generate && name == "sampling_params" {
            params = Some(value);
        }
        // `text` of a response is how it is to be formed; no other form has a `truncation`. Anthropic's messages have
        // none of these fields but the choice of a tool, in words of their own.
        let is_other = match name {
            "text" => form == Form::Responses,
            "truncation" => form != Form::Responses,
            _ => false,
        };
        if form == Form::Messages {
            note(&MESSAGES, &mut messages, name, value);
            return;
        }
        if !is_other {
            note(&TOP, &mut top, name, value);
        }
        note(&SAMPLING, &mut sampling, name, value);
    })?;
    let mut inner = [false; SAMPLING.len()];
    if let Some(params) = params.filter(|json| json.starts_with('{')) {
        object::each(params.as_bytes(), |member| {
            note(&SAMPLING, &mut inner, &member.name, member.value);
        })?;
    }
    let rows = SAMPLING
        .iter()
        .chain(&SAMPLING)
        .chain(&TOP)
        .chain(&MESSAGES);
    let found = sampling.iter().chain(&inner).chain(&top).chain(&messages);
    let first = rows.zip(found).find(|(_, found)| **found);
    Ok(Look {
        carries_transfer,
        indivisible: first.map(|((_, _, why), _)| *why),
    })
}

fn note(rows: &[Row], found: &mut [bool], name: &str, value: &str) {
    for ((field, counts, _), found) in rows.iter().zip(found) {
        if *field == name {
            *found = counts(value);
        }
    }
}

fn is_set(json: &str) -> bool {
    !matches!(json, "null" | "false")
}

fn is_over_one(json: &str) -> bool {
    number(json).is_some_and(|number| number > 1.0)
}

/// Not a number of tokens, but what is left of the context: -1, and 0, which vLLM reads as none given.
fn is_rest(json: &str) -> bool {
    number(json).is_some_and(|number| number <= 0.0)
}

/// vLLM cuts for any other value, `null` too.
fn is_not_disabled(json: &str) -> bool {
    object::text(json).as_deref() != Some("disabled")
}

fn is_forced(json: &str) -> bool {
    json.starts_with('{') || object::text(json).as_deref() == Some("required")
}

/// Anthropic's choice of a tool: `any` of them, or one `tool` by its name.
fn is_any_tool(json: &str) -> bool {
    let kind = object::get(json.as_bytes(), "type").ok().flatten();
    let kind = kind.and_then(object::text);
    matches!(kind.as_deref(), Some("any" | "tool"))
}

fn number(json: &str) -> Option<f64> {
    let bare = object::text(json);
    let bare = bare.as_deref().unwrap_or(json).trim();
    bare.parse().ok()
}

fn is_true(json: &str) -> bool {
    const TRUTHS: [&str; 6] = ["true", "1", "yes", "on", "y", "t"];
    let bare = object::text(json);
    let bare = bare.as_deref().unwrap_or(json).trim();
    bare.parse::<f64>().is_ok_and(|number| number == 1.0)
        || TRUTHS.iter().any(|truth| truth.eq_ignore_ascii_case(bare))
}

/// Whether a prompt is a list of several: a list of numbers is one prompt in tokens.
fn is_several(json: &str) -> bool {
    struct Prompts;
    impl<'de> Visitor<'de> for Prompts {
        type Value = bool;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }
        fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<bool, S::Error> {
            let Some(first) = list.next_element::<&'de RawValue>()? else {
                return Ok(false);
            };
            let is_list_of_prompts = first.get().starts_with(['"', '[', '{']);
            let mut others = 0_usize;
            while list.next_element::<IgnoredAny>()?.is_some() {
                others += 1;
            }
            Ok(is_list_of_prompts && others > 0)
        }
    }
    json.starts_with('[')
        && serde_json::Deserializer::from_str(json)
            .deserialize_seq(Prompts)
            .unwrap_or(false)
}
