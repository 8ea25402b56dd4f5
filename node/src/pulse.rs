//! Whether the lanes go on: each says so some times a second, and others look when it last did.
//!
//! A lane that is blocked, by code that does not return, serves none of its connections, and the rest of the process would
//! not notice: it has threads of its own. Here that is found out and reported. New connections go to other lanes
//! (`lanes`), and the service manager hears of no life any more (`service_manager`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::lag::{LISTEN_FIRST, overslept};
use crate::metrics::Gauge;
use crate::shutdown::Phase;

/// Between two beats. It is shorter than what an attempt waits before it looks at its worker again (250 ms), for tokio
/// wakes a thread by a system call for each timer that ends before all others; where requests come one by one, that
/// would be one for each of them.
const BEAT: Duration = Duration::from_millis(200);
/// Between two looks at the beats.
const LOOK: Duration = Duration::from_secs(1);
/// A lane that has not beaten for longer than this stands still. The longest work between two awaits takes a fraction of
/// it.
pub(crate) const STILL: Duration = Duration::from_secs(5);

/// One lane's. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pulse(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    began: Instant,
    /// Milliseconds after `began`.
    beat: AtomicU64,
}

impl Pulse {
    /// Of a lane that lives at `now`.
    pub fn new(now: Instant) -> Self {
        Self(Arc::new(Shared {
            began: now,
            beat: AtomicU64::new(0),
        }))
    }

    /// Beats for as long as the lane runs it.
    pub async fn run(&self) {
        loop {
            self.beat(Instant::now());
            sleep(BEAT).await;
        }
    }

    fn beat(&self, now: Instant) {
        let since = now.saturating_duration_since(self.0.began).as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.0.beat.store(since, Ordering::Relaxed);
    }

    /// Whether it has not beaten for too long.
    pub fn stands_still(&self, now: Instant) -> bool {
        let beat = Duration::from_millis(self.0.beat.load(Ordering::Relaxed));
        now.saturating_duration_since(self.0.began + beat) > STILL
    }
}

/// Those of all lanes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pulses(Arc<[Pulse]>);

impl FromIterator<Pulse> for Pulses {
    fn from_iter<I: IntoIterator<Item = Pulse>>(pulses: I) -> Self {
        Self(pulses.into_iter().collect())
    }
}

impl Pulses {
    /// Whether every lane goes on.
    pub fn all_beat(&self, now: Instant) -> bool {
        self.still(now).next().is_none()
    }

    /// Numbers of the lanes that stand still.
    fn still(&self, now: Instant) -> impl Iterator<Item = usize> {
        let numbered = self.0.iter().enumerate();
        numbered.filter_map(move |(number, pulse)| pulse.stands_still(now).then_some(number))
    }

    /// Reports lanes that stand still, and those that go on again, until the replica is closed.
    pub async fn watch(self, stalled: Gauge, phase: Phase) {
        let mut known = Vec::new();
        loop {
            let due = Instant::now() + LOOK;
            tokio::select! {
                () = phase.closed() => return,
                () = sleep_until(due) => {}
            }
            if overslept(due) {
                // The whole process stood still; lanes beat once they run again.
                sleep(LISTEN_FIRST).await;
            }
            let still: Vec<usize> = self.still(Instant::now()).collect();
            for lane in still.iter().filter(|lane| !known.contains(*lane)) {
                tracing::error!(
                    lane,
                    "a thread that serves clients stands still, and with it all of its connections"
                );
            }
            for lane in known.iter().filter(|lane| !still.contains(*lane)) {
                tracing::warn!(lane, "a thread that stood still goes on");
            }
            stalled.set(i64::try_from(still.len()).unwrap_or(i64::MAX));
            known = still;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::shutdown::Shutdown;

    #[tokio::test(start_paused = true)]
    async fn a_lane_that_does_not_beat_stands_still_after_a_while() {
        let pulses: Vec<Pulse> = (0..3).map(|_| Pulse::new(Instant::now())).collect();
        let all: Pulses = pulses.iter().cloned().collect();
        advance(STILL).await;
        assert!(all.all_beat(Instant::now()));
        pulses[0].beat(Instant::now());
        pulses[2].beat(Instant::now());
        advance(LOOK).await;
        assert!(!all.all_beat(Instant::now()));
        assert_eq!(all.still(Instant::now()).collect::<Vec<_>>(), [1]);
        pulses[1].beat(Instant::now());
        assert!(all.all_beat(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn who_stands_still_is_counted_until_it_goes_on() {
        let (lives, stuck) = (Pulse::new(Instant::now()), Pulse::new(Instant::now()));
        let pulses = Pulses::from_iter([lives.clone(), stuck.clone()]);
        let (stalled, shutdown) = (Gauge::default(), Shutdown::new());
        let beating = tokio::spawn(async move { lives.run().await });
        let watching = tokio::spawn(pulses.watch(stalled.clone(), shutdown.phase()));
        for (count, within) in [(1, STILL + 3 * LOOK), (0, 3 * LOOK)] {
            let counted = timeout(within, async {
                while stalled.get() != count {
                    sleep(BEAT / 4).await;
                }
            });
            counted.await.expect("in time");
            stuck.beat(Instant::now());
        }
        drop(shutdown);
        watching.await.expect("it ends with the replica");
        beating.abort();
    }
}
