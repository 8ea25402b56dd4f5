//! At most one log line a second for one cause, however often it happens. Each time is counted elsewhere.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Least time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// The limit on the lines of one cause.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<Option<Instant>>);

impl LogLimit {
    /// Whether a line may be written now; if so, the next pause begins.
    pub(crate) fn allows_line(&self) -> bool {
        let now = Instant::now();
        let mut last = self.0.lock();
        let allowed = last.is_none_or(|last| now.duration_since(last) >= PAUSE);
        if allowed {
            *last = Some(now);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_second() {
        let limit = LogLimit::default();
        let lines = (0..100).filter(|_| limit.allows_line()).count();
        assert_eq!(lines, 1);
        tokio::time::advance(PAUSE).await;
        assert!(limit.allows_line());
        assert!(!limit.allows_line());
    }
}
