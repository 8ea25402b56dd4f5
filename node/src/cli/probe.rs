//! `grapevine probe`.

use std::time::Duration;

use url::Url;

use super::Failure;
use super::client::{chain, http_client};

/// Asks a URL once; exits 0 for a 2xx. For health checks of containers without a shell.
#[derive(clap::Args)]
pub struct ProbeArgs {
    /// What to ask, as http://HOST:PORT/PATH
    #[arg(value_parser = plain_http)]
    url: Url,
    /// Limit for the answer
    #[arg(long, value_parser = humantime::parse_duration, default_value = "2s")]
    timeout: Duration,
}

fn plain_http(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(|url| url.scheme() == "http");
    url.ok_or_else(|| "write http://HOST:PORT/PATH".to_owned())
}

/// Asks once. Docker knows no exit codes of a health check but 0 and 1, so no answer is a refusal, too.
/// Errors: the answer is no 2xx, or does not come in time.
pub async fn probe(args: ProbeArgs) -> Result<(), Failure> {
    let ProbeArgs { url, timeout } = args;
    let request = http_client()?.get(url.clone()).timeout(timeout);
    let answer = request
        .send()
        .await
        .map_err(|error| Failure::Refused(format!("{url}: {}", chain(&error))))?;
    if answer.status().is_success() {
        Ok(())
    } else {
        Err(Failure::Refused(format!("{url}: {}", answer.status())))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn only_plain_http_is_asked() {
        for good in ["http://127.0.0.1:30000/readiness", "http://worker-1:8000"] {
            assert_eq!(plain_http(good).expect(good), good.parse().expect(good));
        }
        for bad in ["https://a/b", "127.0.0.1:1/x", "http:///", "foo"] {
            let why = plain_http(bad).expect_err(bad);
            assert_eq!(why, "write http://HOST:PORT/PATH", "{bad}");
        }
    }

    /// What `probe` makes of a server that answers so, or not at all.
    async fn probed(answer: &str) -> Result<(), Failure> {
        // Another test of this process may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let server = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut line = [0; 21];
            stream.read_exact(&mut line).await.expect("a request line");
            assert_eq!(&line, b"GET /health?deep HTTP");
            stream.write_all(answer.as_bytes()).await.expect("sent");
            stream
        };
        let args = ProbeArgs {
            url: format!("http://{address}/health?deep")
                .parse()
                .expect("a URL"),
            timeout: Duration::from_millis(200),
        };
        // The stream stays open until the probe is done.
        tokio::join!(probe(args), server).0
    }

    #[tokio::test]
    async fn a_2xx_is_well_and_nothing_else() {
        let head = |status| format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        probed(&head("204 No Content")).await.expect("well");
        for ill in [head("503 Service Unavailable"), String::new()] {
            let failure = probed(&ill).await.expect_err("ill");
            assert!(matches!(failure, Failure::Refused(_)), "{failure}");
        }
    }
}
