//! Dry runs between replicas: one peer asked, and peers answered.

use std::sync::Arc;
use std::time::Instant;

use crate::dry_run::{AskError, DryRun, DryRunAnswer, Permit, Quota, Refusal, Reply};
use crate::load::LoadBoard;
use crate::metrics::{DryRuns, Metrics};
use crate::peers::Reason;
use crate::plane::{Context, Origin, Plane, RequestError, Surroundings};
use crate::replica::ReplicaId;
use crate::wire::{Message, Received};

/// What answers the questions of peers: `None` if it cannot decide, for example about an unknown pool. The moment is the
/// one that the question is about, by this replica's clock: `None` is now.
pub type DryRunHandler = Arc<dyn Fn(DryRun, Option<Instant>) -> Option<DryRunAnswer> + Send + Sync>;

/// The peers that this replica may ask, and those that it answers.
pub(crate) struct DryRunPlane {
    handler: Option<DryRunHandler>,
    /// Knows the clocks of peers.
    board: Arc<LoadBoard>,
    asked: Quota,
    answered: Quota,
    metrics: Metrics,
}

impl DryRunPlane {
    pub(crate) fn new(board: Arc<LoadBoard>, metrics: Metrics) -> Self {
        Self {
            handler: None,
            board,
            asked: Quota::asking(),
            answered: Quota::answering(),
            metrics,
        }
    }

    /// Takes what answers.
    pub(crate) fn serve(&mut self, handler: DryRunHandler) {
        self.handler = Some(handler);
    }

    /// Leave to ask a peer, until it is dropped.
    /// Errors: `TooMany`.
    pub(crate) fn may_ask(&mut self, peer: &ReplicaId, now: Instant) -> Result<Permit, AskError> {
        self.asked.open(peer, now).ok_or(AskError::TooMany)
    }
}

/// The decision in what came back to a question.
/// Errors: every one but `Malformed` and `TooMany`.
pub(crate) fn decision(
    answer: Result<Vec<Received>, RequestError>,
) -> Result<DryRunAnswer, AskError> {
    let frames = answer.map_err(|error| match error {
        RequestError::Slow => AskError::TimedOut,
        RequestError::NotLinked => AskError::NotLinked,
        RequestError::Broken => AskError::Broken,
    })?;
    let first = frames.into_iter().next().ok_or(AskError::TooOld)?;
    match first.message {
        Some(Message::DryRunAnswer(reply)) => match *reply {
            Reply::Decided(answer) => Ok(answer),
            Reply::Refused(refusal) => Err(AskError::Refused(refusal)),
        },
        _ => Err(AskError::Broken),
    }
}

impl Plane for DryRunPlane {
    fn names(&self) -> &'static [&'static str] {
        &["dry_run"]
    }

    /// Answers always: silence means a release that knows no dry runs.
    fn on_message(&mut self, from: Origin<'_>, message: Message, cx: &mut Context) {
        let Message::DryRunRequest(question) = message else {
            return;
        };
        let metrics = self.metrics.clone();
        let Some(open) = self.answered.open(from.peer, cx.now) else {
            cx.strike(from.peer, Reason::TooMany);
            return cx.answer(counted(&metrics, Reply::Refused(Refusal::TooMany)));
        };
        let handler = self.handler.clone();
        let at = question
            .at_us
            .map(|at_us| self.board.moment_of(from.peer, at_us));
        if at == Some(None) {
            // Of another moment is no answer. Its clock is known by its first frame of load, which is soon.
            return cx.answer(counted(&metrics, Reply::Refused(Refusal::Declined)));
        }
        cx.answer_later(move || {
            let _open = open;
            let reply = decide(handler, Arc::unwrap_or_clone(question), at.flatten());
            vec![counted(&metrics, reply)]
        });
    }

    /// Forgets peers that ask no more, whether they left or died.
    fn on_tick(&mut self, _: &Surroundings, cx: &mut Context) -> Option<Instant> {
        self.asked.expire(cx.now);
        self.answered.expire(cx.now);
        None
    }
}

#[cfg(test)]
impl super::tests::Remembers for DryRunPlane {
    fn remembers(&self, peer: &ReplicaId) -> Vec<&'static str> {
        let Self {
            handler: _,
            board: _,
            asked,
            answered,
            metrics: _,
        } = self;
        super::tests::named([
            ("asked", asked.remembers(peer)),
            ("answered", answered.remembers(peer)),
        ])
    }
}

fn decide(handler: Option<DryRunHandler>, question: DryRun, at: Option<Instant>) -> Reply {
    let Some(handler) = handler else {
        return Reply::Refused(Refusal::NotServed);
    };
    match handler(question, at) {
        Some(answer) if answer.is_valid() => Reply::Decided(answer),
        Some(answer) => {
            tracing::error!(
                reason = answer.reason,
                "the answer to a dry run breaks a limit; refused instead"
            );
            Reply::Refused(Refusal::Declined)
        }
        None => Reply::Refused(Refusal::Declined),
    }
}

/// Counts a reply and makes it a message.
fn counted(metrics: &Metrics, reply: Reply) -> Message {
    let outcome = match &reply {
        Reply::Decided(_) => "decided",
        Reply::Refused(Refusal::TooMany) => "too_many",
        Reply::Refused(Refusal::NotServed) => "not_served",
        Reply::Refused(Refusal::Declined | Refusal::Other) => "declined",
    };
    let labels = DryRuns {
        side: "answered",
        outcome,
    };
    metrics.dry_runs.get_or_create(&labels).inc();
    Message::DryRunAnswer(Box::new(reply))
}
