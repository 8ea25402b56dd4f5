//! Dry runs as they travel. Hashes take eight bytes each, as in evidence.

use crate::dry_run::{DryRun, DryRunAnswer, KeyParts, Refusal, Reply};
use crate::frame::{Decode, Encode, FrameError};
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

impl From<&DryRun> for WireQuestion {
    fn from(question: &DryRun) -> Self {
        let key = &question.key;
        Self {
            pool: question.pool.clone(),
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
}

impl WireQuestion {
    pub(super) fn checked(self) -> Result<DryRun, FrameError> {
        let question = DryRun {
            pool: self.pool,
            key: KeyParts {
                model: u64::from_le_bytes(self.model),
                group: self.group.map(core_link),
                home: u64::from_le_bytes(self.home),
                session: self.session.map(u64::from_le_bytes),
                user: self.user.map(u64::from_le_bytes),
                stable_tokens: self.stable_tokens,
                prompt_tokens: self.prompt_tokens,
                marks: self.marks.into_iter().map(core_link).collect(),
            },
        };
        if question.is_valid() {
            Ok(question)
        } else {
            Err(FrameError::Value("dry run"))
        }
    }
}

impl From<&Reply> for WireReply {
    fn from(reply: &Reply) -> Self {
        let refusal = match reply {
            Reply::Decided(answer) => {
                return Self {
                    code: code::DECIDED,
                    decision: Some(WireDecision::from(answer)),
                };
            }
            Reply::Refused(refusal) => refusal,
        };
        Self {
            code: match refusal {
                Refusal::Declined => code::DECLINED,
                Refusal::NotServed => code::NOT_SERVED,
                Refusal::TooMany => code::TOO_MANY,
                Refusal::Other => code::OTHER,
            },
            decision: None,
        }
    }
}

impl WireReply {
    pub(super) fn checked(self) -> Result<Reply, FrameError> {
        let refusal = match (self.code, self.decision) {
            (code::DECIDED, Some(decision)) => return Ok(Reply::Decided(decision.checked()?)),
            (code::DECIDED, None) => return Err(FrameError::Value("dry run answer")),
            (code::DECLINED, _) => Refusal::Declined,
            (code::NOT_SERVED, _) => Refusal::NotServed,
            (code::TOO_MANY, _) => Refusal::TooMany,
            _ => Refusal::Other,
        };
        Ok(Reply::Refused(refusal))
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
