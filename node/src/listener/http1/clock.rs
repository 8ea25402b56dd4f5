//! The two waits between requests: an idle connection is closed quietly, an unfinished head is answered.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::listener::http1_guard::Waits;

/// Measures one wait after the other.
#[derive(Debug)]
pub(super) struct Clock {
    waits: Waits,
    /// Since when is waited; none: nothing is waited for.
    since: Option<Instant>,
    is_within_head: bool,
    /// Never later than what is due, often earlier: to set it anew for each request would cost more. None before the first
    /// wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Clock {
    pub(super) fn new(waits: Waits) -> Self {
        Self {
            waits,
            since: None,
            is_within_head: false,
            timer: None,
        }
    }

    /// What was waited for has come.
    pub(super) fn stop(&mut self) {
        self.since = None;
    }

    /// Nothing came: ready if it is too late. Called whenever more was waited for in vain.
    pub(super) fn poll_late(&mut self, is_within_head: bool, cx: &mut Context<'_>) -> Poll<()> {
        let is_new = self.since.is_none() || self.is_within_head != is_within_head;
        self.is_within_head = is_within_head;
        let since = match self.since.filter(|_| !is_new) {
            Some(since) => since,
            None => *self.since.insert(Instant::now()),
        };
        let due = since
            + match is_within_head {
                true => self.waits.header,
                false => self.waits.keep_alive,
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
