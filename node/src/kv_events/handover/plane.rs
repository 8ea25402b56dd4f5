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
/// Most frames of an answer: a page, and one more engine or run.
const ANSWER_FRAMES_MAX: usize = 256;

/// Numbers are never used again for anything else.
pub(super) static KINDS: [Kind; 2] = [
    Kind {
        name: "KvHandoverRequest",
        codes: &[128],
        plane: NAME,
        role: Role::Question {
            by: &[TELLS],
            frames: ANSWER_FRAMES_MAX,
        },
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
/// Peers of which it is remembered what they asked; more than a cluster has.
const ASKED_MAX: usize = 1_024;

/// Answers peers that start with what is known here.
pub struct HandoverPlane {
    caches: Arc<Caches>,
    /// What peers asked. It stays when one leaves: to come again is no new allowance.
    asked: BTreeMap<ReplicaId, Asked>,
}

/// What one peer asked.
struct Asked {
    /// What it may ask still.
    budget: Budget,
    /// Shared while an answer is in the making: it takes as much memory as a page.
    at_work: Arc<()>,
}

/// What becomes of a question.
#[derive(Debug)]
enum Verdict {
    /// It is answered, and no other one of its peer until this is dropped.
    Answered(Arc<()>),
    /// It gets no answer, as if nothing were known: the one before is still being made.
    AtWork,
    /// Its peer asks too much.
    Refused,
}

impl HandoverPlane {
    /// Tells what these know.
    pub fn new(caches: Arc<Caches>) -> Self {
        Self {
            caches,
            asked: BTreeMap::new(),
        }
    }

    fn judge(&mut self, peer: &ReplicaId, now: Instant) -> Verdict {
        if self.asked.len() >= ASKED_MAX && !self.asked.contains_key(peer) {
            self.asked.retain(|_, asked| !asked.budget.is_full(now));
            if self.asked.len() >= ASKED_MAX {
                return Verdict::Refused;
            }
        }
        let asked = self.asked.entry(peer.clone()).or_insert_with(|| Asked {
            budget: Budget::new(QUESTIONS_PER_S, QUESTIONS_AT_ONCE, now),
            at_work: Arc::default(),
        });
        if !asked.budget.is_open(now) {
            return Verdict::Refused;
        }
        asked.budget.spend(1);
        match Arc::strong_count(&asked.at_work) {
            1 => Verdict::Answered(Arc::clone(&asked.at_work)),
            _ => Verdict::AtWork,
        }
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
        let at_work = match self.judge(from.peer, cx.now) {
            Verdict::Answered(at_work) => at_work,
            Verdict::AtWork => return,
            Verdict::Refused => return cx.refuse(from.peer),
        };
        // One of a later release gets no answer, as if nothing were known.
        let Ok(question) = read_question(&question.body) else {
            return;
        };
        let caches = Arc::clone(&self.caches);
        cx.answer_at_length(move || {
            let _until_made = at_work;
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
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::alone::Alone;
    use crate::config::KvEventsConfig;

    fn plane() -> HandoverPlane {
        let alone = Alone::new("r1", [], &KvEventsConfig::default(), 0);
        HandoverPlane::new(alone.caches)
    }

    fn peer(number: usize) -> ReplicaId {
        format!("r{number}").parse().expect("an id")
    }

    #[test]
    fn a_peer_is_made_one_page_at_a_time() {
        let (mut plane, now) = (plane(), tokio::time::Instant::now().into_std());
        let Verdict::Answered(first) = plane.judge(&peer(1), now) else {
            panic!("its first question")
        };
        assert!(matches!(plane.judge(&peer(1), now), Verdict::AtWork));
        assert!(matches!(plane.judge(&peer(2), now), Verdict::Answered(_)));
        drop(first);
        assert!(matches!(plane.judge(&peer(1), now), Verdict::Answered(_)));
    }

    #[test]
    fn what_was_asked_is_remembered_of_so_many_peers_and_no_longer_than_it_counts() {
        let (mut plane, now) = (plane(), tokio::time::Instant::now().into_std());
        for _ in 0..QUESTIONS_AT_ONCE {
            assert!(matches!(plane.judge(&peer(0), now), Verdict::Answered(_)));
        }
        assert!(matches!(plane.judge(&peer(0), now), Verdict::Refused));
        for number in 1..ASKED_MAX {
            assert!(matches!(
                plane.judge(&peer(number), now),
                Verdict::Answered(_)
            ));
        }
        assert!(matches!(
            plane.judge(&peer(ASKED_MAX), now),
            Verdict::Refused
        ));
        // One question is forgiven soon, two hundred later.
        let soon = now + Duration::from_secs(1);
        assert!(matches!(
            plane.judge(&peer(ASKED_MAX), soon),
            Verdict::Answered(_)
        ));
        assert_eq!(plane.asked.len(), 2);
        assert!(plane.asked.contains_key(&peer(0)));
    }
}
