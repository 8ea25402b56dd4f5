//! A peer with a valid certificate that does not keep to the rules: it sends HELLO as it should, and
//! then whatever a test wants. It is dialled back and answers as the test wants, too.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use grapevine_gossip::frame::{HEADER_BYTES, Header};
use grapevine_gossip::wire::{self, Hello, HelloAck, Message, PeerHint, Received};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Connection, ConnectionError, Endpoint, RecvStream, WriteError};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// Far more than anything takes here.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// Application code of a connection that was ended by a ban (`transport::Close::Banned`).
const BANNED: u32 = 5;
/// Of one that was refused because another process of the id is kept (`transport::Close::Twin`).
const TWIN: u32 = 10;

/// The three PEM texts of a replica.
#[derive(Clone)]
pub(crate) struct Pem {
    /// Roots.
    pub(crate) ca: String,
    /// Leaf.
    pub(crate) cert: String,
    /// Its key.
    pub(crate) key: String,
}

/// What it answers when it is asked: `None` like a replica that has nothing.
pub(crate) type Answer = Arc<dyn Fn(&Message) -> Option<Vec<Message>> + Send + Sync>;

/// The peer.
#[derive(Clone)]
pub(crate) struct Rogue {
    /// The identity in its certificate.
    pub(crate) id: String,
    cluster: String,
    /// Its generation; frames under another one are not read.
    pub(crate) generation: u64,
    endpoint: Endpoint,
    answer: Arc<Mutex<Answer>>,
    /// "I have seen this generation of you": what its HELLO-ACK reports.
    seen: Arc<Mutex<u64>>,
    /// "I keep another process of you, of this generation": it refuses every HELLO with that.
    kept: Arc<Mutex<Option<u64>>>,
}

/// A connection that it dialled, after HELLO.
pub(crate) struct Line {
    /// The connection.
    pub(crate) connection: Connection,
    generation: u64,
    seq: u64,
}

impl Rogue {
    /// Binds on loopback and answers every dial.
    pub(crate) fn start(cluster: &str, id: &str, pem: &Pem) -> Self {
        let (client, server) = tls(pem);
        let mut endpoint =
            Endpoint::server(server, ([127, 0, 0, 1], 0).into()).expect("binds on loopback");
        endpoint.set_default_client_config(client);
        let rogue = Self {
            id: id.to_owned(),
            cluster: cluster.to_owned(),
            generation: now_ms(),
            endpoint,
            answer: Arc::new(Mutex::new(Arc::new(|_| None))),
            seen: Arc::default(),
            kept: Arc::default(),
        };
        let mut listening = JoinSet::new();
        listening.spawn(rogue.clone().listen());
        listening.detach_all();
        rogue
    }

    /// Where it is dialled.
    pub(crate) fn address(&self) -> SocketAddr {
        self.endpoint.local_addr().expect("bound")
    }

    /// Answers from now on like this.
    pub(crate) fn answers(&self, answer: Answer) {
        *self.answer.lock().expect("no panic") = answer;
    }

    /// Reports in each HELLO-ACK that it has seen this generation of the dialling replica.
    pub(crate) fn has_seen(&self, generation: u64) {
        *self.seen.lock().expect("no panic") = generation;
    }

    /// Refuses from now on every HELLO for the sake of another process of this generation; `None`: no more.
    pub(crate) fn keeps(&self, generation: Option<u64>) {
        *self.kept.lock().expect("no panic") = generation;
    }

    /// Connects and sends nothing.
    pub(crate) async fn connect(&self, to: SocketAddr) -> Result<Connection, ConnectionError> {
        let connecting = self
            .endpoint
            .connect(to, &self.cluster)
            .expect("a valid name");
        timeout(LIMIT, connecting).await.expect("in time")
    }

    /// Connects and sends HELLO under its own name; again on a machine so busy that a handshake takes
    /// longer than it may.
    pub(crate) async fn dial(&self, to: SocketAddr) -> Line {
        let begun = Instant::now();
        loop {
            match self.greet(to, &self.id).await {
                Ok(line) => return line,
                Err(error) if begun.elapsed() > LIMIT || is_ban(&error) => {
                    panic!("{} was not let in: {error}", self.id)
                }
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Whether it is refused because of a ban; tried again while a busy machine lets no handshake end.
    pub(crate) async fn is_locked_out(&self, to: SocketAddr) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            match self.greet(to, &self.id).await {
                Ok(_) => return false,
                Err(error) if is_ban(&error) => return true,
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
        false
    }

    /// Connects and sends HELLO under any name.
    pub(crate) async fn greet(&self, to: SocketAddr, name: &str) -> Result<Line, ConnectionError> {
        let connection = self.connect(to).await?;
        let hello = Message::Hello(Hello {
            replica: name.parse().expect("an id"),
            cluster: self.cluster.clone(),
            gossip_addr: self.address(),
            version: "rogue".into(),
            process: None,
        });
        let bytes = frame(self.generation, 0, &hello);
        let ended = |connection: Connection| async move { connection.closed().await };
        let answer = ask(&connection, &bytes).await;
        let Some(Received {
            message: Some(Message::HelloAck(_)),
            ..
        }) = answer
            .as_ref()
            .ok()
            .and_then(|bytes| wire::decode(bytes).ok())
        else {
            return Err(timeout(LIMIT, ended(connection))
                .await
                .expect("it is closed"));
        };
        Ok(Line {
            connection,
            generation: self.generation,
            seq: 0,
        })
    }

    async fn listen(self) {
        let mut connections = JoinSet::new();
        while let Some(incoming) = self.endpoint.accept().await {
            let rogue = self.clone();
            connections.spawn(async move {
                if let Ok(connection) = incoming.await {
                    rogue.serve(connection).await;
                }
            });
        }
    }

    async fn serve(self, connection: Connection) {
        while let Ok((mut send, mut receive)) = connection.accept_bi().await {
            let Some(question) = read_frame(&mut receive).await else {
                continue;
            };
            let Ok(Received {
                message: Some(message),
                ..
            }) = wire::decode(&question)
            else {
                continue;
            };
            let seen = *self.seen.lock().expect("no panic");
            let is_hello = matches!(message, Message::Hello(_));
            let kept = *self.kept.lock().expect("no panic");
            if let Some(generation) = kept.filter(|_| is_hello) {
                let reason = format!("127.0.0.1:1 {generation}");
                return connection.close(TWIN.into(), reason.as_bytes());
            }
            let answer = if is_hello {
                let ack = Message::HelloAck(HelloAck {
                    replica: self.id.parse().expect("an id"),
                    generation_seen: seen,
                    hints: vec![PeerHint {
                        replica: self.id.parse().expect("an id"),
                        gossip_addr: self.address(),
                    }],
                });
                vec![ack]
            } else {
                let answer = self.answer.lock().expect("no panic").clone();
                answer(&message).unwrap_or_default()
            };
            for message in &answer {
                let _ = send.write_all(&frame(self.generation, 1, message)).await;
            }
            let _ = send.finish();
            if is_hello && seen > 0 {
                // So that it is asked again.
                let _ = send.stopped().await;
                connection.close(0u32.into(), b"");
            }
        }
    }
}

impl Line {
    /// Sends bytes on a uni stream of their own, and waits until they are there or refused: who sees at
    /// the header that a frame is too long stops the stream while the rest is still under way. False if
    /// the connection has ended.
    pub(crate) async fn send(&self, bytes: &[u8]) -> bool {
        let sent = async {
            let mut stream = self.connection.open_uni().await.ok()?;
            match stream.write_all(bytes).await {
                Ok(()) => stream.finish().ok()?,
                Err(WriteError::Stopped(_)) => return Some(()),
                Err(_) => return None,
            }
            stream.stopped().await.ok().map(drop)
        };
        timeout(LIMIT, sent).await.expect("in time").is_some()
    }

    /// Sends a message as one frame.
    pub(crate) async fn say(&mut self, message: &Message) -> bool {
        let bytes = self.frame(message);
        self.send(&bytes).await
    }

    /// Asks, and returns the bytes of the answer; `None` if the connection has ended.
    pub(crate) async fn ask(&mut self, message: &Message) -> Option<Vec<u8>> {
        let bytes = self.frame(message);
        ask(&self.connection, &bytes).await.ok()
    }

    /// A frame under the next sequence number.
    pub(crate) fn frame(&mut self, message: &Message) -> Vec<u8> {
        self.seq += 1;
        frame(self.generation, self.seq, message)
    }

    /// Whether the other side has ended it.
    pub(crate) fn is_over(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// Waits for the end; true if it was a ban.
    pub(crate) async fn is_banned(&self) -> bool {
        let closed = timeout(LIMIT, self.connection.closed()).await;
        is_ban(&closed.expect("the connection is ended"))
    }
}

/// Whether a connection ended with a ban.
pub(crate) fn is_ban(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::ApplicationClosed(close) if close.error_code == BANNED.into())
}

/// One message as a frame.
pub(crate) fn frame(generation: u64, seq: u64, message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode(&mut bytes, generation, seq, message).expect("it fits a frame");
    bytes
}

async fn ask(connection: &Connection, bytes: &[u8]) -> Result<Vec<u8>, ()> {
    let exchange = async {
        let (mut send, mut receive) = connection.open_bi().await.map_err(|_| ())?;
        send.write_all(bytes).await.map_err(|_| ())?;
        send.finish().map_err(|_| ())?;
        receive.read_to_end(32 << 20).await.map_err(|_| ())
    };
    timeout(LIMIT, exchange).await.expect("in time")
}

async fn read_frame(receive: &mut RecvStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEADER_BYTES];
    receive.read_exact(&mut bytes).await.ok()?;
    let rest = Header::read(&bytes).ok()?.rest_len();
    bytes.resize(HEADER_BYTES + rest, 0);
    receive.read_exact(&mut bytes[HEADER_BYTES..]).await.ok()?;
    Some(bytes)
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("after 1970").as_millis() as u64
}

fn tls(pem: &Pem) -> (quinn::ClientConfig, quinn::ServerConfig) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(pem.ca.as_bytes()) {
        roots.add(root.expect("PEM")).expect("a root");
    }
    let roots = Arc::new(roots);
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem.cert.as_bytes())
        .collect::<Result<_, _>>()
        .expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).expect("PEM");
    let mut client = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots.clone())
        .with_client_auth_cert(chain.clone(), key.clone_key())
        .expect("the key is the certificate's");
    client.alpn_protocols = vec![ALPN.to_vec()];
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .expect("roots");
    let mut server = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .expect("the key is the certificate's");
    server.alpn_protocols = vec![ALPN.to_vec()];
    let client = QuicClientConfig::try_from(client).expect("TLS 1.3");
    let server = QuicServerConfig::try_from(server).expect("TLS 1.3");
    (
        quinn::ClientConfig::new(Arc::new(client)),
        quinn::ServerConfig::with_crypto(Arc::new(server)),
    )
}

/// What replicas speak.
pub(crate) const ALPN: &[u8] = b"grapevine/1";
