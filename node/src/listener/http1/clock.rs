//! The waits between requests: an idle connection is closed quietly, an unfinished head is answered.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::lag::{LISTEN_FIRST, overslept};
use crate::listener::waits::Waits;

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
    /// None before the first wait.
    timer: Option<Timer>,
}

/// Never set to later than what is due, often to earlier: to set it anew for each request would cost more.
#[derive(Debug)]
struct Timer {
    sleep: Pin<Box<Sleep>>,
    /// What it was set for; it fires later where that was over already, or where it overslept.
    due: Instant,
}

impl Timer {
    fn set_for(&mut self, due: Instant, now: Instant) {
        self.due = due;
        // By its own time it is seen whether it fires late.
        self.sleep.as_mut().reset(due.max(now));
    }
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
        let timer = self.timer.get_or_insert_with(|| Timer {
            sleep: Box::pin(sleep_until(due)),
            due,
        });
        if due < timer.due {
            timer.set_for(due, Instant::now());
        }
        loop {
            ready!(timer.sleep.as_mut().poll(cx));
            let now = Instant::now();
            if due > now {
                timer.set_for(due, now);
            } else if overslept(timer.sleep.deadline()) {
                // What the client said meanwhile was not read yet.
                timer.sleep.as_mut().reset(now + LISTEN_FIRST);
            } else {
                return Poll::Ready(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::{advance, sleep};

    use super::*;

    const WAITS: Waits = Waits {
        header: Duration::from_secs(15),
        keep_alive: Duration::from_secs(75),
    };

    async fn is_late(clock: &mut Clock, wait: Wait) -> bool {
        poll_fn(|cx| Poll::Ready(clock.poll_late(wait, cx).is_ready())).await
    }

    /// No whole milliseconds since the timers began: those are what they count in.
    async fn clock() -> Clock {
        advance(Duration::from_micros(1_300)).await;
        Clock::new(WAITS)
    }

    #[tokio::test(start_paused = true)]
    async fn who_overslept_listens_before_a_client_is_late() {
        for (wait, limit) in [
            (Wait::Request, WAITS.keep_alive),
            (Wait::Rest, WAITS.header),
        ] {
            let mut clock = clock().await;
            assert!(!is_late(&mut clock, wait).await);
            advance(limit + Duration::from_secs(1)).await;
            assert!(!is_late(&mut clock, wait).await, "it slept as well");
            advance(LISTEN_FIRST / 2).await;
            assert!(!is_late(&mut clock, wait).await);
            sleep(LISTEN_FIRST).await;
            assert!(is_late(&mut clock, wait).await);
            // What comes next has all of its time.
            clock.stop();
            let began = Instant::now();
            poll_fn(|cx| clock.poll_late(wait, cx)).await;
            let took = began.elapsed();
            assert!(took >= limit && took < limit + LISTEN_FIRST, "{took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_last_call_that_was_over_when_it_was_asked_for_ends_at_once() {
        let mut clock = clock().await;
        assert!(!is_late(&mut clock, Wait::Request).await);
        sleep(LAST_CALL * 10).await;
        advance(Duration::from_micros(300)).await;
        let began = Instant::now();
        // Others wake the connection, too.
        for _ in 0..3 {
            let _ = is_late(&mut clock, Wait::LastCall).await;
            advance(Duration::from_micros(100)).await;
        }
        poll_fn(|cx| clock.poll_late(Wait::LastCall, cx)).await;
        let took = began.elapsed();
        assert!(took <= Duration::from_millis(3), "{took:?}");
    }
}
