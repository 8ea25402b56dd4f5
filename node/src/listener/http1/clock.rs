//! The waits between requests: an idle connection is closed quietly, an unfinished head is answered.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::listener::http1_guard::Waits;

/// How long a client has behind an answer, or a connection's beginning, for its next request where the connection is to
/// end and no answer said so: it may have sent it before it sees that. On a busy machine, with a balancer between, this
/// takes hundreds of milliseconds.
pub(in crate::listener) const LAST_CALL: Duration = Duration::from_secs(1);

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The next request.
    Request,
    /// The rest of a head, or of a body that nobody reads.
    Rest,
    /// A request that may be on its way already. The wait for it has begun when that for any request did.
    LastCall,
}

/// Measures one wait after the other.
#[derive(Debug)]
pub(super) struct Clock {
    waits: Waits,
    /// Since when is waited; none: nothing is waited for.
    since: Option<Instant>,
    wait: Wait,
    /// Never later than what is due, often earlier: to set it anew for each request would cost more. None before the first
    /// wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Clock {
    pub(super) fn new(waits: Waits) -> Self {
        Self {
            waits,
            since: None,
            wait: Wait::Request,
            timer: None,
        }
    }

    /// What was waited for has come.
    pub(super) fn stop(&mut self) {
        self.since = None;
    }

    /// Nothing came: ready if it is too late. Called whenever more was waited for in vain.
    pub(super) fn poll_late(&mut self, wait: Wait, cx: &mut Context<'_>) -> Poll<()> {
        let goes_on = self.wait == wait || (self.wait, wait) == (Wait::Request, Wait::LastCall);
        let is_new = self.since.is_none() || !goes_on;
        self.wait = wait;
        let since = match self.since.filter(|_| !is_new) {
            Some(since) => since,
            None => *self.since.insert(Instant::now()),
        };
        let due = since
            + match wait {
                Wait::Request => self.waits.keep_alive,
                Wait::Rest => self.waits.header,
                Wait::LastCall => LAST_CALL,
            };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if due < timer.deadline() {
            timer.as_mut().reset(due);
        }
        loop {
            ready!(timer.as_mut().poll(cx));
            if due <= Instant::now() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(due);
        }
    }
}
