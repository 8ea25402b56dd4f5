//! Answers peers that start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use grapevine_gossip::ReplicaId;
use grapevine_gossip::budget::Budget;
use grapevine_gossip::plane::{Context, Origin, Plane};
use grapevine_gossip::wire::{Extra, Kind, Message, Rate, Role};
use grapevine_kv_events::handover::{FRAME_BYTES_MAX, Question, read_question};

use super::super::caches::Caches;
use super::telling;

/// Number of the answer's kind.
const TELLS: u8 = 129;
const NAME: &str = "kv_handover";

/// Numbers are never used again for anything else.
pub(super) static KINDS: [Kind; 2] = [
    Kind {
        name: "KvHandoverRequest",
        codes: &[128],
        plane: NAME,
        role: Role::Question(&[TELLS]),
        rate: Rate::Own,
        body_max: 8 * 1024,
    },
    Kind {
        name: "KvHandover",
        codes: &[TELLS],
        plane: NAME,
        role: Role::Answer,
        rate: Rate::Own,
        body_max: FRAME_BYTES_MAX,
    },
];

/// Questions that one peer gets answered at once, and in each second behind them; each costs a walk through the index.
const QUESTIONS_AT_ONCE: u32 = 200;
const QUESTIONS_PER_S: u32 = 3;

/// Answers peers that start with what is known here.
pub struct HandoverPlane {
    caches: Arc<Caches>,
    /// What each peer may ask still.
    asked: BTreeMap<ReplicaId, Budget>,
}

impl HandoverPlane {
    /// Tells what these know.
    pub fn new(caches: Arc<Caches>) -> Self {
        Self {
            caches,
            asked: BTreeMap::new(),
        }
    }

    fn may_ask(&mut self, peer: &ReplicaId, now: Instant) -> bool {
        let full = || Budget::new(QUESTIONS_PER_S, QUESTIONS_AT_ONCE, now);
        let budget = self.asked.entry(peer.clone()).or_insert_with(full);
        let is_open = budget.is_open(now);
        if is_open {
            budget.spend(1);
        }
        is_open
    }
}

impl Plane for HandoverPlane {
    fn names(&self) -> &'static [&'static str] {
        &[NAME]
    }

    fn kinds(&self) -> &'static [Kind] {
        &KINDS
    }

    fn on_message(&mut self, from: Origin<'_>, message: Message, cx: &mut Context) {
        let Message::Extra(question) = message else {
            return;
        };
        if !self.may_ask(from.peer, cx.now) {
            return cx.refuse(from.peer);
        }
        // One of a later release gets no answer, as if nothing were known.
        let Ok(question) = read_question(&question.body) else {
            return;
        };
        let caches = Arc::clone(&self.caches);
        cx.answer_at_length(move || {
            let frames = match question {
                Question::Engines(after) => telling::engines(&caches, after.as_ref()),
                Question::Texts(after) => telling::texts(&caches, after),
            };
            let frame = |body| {
                let kind = &KINDS[1];
                Message::Extra(Extra { kind, body })
            };
            frames.into_iter().map(frame).collect()
        });
    }

    fn on_left(&mut self, peer: &ReplicaId, _: &mut Context) {
        self.asked.remove(peer);
    }
}
