//! Whether the worker answers: it is registered when it can serve, not when its process starts.

use std::time::Duration;

use reqwest::StatusCode;
use tokio::time::{Instant, sleep};
use url::Url;

use super::report;
use crate::cli::client::{chain, http_client, http_client_with_roots};
use crate::cli::failure::Failure;

/// How often progress is reported while the worker starts, after the first look.
const REPORT_EVERY: Duration = Duration::from_secs(15);
/// How long one answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The worker beside which this program runs.
pub(super) struct Worker {
    url: Url,
    http: reqwest::Client,
}

impl Worker {
    /// # Errors
    /// The address is no URL, or the system's certificates cannot be read for an https one.
    pub(super) fn new(url: &str) -> Result<Self, Failure> {
        // The rank of `http://host:port@3` is the router's; the engine behind it has one address.
        let parsed: grapevine_gossip::worker::WorkerUrl = url
            .parse()
            .map_err(|error| Failure::Usage(format!("--worker: {error}")))?;
        let base = format!("{}/", parsed.base());
        let url = base
            .parse()
            .map_err(|error| Failure::Usage(format!("--worker {base}: {error}")))?;
        let http = if parsed.is_tls() {
            http_client_with_roots()?
        } else {
            http_client()?
        };
        Ok(Self { url, http })
    }

    /// Returns when the worker is healthy and says what it serves.
    pub(super) async fn wait_until_ready(&self, pause: Duration) {
        let began = Instant::now();
        let (mut report_at, mut is_first) = (began, true);
        loop {
            let Err(why) = self.is_ready().await else {
                return;
            };
            if Instant::now() >= report_at {
                let seconds = began.elapsed().as_secs();
                let url = &self.url;
                report(&match std::mem::take(&mut is_first) {
                    true => format!("waiting until {url} answers /health and /v1/models: {why}"),
                    false => format!("waiting for {url} for {seconds} s: {why}"),
                });
                report_at += REPORT_EVERY;
            }
            sleep(pause).await;
        }
    }

    /// Whether anything answers there, whatever it says.
    pub(super) async fn is_there(&self) -> bool {
        self.get("health").await.is_ok()
    }

    async fn is_ready(&self) -> Result<(), String> {
        for path in ["health", "v1/models"] {
            let status = self.get(path).await?;
            if !status.is_success() {
                return Err(format!("/{path} answers {status}"));
            }
        }
        Ok(())
    }

    async fn get(&self, path: &str) -> Result<StatusCode, String> {
        let url = self.url.join(path).map_err(|error| error.to_string())?;
        let answer = self.http.get(url).timeout(ANSWER_WITHIN).send().await;
        answer
            .map(|answer| answer.status())
            .map_err(|error| format!("/{path}: {}", chain(&error)))
    }
}
