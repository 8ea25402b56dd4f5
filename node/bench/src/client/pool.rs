//! Targets, and idle connections to them.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::shown::{MESSAGE_CHARS_MAX, clean};
use super::socket::{Broken, Socket};
use super::target::Target;

/// An idle connection older than this is not used again: workers close theirs after 5 s.
const IDLE_MAX: Duration = Duration::from_secs(3);
/// Idle connections kept for one target.
const IDLE_CONNECTIONS_MAX: usize = 4_096;
/// Greatest body that [`Client::json`] and [`Client::text`] read.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// Which target gets a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Spread {
    /// Each in turn.
    RoundRobin,
    /// Any, at random.
    Random,
}

/// A connection that requests can be sent on.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    is_broken: Broken,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

struct Endpoint {
    target: Target,
    /// Sent with every request, if any.
    authorization: Option<HeaderValue>,
    tls: Option<TlsConnector>,
    idle: Mutex<Vec<Idle>>,
}

/// Keep-alive connections to one or more targets.
pub struct Client {
    endpoints: Vec<Endpoint>,
    spread: Spread,
    turn: AtomicUsize,
    key: Option<String>,
}

/// A reply whose connection goes back to the pool by [`Reply::recycle_if`].
pub(super) struct Reply<'a> {
    pub(super) response: Response<Incoming>,
    connection: Connection,
    endpoint: &'a Endpoint,
}

/// Why no reply head came.
#[derive(Debug)]
pub(super) enum NoReply {
    /// With the cause, for people.
    Connect(String),
    ClosedBeforeHead,
}

/// No reply came: no connection, not all of it within the limit, or an end before the head. `downcast_ref` finds it in
/// errors of [`Client::text`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreached(String);

impl Client {
    /// A client of these targets, at least one. Those with `https://` need [`Client::with_tls`].
    /// Errors: there is no target.
    pub fn new(targets: Vec<Target>, spread: Spread) -> anyhow::Result<Self> {
        anyhow::ensure!(!targets.is_empty(), "at least one URL is needed");
        let endpoint = |target| Endpoint {
            target,
            authorization: None,
            tls: None,
            idle: Mutex::default(),
        };
        Ok(Self {
            endpoints: targets.into_iter().map(endpoint).collect(),
            spread,
            turn: AtomicUsize::new(0),
            key: None,
        })
    }

    /// A client of one target.
    pub fn one(target: Target) -> Self {
        Self::new(vec![target], Spread::RoundRobin).expect("one target is enough")
    }

    /// The same client, which sends `Authorization: Bearer <token>`.
    /// Errors: the token has characters that no header may have.
    pub fn with_token(mut self, token: &str) -> anyhow::Result<Self> {
        let value = HeaderValue::try_from(format!("Bearer {token}"));
        let mut value = value.context("the key cannot be in a header")?;
        value.set_sensitive(true);
        for endpoint in &mut self.endpoints {
            endpoint.authorization = Some(value.clone());
        }
        self.key = Some(token.to_owned());
        Ok(self)
    }

    /// The same client, with these settings for `https://`.
    #[must_use]
    pub fn with_tls(mut self, tls: &Arc<ClientConfig>) -> Self {
        for endpoint in &mut self.endpoints {
            endpoint.tls = Some(TlsConnector::from(Arc::clone(tls)));
        }
        self
    }

    /// At most `most` characters of an endpoint's text, as it may be shown: an endpoint may repeat the key that it
    /// refuses, and send what a terminal obeys.
    pub(crate) fn shown(&self, text: &str, most: usize) -> String {
        // Cut afterwards: a part of a key is no longer found.
        let text = match &self.key {
            Some(key) if !key.is_empty() => Cow::Owned(text.replace(key, "(the key)")),
            _ => Cow::Borrowed(text),
        };
        let end = text
            .char_indices()
            .nth(most)
            .map_or(text.len(), |(at, _)| at);
        clean(&text[..end])
    }

    /// Sends a request to the next target and waits for the head of the reply; tells once there is a connection.
    pub(super) async fn send(
        &self,
        request: Request<Full<Bytes>>,
        is_connected: &mut bool,
    ) -> Result<Reply<'_>, NoReply> {
        self.next().send(request, is_connected).await
    }

    fn next(&self) -> &Endpoint {
        let index = match self.spread {
            Spread::RoundRobin => self.turn.fetch_add(1, Ordering::Relaxed),
            Spread::Random => rand::random_range(0..self.endpoints.len()),
        };
        &self.endpoints[index % self.endpoints.len()]
    }

    /// The text of a 2xx reply. For control requests: the next target, whole body, `limit` for all.
    /// Errors: [`Unreached`] if no reply came within the limit; otherwise another status, of whose body at most 200
    /// characters are told, a body that breaks off, or one above 64 MiB.
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
        let endpoint = self.next();
        let exchange = async {
            let sent = endpoint.send(request, &mut false).await;
            let mut reply = sent.map_err(|none| match none {
                NoReply::Connect(why) => {
                    let why = self.shown(&why, MESSAGE_CHARS_MAX);
                    Unreached(format!("no connection: {why}"))
                }
                NoReply::ClosedBeforeHead => Unreached("no reply".to_owned()),
            })?;
            let status = reply.response.status();
            let body = Limited::new(reply.response.body_mut(), REPLY_BYTES_MAX);
            let body = body.collect().await.map_err(anyhow::Error::from_boxed)?;
            reply.recycle_if(true);
            let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            anyhow::ensure!(
                status.is_success(),
                "status {status}: {}",
                self.shown(&text, MESSAGE_CHARS_MAX)
            );
            Ok(text)
        };
        let answered = timeout(limit, exchange).await;
        let late = |_| Err(Unreached("no reply in time".to_owned()).into());
        let context = || format!("{path} of {}", endpoint.target.authority());
        answered.unwrap_or_else(late).with_context(context)
    }

    /// The JSON of a 2xx reply to a `GET`.
    /// Errors: as [`Client::text`], or it is not what was expected; of why, at most 200 characters are told.
    pub async fn json<T: DeserializeOwned>(
        &self,
        path: &str,
        limit: Duration,
    ) -> anyhow::Result<T> {
        let text = self.text(Method::GET, path, Bytes::new(), limit).await?;
        serde_json::from_str(&text)
            .map_err(|error| anyhow!(self.shown(&error.to_string(), MESSAGE_CHARS_MAX)))
            .with_context(|| format!("reply of {path}"))
    }
}

impl Endpoint {
    async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        is_connected: &mut bool,
    ) -> Result<Reply<'_>, NoReply> {
        let headers = request.headers_mut();
        let host = HeaderValue::try_from(self.target.named());
        headers.insert("host", host.expect("a host of a URL is one of a header"));
        if let Some(authorization) = &self.authorization {
            headers.insert("authorization", authorization.clone());
        }
        if !self.target.prefix().is_empty() {
            let path = format!("{}{}", self.target.prefix(), request.uri());
            *request.uri_mut() = path.parse().expect("a path after the path of a URL");
        }
        loop {
            let (mut connection, pooled) = match self.pooled().await {
                Some(connection) => (connection, true),
                None => (self.connect().await.map_err(no_connection)?, false),
            };
            *is_connected = true;
            match connection.sender.try_send_request(request).await {
                Ok(response) => {
                    return Ok(Reply {
                        response,
                        connection,
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

    async fn pooled(&self) -> Option<Connection> {
        loop {
            let idle = self.idle.lock().pop()?;
            let mut connection = idle.connection;
            // Right after a reply a connection may need a moment; a closed one fails at once.
            if idle.since.elapsed() < IDLE_MAX
                && connection.sender.ready().await.is_ok()
                && !connection.is_broken.is_set()
            {
                return Some(connection);
            }
        }
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(self.target.authority()).await?;
        stream.set_nodelay(true)?;
        let (socket, is_broken) = if self.target.is_tls() {
            let tls = self.tls.as_ref().context("no authorities were given")?;
            let name = ServerName::try_from(self.target.host().to_owned())?;
            Socket::new(tls.connect(name, stream).await.context("TLS")?)
        } else {
            Socket::new(stream)
        };
        let (sender, connection) = handshake(TokioIo::new(socket)).await?;
        // Ends by itself when the sender and the body being read are dropped.
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!("connection ended: {e}");
            }
        });
        Ok(Connection { sender, is_broken })
    }
}

fn no_connection(error: anyhow::Error) -> NoReply {
    NoReply::Connect(format!("{error:#}"))
}

impl Reply<'_> {
    /// Gives the connection back, if the body was read to its end.
    pub(super) fn recycle_if(self, is_whole: bool) {
        let mut idle = self.endpoint.idle.lock();
        if is_whole && idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(Idle {
                connection: self.connection,
                since: Instant::now(),
            });
        }
    }
}
