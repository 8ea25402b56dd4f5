//! Waits until the replicas say what they must.

use std::time::Duration;

use anyhow::anyhow;
use tokio::time::{sleep, timeout};

use super::SETTLED_WITHIN;

/// Between two tries.
const TRY_EVERY: Duration = Duration::from_millis(200);

/// Tries until it works, for [`SETTLED_WITHIN`] at most.
/// Errors: that of the latest try that has ended: it says what is still wrong.
pub(super) async fn settled<T>(
    mut once: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut wrong = anyhow!("no replica answered within {SETTLED_WITHIN:?}");
    let tries = async {
        loop {
            match once().await {
                Ok(found) => return found,
                Err(error) => wrong = error,
            }
            sleep(TRY_EVERY).await;
        }
    };
    let found = timeout(SETTLED_WITHIN, tries).await;
    found.map_err(|_| wrong)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_wrong_at_last_is_told() {
        let mut tries = 0;
        let moved = settled(async || {
            tries += 1;
            anyhow::bail!("try {tries}")
        });
        let moved: anyhow::Result<()> = moved.await;
        let moved = moved.expect_err("never");
        assert_eq!(moved.to_string(), format!("try {tries}"));
        assert!(tries > 100, "{tries} in a minute");
        // A try that hangs hides nothing that an earlier one has seen.
        let mut tries = 0;
        let hangs = settled(async || {
            tries += 1;
            if tries > 1 {
                std::future::pending::<()>().await;
            }
            anyhow::bail!("3 of 60 prompts moved")
        });
        let hangs: anyhow::Result<()> = hangs.await;
        let hangs = hangs.expect_err("never");
        assert_eq!(hangs.to_string(), "3 of 60 prompts moved");
        let silent = settled(async || {
            std::future::pending::<()>().await;
            Ok(())
        });
        let silent = silent.await.expect_err("never");
        assert!(silent.to_string().contains("no replica"), "{silent}");
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_as_soon_as_it_works() {
        let (start, mut tries) = (Instant::now(), 0);
        let third = settled(async || {
            tries += 1;
            anyhow::ensure!(tries == 3, "not yet");
            Ok(tries)
        });
        assert_eq!(third.await.expect("the third"), 3);
        assert_eq!(start.elapsed(), 2 * TRY_EVERY);
    }
}
