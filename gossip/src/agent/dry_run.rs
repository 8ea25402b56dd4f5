//! Dry runs: one peer asked, and peers answered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Instant, timeout};

use super::core::Core;
use super::exchange::request;
use crate::dry_run::{ASK_WITHIN, AskError, DryRun, DryRunAnswer, Quota, Refusal, Reply};
use crate::firewall::Reason;
use crate::metrics::DryRuns;
use crate::replica::ReplicaId;
use crate::transport::RequestError;
use crate::wire::{Message, Received};

/// What answers the questions of peers: `None` if it cannot decide, for example about an unknown pool.
pub type DryRunHandler = Arc<dyn Fn(DryRun) -> Option<DryRunAnswer> + Send + Sync>;

/// The agent's part of dry runs.
pub(super) struct DryRunDesk {
    handler: Mutex<Option<DryRunHandler>>,
    asked: Mutex<Quota>,
    answered: Mutex<Quota>,
}

impl Default for DryRunDesk {
    fn default() -> Self {
        Self {
            handler: Mutex::default(),
            asked: Mutex::new(Quota::asking()),
            answered: Mutex::new(Quota::answering()),
        }
    }
}

impl DryRunDesk {
    pub(super) fn serve(&self, handler: DryRunHandler) {
        *lock(&self.handler) = Some(handler);
    }
}

/// A question that counts as open until it is dropped, answered or not.
struct Open<'a> {
    quota: &'a Mutex<Quota>,
    peer: &'a ReplicaId,
}

impl<'a> Open<'a> {
    fn new(quota: &'a Mutex<Quota>, peer: &'a ReplicaId) -> Option<Self> {
        let now = Instant::now().into_std();
        // Only what was opened may be closed, and not under the lock: a refused one is never made.
        let is_open = lock(quota).open(peer, now);
        is_open.then(|| Self { quota, peer })
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        lock(self.quota).close(self.peer);
    }
}

impl Core {
    /// Asks a peer, and counts what became of it.
    pub(super) async fn ask(
        &self,
        peer: &ReplicaId,
        question: DryRun,
    ) -> Result<DryRunAnswer, AskError> {
        let result = self.try_ask(peer, question).await;
        let outcome = match &result {
            Ok(_) => "answered",
            Err(error) => error.label(),
        };
        self.count_dry_run("asked", outcome);
        result
    }

    async fn try_ask(&self, peer: &ReplicaId, question: DryRun) -> Result<DryRunAnswer, AskError> {
        if !question.is_valid() {
            return Err(AskError::Malformed);
        }
        let is_linked = |net: &super::core::Net| net.transport.linked().contains(peer);
        if !self.net.as_ref().is_some_and(is_linked) {
            return Err(AskError::NotLinked);
        }
        let _open = Open::new(&self.dry_runs.asked, peer).ok_or(AskError::TooMany)?;
        let question = Message::DryRunRequest(Arc::new(question));
        let answer = timeout(ASK_WITHIN, request(self, peer, &question)).await;
        let frames = match answer {
            Err(_) | Ok(Err(RequestError::Slow)) => return Err(AskError::TimedOut),
            Ok(Err(RequestError::NotLinked)) => return Err(AskError::NotLinked),
            Ok(Err(RequestError::Broken)) => return Err(AskError::Broken),
            Ok(Ok(frames)) => frames,
        };
        match frames.into_iter().next() {
            None => Err(AskError::TooOld),
            Some(Received {
                message: Some(Message::DryRunAnswer(reply)),
                ..
            }) => match *reply {
                Reply::Decided(answer) => Ok(answer),
                Reply::Refused(refusal) => Err(AskError::Refused(refusal)),
            },
            Some(_) => Err(AskError::Broken),
        }
    }

    /// Answers a question of a peer, always with a word: silence means a release that knows none.
    pub(super) fn dry_run(&self, from: &ReplicaId, question: &DryRun) -> Vec<Message> {
        let reply = self.decide(from, question);
        let outcome = match &reply {
            Reply::Decided(_) => "decided",
            Reply::Refused(Refusal::TooMany) => "too_many",
            Reply::Refused(Refusal::NotServed) => "not_served",
            Reply::Refused(Refusal::Declined | Refusal::Other) => "declined",
        };
        self.count_dry_run("answered", outcome);
        vec![Message::DryRunAnswer(Box::new(reply))]
    }

    fn decide(&self, from: &ReplicaId, question: &DryRun) -> Reply {
        let Some(_open) = Open::new(&self.dry_runs.answered, from) else {
            if let Some(net) = &self.net {
                net.transport.strike(from, Reason::TooMany);
            }
            return Reply::Refused(Refusal::TooMany);
        };
        let handler = lock(&self.dry_runs.handler).clone();
        let Some(handler) = handler else {
            return Reply::Refused(Refusal::NotServed);
        };
        match handler(question.clone()) {
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

    /// Connected peers that are alive to us and say that they take requests.
    pub(super) fn ready_peers(&self) -> Vec<ReplicaId> {
        let Some(net) = &self.net else {
            return Vec::new();
        };
        let linked = net.transport.linked();
        let view = self.view.borrow();
        let ready = view
            .replicas()
            .iter()
            .filter(|seen| seen.live && seen.ready);
        let ids = ready.map(|seen| &seen.id);
        ids.filter(|id| **id != self.replica && linked.contains(id))
            .cloned()
            .collect()
    }

    fn count_dry_run(&self, side: &'static str, outcome: &'static str) {
        self.metrics
            .dry_runs
            .get_or_create(&DryRuns { side, outcome })
            .inc();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under these locks is one call into a pure part, whole or not made.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
