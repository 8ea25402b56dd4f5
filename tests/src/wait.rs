//! Waiting for a state, never for a time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Far more than any wait needs on a busy machine; a test that reaches it has found a fault.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Looks until `look` returns a value, and returns that with the time that it took.
///
/// Panics after `limit` with the reason of the last look.
pub async fn eventually<T>(
    limit: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> (T, Duration) {
    let begun = Instant::now();
    loop {
        match look().await {
            Ok(found) => return (found, begun.elapsed()),
            Err(seen) if begun.elapsed() > limit => {
                panic!("not within {limit:?}: {what}; last seen: {seen}")
            }
            Err(_) => sleep(LOOK).await,
        }
    }
}

/// A look of [`eventually`] at whether something is so; if not, what was seen.
pub fn so(is: bool, seen: impl FnOnce() -> String) -> Result<(), String> {
    if is { Ok(()) } else { Err(seen()) }
}

/// The value for which `probability` of `sorted` are smaller or equal (nearest rank).
pub fn quantile(sorted: &[Duration], probability: f64) -> Duration {
    let rank = (sorted.len() as f64 * probability).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}
