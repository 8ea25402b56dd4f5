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

/// Sends messages to a collector. It follows no redirects and uses no proxy of the environment.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    protocol: OtlpProtocol,
    within: Duration,
}

impl Client {
    /// For a collector at `endpoint`, which may take `within` for a message.
    ///
    /// # Errors
    /// The system's authorities cannot be read, where the endpoint is https.
    pub fn new(protocol: OtlpProtocol, endpoint: &Url, within: Duration) -> anyhow::Result<Self> {
        let mut http = reqwest::Client::builder()
            .timeout(within)
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
    ///
    /// # Errors
    /// There is no answer in time, or one that is too long, or a call was refused.
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
