//! For how long a connection has had no request in progress. hyper has no limit on that. What is done when the time is
//! over is not decided here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::http::progress::{InProgress, Progress};
use crate::lag::{LISTEN_FIRST, overslept};
use crate::listener::http1::LAST_CALL;

/// How long a client may have nothing to ask.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rests {
    /// Before its first request.
    pub(super) first: Duration,
    /// Between two requests.
    pub(super) between: Duration,
    /// Once the connection is to end, for a client that may not have taken all of its last answer: up to a frame of an
    /// answer that has ended lies in h2, which counts for no request any more.
    pub(super) last: Duration,
}

/// Watches one connection.
#[derive(Debug)]
pub(super) struct Rest<'a> {
    progress: &'a Progress,
    rests: Rests,
    /// What came before, a handshake of TLS for one, was no silence.
    began: Instant,
    has_asked: AtomicBool,
}

impl<'a> Rest<'a> {
    /// HTTP/2 begins.
    pub(super) fn new(progress: &'a Progress, rests: Rests) -> Self {
        Self {
            progress,
            rests,
            began: Instant::now(),
            has_asked: AtomicBool::new(false),
        }
    }

    /// A request begins.
    pub(super) fn ends(&self) -> InProgress {
        self.has_asked.store(true, Ordering::Relaxed);
        self.progress.begin()
    }

    /// Whether there was a request.
    pub(super) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// Returns once the client has asked for nothing for as long as it may.
    pub(super) async fn is_over(&self) {
        let Rests { first, between, .. } = self.rests;
        let longest = || if self.has_asked() { between } else { first };
        self.lasted(self.began, longest).await;
    }

    /// The same for a client that is told by now to ask elsewhere. It may have asked before it hears that.
    pub(super) async fn is_over_at_last(&self) {
        let last = self.rests.last;
        let longest = || if self.has_asked() { last } else { LAST_CALL };
        self.lasted(Instant::now(), longest).await;
    }

    /// Returns once nothing has been in progress for so long, counted from `from` at the earliest.
    async fn lasted(&self, from: Instant, longest: impl Fn() -> Duration) {
        loop {
            let now = Instant::now();
            // A request in progress: what begins behind it is not over any sooner.
            let since = self.progress.idle_since().unwrap_or(now).max(from);
            let due = since + longest();
            if due <= now {
                return;
            }
            sleep_until(due).await;
            if overslept(due) {
                // What the client said meanwhile was not read yet.
                sleep(LISTEN_FIRST).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    const STEP: Duration = Duration::from_secs(1);
    const RESTS: Rests = Rests {
        first: Duration::from_secs(10),
        between: Duration::from_secs(75),
        last: Duration::from_secs(60),
    };

    /// How long this takes in virtual time.
    async fn took(over: impl Future<Output = ()>) -> Duration {
        let began = Instant::now();
        over.await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_its_time_from_the_beginning_and_from_the_end_of_each_answer() {
        let progress = Progress::default();
        // A handshake.
        advance(STEP).await;
        let rest = Rest::new(&progress, RESTS);
        assert_eq!(took(rest.is_over()).await, RESTS.first);
        let streams = [rest.ends(), rest.ends()];
        let over = took(rest.is_over());
        let stream = async {
            for stream in streams {
                sleep(2 * RESTS.between).await;
                drop(stream);
            }
        };
        let (over, ()) = tokio::join!(over, stream);
        assert_eq!(over, 5 * RESTS.between, "within no answer");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_told_to_ask_elsewhere_has_a_moment_or_the_time_to_take_its_answer() {
        let progress = Progress::default();
        let rest = Rest::new(&progress, RESTS);
        advance(RESTS.first).await;
        assert_eq!(took(rest.is_over_at_last()).await, LAST_CALL);
        let stream = rest.ends();
        let within = timeout(10 * RESTS.last, rest.is_over_at_last()).await;
        assert!(within.is_err(), "its answer is not over");
        drop(stream);
        assert_eq!(took(rest.is_over_at_last()).await, RESTS.last);
    }
}
