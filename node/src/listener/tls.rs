//! TLS on the data port: the certificate in use, and the handshake.
//!
//! Under TLS lies the same [`ClientIo`]: a client that takes no byte is cut by the same limit, and its leaving
//! is seen on the same socket. A client that says close_notify and keeps its socket open is seen by its
//! server, which reads ahead; not if it sent more than its request before, for then the alert lies behind what nobody
//! reads. Its socket's end is seen all the same.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use grapevine_gossip::identity::Term;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::sniff::Protocol;
use crate::config::TlsConfig;
use crate::http::client_io::ClientIo;
use crate::lag::read_until;
use crate::tls::{FileError, Files, Reloader, provider, read_key_pair, read_roots};

/// The data port's side of TLS. What it read is replaced as a whole; connections keep what they began with.
#[derive(Debug)]
pub struct ListenerTls {
    paths: Paths,
    current: ArcSwap<ServerConfig>,
    term: Term,
}

#[derive(Debug, Clone)]
struct Paths {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    client_cert_required: bool,
}

impl ListenerTls {
    /// Reads the files; none without a certificate: the port speaks plain HTTP then.
    /// Errors: a file cannot be used.
    pub fn load(config: &TlsConfig) -> Result<Option<Self>, FileError> {
        let Some(paths) = Paths::of(config) else {
            return Ok(None);
        };
        let (server, term) = paths.read()?;
        Ok(Some(Self {
            paths,
            current: ArcSwap::from_pointee(server),
            term,
        }))
    }

    /// The files as they are now.
    pub fn files(config: &TlsConfig) -> Files {
        let paths = Paths::of(config).map_or_else(Vec::new, |paths| {
            [paths.cert, paths.key]
                .into_iter()
                .chain(paths.client_ca)
                .collect()
        });
        Files::seen("listener", paths)
    }

    /// Has the files read again when they change. They were seen before [`ListenerTls::load`] read them.
    pub fn watch(self: &Arc<Self>, files: Files, reloader: &mut Reloader) {
        let tls = Arc::clone(self);
        reloader.watch(files, Some(self.term), move || {
            let (server, term) = tls.paths.read()?;
            tls.current.store(Arc::new(server));
            Ok(Some(term))
        });
    }

    /// From when until when clients accept the certificate that was loaded first.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Shakes hands with a client, and says what it speaks inside.
    /// Errors: `TimedOut` after `within`; else what TLS or the socket says.
    pub(super) async fn accept(
        &self,
        io: ClientIo,
        within: Duration,
    ) -> io::Result<(TlsStream<ClientIo>, Protocol)> {
        let acceptor = TlsAcceptor::from(self.current.load_full());
        let shaken = read_until(Instant::now() + within, acceptor.accept(io)).await;
        let stream = shaken.ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))??;
        let protocol = match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Protocol::Http2,
            _ => Protocol::Http1,
        };
        Ok((stream, protocol))
    }
}

/// Whether a handshake ended because the client showed no certificate, or one that is not accepted.
pub(super) fn is_about_certificate(error: &io::Error) -> bool {
    use rustls::Error::{InvalidCertificate, NoCertificatesPresented};
    let of_tls = error.get_ref().and_then(|cause| cause.downcast_ref());
    matches!(
        of_tls,
        Some(NoCertificatesPresented | InvalidCertificate(_))
    )
}

impl Paths {
    fn of(config: &TlsConfig) -> Option<Self> {
        Some(Self {
            cert: config.cert.clone()?,
            key: config.key.clone()?,
            client_ca: config.client_ca.clone(),
            client_cert_required: config.client_cert_required,
        })
    }

    fn read(&self) -> Result<(ServerConfig, Term), FileError> {
        let pair = read_key_pair(&self.cert, &self.key)?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("ring has suites for TLS 1.2 and 1.3");
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = read_roots(path)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = if self.client_cert_required {
                    verifier
                } else {
                    verifier.allow_unauthenticated()
                };
                builder.with_client_cert_verifier(
                    verifier
                        .build()
                        .expect("there is an authority, and no list of revocations"),
                )
            }
        };
        let mut server = builder
            .with_single_cert(pair.chain, pair.key)
            .map_err(|error| FileError::Pair {
                cert: self.cert.clone(),
                key: self.key.clone(),
                problem: error.to_string(),
            })?;
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok((server, pair.term))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;
    use crate::http::progress::Progress;

    type Pair = (Option<PathBuf>, Option<PathBuf>);

    fn make(dir: &Path, name: &str) -> Pair {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let [cert, key] = ["pem", "key"].map(|end| dir.join(format!("{name}.{end}")));
        std::fs::write(&cert, made.cert.pem()).expect("written");
        std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
        (Some(cert), Some(key))
    }

    fn load(
        cert: &Option<PathBuf>,
        key: &Option<PathBuf>,
    ) -> Result<Option<ListenerTls>, FileError> {
        ListenerTls::load(&TlsConfig {
            cert: cert.clone(),
            key: key.clone(),
            client_ca: cert.clone(),
            ..TlsConfig::default()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn who_overslept_the_limit_looks_at_the_socket_first() {
        const WITHIN: Duration = Duration::from_secs(10);
        let dir = tempfile::tempdir().expect("a directory");
        let (cert, key) = make(dir.path(), "one");
        let tls = load(&cert, &key).expect("good").expect("TLS");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let mut client = TcpStream::connect(address).await.expect("connect");
        let (server, _) = listener.accept().await.expect("accept");
        let (io, _socket) = ClientIo::new(server, WITHIN, Progress::default());
        let accepting = tokio::spawn(async move { tls.accept(io, WITHIN).await.map(drop) });
        yield_now().await;
        advance(WITHIN * 6).await;
        yield_now().await;
        client.write_all(b"no handshake").await.expect("write");
        let error = accepting.await.expect("no panic").expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "it was read");
    }

    #[test]
    fn certificate_and_key_must_belong_together() {
        let dir = tempfile::tempdir().expect("a directory");
        let (cert, key) = make(dir.path(), "one");
        let (_, other) = make(dir.path(), "two");
        assert!(load(&None, &None).expect("plain").is_none());
        let tls = load(&cert, &key).expect("good").expect("TLS");
        assert_eq!(tls.term.amiss(SystemTime::now()), None);
        let error = load(&cert, &other).expect_err("refused").to_string();
        assert!(
            error.contains("one.pem") && error.contains("two.key") && error.contains("together"),
            "{error}"
        );
    }
}
