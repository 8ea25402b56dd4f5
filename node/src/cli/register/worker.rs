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

    /// Whether anything answers there, whatever it says, or takes its time after it took the connection: an engine under
    /// load may say nothing for long. Who closes it without a word may be a proxy of one that is gone.
    pub(super) async fn is_there(&self) -> bool {
        match self.get("health").await {
            Ok(_) => true,
            Err(silent) => silent.is_slow,
        }
    }

    async fn is_ready(&self) -> Result<(), String> {
        for path in ["health", "v1/models"] {
            let status = self.get(path).await.map_err(|silent| silent.why)?;
            if !status.is_success() {
                return Err(format!("/{path} answers {status}"));
            }
        }
        Ok(())
    }

    async fn get(&self, path: &str) -> Result<StatusCode, Silent> {
        let url = self.url.join(path).map_err(|error| Silent {
            why: error.to_string(),
            is_slow: false,
        })?;
        let answer = self.http.get(url).timeout(ANSWER_WITHIN).send().await;
        answer
            .map(|answer| answer.status())
            .map_err(|error| Silent {
                why: format!("/{path}: {}", chain(&error)),
                is_slow: error.is_timeout() && !error.is_connect(),
            })
    }
}

/// Nothing was answered.
struct Silent {
    why: String,
    /// There was a connection, and no answer in time.
    is_slow: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fake_replica::port;

    #[tokio::test]
    async fn a_worker_that_takes_its_time_is_there_and_one_that_refuses_is_not() {
        let (listener, address) = port().await;
        let worker = Worker::new(&format!("http://{address}")).expect("an address");
        let says_nothing = async {
            let (stream, _) = listener.accept().await.expect("it is asked");
            stream.readable().await.expect("a request");
            // The answer is waited for in vain from here on, in no time.
            tokio::time::pause();
            stream
        };
        let (is_there, stream) = tokio::join!(worker.is_there(), says_nothing);
        assert!(is_there);
        tokio::time::resume();
        drop((stream, listener));
        assert!(!worker.is_there().await);
    }
}
