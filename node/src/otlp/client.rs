//! One exchange with a collector.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use opentelemetry_http::{HttpError, ResponseBodyTooLarge};
use url::Url;

use super::grpc;
use crate::config::OtlpProtocol;

/// Longest answer of a collector, in bytes, that is read; it says how much of a message it refused.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Between two looks whether a connection that carries calls lives.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// A connection that was idle for longer is not used again. OpenTelemetry's collector closes one after a minute, which is
/// also the usual time between two exports of metrics: what is sent in that moment is lost.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Sends messages to a collector. It follows no redirects and uses no proxy of the environment.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    protocol: OtlpProtocol,
    within: Duration,
}

impl Client {
    /// For a collector at `endpoint`, which may take `within` for a message.
    /// Errors: the system's authorities cannot be read, where the endpoint is https.
    pub fn new(protocol: OtlpProtocol, endpoint: &Url, within: Duration) -> anyhow::Result<Self> {
        let mut http = reqwest::Client::builder()
            .timeout(within)
            .pool_idle_timeout(IDLE_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        if endpoint.scheme() == "http" {
            // Without this a bare image without CA roots is an error.
            http = http.tls_certs_only([]);
        }
        if protocol == OtlpProtocol::Grpc {
            // One connection carries all calls, and nothing else would show that it is dead.
            http = http
                .http2_prior_knowledge()
                .http2_keep_alive_interval(KEEP_ALIVE)
                .http2_keep_alive_timeout(within);
        }
        Ok(Self {
            http: http.build()?,
            protocol,
            within,
        })
    }

    /// Sends the message that is a request's body, and returns the collector's own as the answer's.
    /// Errors: there is no answer in time, or one that is too long, or a call was refused.
    pub async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        match self.protocol {
            OtlpProtocol::HttpProtobuf => Ok(self.send(request).await?.0),
            OtlpProtocol::Grpc => {
                let (response, end) = self.send(grpc::call(request, self.within)).await?;
                if response.status() != StatusCode::OK {
                    return Ok(response);
                }
                let (head, body) = response.into_parts();
                // Where there is no message, the head says it all.
                let end = end.as_ref().unwrap_or(&head.headers);
                let message = grpc::answer(body, end)?;
                Ok(Response::from_parts(head, message))
            }
        }
    }

    /// An answer, and the headers behind its body.
    async fn send(
        &self,
        request: Request<Bytes>,
    ) -> Result<(Response<Bytes>, Option<HeaderMap>), HttpError> {
        let answer = self.http.execute(request.try_into()?).await?;
        let (head, mut rest) = Response::<reqwest::Body>::from(answer).into_parts();
        let (mut body, mut end) = (Vec::new(), None);
        while let Some(frame) = rest.frame().await {
            match frame?.into_data() {
                Ok(data) if body.len() + data.len() > ANSWER_BYTES_MAX => {
                    return Err(Box::new(ResponseBodyTooLarge::new()));
                }
                Ok(data) => body.extend_from_slice(&data),
                Err(frame) => end = frame.into_trailers().ok(),
            }
        }
        Ok((Response::from_parts(head, body.into()), end))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::{advance, pause, resume, timeout};

    use super::*;

    /// Longer than the pause.
    const LIMIT: Duration = Duration::from_secs(70);

    #[tokio::test]
    async fn a_connection_that_its_collector_is_about_to_close_is_not_used_again() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let collector = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = collector.local_addr().expect("bound");
        let endpoint = format!("http://{address}/").parse().expect("a URL");
        let client = Client::new(OtlpProtocol::HttpProtobuf, &endpoint, LIMIT);
        let client = client.expect("it can be set up");
        let send = async || {
            let request = Request::post(endpoint.as_str()).body(Bytes::new());
            let answer = client.exchange(request.expect("a request")).await;
            assert_eq!(answer.expect("an answer").status(), StatusCode::OK);
        };
        let answers = async {
            let mut open = Vec::new();
            for _ in 0..2 {
                let (mut stream, _) = collector.accept().await.expect("a connection");
                let read = stream.read(&mut [0; 1_024]).await.expect("bytes");
                assert!(read > 0, "it ended early");
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).await.expect("it reads");
                open.push(stream);
            }
        };
        let sends = async {
            send().await;
            // Back where it waits for the next one.
            tokio::task::yield_now().await;
            pause();
            advance(Duration::from_secs(60)).await;
            resume();
            send().await;
        };
        let both = async { tokio::join!(answers, sends) };
        timeout(LIMIT, both).await.expect("each has a connection");
    }
}
