//! Targets, and idle connections to them.

use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// An idle connection older than this is not used again: workers close theirs after 5 s.
const IDLE_MAX: Duration = Duration::from_secs(3);
/// Idle connections kept for one target.
const IDLE_CONNECTIONS_MAX: usize = 4_096;
/// Greatest body that [`Client::json`] and [`Client::text`] read.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// A plain-HTTP address, `http://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    authority: String,
}

impl Target {
    /// `host:port`.
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    /// Accepts `http://host:port` with or without a trailing slash; the port defaults to 80.
    fn from_str(url: &str) -> anyhow::Result<Self> {
        let Some(rest) = url.strip_prefix("http://") else {
            bail!("`{url}` does not begin with http://");
        };
        let authority = rest.trim_end_matches('/');
        if authority.is_empty() || authority.contains(['/', '?', '#', '@']) {
            bail!("`{url}` is not http://host:port");
        }
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let port = if has_port { "" } else { ":80" };
        Ok(Self {
            authority: format!("{authority}{port}"),
        })
    }
}

/// Which target gets a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Spread {
    /// Each in turn.
    RoundRobin,
    /// Any, at random.
    Random,
}

struct Idle {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

struct Endpoint {
    target: Target,
    /// Sent with every request, if any.
    authorization: Option<HeaderValue>,
    idle: Mutex<Vec<Idle>>,
}

/// Keep-alive connections to one or more targets.
pub struct Client {
    endpoints: Vec<Endpoint>,
    spread: Spread,
    turn: AtomicUsize,
}

/// A reply whose connection goes back to the pool by [`Reply::recycle`].
pub(super) struct Reply<'a> {
    pub(super) response: Response<Incoming>,
    sender: SendRequest<Full<Bytes>>,
    endpoint: &'a Endpoint,
}

/// Why no reply head came.
#[derive(Debug)]
pub(super) enum NoReply {
    Connect,
    ClosedBeforeHead,
}

impl Client {
    /// A client of these targets, at least one.
    pub fn new(targets: Vec<Target>, spread: Spread) -> anyhow::Result<Self> {
        anyhow::ensure!(!targets.is_empty(), "at least one URL is needed");
        let endpoint = |target| Endpoint {
            target,
            authorization: None,
            idle: Mutex::default(),
        };
        Ok(Self {
            endpoints: targets.into_iter().map(endpoint).collect(),
            spread,
            turn: AtomicUsize::new(0),
        })
    }

    /// A client of one target.
    pub fn one(target: Target) -> Self {
        Self::new(vec![target], Spread::RoundRobin).expect("one target is enough")
    }

    /// The same client, which sends `Authorization: Bearer <token>`.
    pub fn with_token(mut self, token: &str) -> anyhow::Result<Self> {
        let value = HeaderValue::try_from(format!("Bearer {token}"));
        let value = value.context("the token cannot be in a header")?;
        for endpoint in &mut self.endpoints {
            endpoint.authorization = Some(value.clone());
        }
        Ok(self)
    }

    /// Sends a request to the next target and waits for the head of the reply.
    pub(super) async fn send(&self, request: Request<Full<Bytes>>) -> Result<Reply<'_>, NoReply> {
        let index = match self.spread {
            Spread::RoundRobin => self.turn.fetch_add(1, Ordering::Relaxed),
            Spread::Random => rand::random_range(0..self.endpoints.len()),
        };
        self.endpoints[index % self.endpoints.len()]
            .send(request)
            .await
    }

    /// The text of a 2xx reply. For control requests: one target, whole body, `limit` for all.
    pub async fn text(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
        limit: Duration,
    ) -> anyhow::Result<String> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(Full::new(body.into()))
            .context("not a request")?;
        let exchange = async {
            let reply = self.send(request).await;
            let Ok(mut reply) = reply else {
                bail!("no reply");
            };
            let status = reply.response.status();
            let body = Limited::new(reply.response.body_mut(), REPLY_BYTES_MAX);
            let body = body.collect().await.map_err(anyhow::Error::from_boxed)?;
            reply.recycle();
            let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            anyhow::ensure!(status.is_success(), "status {status}: {text}");
            Ok(text)
        };
        let answered = timeout(limit, exchange).await.context("no reply in time");
        let context = || format!("{path} of {}", self.endpoints[0].target.authority);
        answered.and_then(|text| text).with_context(context)
    }

    /// The JSON of a 2xx reply to a `GET`.
    pub async fn json<T: DeserializeOwned>(
        &self,
        path: &str,
        limit: Duration,
    ) -> anyhow::Result<T> {
        let text = self.text(Method::GET, path, Bytes::new(), limit).await?;
        serde_json::from_str(&text).with_context(|| format!("reply of {path}"))
    }
}

impl Endpoint {
    async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Reply<'_>, NoReply> {
        let host = self
            .target
            .authority
            .parse()
            .map_err(|_| NoReply::Connect)?;
        request.headers_mut().insert("host", host);
        if let Some(authorization) = &self.authorization {
            let headers = request.headers_mut();
            headers.insert("authorization", authorization.clone());
        }
        loop {
            let (mut sender, pooled) = match self.pooled().await {
                Some(sender) => (sender, true),
                None => (self.connect().await.map_err(|_| NoReply::Connect)?, false),
            };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    return Ok(Reply {
                        response,
                        sender,
                        endpoint: self,
                    });
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if pooled => request = unsent,
                    _ => return Err(NoReply::ClosedBeforeHead),
                },
            }
        }
    }

    async fn pooled(&self) -> Option<SendRequest<Full<Bytes>>> {
        loop {
            let Idle { mut sender, since } = self.idle().pop()?;
            // Right after a reply a connection may need a moment; a closed one fails at once.
            if since.elapsed() < IDLE_MAX && sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().expect("no holder of this lock panics")
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(&self.target.authority).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // Ends by itself when the sender and the body being read are dropped.
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!("connection ended: {e}");
            }
        });
        Ok(sender)
    }
}

impl Reply<'_> {
    /// Gives the connection back, once the body was read to its end.
    pub(super) fn recycle(self) {
        let mut idle = self
            .endpoint
            .idle
            .lock()
            .expect("no holder of this lock panics");
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(Idle {
                sender: self.sender,
                since: Instant::now(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        for (url, authority) in [
            ("http://127.0.0.1:8000", "127.0.0.1:8000"),
            ("http://worker-1:8000/", "worker-1:8000"),
            ("http://[::1]:8000", "[::1]:8000"),
            ("http://worker", "worker:80"),
        ] {
            let target: Target = url.parse().expect(url);
            assert_eq!(target.authority(), authority);
        }
        for wrong in [
            "127.0.0.1:8000",
            "https://x",
            "http://",
            "http://x/v1",
            "http://a@b",
        ] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
