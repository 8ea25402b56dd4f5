use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

fn client(address: std::net::SocketAddr, token: Option<&str>) -> AdminClient {
    // Another test of this process may have installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let args = AdminArgs {
        admin: format!("http://{address}").parse().expect("a URL"),
        ca: CaArg { admin_ca: None },
        token: token.map(str::to_owned),
        json: false,
    };
    AdminClient::new(&args).expect("a client")
}

/// What the client sent, and what it made of the answer.
async fn exchange(answer: &str, path: &[&str]) -> (String, Result<Value, Failure>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let client = client(listener.local_addr().expect("bound"), Some("hush"));
    let replica = async {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a whole head"));
        }
        stream.write_all(answer.as_bytes()).await.expect("sent");
        String::from_utf8(head).expect("text")
    };
    let call = client.call(Method::DELETE, path, &[("a", "b c")], Vec::new());
    tokio::join!(replica, call)
}

fn answer(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
}

#[test]
fn what_is_no_address_or_token_is_a_mistake_of_the_command_line() {
    for text in [
        "",
        "127.0.0.1:30001",
        "10.0.0.1",
        "ftp://x",
        "https://",
        "http://",
        "https://proxy.example/grapevine",
        "http://10.0.0.1:30001/?a=b",
    ] {
        let error = admin_url(text).expect_err(text);
        assert!(error.contains("write http://address:port"), "{error}");
    }
    let url = || admin_url("http://[::1]:30001").expect("an address");
    for token in ["two\nlines", "\u{7f}"] {
        let refused = AdminClient::at(url(), Some(token.to_owned())).err();
        let is_usage = matches!(refused, Some(Failure::Usage(text)) if !text.contains(token));
        assert!(is_usage, "{token:?}");
    }
}

/// A proxy that ends TLS, with a certificate that signed itself: its port, and that certificate in a file.
async fn tls_proxy(answers: &'static str, is_ca: IsCa) -> (u16, tempfile::NamedTempFile) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let signing_key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    params.is_ca = is_ca;
    let cert = params.self_signed(&signing_key).expect("made");
    let ca = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(ca.path(), cert.pem()).expect("written");
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key.into())
        .expect("a pair");
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // Who does not believe the certificate leaves.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a whole head"));
            }
            stream
                .write_all(answer("200 OK", answers).as_bytes())
                .await
                .expect("sent");
            let _ = stream.shutdown().await;
        }
    });
    (port, ca)
}

#[tokio::test]
async fn behind_a_proxy_that_ends_tls_the_named_authority_is_believed_and_no_other() {
    let (port, ca) = tls_proxy(r#"{"replica":"r1"}"#, IsCa::NoCa).await;
    let url = || admin_url(&format!("https://localhost:{port}")).expect("an address");
    let with = |file: Option<&Path>| {
        let ca = CaArg {
            admin_ca: file.map(Path::to_owned),
        };
        AdminClient::trusting(url(), None, &ca)
    };
    let asked = with(Some(ca.path())).expect("a client");
    let cluster = asked.get(&["cluster"]).await.expect("an answer");
    assert_eq!(cluster["replica"], "r1");
    let refused = with(None).expect("a client").get(&["cluster"]).await;
    let is_told = matches!(&refused, Err(Failure::Unreachable(why)) if why.contains("certificate") && why.contains("--ca"));
    assert!(is_told, "{refused:?}");
    // Whoever names one believes that nobody reads along.
    let plain = CaArg {
        admin_ca: Some(ca.path().to_owned()),
    };
    let bare = admin_url(DEFAULT_ADMIN).expect("an address");
    let bare = AdminClient::trusting(bare, None, &plain).err();
    assert!(matches!(bare, Some(Failure::Usage(why)) if why.contains("no TLS")));
    let missing = with(Some(Path::new("/no/such/ca.pem"))).err();
    assert!(matches!(missing, Some(Failure::Usage(why)) if why.starts_with("--ca: ")));
}

#[tokio::test]
async fn an_authoritys_own_certificate_is_no_servers_and_that_is_told() {
    let authority = IsCa::Ca(BasicConstraints::Unconstrained);
    let (port, ca) = tls_proxy("{}", authority).await;
    let url = admin_url(&format!("https://localhost:{port}")).expect("an address");
    let ca = CaArg {
        admin_ca: Some(ca.path().to_owned()),
    };
    let client = AdminClient::trusting(url, None, &ca).expect("a client");
    let refused = client.get(&["cluster"]).await.expect_err("not believed");
    assert!(refused.to_string().contains("CA:FALSE"), "{refused}");
}

#[tokio::test]
async fn a_token_that_was_given_for_tls_goes_nowhere_without() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let plain = || Url::parse(&format!("http://{address}")).expect("a URL");
    let proxy = admin_url("https://proxy.example").expect("an address");
    let client = AdminClient::at(proxy, Some("hush".to_owned())).expect("a client");
    let other = client.elsewhere(&address.to_string()).expect("a client");
    let failure = other.get(&["cluster"]).await.expect_err("not asked");
    let is_told = matches!(&failure, Failure::Unreachable(why) if why.contains("no TLS"));
    assert!(is_told, "{failure}");
    // Among plain addresses it travels as before.
    let first = AdminClient::at(plain(), Some("hush".to_owned())).expect("a client");
    let other = first.elsewhere(&address.to_string()).expect("a client");
    assert!(!other.would_bare_token);
    for odd in ["", "h:1/x", "h:1?x", "a b:1"] {
        assert!(first.elsewhere(odd).is_none(), "{odd}");
    }
}

#[test]
fn a_refusal_keeps_its_lines_and_no_other_control_characters() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = admin_url("http://h:1").expect("an address");
    let client = AdminClient::at(url, None).expect("a client");
    let body = br#"{"error":{"message":"a.toml:1:1: no\u001b[2J\nb.toml:2:1: nor this"}}"#;
    let refused = client.refused(StatusCode::BAD_REQUEST, body).to_string();
    assert_eq!(
        refused,
        "400 Bad Request: a.toml:1:1: no\u{fffd}[2J\nb.toml:2:1: nor this"
    );
}

#[tokio::test]
async fn a_workers_id_is_one_segment_of_the_path() {
    let path = ["workers", "http://10.0.0.5:8000"];
    let (head, result) = exchange(&answer("200 OK", r#"{"id":"w"}"#), &path).await;
    let line = head.lines().next().expect("a request line");
    let expected = "DELETE /workers/http:%2F%2F10.0.0.5:8000?a=b+c HTTP/1.1";
    assert_eq!(line, expected);
    assert!(head.contains("authorization: Bearer hush\r\n"), "{head}");
    assert_eq!(result.expect("an answer")["id"], "w");
}

#[tokio::test]
async fn refusals_carry_the_replicas_words() {
    let refused = async |status: &str, body: &str| {
        let (_, result) = exchange(&answer(status, body), &["ring"]).await;
        result.expect_err("refused").to_string()
    };
    let openai = r#"{"error":{"message":"no such worker","code":404}}"#;
    let found = refused("404 Not Found", openai).await;
    assert_eq!(found, "404 Not Found: no such worker");
    let found = refused("401 Unauthorized", "").await;
    assert!(
        found.ends_with("give it by --token or GRAPEVINE_ADMIN__TOKEN"),
        "{found}"
    );
    for other in ["<html>", ""] {
        let found = refused("200 OK", other).await;
        assert!(found.contains("not as a Grapevine admin port"), "{found}");
    }
}

#[tokio::test]
async fn what_an_address_would_leave_out_is_not_sent() {
    // Nobody needs to be there.
    let client = client("127.0.0.1:1".parse().expect("an address"), None);
    for name in [".", "..", "w\n1"] {
        let failure = client.get(&["quarantine", name]).await.expect_err(name);
        assert!(matches!(failure, Failure::Usage(_)), "{name:?}: {failure}");
    }
}

#[tokio::test]
async fn a_body_that_no_replica_takes_is_not_sent() {
    // Nobody needs to be there.
    let client = client("127.0.0.1:1".parse().expect("an address"), None);
    let ask = async |bytes| {
        let call = client.call(Method::POST, &["explain"], &[], vec![b' '; bytes]);
        call.await.expect_err("nobody is there")
    };
    let failure = ask(BODY_BYTES_MAX + 1).await;
    let is_told = matches!(&failure, Failure::Refused(why) if why.contains("16777217 bytes"));
    assert!(is_told, "{failure}");
    let failure = ask(BODY_BYTES_MAX).await;
    assert!(matches!(failure, Failure::Unreachable(_)), "{failure}");
}

#[tokio::test]
async fn a_port_without_tls_is_said_to_be_one() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let url = format!("https://{address}").parse().expect("a URL");
    let client = AdminClient::at(url, None).expect("a client");
    let replica = async {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        stream.read_u8().await.expect("a hello");
        let answer = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer).await.expect("sent");
        stream
    };
    let (called, _stream) = tokio::join!(client.get(&["cluster"]), replica);
    let failure = called.expect_err("no TLS");
    assert!(matches!(failure, Failure::Unreachable(_)));
    assert!(failure.to_string().ends_with("write http://"), "{failure}");
}

/// As one that is stopped: the kernel takes its connections.
#[tokio::test]
async fn a_silent_replica_is_given_up_in_time_and_a_change_may_have_been_made() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let client = client(listener.local_addr().expect("bound"), None);
    let within = |method: Method, path: &[&str], bytes: usize| {
        let request = Request::of(method, path, &[], vec![b' '; bytes]);
        (request.within, request.is_change)
    };
    let question = (ANSWER_WITHIN, false);
    assert_eq!(within(Method::GET, &["cluster"], 0), question);
    assert_eq!(within(Method::POST, &["explain"], 100), question);
    let long = (LONG_ANSWER_WITHIN, false);
    assert_eq!(within(Method::POST, &["explain"], 2 << 20), long);
    let change = (LONG_ANSWER_WITHIN, true);
    assert_eq!(within(Method::POST, &["workers", "w", "drain"], 0), change);
    assert_eq!(within(Method::DELETE, &["quarantine"], 0), change);
    let ask = async |method, path: &[&str]| {
        let request = Request {
            within: Duration::from_millis(300),
            ..Request::of(method, path, &[], Vec::new())
        };
        let failure = client.exchange(request).await.expect_err("nobody answers");
        assert!(matches!(failure, Failure::Unreachable(_)), "{failure}");
        failure.to_string()
    };
    let (question, change) = tokio::join!(
        ask(Method::GET, &["cluster"]),
        ask(Method::POST, &["workers", "w", "drain"]),
    );
    let silent = "takes connections and gave no answer in 300ms";
    assert!(
        question.contains(silent) && question.ends_with("--admin"),
        "{question}"
    );
    assert!(change.contains(silent), "{change}");
    assert!(change.contains("may still be carried out"), "{change}");
}

#[tokio::test]
async fn nobody_there_is_said_plainly() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let called = client(address, None).get(&["cluster"]).await;
    let failure = called.expect_err("nobody listens");
    assert!(matches!(failure, Failure::Unreachable(_)));
    let found = failure.to_string();
    let expected = format!("no replica answers at http://{address}/ (Connection refused");
    assert!(found.starts_with(&expected), "{found}");
}
