//! S01: a process without a valid certificate of this cluster is not let in, changes nothing, and is one log
//! line a minute, however often it comes.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use grapevine_gossip::identity;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, ConnectionError, Endpoint};
use rcgen::{
    CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use time::OffsetDateTime;
use tokio::time::timeout;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::rogue::{ALPN, LIMIT, Pem};
use super::scene::{CLUSTER, Scene, eventually};

/// Tries of each kind; one line of the log for all of them.
const TRIES: usize = 3;

/// What a stranger shows.
enum Shown {
    Nothing,
    Certificate(Pem),
}

#[tokio::test]
async fn strangers_are_refused_in_the_handshake_with_one_line() {
    let scene = Scene::new().await;
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let day = time::Duration::days(1);
    let now = OffsetDateTime::now_utc();
    let other = identity::create(CLUSTER).expect("authority");
    let both = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let of_ours = |from, to, usages: &[ExtendedKeyUsagePurpose]| {
        let authority = (&*scene.authority.cert_pem, &*scene.authority.key_pem);
        Shown::Certificate(leaf(Some(authority), from, to, usages))
    };
    let server_only = &both[..1];
    let other_authority = (&*other.cert_pem, &*other.key_pem);
    let kinds = [
        ("no certificate", Shown::Nothing, ALPN),
        (
            "self-signed",
            Shown::Certificate(leaf(None, now - day, now + day, &both)),
            ALPN,
        ),
        (
            "another authority of the same name",
            Shown::Certificate(leaf(Some(other_authority), now - day, now + day, &both)),
            ALPN,
        ),
        ("expired", of_ours(now - 2 * day, now - day, &both), ALPN),
        (
            "not valid yet",
            of_ours(now + day, now + 2 * day, &both),
            ALPN,
        ),
        (
            "not for clients",
            of_ours(now - day, now + day, server_only),
            ALPN,
        ),
        (
            "another protocol",
            of_ours(now - day, now + day, &both),
            b"h3",
        ),
    ];
    let victim = scene.victim();
    for (kind, shown, alpn) in &kinds {
        let before = victim.sum("gossip_handshakes_total", "\"refused\"");
        for _ in 0..TRIES {
            let error = try_in(shown, alpn, victim.address()).await;
            let is_tls = matches!(
                &error,
                ConnectionError::ConnectionClosed(close)
                    if (0x100..0x200).contains(&u64::from(close.error_code))
            );
            assert!(is_tls, "{kind}: {error:?}");
        }
        eventually("it is counted", || {
            let refused = victim.sum("gossip_handshakes_total", "\"refused\"") - before;
            (refused == TRIES as f64).then_some(())
        })
        .await;
    }
    // All of them came from one machine.
    assert_eq!(log.lines("refused a connection").len(), 1, "{log:?}");
    assert_eq!(victim.agent.view().replicas().len(), 3);
    scene.unharmed("strangers").await;
}

/// S02, first half: a valid certificate of this cluster, and another replica's name in HELLO.
#[tokio::test]
async fn a_name_that_the_certificate_does_not_say_is_refused_with_one_line() {
    let scene = Scene::new().await;
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let liar = scene.rogue("liar");
    for _ in 0..TRIES {
        let refused = liar.greet(scene.victim().address(), "h2").await;
        let Err(ConnectionError::ApplicationClosed(close)) = refused.map(|_| ()) else {
            panic!("a liar was let in");
        };
        // `transport::Close::WrongName`
        assert_eq!(close.error_code, 4u32.into());
    }
    let lines = log.lines("whose certificate names another");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("claimed=h2"), "{lines:?}");
    scene.unharmed("a wrong name").await;
}

/// A leaf for `stranger`, signed by itself or by an authority (certificate and key in PEM).
fn leaf(
    authority: Option<(&str, &str)>,
    from: OffsetDateTime,
    to: OffsetDateTime,
    usages: &[ExtendedKeyUsagePurpose],
) -> Pem {
    let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let names = [format!("stranger.{CLUSTER}"), CLUSTER.to_owned()];
    let mut params = CertificateParams::new(names).expect("names");
    params.not_before = from;
    params.not_after = to;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages.to_vec();
    let cert = match authority {
        None => params.self_signed(&key),
        Some((cert, authority_key)) => {
            let authority_key = KeyPair::from_pem(authority_key).expect("a key");
            let issuer = Issuer::from_ca_cert_pem(cert, authority_key).expect("an authority");
            params.signed_by(&key, &issuer)
        }
    };
    let cert = cert.expect("a certificate").pem();
    Pem {
        ca: cert.clone(),
        cert,
        key: key.serialize_pem(),
    }
}

/// Dials without a look at the other side, and returns how that ended.
async fn try_in(shown: &Shown, alpn: &[u8], to: SocketAddr) -> ConnectionError {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Blind));
    let mut tls = match shown {
        Shown::Nothing => builder.with_no_client_auth(),
        Shown::Certificate(pem) => {
            let cert = CertificateDer::from_pem_slice(pem.cert.as_bytes()).expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).expect("PEM");
            let tls = builder.with_client_auth_cert(vec![cert], key);
            tls.expect("the key is the certificate's")
        }
    };
    tls.alpn_protocols = vec![alpn.to_vec()];
    let tls = QuicClientConfig::try_from(tls).expect("TLS 1.3");
    let mut endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).expect("binds");
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(tls)));
    let connecting = endpoint.connect(to, CLUSTER).expect("a name");
    // A client's certificate is judged after its own side of the handshake is done.
    let ended = async |connection: Connection| connection.closed().await;
    match timeout(LIMIT, connecting).await.expect("in time") {
        Err(error) => error,
        Ok(connection) => timeout(LIMIT, ended(connection))
            .await
            .expect("it is ended"),
    }
}

/// Believes every server.
#[derive(Debug)]
struct Blind;

impl ServerCertVerifier for Blind {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ED25519,
            SignatureScheme::ECDSA_NISTP256_SHA256,
        ]
    }
}

/// The log of this thread, one text an event.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn lines(&self, part: &str) -> Vec<String> {
        let lines = self.0.lock().expect("no panic");
        let wanted = lines.iter().filter(|line| line.contains(part));
        wanted.cloned().collect()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("grapevine")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0 += &format!(" {}={value:?}", field.name());
            }
        }
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().expect("no panic").push(text.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
