//! A leg: what one worker of a pair is sent beyond, or in place of, what the client wrote.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::half::Half;

/// The field of a body in which vLLM's connectors are spoken to.
pub(crate) const PARAMS: &str = "kv_transfer_params";

/// What one worker of a pair is sent.
#[derive(Clone, Debug)]
pub struct Leg {
    /// What to send as `X-Request-Id`. None: the request's own id, which is then the same for both legs.
    pub request_id: Option<String>,
    /// The data-parallel rank to ask for, in `X-data-parallel-rank`.
    pub rank: Option<u32>,
    /// The worker computes one token and answers at once, as JSON. Not so for SGLang, whose prefill stops by itself.
    pub one_token: bool,
    /// Fields at the top level of the leg's body, in place of the client's of those names; JSON as it goes out, because a
    /// prefill's answer is repeated byte for byte.
    pub fields: Vec<(&'static str, Box<RawValue>)>,
}

/// What is sent first.
#[derive(Clone, Debug)]
pub enum Begin {
    /// The prefill leg; the decode leg follows from its answer.
    PrefillFirst(Leg),
    /// Both at once. The prefill's answer is awaited as well: it says whether the blocks come at all.
    Together {
        /// For the prefill worker.
        prefill: Leg,
        /// For the decode worker.
        decode: Leg,
    },
}

/// A label that a pair needs and that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {side} worker's label `{name}` is not known")]
pub struct Missing {
    /// `prefill` or `decode`.
    pub side: &'static str,
    /// The label's name, without a rank.
    pub name: &'static str,
}

impl Leg {
    /// A prefill leg without fields.
    pub(crate) fn prefill(half: &Half) -> Self {
        Self {
            request_id: None,
            rank: half.rank,
            one_token: true,
            fields: Vec::new(),
        }
    }

    /// A decode leg without fields.
    pub(crate) fn decode(half: &Half) -> Self {
        Self {
            one_token: false,
            ..Self::prefill(half)
        }
    }

    pub(crate) fn with_id(mut self, id: Option<String>) -> Self {
        self.request_id = id;
        self
    }

    pub(crate) fn with(self, name: &'static str, value: &impl Serialize) -> Self {
        let json = to_raw_value(value).expect("texts, numbers and objects of them serialise");
        self.with_json(name, json)
    }

    pub(crate) fn with_json(mut self, name: &'static str, json: Box<RawValue>) -> Self {
        self.fields.push((name, json));
        self
    }

    /// Whether the leg writes this field itself.
    pub(crate) fn sets(&self, name: &str) -> bool {
        self.fields.iter().any(|(set, _)| *set == name)
    }

    /// Bytes of all fields as members of an object.
    pub(crate) fn field_bytes(&self) -> usize {
        let member =
            |(name, json): &(&'static str, Box<RawValue>)| name.len() + json.get().len() + 4;
        self.fields.iter().map(member).sum()
    }
}
