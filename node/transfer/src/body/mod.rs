//! The bodies of both legs, written from the client's.
//!
//! Every field of the client's that a leg does not set goes on byte for byte, in its order; what the leg sets stands
//! behind. A name that is there twice stays so, because engines let the last one win, and what a leg sets replaces all
//! of that name. One pass over the client's bytes and one allocation for each leg.

mod divisible;
mod steering;

pub use divisible::{Indivisible, Look, indivisible, look};
pub use steering::{Steers, carries_transfer, steering_names, steering_of};

use crate::leg::Leg;
use crate::object::{self, Member, ObjectWriter};

/// What a body asks for, and so by which names its limits go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// OpenAI's completions and chat completions.
    Completions,
    /// OpenAI's responses.
    Responses,
    /// Generation with `sampling_params`, as vLLM and SGLang have it.
    Generate,
    /// Anthropic's messages, as vLLM 0.32 has them.
    Messages,
}

impl Form {
    /// How many there are.
    pub const COUNT: usize = 4;

    /// Whether engines of some releases answer such a prefill without a word of where the blocks are, whatever connector
    /// they have.
    pub const fn may_be_silent(self) -> bool {
        matches!(self, Self::Responses | Self::Messages)
    }
}

/// A body that no leg can be made from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body is no JSON object: line {line}, column {column}")]
pub struct BodyError {
    /// Line, from 1; 0 where none can be told.
    pub line: usize,
    /// Column, from 1; 0 where none can be told.
    pub column: usize,
}

impl From<serde_json::Error> for BodyError {
    /// Where it went wrong only: serde's own words repeat values, which may be a prompt.
    fn from(error: serde_json::Error) -> Self {
        Self {
            line: error.line(),
            column: error.column(),
        }
    }
}

/// What makes an engine compute the prompt and one token. JSON of each field.
///
/// `min_tokens` is 1 whatever the client asked for: with more than `max_tokens` vLLM refuses the request, and without
/// any the first token may be an end, or a stop, after which some releases keep no blocks.
const ONE_TOKEN: [(&str, &str); 2] = [("max_tokens", "1"), ("min_tokens", "1")];
const NO_STREAM: (&str, &str) = ("stream", "false");
/// Newer name of `max_tokens`; only where the client wrote it, since engines of other makes may not know it.
const MAX_COMPLETION: &str = "max_completion_tokens";
const SAMPLING: &str = "sampling_params";

/// The body of a prefill leg.
/// Errors: [`BodyError`] for anything but a JSON object.
pub fn prefill(form: Form, body: &[u8], leg: &Leg) -> Result<Vec<u8>, BodyError> {
    if !leg.one_token {
        return decode(body, leg);
    }
    let set: &[(&str, &str)] = match form {
        Form::Completions => &[ONE_TOKEN[0], ONE_TOKEN[1], NO_STREAM],
        // Whatever it answers is not the answer: nobody will ask for it again.
        Form::Responses => &[("max_output_tokens", "1"), ("store", "false"), NO_STREAM],
        Form::Generate => &[NO_STREAM],
        // It has no `min_tokens`.
        Form::Messages => &[ONE_TOKEN[0], NO_STREAM],
    };
    // Room for the longest of these, which are shorter than the fields of any leg together.
    let mut out = ObjectWriter::with_capacity(body.len() + leg.field_bytes() + 128);
    let (mut has_max_completion, mut sampling) = (false, "{}");
    object::each(body, |member| match &*member.name {
        MAX_COMPLETION if form == Form::Completions => has_max_completion = true,
        SAMPLING if form == Form::Generate => sampling = member.value,
        "stream_options" => {}
        name if leg.sets(name) || set.iter().any(|(set, _)| *set == name) => {}
        _ => out.copy(&member),
    })?;
    if form == Form::Generate {
        out.set(SAMPLING, &one_token_of(sampling)?);
    }
    for (name, json) in set {
        out.set(name, json);
    }
    if has_max_completion {
        out.set(MAX_COMPLETION, "1");
    }
    Ok(finish(out, leg))
}

/// The body of a decode leg: the client's, with the leg's fields.
/// Errors: [`BodyError`] for anything but a JSON object.
pub fn decode(body: &[u8], leg: &Leg) -> Result<Vec<u8>, BodyError> {
    let mut out = ObjectWriter::with_capacity(body.len() + leg.field_bytes());
    object::each(body, |member| {
        if !leg.sets(&member.name) {
            out.copy(&member);
        }
    })?;
    Ok(finish(out, leg))
}

fn finish(mut out: ObjectWriter, leg: &Leg) -> Vec<u8> {
    for (name, json) in &leg.fields {
        out.set(name, json.get());
    }
    out.finish()
}

/// `sampling_params` for one token; what is no object there is left to the engine to refuse.
fn one_token_of(sampling: &str) -> Result<String, BodyError> {
    let sampling = match sampling {
        "null" => "{}",
        other if other.starts_with('{') => other,
        other => return Ok(other.to_owned()),
    };
    let mut out = ObjectWriter::with_capacity(sampling.len() + 32);
    let is_set = |member: &Member<'_>| ONE_TOKEN.iter().any(|(name, _)| *name == member.name);
    object::each(sampling.as_bytes(), |member| {
        if !is_set(&member) {
            out.copy(&member);
        }
    })?;
    for (name, json) in ONE_TOKEN {
        out.set(name, json);
    }
    Ok(String::from_utf8(out.finish()).expect("made of texts"))
}

#[cfg(test)]
mod tests;
