//! The prefill's answer: what it says about the blocks.

use serde_json::value::RawValue;

use crate::leg::{Missing, PARAMS};
use crate::object::{self, ObjectWriter};

/// An answer of a prefill that the decode leg cannot be made from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// It is no JSON object.
    #[error("the prefill's answer is no JSON object")]
    NotAnObject,
    /// It says nothing about the blocks: the engine has no connector, or keeps none of this prompt's.
    #[error("the prefill's answer has no kv_transfer_params")]
    NoParams,
    /// What it says about the blocks lacks something that the decode worker needs.
    #[error("the prefill's kv_transfer_params lack `{0}`")]
    Lacks(&'static str),
    /// It is about another transfer.
    #[error("the prefill's kv_transfer_params are of another transfer")]
    AnotherTransfer,
    /// A label that was known when the pair began is not known any more.
    #[error(transparent)]
    Missing(#[from] Missing),
}

/// `kv_transfer_params` of an answer, as they were written.
pub(crate) struct Params<'a>(&'a str);

impl<'a> Params<'a> {
    /// Reads them.
    pub(crate) fn read(answer: &'a [u8]) -> Result<Self, BadAnswer> {
        let params = object::get(answer, PARAMS).map_err(|_| BadAnswer::NotAnObject)?;
        let params = params.filter(|json| json.starts_with('{'));
        params.map(Self).ok_or(BadAnswer::NoParams)
    }

    /// A member as it was written; none where it is missing or `null`.
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        object::get(self.0.as_bytes(), name).ok().flatten()
    }

    /// The same, where it has to be there.
    pub(crate) fn need(&self, name: &'static str) -> Result<&'a str, BadAnswer> {
        self.get(name).ok_or(BadAnswer::Lacks(name))
    }

    /// Byte for byte.
    pub(crate) fn repeat(&self) -> Box<RawValue> {
        json(self.0.to_owned())
    }

    /// With these members in place of its own of those names, behind the others; the values are JSON.
    pub(crate) fn with(&self, members: &[(&str, String)]) -> Box<RawValue> {
        let mut out = ObjectWriter::with_capacity(self.0.len() + 64 * members.len());
        object::each(self.0.as_bytes(), |member| {
            if members.iter().all(|(name, _)| *name != member.name) {
                out.copy(&member);
            }
        })
        .expect("they were read as an object");
        for (name, value) in members {
            out.set(name, value);
        }
        json(String::from_utf8(out.finish()).expect("made of texts"))
    }
}

fn json(text: String) -> Box<RawValue> {
    RawValue::from_string(text).expect("made of JSON")
}
