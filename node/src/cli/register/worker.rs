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

/// Where an engine lists what it serves.
const MODELS: &str = "v1/models";

/// The worker beside which this program runs.
pub(super) struct Worker {
    url: Url,
    /// Below that, without a slash at its beginning.
    health: String,
    http: reqwest::Client,
}

impl Worker {
    /// Errors: the address is no URL, the path does not begin with a slash, or the system's certificates cannot be read
    /// for an https address.
    pub(super) fn new(url: &str, health_path: &str) -> Result<Self, Failure> {
        let health = health_path.strip_prefix('/').ok_or_else(|| {
            Failure::Usage(format!(
                "--health-path {health_path}: a path begins with a slash, as /health"
            ))
        })?;
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
        Ok(Self {
            url,
            health: health.to_owned(),
            http,
        })
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
                    true => format!(
                        "waiting until {url} answers /{} and /v1/models: {why}",
                        self.health
                    ),
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
        match self.get(&self.health).await {
            Ok(_) => true,
            Err(silent) => silent.is_slow,
        }
    }

    async fn is_ready(&self) -> Result<(), String> {
        for path in [&self.health, MODELS] {
            let status = self.get(path).await.map_err(|silent| silent.why)?;
            // The replicas have the engine's key (workers.api_key), and say so if it is the wrong one.
            let wants_key = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status);
            let is_fit = status.is_success() || (wants_key && path == MODELS);
            if !is_fit {
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
    use serde_json::Value;

    use super::*;
    use crate::cli::fake_replica::{port, serve};

    #[tokio::test]
    async fn a_worker_that_takes_its_time_is_there_and_one_that_refuses_is_not() {
        let (listener, address) = port().await;
        let worker = Worker::new(&format!("http://{address}"), "/health").expect("an address");
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

    /// vLLM with `--api-key` answers /health to everybody, and its models to nobody without the key.
    #[tokio::test]
    async fn a_worker_with_a_key_of_its_own_and_another_health_path_is_ready() {
        let (listener, address) = port().await;
        let asked = serve(listener, |line| match line {
            line if line.starts_with("GET /v1/models ") => (401, Value::Null),
            line if line.starts_with("GET /live?deep=1 ") => (204, Value::Null),
            _ => (404, Value::Null),
        });
        let worker = |path| Worker::new(&format!("http://{address}"), path).expect("an address");
        assert_eq!(worker("/live?deep=1").is_ready().await, Ok(()));
        let refused = worker("/v1/models").is_ready().await;
        assert_eq!(refused, Ok(()), "a key is wanted there, whoever asks");
        let elsewhere = worker("/health")
            .is_ready()
            .await
            .expect_err("no such path");
        assert!(elsewhere.contains("/health answers 404"), "{elsewhere}");
        assert!(Worker::new("http://w:1", "health").is_err());
        asked.abort();
    }
}
