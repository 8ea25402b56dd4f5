//! A question of this replica's own to a worker, with a limit of time and of bytes.

use std::time::Duration;

use super::probe_parts::ProbeParts;
use super::worker::Worker;

/// The answer to a `GET`, if it is a success, comes in time, and has at most so many bytes.
pub(super) async fn read(
    worker: &Worker,
    path: &str,
    bytes_max: usize,
    parts: &ProbeParts,
) -> anyhow::Result<Vec<u8>> {
    let request = worker.connector.get(&worker.address, path).await?;
    read_answer(request, bytes_max, parts).await
}

/// The same of any request.
pub(super) async fn read_answer(
    request: reqwest::RequestBuilder,
    bytes_max: usize,
    parts: &ProbeParts,
) -> anyhow::Result<Vec<u8>> {
    let within = parts.config.look().scrape_timeout;
    read_within(request, bytes_max, within).await
}

/// The same, of those who have a limit of time of their own.
/// Errors: no success, not in time, or too long.
pub(crate) async fn read_within(
    request: reqwest::RequestBuilder,
    bytes_max: usize,
    within: Duration,
) -> anyhow::Result<Vec<u8>> {
    let mut response = request.timeout(within).send().await?.error_for_status()?;
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        anyhow::ensure!(
            bytes.len() + chunk.len() <= bytes_max,
            "more than {bytes_max} bytes"
        );
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}
