//! What one connection is doing: answering, or idle and since when; and the word that it should leave.
//!
//! Shared by the connection's own task, which writes it, and by [`crate::seats`], which reads it of all connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How far a connection is: a request is in progress from its head to the end of its answer. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Progress(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    accepted: Instant,
    /// Requests in progress.
    requests: AtomicU32,
    /// The client does not take what is to be sent.
    is_write_blocked: AtomicBool,
    /// Its client took nothing for too long.
    has_stalled: AtomicBool,
    /// Milliseconds after `accepted`, of the end of the last answer; 0: there was none.
    ended: AtomicU64,
    /// The connection speaks another protocol from now on.
    has_switched: AtomicBool,
    leave: Notify,
    is_told: AtomicBool,
}

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(Shared {
            accepted: Instant::now(),
            requests: AtomicU32::new(0),
            is_write_blocked: AtomicBool::new(false),
            has_stalled: AtomicBool::new(false),
            ended: AtomicU64::new(0),
            has_switched: AtomicBool::new(false),
            leave: Notify::new(),
            is_told: AtomicBool::new(false),
        }))
    }
}

impl Progress {
    /// A request begins. HTTP/1 has one at a time.
    pub fn begin(&self) -> InProgress {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        InProgress(self.clone())
    }

    /// The answer to the request in progress is the last of HTTP.
    pub(crate) fn switch(&self) {
        self.0.has_switched.store(true, Ordering::Relaxed);
    }

    /// Whether a request is in progress, or its answer still on the way out.
    pub fn is_busy(&self) -> bool {
        self.0.requests.load(Ordering::Relaxed) > 0
            || self.0.is_write_blocked.load(Ordering::Relaxed)
    }

    /// Whether an answer has ended.
    pub(crate) fn has_answered(&self) -> bool {
        self.0.ended.load(Ordering::Relaxed) > 0
    }

    /// When the last answer ended; before the first one, when the connection was accepted.
    pub fn ended(&self) -> Instant {
        self.0.accepted + Duration::from_millis(self.0.ended.load(Ordering::Relaxed))
    }

    /// Since when nothing is in progress. A head that has begun is nothing yet: a client that never ends it must not
    /// stay because of it. A tunnel has limits of its own on silence.
    pub fn idle_since(&self) -> Option<Instant> {
        (!self.is_busy() && !self.0.has_switched.load(Ordering::Relaxed)).then(|| self.ended())
    }

    /// Whether the last write has to wait for the client.
    pub(crate) fn set_write_blocked(&self, is_blocked: bool) {
        self.0.is_write_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// The client took nothing for longer than it may.
    pub(crate) fn set_stalled(&self) {
        self.0.has_stalled.store(true, Ordering::Relaxed);
    }

    /// Whether the connection ended because of that.
    pub(crate) fn has_stalled(&self) -> bool {
        self.0.has_stalled.load(Ordering::Relaxed)
    }

    /// Tells the connection to leave, once.
    pub(crate) fn tell_to_leave(&self) {
        self.0.is_told.store(true, Ordering::Relaxed);
        self.0.leave.notify_one();
    }

    /// Whether the connection was asked to leave.
    pub(crate) fn is_told(&self) -> bool {
        self.0.is_told.load(Ordering::Relaxed)
    }

    /// Returns when the connection is asked to leave, once.
    pub async fn told_to_leave(&self) {
        self.0.leave.notified().await;
    }
}

/// A request in progress; dropped with its answer.
#[derive(Debug)]
pub struct InProgress(Progress);

impl Drop for InProgress {
    fn drop(&mut self) {
        let shared = &self.0.0;
        let ended = u64::try_from(shared.accepted.elapsed().as_millis()).unwrap_or(u64::MAX);
        shared.ended.store(ended.max(1), Ordering::Relaxed);
        shared.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn idle_is_neither_within_a_request_nor_before_its_answer_is_out() {
        let progress = Progress::default();
        let accepted = Instant::now();
        assert_eq!(progress.idle_since(), Some(accepted));
        let streams = [progress.begin(), progress.begin()];
        for stream in streams {
            tokio::time::advance(STEP).await;
            assert_eq!(progress.idle_since(), None);
            drop(stream);
        }
        progress.set_write_blocked(true);
        assert_eq!(progress.idle_since(), None);
        progress.set_write_blocked(false);
        assert_eq!(progress.idle_since(), Some(accepted + 2 * STEP));
    }
}
