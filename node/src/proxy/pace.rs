//! Pace: whether a body that is being read keeps up.
//!
//! A body holds a place to be read by. While nobody waits for one it may be slow; while others do, a few slow ones would
//! keep all of them out, and with them the models that have room.

use std::time::Duration;

use tokio::time::Instant;

/// Slowest body that is waited for, in bytes a second.
const BYTES_PER_SECOND_MIN: u64 = 1024;
/// The same while others wait to be read. A body that comes within the time limit is never slow.
const BYTES_PER_SECOND_CROWDED: u64 = 64 * 1024;

/// One stretch after the other, each at most so long: a body that came fast for a while has no right to be silent for
/// longer afterwards.
#[derive(Debug)]
struct Stretch {
    enough: u64,
    since: Instant,
    bytes: u64,
}

impl Stretch {
    fn new(bytes_per_second: u64, progress: Duration, now: Instant) -> Self {
        Self {
            enough: (bytes_per_second as f64 * progress.as_secs_f64()) as u64,
            since: now,
            bytes: 0,
        }
    }

    fn received(&mut self, bytes: u64, now: Instant) {
        self.bytes += bytes;
        if self.bytes >= self.enough {
            self.begin(now);
        }
    }

    fn begin(&mut self, now: Instant) {
        self.since = now;
        self.bytes = 0;
    }
}

/// Whether a body keeps up; `F` says whether others wait to be read.
#[derive(Debug)]
pub(super) struct Pace<F> {
    progress: Duration,
    always: Stretch,
    crowded: Stretch,
    is_crowded: F,
}

impl<F: Fn() -> bool> Pace<F> {
    /// `progress`: the longest time below a pace.
    pub(super) fn new(progress: Duration, now: Instant, is_crowded: F) -> Self {
        Self {
            progress,
            always: Stretch::new(BYTES_PER_SECOND_MIN, progress, now),
            crowded: Stretch::new(BYTES_PER_SECOND_CROWDED, progress, now),
            is_crowded,
        }
    }

    /// When it is to be judged unless more comes.
    pub(super) fn deadline(&self) -> Instant {
        self.always.since.min(self.crowded.since) + self.progress
    }

    /// More has come.
    pub(super) fn received(&mut self, bytes: u64, now: Instant) {
        self.always.received(bytes, now);
        self.crowded.received(bytes, now);
    }

    /// Whether it is too slow, at its deadline.
    pub(super) fn is_too_slow(&mut self, now: Instant) -> bool {
        let is_over = |stretch: &Stretch| stretch.since + self.progress <= now;
        if is_over(&self.always) {
            return true;
        }
        if is_over(&self.crowded) {
            if (self.is_crowded)() {
                return true;
            }
            self.crowded.begin(now);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a body that gets these many bytes each second, in turn, is given up, if it is before all have come; others wait
    /// from this second on.
    fn ended(each_second: impl IntoIterator<Item = u64>, crowded_from: u64) -> u64 {
        let began = Instant::now();
        let now = std::cell::Cell::new(began);
        let crowded_from = began + Duration::from_secs(crowded_from);
        let mut pace = Pace::new(Duration::from_secs(30), began, || now.get() >= crowded_from);
        // Nothing comes after the last ones.
        let each_second = each_second.into_iter().map(Some).chain([None]);
        for (second, bytes) in (1..).zip(each_second) {
            let next = bytes.map(|_| began + Duration::from_secs(second));
            while next.is_none_or(|next| pace.deadline() < next) {
                now.set(pace.deadline());
                if pace.is_too_slow(now.get()) {
                    return (now.get() - began).as_secs();
                }
            }
            now.set(next.expect("the last ones ended"));
            pace.received(bytes.unwrap_or(0), now.get());
        }
        unreachable!("silence ends")
    }

    const NEVER: u64 = 1 << 20;

    #[test]
    fn silence_and_drips_end_after_the_limit() {
        for crowded_from in [0, NEVER] {
            assert_eq!(ended([], crowded_from), 30);
            assert_eq!(ended(vec![1; 600], crowded_from), 30);
            assert_eq!(ended(vec![1_000; 600], crowded_from), 30);
        }
        // Enough, and then silence: a new stretch begins with the second that completed the last one.
        assert_eq!(ended([16 << 20, 0], NEVER), 31);
        assert_eq!(ended([vec![1_024; 60], vec![1; 600]].concat(), NEVER), 90);
        assert!(ended(vec![1_024; 600], NEVER) > 600);
    }

    #[test]
    fn while_others_wait_a_body_has_to_be_faster() {
        assert_eq!(ended(vec![1_024; 600], 0), 30);
        assert_eq!(ended(vec![60 << 10; 600], 0), 30);
        // Within one more stretch of their coming.
        let crowded = ended(vec![1_024; 600], 100);
        assert!((100..=130).contains(&crowded), "{crowded}");
        assert!(ended(vec![64 << 10; 600], 0) > 600);
    }
}
