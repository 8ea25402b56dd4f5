//! Is this replica late itself?
//!
//! A replica whose processor is starved fires its timers late, and would take every worker that answers meanwhile for
//! dead (the Lifeguard paper, arXiv 1707.00788, found this the main cause of false alarms). So it measures its own
//! lateness first: what a timer of its own says while it lags, it does not believe.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::metrics::process::ProcessMetrics;
use crate::shutdown::Phase;

/// Between two ticks.
const TICK: Duration = Duration::from_millis(100);
/// A tick that is later than this makes the replica late.
const LATE: Duration = Duration::from_millis(250);
/// Less than this is how timers are.
const USUAL: Duration = Duration::from_millis(5);

/// After a process was stopped and goes on, its timers fire before it has read what its sockets hold (`epoll_wait` is
/// interrupted then). So a replica that overslept reads for this long before it judges a worker by a timer.
pub const LISTEN_FIRST: Duration = Duration::from_millis(250);

/// Whether a timer that has just fired was due so long ago that nothing may be concluded from it.
pub fn overslept(due: Instant) -> bool {
    due.elapsed() > LATE
}

/// What a future that reads from a socket gives; none when it did not in time. Who overslept the limit listens first.
pub async fn read_until<T>(due: Instant, reading: impl Future<Output = T>) -> Option<T> {
    let mut reading = pin!(reading);
    let mut look = due;
    loop {
        match timeout_at(look, reading.as_mut()).await {
            Ok(read) => return Some(read),
            Err(_) if overslept(look) => look = Instant::now() + LISTEN_FIRST,
            Err(_) => return None,
        }
    }
}

/// This process's timer lag.
#[derive(Debug)]
pub struct Lag {
    started: Instant,
    /// Milliseconds since `started`, of the last tick.
    ticked: AtomicU64,
    /// The same, of the last tick that was late; 0: none was.
    late: AtomicU64,
}

impl Default for Lag {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            ticked: AtomicU64::new(0),
            late: AtomicU64::new(0),
        }
    }
}

impl Lag {
    /// Whether a timer was late at any moment since then: what timed out since may have been in time.
    pub fn was_late_since(&self, then: Instant) -> bool {
        let late = self.late.load(Ordering::Relaxed);
        let last = Duration::from_millis(self.ticked.load(Ordering::Relaxed));
        // The tick that would say so may itself be waiting.
        let overdue = self.started.elapsed().saturating_sub(last) > TICK + LATE;
        overdue || (late != 0 && Duration::from_millis(late) >= then - self.started)
    }

    /// Measures until the replica is closed.
    pub async fn measure(self: Arc<Self>, metrics: ProcessMetrics, phase: Phase) {
        loop {
            let before = Instant::now();
            tokio::select! {
                () = phase.closed() => return,
                () = sleep(TICK) => {}
            }
            let lag = before.elapsed().saturating_sub(TICK);
            self.tick(lag);
            if lag > USUAL {
                metrics.timer_lag.inc_by(lag.as_secs_f64());
            }
        }
    }

    fn tick(&self, lag: Duration) {
        let now = self.started.elapsed().as_millis();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        if lag > LATE {
            self.late.store(now.max(1), Ordering::Relaxed);
        }
        self.ticked.store(now, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;
    use tokio::task::yield_now;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn who_overslept_a_limit_reads_what_came_meanwhile() {
        const LIMIT: Duration = Duration::from_secs(1);
        let (answer, answered) = oneshot::channel();
        let reading = tokio::spawn(read_until(Instant::now() + LIMIT, answered));
        yield_now().await;
        advance(LIMIT * 10).await;
        yield_now().await;
        answer.send(7).expect("it still reads");
        assert_eq!(reading.await.expect("ended"), Some(Ok(7)));

        let (_silent, silence) = oneshot::channel::<u8>();
        let began = Instant::now();
        let reading = tokio::spawn(read_until(began + LIMIT, silence));
        yield_now().await;
        advance(LIMIT * 10).await;
        assert_eq!(reading.await.expect("ended"), None);
        assert!(began.elapsed() >= LIMIT * 10 + LISTEN_FIRST);

        let (_silent, silence) = oneshot::channel::<u8>();
        let began = Instant::now();
        assert_eq!(read_until(began + LIMIT, silence).await, None);
        assert!(began.elapsed() < LIMIT + LATE, "it was awake");
    }

    #[tokio::test(start_paused = true)]
    async fn lateness_is_remembered_for_whoever_began_before_it() {
        let lag = Lag::default();
        let early = Instant::now();
        advance(TICK).await;
        lag.tick(Duration::ZERO);
        assert!(!lag.was_late_since(early));
        // Nothing has ticked for a while: late now, although no tick has said so yet.
        advance(TICK + LATE * 2).await;
        assert!(lag.was_late_since(early));
        lag.tick(LATE * 2);
        assert!(lag.was_late_since(early));
        advance(TICK).await;
        lag.tick(Duration::ZERO);
        assert!(lag.was_late_since(early));
        assert!(!lag.was_late_since(Instant::now()));
    }
}
