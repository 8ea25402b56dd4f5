//! How this replica reaches workers, on the data path and for checks: rule, keys, TLS. One for all workers.
//!
//! Nothing here is known to other replicas. A worker that came by gossip is reached by the same rule, with
//! the same authorities, and with the key that this replica has for its address.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use grapevine_gossip::identity::Term;
use grapevine_gossip::worker::WorkerUrl;
use http::{HeaderMap, HeaderValue, Version, header};
use reqwest::Method;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::address::Address;
use super::hosts::{Hosts, Resolver};
use super::keys::Keys;
use super::socket_error::is_own_lack;
use super::tls::{WorkerIo, WorkerTlsFiles, believes_nobody, offering_http2};
use crate::config::allow::Allow;
use crate::config::{DnsConfig, WorkerConfig, WorkerHttp2, WorkersConfig};
use crate::http::hops;
use crate::keep_alive;
use crate::lag::read_until;
use crate::live::Live;
use crate::log_limit::LogLimit;
use crate::tls::{FileError, Files, Reloader};

/// Receive buffer of a connection to a worker; the kernel takes it twice. Left to itself it grows to megabytes, which
/// fill up for every client that does not read its answer.
const RECEIVE_BYTES: usize = 128 * 1024;
/// A name's next address is tried when the one before has not answered for so long.
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// What a [`Connector`] is made of.
#[derive(Debug, Clone, Default)]
pub struct ConnectorParts {
    /// What holds for all workers.
    pub workers: WorkersConfig,
    /// Workers with keys of their own among the configured ones.
    pub each: Vec<WorkerConfig>,
    /// Longest TLS handshake of a connection that carries requests.
    pub handshake_within: Live<Duration>,
    /// Longest exchange of a check.
    pub check_within: Duration,
    /// The name servers that are set, which know the targets of SRV records.
    pub dns: DnsConfig,
}

/// See the module.
#[derive(Debug)]
pub struct Connector {
    parts: ConnectorParts,
    /// The configured workers, whose keys are known.
    each: ArcSwap<Vec<WorkerConfig>>,
    /// What holds for all of them, as it was read last.
    all: ArcSwap<WorkersConfig>,
    hosts: Arc<Hosts>,
    keys: ArcSwap<Keys>,
    /// For checks of plain workers.
    plain: reqwest::Client,
    files: WorkerTlsFiles,
    /// None until an https worker is met: the system's authorities take memory and may be missing.
    secure: ArcSwapOption<Secure>,
    /// Held while they are read for the first time.
    reading: Mutex<()>,
    /// Between two lines about workers that do not answer in HTTP/2.
    pub no_http2: LogLimit,
}

/// TLS to workers, as read from files. Replaced as a whole, so that no session made by an authority that is
/// not believed any more is resumed.
#[derive(Debug)]
struct Secure {
    tls: Arc<ClientConfig>,
    /// The same with HTTP/2 offered.
    tls_http2: Arc<ClientConfig>,
    /// For checks of https workers.
    client: reqwest::Client,
    /// From when until when the certificate is accepted that is shown to workers.
    term: Option<Term>,
}

impl Connector {
    /// Reads the keys, and the files of TLS where some are configured.
    /// Errors: a file cannot be used.
    pub fn load(parts: ConnectorParts) -> Result<Self, FileError> {
        let files = WorkerTlsFiles::of(&parts.workers);
        let allow = Allow::new(parts.workers.allow.clone());
        let hosts = Arc::new(Hosts::new(allow, &parts.dns));
        let secure = if files.paths().is_empty() {
            None
        } else {
            Some(Arc::new(Secure::load(&files, &hosts, parts.check_within)?))
        };
        Ok(Self {
            keys: ArcSwap::from_pointee(Keys::load(&parts.workers, &parts.each)?),
            each: ArcSwap::from_pointee(parts.each.clone()),
            all: ArcSwap::from_pointee(parts.workers.clone()),
            plain: control_client(believes_nobody(), &hosts, parts.check_within),
            parts,
            hosts,
            files,
            secure: ArcSwapOption::from(secure),
            reading: Mutex::default(),
            no_http2: LogLimit::default(),
        })
    }

    /// Has its files read again when they change. They were seen before [`Connector::load`] read them.
    pub fn watch(self: &Arc<Self>, [tls, keys]: [Files; 2], reloader: &mut Reloader) {
        let term = self.term();
        let connector = Arc::clone(self);
        reloader.watch(tls, term, move || connector.reload_tls());
        let connector = Arc::clone(self);
        reloader.watch(keys, None, move || {
            connector.reload_keys(Keys::load)?;
            Ok(None)
        });
    }

    /// A hang-up has the configuration read as well, at the same moment: what it says of keys is not to be lost to what it
    /// said before.
    fn reload_keys(
        &self,
        load: impl Fn(&WorkersConfig, &[WorkerConfig]) -> Result<Keys, FileError>,
    ) -> Result<(), FileError> {
        loop {
            let (all, each) = (self.all.load_full(), self.each.load_full());
            let loaded = load(&all, &each).map(|keys| self.keys.store(Arc::new(keys)));
            // Only now: a configuration that comes later stores its own keys later, too.
            if Arc::ptr_eq(&all, &self.all.load()) && Arc::ptr_eq(&each, &self.each.load()) {
                return loaded;
            }
        }
    }

    /// Other workers, and another key for all of them, are configured from now on.
    /// Errors: a file with a key cannot be used; nothing was changed.
    pub fn follow(&self, all: WorkersConfig, each: Vec<WorkerConfig>) -> Result<(), FileError> {
        let keys = Keys::load(&all, &each)?;
        self.all.store(Arc::new(all));
        self.each.store(Arc::new(each));
        self.keys.store(Arc::new(keys));
        Ok(())
    }

    /// The files of TLS and of keys as they are now.
    pub fn files(parts: &ConnectorParts) -> [Files; 2] {
        let tls = WorkerTlsFiles::of(&parts.workers).paths();
        let keys = Keys::files(&parts.workers, &parts.each);
        [
            Files::seen("workers", tls),
            Files::seen("worker_keys", keys),
        ]
    }

    /// From when until when workers accept the certificate that is shown to them; none where there is none.
    pub fn term(&self) -> Option<Term> {
        self.secure.load().as_ref().and_then(|secure| secure.term)
    }

    fn reload_tls(&self) -> Result<Option<Term>, FileError> {
        let secure = Secure::load(&self.files, &self.hosts, self.parts.check_within)?;
        let term = secure.term;
        self.secure.store(Some(Arc::new(secure)));
        Ok(term)
    }

    /// Where workers may be.
    pub fn allow(&self) -> &Allow {
        self.hosts.allow()
    }

    /// What to send to a worker as `Authorization`, in place of the client's.
    pub fn authorization(&self, url: &WorkerUrl) -> Option<HeaderValue> {
        self.keys.load().of(url)
    }

    /// In which version of HTTP workers are asked.
    pub fn http2(&self) -> WorkerHttp2 {
        self.parts.workers.http2
    }

    /// Longest handshake of a connection that carries requests, of TLS and of HTTP/2 each.
    pub fn handshake_within(&self) -> Duration {
        **self.parts.handshake_within.look()
    }

    /// Connects to a worker; HTTP/2 is offered to it in its TLS handshake unless it is off.
    /// Errors: `PermissionDenied` where the worker may not be, `TimedOut` when the socket took longer than `within` or
    /// the handshake longer than its own limit, `InvalidData` for a certificate that is not believed, else the socket's
    /// error.
    pub async fn dial(
        &self,
        address: &Address,
        within: Duration,
        http2: WorkerHttp2,
    ) -> io::Result<WorkerIo> {
        let stream = read_within(within, self.connect(address)).await??;
        stream.set_nodelay(true)?;
        keep_alive::OF_REQUESTS.set(&stream)?;
        socket2::SockRef::from(&stream).set_recv_buffer_size(RECEIVE_BYTES)?;
        let Some(name) = &address.server_name else {
            return Ok(WorkerIo::Plain(stream));
        };
        let secure = self.secure().await?;
        let tls = match http2 {
            WorkerHttp2::Off => &secure.tls,
            WorkerHttp2::Tls | WorkerHttp2::On => &secure.tls_http2,
        };
        let tls_connector = TlsConnector::from(Arc::clone(tls));
        let handshake = tls_connector.connect(name.clone(), stream);
        let stream = read_within(self.handshake_within(), handshake).await??;
        Ok(WorkerIo::Tls(Box::new(stream)))
    }

    /// Connects to another port of a worker, or of another host that it names, without TLS: what listens there is its
    /// engine's side.
    /// Errors: as [`Connector::dial`], without those of TLS.
    pub async fn dial_plain(
        &self,
        host: &str,
        port: u16,
        within: Duration,
    ) -> io::Result<TcpStream> {
        let refused = |error| io::Error::new(io::ErrorKind::PermissionDenied, error);
        self.allow().host(host).map_err(refused)?;
        let stream = read_within(within, self.connect_to(host, port)).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Whether no process listens at a worker's address, as far as a new connection tells within this time. One that is
    /// frozen still takes connections, and answers no handshake; that this replica has no socket, or no address for the
    /// name, says nothing of it.
    pub async fn is_gone(&self, address: &Address, within: Duration) -> bool {
        let (host, port) = (address.url.host(), address.url.port());
        let resolved = timeout(within, self.hosts.resolve(host, port)).await;
        let Ok(Ok(addresses)) = resolved else {
            return false;
        };
        let connected = read_within(within, connect_to_one(addresses)).await;
        let failed = connected.flatten().err();
        failed.is_some_and(|error| !is_own_lack(&error))
    }

    async fn connect(&self, address: &Address) -> io::Result<TcpStream> {
        self.connect_to(address.url.host(), address.url.port())
            .await
    }

    async fn connect_to(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        connect_to_one(self.hosts.resolve(host, port).await?).await
    }

    /// A `GET` of the control path; see [`Connector::request`].
    /// Errors: as that.
    pub async fn get(
        &self,
        address: &Address,
        path: &str,
    ) -> anyhow::Result<reqwest::RequestBuilder> {
        self.request(Method::GET, address, path).await
    }

    /// A plain `GET` at another port of the worker's host, without its key: what listens there is its engine's side, not
    /// its API.
    /// Errors: the worker may not be where it is.
    pub fn get_at_port(
        &self,
        address: &Address,
        port: u16,
        path: &str,
    ) -> anyhow::Result<reqwest::RequestBuilder> {
        let host = address.url.host();
        self.allow().host(host)?;
        let bracketed = match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]"),
            false => host.to_owned(),
        };
        let request = self.plain.get(format!("http://{bracketed}:{port}{path}"));
        Ok(request.headers(signed()))
    }

    /// A request of the control path to a worker, with its key and a deadline.
    /// Errors: the worker may not be where it is, or there are no authorities to verify it by.
    pub async fn request(
        &self,
        method: Method,
        address: &Address,
        path: &str,
    ) -> anyhow::Result<reqwest::RequestBuilder> {
        // An address needs no resolver, so reqwest would not ask.
        self.allow().host(address.url.host())?;
        let client = match &address.server_name {
            None => self.plain.clone(),
            Some(_) => self.secure().await?.client.clone(),
        };
        let request = client.request(method, address.url(path)).headers(signed());
        Ok(match self.authorization(&address.url) {
            Some(key) => request.header(header::AUTHORIZATION, key),
            None => request,
        })
    }

    async fn secure(&self) -> io::Result<Arc<Secure>> {
        if let Some(secure) = self.secure.load_full() {
            return Ok(secure);
        }
        let _one = self.reading.lock().await;
        if let Some(secure) = self.secure.load_full() {
            return Ok(secure);
        }
        let (files, hosts) = (self.files.clone(), Arc::clone(&self.hosts));
        let within = self.parts.check_within;
        let read = spawn_blocking(move || Secure::load(&files, &hosts, within));
        let secure = Arc::new(read.await?.map_err(io::Error::other)?);
        self.secure.store(Some(Arc::clone(&secure)));
        Ok(secure)
    }
}

impl Secure {
    fn load(
        files: &WorkerTlsFiles,
        hosts: &Arc<Hosts>,
        check_within: Duration,
    ) -> Result<Self, FileError> {
        let (tls, term) = files.load()?;
        Ok(Self {
            client: control_client(tls.clone(), hosts, check_within),
            tls_http2: Arc::new(offering_http2(&tls)),
            tls: Arc::new(tls),
            term,
        })
    }
}

/// What tells a replica of this cluster that one of them asks. Made for each request: the name changes with the authority.
fn signed() -> HeaderMap {
    let mut headers = HeaderMap::new();
    hops::sign(&mut headers, Version::HTTP_11);
    headers
}

/// A client for checks: no proxy from the environment, no redirects to where a worker points.
fn control_client(tls: ClientConfig, hosts: &Arc<Hosts>, within: Duration) -> reqwest::Client {
    reqwest::Client::builder()
        // Each check has a limit of its own, which may be longer; this is for what is asked without one.
        .timeout(within)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        // vLLM closes idle connections after 5 s, and a worker that moved shall be left soon at its old address.
        .pool_idle_timeout(Duration::from_millis(1_500))
        .dns_resolver(Resolver(Arc::clone(hosts)))
        .tls_backend_preconfigured(tls)
        .build()
        .expect("its TLS is made, and it reads nothing from the system")
}

/// A connection to one of these.
async fn connect_to_one(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    match addresses[..] {
        [address] => TcpStream::connect(address).await,
        _ => connect_to_first(addresses).await,
    }
}

/// The first connection that comes about. An address that does not answer must not keep the others from being tried, so
/// the next one is after [`NEXT_ADDRESS`] (RFC 8305, section 5), or once those before have failed.
async fn connect_to_first(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut last = None;
    let mut attempts = JoinSet::new();
    let mut addresses = addresses.into_iter();
    loop {
        if let Some(address) = addresses.next() {
            attempts.spawn(TcpStream::connect(address));
        }
        let is_last = addresses.len() == 0;
        let ended = match is_last {
            true => attempts.join_next().await,
            false => match timeout(NEXT_ADDRESS, attempts.join_next()).await {
                Ok(ended) => ended,
                Err(_) => continue,
            },
        };
        match ended {
            None => return Err(last.unwrap_or_else(|| io::Error::other("its name has no address"))),
            Some(Ok(Ok(stream))) => return Ok(stream),
            // That this machine has no way to an address says less of the worker than what came of another.
            Some(Ok(Err(error)))
                if last.is_some() && error.kind() == io::ErrorKind::AddrNotAvailable => {}
            Some(Ok(Err(error))) => last = Some(error),
            Some(Err(error)) => last = Some(error.into()),
        }
    }
}

/// `TimedOut` after so long: not where it is this process that was stopped, since that says nothing of the worker.
async fn read_within<T>(within: Duration, reading: impl Future<Output = T>) -> io::Result<T> {
    let read = read_until(Instant::now() + within, reading).await;
    read.ok_or_else(|| io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::config::{AllowedHost, Secret};
    use grapevine_gossip::worker::{RawWorker, WorkerSpec};
    use rustls::HandshakeKind;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    fn connector(allow: &[&str]) -> Connector {
        let entry = |text: &&str| AllowedHost::new(text).expect(text);
        let mut parts = ConnectorParts {
            check_within: Duration::from_secs(10),
            ..ConnectorParts::default()
        };
        parts.workers.allow = allow.iter().map(entry).collect();
        Connector::load(parts).expect("nothing is read")
    }

    fn address(url: String) -> Address {
        Address::of(&WorkerSpec::new(RawWorker::at(url)).expect("a worker")).expect("an address")
    }

    /// A TLS server that writes one byte to every client, and its certificate as a file.
    async fn greeter(dir: &std::path::Path) -> (u16, std::path::PathBuf) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let file = dir.join("ca.pem");
        std::fs::write(&file, made.cert.pem()).expect("written");
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der());
        let server = rustls::ServerConfig::builder_with_provider(crate::tls::provider())
            .with_safe_default_protocol_versions()
            .expect("suites")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.expect("a key"))
            .expect("a pair");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let port = listener.local_addr().expect("address").port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let _ = stream.write_all(b"x").await;
                    let _ = stream.shutdown().await;
                }
            }
        });
        (port, file)
    }

    #[test]
    fn keys_are_those_of_the_configuration_that_was_read_last() {
        let connector = connector(&[]);
        let all = WorkersConfig {
            api_key: Secret::new("new"),
            ..WorkersConfig::default()
        };
        let is_first = Cell::new(true);
        // The configuration is read between a reading of the keys and its end.
        let load = |former: &WorkersConfig, each: &[WorkerConfig]| {
            let keys = Keys::load(former, each);
            if is_first.replace(false) {
                connector.follow(all.clone(), Vec::new()).expect("no files");
            }
            keys
        };
        connector.reload_keys(load).expect("no files");
        let key = connector.authorization(&"http://w:1".parse().expect("a URL"));
        assert_eq!(key, Some(HeaderValue::from_static("Bearer new")));
    }

    #[tokio::test]
    async fn sessions_are_resumed_until_the_authorities_are_read_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let (port, ca) = greeter(dir.path()).await;
        let mut parts = ConnectorParts {
            handshake_within: Duration::from_secs(10).into(),
            ..ConnectorParts::default()
        };
        parts.workers.ca = Some(ca);
        let connector = Connector::load(parts).expect("good files");
        let worker = address(format!("https://localhost:{port}"));
        let shake = async || {
            let io = connector
                .dial(&worker, Duration::from_secs(10), WorkerHttp2::Tls)
                .await;
            let WorkerIo::Tls(mut io) = io.expect("connected") else {
                panic!("without TLS");
            };
            // Tickets come with the first bytes.
            let mut read = Vec::new();
            io.read_to_end(&mut read).await.expect("greeted");
            io.get_ref().1.handshake_kind().expect("it is over")
        };
        assert_eq!(shake().await, HandshakeKind::Full);
        assert_eq!(shake().await, HandshakeKind::Resumed);
        connector.reload_tls().expect("good files");
        assert_eq!(shake().await, HandshakeKind::Full);
    }

    /// The first of a name's addresses is one at which nobody answers: packets are dropped there.
    #[tokio::test]
    async fn an_address_that_does_not_answer_keeps_no_other_from_being_tried() {
        let full = TcpListener::from_std({
            let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
            let socket = socket.expect("a socket");
            socket.bind(&any.into()).expect("bound");
            socket.listen(0).expect("listens");
            socket.set_nonblocking(true).expect("set");
            socket.into()
        });
        let full = full.expect("a listener");
        let silent = full.local_addr().expect("bound");
        let _in_its_queue = std::net::TcpStream::connect(silent).expect("one has room");
        let good = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let good = good.local_addr().expect("bound");
        let within = Duration::from_secs(10);
        let connected = timeout(within, connect_to_first(vec![silent, silent, good])).await;
        let stream = connected.expect("in time").expect("connected");
        assert_eq!(stream.peer_addr().expect("connected"), good);

        let gone = {
            let ended = TcpListener::bind("127.0.0.1:0").await.expect("bound");
            ended.local_addr().expect("bound")
        };
        let refused = connect_to_first(vec![gone, gone]).await;
        assert_eq!(
            refused.expect_err("refused").kind(),
            io::ErrorKind::ConnectionRefused
        );
        assert!(connect_to_first(Vec::new()).await.is_err());
    }

    /// A name that is allowed until it is resolved: what DNS rebinding comes down to.
    #[tokio::test]
    async fn names_are_judged_by_what_they_resolve_to_at_each_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let port = listener.local_addr().expect("address").port();
        let worker = address(format!("http://localhost:{port}"));
        let within = Duration::from_secs(10);

        let elsewhere = connector(&["10.0.0.0/8"]);
        assert!(
            elsewhere.allow().host("localhost").is_ok(),
            "not resolved yet"
        );
        let refused = elsewhere
            .dial(&worker, within, WorkerHttp2::Off)
            .await
            .expect_err("refused");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("workers.allow"), "{refused}");
        let request = elsewhere.get(&worker, "/health").await.expect("a name");
        let refused = format!(
            "{:#}",
            anyhow::Error::from(request.send().await.expect_err("refused"))
        );
        assert!(refused.contains("workers.allow"), "{refused}");

        let here = connector(&["127.0.0.0/8"]);
        here.dial(&worker, within, WorkerHttp2::Off)
            .await
            .expect("permitted");
        let (_, from) = listener
            .accept()
            .await
            .expect("only the permitted one came");
        assert!(from.ip().is_loopback());
        // An address is judged without a resolver.
        let literal = address(format!("http://127.0.0.1:{port}"));
        assert!(elsewhere.get(&literal, "/health").await.is_err());
        assert!(
            elsewhere
                .dial(&literal, within, WorkerHttp2::Off)
                .await
                .is_err()
        );
    }
}
