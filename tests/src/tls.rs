//! Certificates for tests, clients that look at TLS closely, and TLS in front of a fake worker.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::task::AbortOnDropHandle;

use crate::wait::LIMIT;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key as files.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate (PEM).
    pub cert: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
}

impl Authority {
    /// A new authority, which nothing trusts yet.
    #[allow(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are no wrong names");
        // With equal names a client would take one authority for the other and report a wrong signature.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        params
            .distinguished_name
            .push(DnType::CommonName, format!("authority {number}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key can be made");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority can be made"))
    }

    /// Writes its certificate to a file.
    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.0.pem()).expect("a file can be written");
    }

    /// Its certificate as text.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for these names and addresses and writes it to `<name>.pem` and `<name>.key`.
    pub fn issue(&self, dir: &Path, name: &str, hosts: &[&str]) -> Pair {
        self.issue_for(dir, name, hosts, Duration::from_secs(365 * 24 * 3600))
    }

    /// The same, valid for this long from now.
    pub fn issue_for(&self, dir: &Path, name: &str, hosts: &[&str], term: Duration) -> Pair {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("names are names");
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let now = UNIX_EPOCH.elapsed().expect("it is after 1970");
        params.not_after = date_time_ymd(1970, 1, 1) + now + term;
        let key = KeyPair::generate().expect("a key can be made");
        let signed = params.signed_by(&key, &self.0).expect("it can be signed");
        let pair = Pair {
            cert: dir.join(format!("{name}.pem")),
            key: dir.join(format!("{name}.key")),
        };
        std::fs::write(&pair.cert, signed.pem()).expect("a file can be written");
        std::fs::write(&pair.key, key.serialize_pem()).expect("a file can be written");
        pair
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("it is an authority");
        Arc::new(roots)
    }

    /// A client that trusts this authority and speaks HTTP/1.1.
    pub fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("ring has suites")
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config
    }
}

impl Pair {
    /// The certificate as it appears in a handshake.
    pub fn leaf(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(&self.cert).expect("a certificate")
    }

    /// The key.
    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(&self.key).expect("a key")
    }

    /// A server that shows it, speaks these protocols, the best first, and asks for a certificate of `clients`, if
    /// given.
    pub fn server(&self, clients: Option<&Authority>, protocols: &[&str]) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("ring has suites");
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(authority.roots(), provider())
                    .build()
                    .expect("there is an authority"),
            ),
        };
        let mut config = builder
            .with_single_cert(vec![self.leaf()], self.private_key())
            .expect("they belong together");
        let protocols = protocols.iter();
        config.alpn_protocols = protocols.map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    /// Certificate and key as one text, as `reqwest` wants an identity.
    pub fn pem(&self) -> String {
        let read = |path| std::fs::read_to_string(path).expect("a file can be read");
        read(&self.key) + &read(&self.cert)
    }
}

/// Connects by TLS to `localhost` at this address.
///
/// # Errors
/// An error of TLS or of the socket.
pub async fn connect(
    config: ClientConfig,
    address: SocketAddr,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    shake_hands(config, stream).await
}

/// Begins TLS with `localhost` on a connection that has carried something else before.
///
/// # Errors
/// An error of TLS or of the socket.
pub async fn shake_hands(
    config: ClientConfig,
    stream: TcpStream,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").expect("a name");
    let shaken = TlsConnector::from(Arc::new(config)).connect(name, stream);
    timeout(LIMIT, shaken).await.expect("a handshake ends")
}

/// TLS in front of a plain server; ends when dropped.
pub struct Front {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

impl Front {
    /// Shows the certificate of `pair`, passes everything on to `to`, and asks for a certificate of
    /// `clients`, if given.
    pub async fn start(pair: &Pair, clients: Option<&Authority>, to: SocketAddr) -> Self {
        let config = pair.server(clients, &["http/1.1"]);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let task = tokio::spawn(async move {
            // All connections are dropped with the task.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    let mut inside = acceptor.accept(stream).await?;
                    let mut outside = TcpStream::connect(to).await?;
                    copy_bidirectional(&mut inside, &mut outside).await
                });
            }
        });
        Self {
            address,
            accepted,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Number of accepted connections.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Its URL with this host.
    pub fn url(&self, host: &str) -> String {
        format!("https://{host}:{}", self.address.port())
    }
}
