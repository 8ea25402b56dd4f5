//! Which session comes next, and its requests one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Ended, Plan, Stop};
use crate::client::{Ask, Client};

/// The sessions of a run, and where their ended requests go.
pub(super) struct Sessions {
    pub(super) plan: Plan,
    pub(super) stop: Stop,
    client: Arc<Client>,
    start: Instant,
    next: AtomicU64,
    sent: AtomicU64,
    /// `None` once the run is over, so that the receiver comes to its end.
    ended: Mutex<Option<mpsc::Sender<Ended>>>,
}

impl Sessions {
    pub(super) fn new(
        client: Arc<Client>,
        plan: Plan,
        start: Instant,
        stop: &Stop,
        ended: mpsc::Sender<Ended>,
    ) -> Self {
        Self {
            plan,
            stop: stop.clone(),
            client,
            start,
            next: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            ended: Mutex::new(Some(ended)),
        }
    }

    /// The next session, if it may start now.
    pub(super) fn take(&self) -> Option<u64> {
        self.take_due(Instant::now())
    }

    /// The next session, if one may start at `due`.
    pub(super) fn take_due(&self, due: Instant) -> Option<u64> {
        if self.stop.sending.is_cancelled() || due - self.start >= self.plan.duration {
            return None;
        }
        let session = self.next.fetch_add(1, Ordering::Relaxed);
        (self.length(session) > 0).then_some(session)
    }

    /// Requests of a session; the last one of a run may be shorter, and there is none after it.
    pub(super) fn length(&self, session: u64) -> u64 {
        let turns = self.plan.source.turns();
        let before = session.saturating_mul(turns);
        self.plan.requests.saturating_sub(before).min(turns)
    }

    /// Requests sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// No request will be sent any more.
    pub(super) fn close(&self) {
        drop(self.ended.lock().take());
    }

    /// Sends the requests of a session, the first of which is due at `due`. Time and a stop end it between two.
    pub(super) async fn hold(&self, session: u64, due: Instant) {
        let Some(ended) = self.ended.lock().clone() else {
            return;
        };
        let first = (self.plan.first_session + session) * self.plan.source.turns();
        let mut due = due;
        for turn in 0..self.length(session) {
            let is_over =
                self.stop.sending.is_cancelled() || self.start.elapsed() >= self.plan.duration;
            if turn > 0 && is_over {
                return;
            }
            let ask = Ask {
                explain: self.plan.explain,
                ..self.plan.source.ask(first + turn)
            };
            let waited = due.elapsed();
            self.sent.fetch_add(1, Ordering::Relaxed);
            let outcome = tokio::select! {
                outcome = self.client.exchange(&ask, self.plan.timeout) => outcome,
                () = self.stop.waiting.cancelled() => return,
            };
            let one = Ended {
                outcome,
                due,
                waited,
            };
            due = one.at();
            if ended.send(one).await.is_err() {
                return;
            }
        }
    }
}
