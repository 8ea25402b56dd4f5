//! Dry runs as they travel. Hashes take eight bytes each, as in evidence.

use super::body::{Body, Frame};
use crate::dry_run::{DryRun, DryRunAnswer, KeyParts, Refusal, Reply};
use crate::frame::{self, Decode, Encode, FrameError};
use crate::worker::WorkerId;

type WireHash = [u8; 8];

#[derive(Encode, Decode)]
pub(super) struct WireQuestion {
    pool: String,
    model: WireHash,
    group: Option<(WireHash, u32)>,
    home: WireHash,
    session: Option<WireHash>,
    user: Option<WireHash>,
    stable_tokens: u32,
    prompt_tokens: u32,
    marks: Vec<(WireHash, u32)>,
}

/// A question, and behind it, since 0.2, the moment that it is about.
#[derive(Encode)]
struct WithMoment(WireQuestion, u64);

/// A code of [`code`], and the decision if there is one.
#[derive(Encode, Decode)]
pub(super) struct WireReply {
    code: u8,
    decision: Option<WireDecision>,
}

#[derive(Encode, Decode)]
struct WireDecision {
    worker: Option<String>,
    reason: String,
    ring: u32,
    settings: u32,
    heat: u32,
    home: Option<String>,
    expected_tokens: u32,
}

/// A number for each outcome: one that a later release adds reads as a refusal.
mod code {
    pub(super) const DECIDED: u8 = 0;
    pub(super) const DECLINED: u8 = 1;
    pub(super) const NOT_SERVED: u8 = 2;
    pub(super) const TOO_MANY: u8 = 3;
    pub(super) const OTHER: u8 = u8::MAX;
}

impl Body for DryRun {
    type Wire = WireQuestion;

    fn to_wire(&self) -> WireQuestion {
        let key = &self.key;
        WireQuestion {
            pool: self.pool.clone(),
            model: key.model.to_le_bytes(),
            group: key.group.map(wire_link),
            home: key.home.to_le_bytes(),
            session: key.session.map(u64::to_le_bytes),
            user: key.user.map(u64::to_le_bytes),
            stable_tokens: key.stable_tokens,
            prompt_tokens: key.prompt_tokens,
            marks: key.marks.iter().copied().map(wire_link).collect(),
        }
    }

    fn from_wire(wire: WireQuestion, _: &mut usize) -> Result<Self, FrameError> {
        let question = Self {
            pool: wire.pool,
            key: KeyParts {
                model: u64::from_le_bytes(wire.model),
                group: wire.group.map(core_link),
                home: u64::from_le_bytes(wire.home),
                session: wire.session.map(u64::from_le_bytes),
                user: wire.user.map(u64::from_le_bytes),
                stable_tokens: wire.stable_tokens,
                prompt_tokens: wire.prompt_tokens,
                marks: wire.marks.into_iter().map(core_link).collect(),
            },
            at_us: None,
        };
        if question.is_valid() {
            Ok(question)
        } else {
            Err(FrameError::Value("dry run"))
        }
    }

    fn seal(&self, frame: Frame<'_>) -> Result<(), FrameError> {
        let code = frame.codes[0];
        match self.at_us {
            Some(at_us) => frame.put(code, &WithMoment(self.to_wire(), at_us)),
            None => frame.put(code, &self.to_wire()),
        }
    }

    fn read(_code: u8, body: &mut &[u8], refused: &mut usize) -> Result<Self, FrameError> {
        let mut question = Self::from_wire(frame::decode(body)?, refused)?;
        if !body.is_empty() {
            question.at_us = Some(frame::decode(body)?);
        }
        Ok(question)
    }
}

impl Body for Reply {
    type Wire = WireReply;

    fn to_wire(&self) -> WireReply {
        let refusal = match self {
            Self::Decided(answer) => {
                return WireReply {
                    code: code::DECIDED,
                    decision: Some(WireDecision::from(answer)),
                };
            }
            Self::Refused(refusal) => refusal,
        };
        WireReply {
            code: match refusal {
                Refusal::Declined => code::DECLINED,
                Refusal::NotServed => code::NOT_SERVED,
                Refusal::TooMany => code::TOO_MANY,
                Refusal::Other => code::OTHER,
            },
            decision: None,
        }
    }

    fn from_wire(wire: WireReply, _: &mut usize) -> Result<Self, FrameError> {
        let refusal = match (wire.code, wire.decision) {
            (code::DECIDED, Some(decision)) => return Ok(Self::Decided(decision.checked()?)),
            (code::DECIDED, None) => return Err(FrameError::Value("dry run answer")),
            (code::DECLINED, _) => Refusal::Declined,
            (code::NOT_SERVED, _) => Refusal::NotServed,
            (code::TOO_MANY, _) => Refusal::TooMany,
            _ => Refusal::Other,
        };
        Ok(Self::Refused(refusal))
    }
}

impl From<&DryRunAnswer> for WireDecision {
    fn from(answer: &DryRunAnswer) -> Self {
        Self {
            worker: answer.worker.as_ref().map(WorkerId::to_string),
            reason: answer.reason.clone(),
            ring: answer.ring,
            settings: answer.settings,
            heat: answer.heat,
            home: answer.home.as_ref().map(WorkerId::to_string),
            expected_tokens: answer.expected_tokens,
        }
    }
}

impl WireDecision {
    fn checked(self) -> Result<DryRunAnswer, FrameError> {
        let worker = |id: Option<String>| {
            let id = id.map(|id| id.parse::<WorkerId>()).transpose();
            id.map_err(|_| FrameError::Value("worker id"))
        };
        let answer = DryRunAnswer {
            worker: worker(self.worker)?,
            reason: self.reason,
            ring: self.ring,
            settings: self.settings,
            heat: self.heat,
            home: worker(self.home)?,
            expected_tokens: self.expected_tokens,
        };
        if answer.is_valid() {
            Ok(answer)
        } else {
            Err(FrameError::Value("dry run answer"))
        }
    }
}

fn wire_link((hash, tokens): (u64, u32)) -> (WireHash, u32) {
    (hash.to_le_bytes(), tokens)
}

fn core_link((hash, tokens): (WireHash, u32)) -> (u64, u32) {
    (u64::from_le_bytes(hash), tokens)
}
