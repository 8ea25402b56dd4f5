//! A prompt by any name: one or several, as text, as token ids, or as something else.

use std::fmt;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::json::{Prose, Text};

/// `prompt` or `input`: the forms that OpenAI and vLLM take.
#[derive(Debug)]
pub enum Prompt<'a> {
    /// One text.
    Text(Text<'a>),
    /// Token ids of one prompt.
    Tokens(Vec<u32>),
    /// Several prompts; all of them go to one worker.
    Batch(Batch<'a>),
    /// Anything else (a list of messages of `/v1/responses`, say), as JSON.
    Raw(&'a str),
}

/// Prompts of one request that are read one by one; more than any batch has that a worker is to embed at once.
pub(super) const BATCH_MAX: usize = 16 * 1024;

/// Several prompts as JSON, read one at a time: a list of many short ones costs no memory.
#[derive(Debug)]
pub struct Batch<'a>(&'a str);

impl<'a> Batch<'a> {
    /// Each prompt in its order: a text, token ids, or what else is there as JSON. Never a batch in a batch. What is behind
    /// the first [`BATCH_MAX`] comes as one piece: each one costs more than its bytes do, on a thread that serves others.
    pub fn for_each(&self, mut see: impl FnMut(Prompt<'a>)) {
        let mut seen = 0;
        let rest = first_elements(self.0, |prompt| {
            seen += 1;
            if seen <= BATCH_MAX {
                see(Prompt::one(prompt));
            }
            seen <= BATCH_MAX
        });
        if let Some(rest) = rest {
            see(Prompt::Raw(rest));
        }
    }
}

/// Each element of a JSON list as it stands, until `see` does not take one: what begins with that one is the rest. Anything
/// else has no elements.
pub fn first_elements<'a>(json: &'a str, mut see: impl FnMut(&'a str) -> bool) -> Option<&'a str> {
    let mut rest = None;
    for_each_element_while(json, |element| {
        let element = element.get();
        let is_taken = see(element);
        if !is_taken {
            // It borrows from the list, so the distance of their beginnings is its place.
            let at = element.as_ptr() as usize - json.as_ptr() as usize;
            rest = Some(&json[at..]);
        }
        is_taken
    });
    rest
}

/// The same without the rest.
fn for_each_element_while<'a>(json: &'a str, see: impl FnMut(&'a RawValue) -> bool) {
    struct Each<F>(F);
    impl<'de, F: FnMut(&'de RawValue) -> bool> Visitor<'de> for Each<F> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }
        fn visit_seq<S: SeqAccess<'de>>(mut self, mut seq: S) -> Result<(), S::Error> {
            while let Some(element) = seq.next_element::<&'de RawValue>()? {
                if !(self.0)(element) {
                    break;
                }
            }
            Ok(())
        }
    }
    let mut json = serde_json::Deserializer::from_str(json);
    // The body's parse went over it; what is no list has no elements.
    let _ = (&mut json).deserialize_seq(Each(see));
}

impl<'de: 'a, 'a> Deserialize<'de> for Prompt<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&'de RawValue>::deserialize(deserializer)?;
        Ok(Self::of(raw.get()))
    }
}

impl<'a> Prompt<'a> {
    fn of(json: &'a str) -> Self {
        match (json.as_bytes().first(), inner(json)) {
            (Some(b'['), Some(b'"' | b'[')) => Self::Batch(Batch(json)),
            _ => Self::one(json),
        }
    }

    /// One prompt, which cannot nest: however deep the brackets, nothing here calls itself.
    fn one(json: &'a str) -> Self {
        let parsed = match (json.as_bytes().first(), inner(json)) {
            (Some(b'"'), _) => {
                serde_json::from_str::<Prose<'a>>(json).map(|prose| Self::Text(prose.0))
            }
            (Some(b'['), Some(b'0'..=b'9')) => serde_json::from_str(json).map(Self::Tokens),
            _ => return Self::Raw(json),
        };
        parsed.unwrap_or(Self::Raw(json))
    }
}

/// The first byte behind the opening one that is no space.
fn inner(json: &str) -> Option<u8> {
    let rest = json.as_bytes().get(1..)?;
    rest.iter()
        .copied()
        .find(|byte| !byte.is_ascii_whitespace())
}
