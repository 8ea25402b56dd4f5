//! One log line a second, however many clients provoke it. What happened is counted elsewhere.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Silence between two lines.
const QUIET: Duration = Duration::from_secs(1);

/// The silence after a line.
#[derive(Debug, Default)]
pub struct Quiet(Mutex<Option<Instant>>);

impl Quiet {
    /// True if a line may be written now; it begins the next silence.
    pub(crate) fn is_over(&self) -> bool {
        let now = Instant::now();
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = since.is_none_or(|since| now.duration_since(since) >= QUIET);
        if over {
            *since = Some(now);
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_second() {
        let quiet = Quiet::default();
        let said = (0..100).filter(|_| quiet.is_over()).count();
        assert_eq!(said, 1);
        tokio::time::advance(QUIET).await;
        assert!(quiet.is_over());
        assert!(!quiet.is_over());
    }
}
