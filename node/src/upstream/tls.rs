//! TLS to workers: which authorities to believe, which certificate to show, and the socket with or without it.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use grapevine_gossip::identity::Term;
use rustls::ClientConfig;
use rustls::client::WantsClientCert;
use rustls::{ConfigBuilder, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::config::{WorkerHttp2, WorkersConfig};
use crate::tls::{FileError, provider, read_key_pair, read_roots, system_roots};

/// The files of TLS to workers.
#[derive(Debug, Clone)]
pub struct WorkerTlsFiles {
    /// Authorities; without: the system's.
    ca: Option<PathBuf>,
    /// Certificate and key for workers that ask for them.
    identity: Option<(PathBuf, PathBuf)>,
}

impl WorkerTlsFiles {
    /// Those that are configured.
    pub fn of(config: &WorkersConfig) -> Self {
        Self {
            ca: config.ca.clone(),
            identity: config.client_cert.clone().zip(config.client_key.clone()),
        }
    }

    /// Their paths; empty where the system's authorities are believed and nothing is shown.
    pub fn paths(&self) -> Vec<PathBuf> {
        let identity = self.identity.iter().flat_map(|(cert, key)| [cert, key]);
        self.ca.iter().chain(identity).cloned().collect()
    }

    /// Reads them. Blocks for some milliseconds.
    ///
    /// A worker's certificate must name the host of its URL and lead to one of the authorities. Sessions
    /// are resumed, so that a new connection to a known worker costs one exchange less.
    /// Errors: a file cannot be used, or the system has no authorities.
    pub fn load(&self) -> Result<(ClientConfig, Option<Term>), FileError> {
        let roots = match &self.ca {
            Some(path) => read_roots(path)?,
            None => system_roots()?,
        };
        let builder = builder(roots);
        let Some((cert, key)) = &self.identity else {
            return Ok((http1_only(builder.with_no_client_auth()), None));
        };
        let pair = read_key_pair(cert, key)?;
        let config = builder
            .with_client_auth_cert(pair.chain, pair.key)
            .map_err(|error| FileError::Pair {
                cert: cert.clone(),
                key: key.clone(),
                problem: error.to_string(),
            })?;
        Ok((http1_only(config), Some(pair.term)))
    }
}

/// A client that believes no authority, for plain HTTP: reqwest would look for the system's authorities itself, and
/// a bare image has none.
pub(super) fn believes_nobody() -> ClientConfig {
    http1_only(builder(RootCertStore::empty()).with_no_client_auth())
}

fn builder(roots: impl Into<Arc<RootCertStore>>) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring has suites for TLS 1.2 and 1.3")
        .with_root_certificates(roots)
}

/// What checks speak to workers, and the data path where `workers.http2` is off.
fn http1_only(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// The same with HTTP/2 offered; the worker chooses.
pub(super) fn offering_http2(config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// A connected socket to a worker.
#[derive(Debug)]
pub enum WorkerIo {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS after its handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl WorkerIo {
    /// Whether HTTP/2 is spoken on it, which was dialled with this setting.
    pub fn speaks_http2(&self, http2: WorkerHttp2) -> bool {
        match self {
            Self::Plain(_) => http2 == WorkerHttp2::On,
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }

    /// Ready once a read may find something. On TLS always: its session may hold bytes that the socket knows nothing of.
    /// Errors: the runtime ends.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(stream) => stream.poll_read_ready(cx),
            Self::Tls(_) => Poll::Ready(Ok(())),
        }
    }

    /// Has the connection end by a reset when it is dropped: a worker that does not read sees no other end behind what
    /// was sent to it.
    pub fn will_reset(&self) {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        };
        // It fails only on a socket that has ended already.
        let _ = stream.set_zero_linger();
    }
}

impl AsyncRead for WorkerIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Self::Tls(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for WorkerIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write(cx, buf),
            Self::Tls(io) => Pin::new(io).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write_vectored(cx, bufs),
            Self::Tls(io) => Pin::new(io).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(io) => io.is_write_vectored(),
            Self::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_flush(cx),
            Self::Tls(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Self::Tls(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
