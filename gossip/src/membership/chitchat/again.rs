//! When a replica writes its facts again, under higher versions.
//!
//! Pure.

use std::time::Duration;

use tokio::time::Instant;

/// When own facts are written again.
pub(super) struct Again {
    written: Instant,
    /// The last time for the sake of what a peer holds.
    outdid: Option<Instant>,
    /// A peer holds more than was written.
    pub(super) is_outdone: bool,
}

impl Again {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            written: now,
            outdid: None,
            is_outdone: false,
        }
    }

    pub(super) fn due(&self) -> Instant {
        let regular = self.written + WRITTEN_EACH;
        match (self.is_outdone, self.outdid) {
            (true, Some(at)) => regular.min(at + OUTDONE_PAUSE),
            (true, None) => self.written,
            (false, _) => regular,
        }
    }

    pub(super) fn written(&mut self, now: Instant) {
        self.written = now;
        if std::mem::take(&mut self.is_outdone) {
            self.outdid = Some(now);
        }
    }
}

/// Own facts are written again so often although nobody is known to hold forged ones: some may have the versions of true ones.
const WRITTEN_EACH: Duration = Duration::from_secs(60);
/// Between two times for the sake of what a peer holds: it may lie, all the time.
const OUTDONE_PAUSE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn facts_are_written_each_minute_and_for_a_liar_each_ten_seconds() {
        let began = Instant::now();
        let mut again = Again::new(began);
        assert_eq!(again.due(), began + WRITTEN_EACH);
        again.is_outdone = true;
        assert_eq!(again.due(), began, "at once");
        again.written(began);
        assert_eq!(again.due(), began + WRITTEN_EACH);
        let mut writes = 0;
        let mut now = began;
        while now < began + Duration::from_secs(600) {
            // A peer has more all the time.
            again.is_outdone = true;
            now = now.max(again.due());
            again.written(now);
            writes += 1;
        }
        assert_eq!(writes, 60);
    }
}
