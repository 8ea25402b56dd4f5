//! The commands' way to a replica: its admin API, by HTTP on the control path.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use reqwest::{Method, StatusCode};
use serde_json::Value;
use url::Url;

use super::failure::Failure;
use crate::admin::BODY_BYTES_MAX;
use crate::shown::{clean, field};
use crate::tls::{NO_TLS, read_certificates};

/// Where a replica's admin port is unless its configuration says otherwise.
pub(super) const DEFAULT_ADMIN: &str = "http://127.0.0.1:30001";

/// Variable with the address of another one.
pub(super) const ADMIN_URL: &str = "GRAPEVINE_ADMIN_URL";

/// Variable with the token.
pub(super) const TOKEN: &str = "GRAPEVINE_ADMIN__TOKEN";

/// Variable with the authority.
pub(super) const CA: &str = "GRAPEVINE_ADMIN_CA";
/// Why a replica of the cluster was not asked.
pub(super) const NO_ADMIN_ADDRESS: &str = "it names no admin address";

// Replica that gets the command; any will do, they share one view. A plain comment: clap would show a doc comment in
// place of the command's.
#[derive(clap::Args)]
pub(super) struct AdminArgs {
    /// Admin address of a replica.
    #[arg(
        long,
        value_name = "URL",
        default_value = DEFAULT_ADMIN,
        env = ADMIN_URL,
        value_parser = admin_url
    )]
    admin: Url,
    #[command(flatten)]
    ca: CaArg,
    /// Admin token, needed beyond loopback.
    #[arg(long, env = TOKEN, hide_env_values = true)]
    token: Option<String>,
    /// Write the replica's JSON instead of text.
    #[arg(long)]
    pub(super) json: bool,
}

// As above.
#[derive(clap::Args)]
pub(super) struct CaArg {
    /// Authority (PEM) that signed the certificate of an https admin address [default: those of the system].
    #[arg(long = "ca", value_name = "FILE", env = CA)]
    admin_ca: Option<PathBuf>,
}

impl CaArg {
    /// The file, if one was named.
    pub(super) fn path(&self) -> Option<&Path> {
        self.admin_ca.as_deref()
    }
}

/// An admin address as it is written on a command line. A replica's admin port speaks plain HTTP; https is for a proxy in
/// front of it that ends TLS.
/// Errors: it is none.
pub(super) fn admin_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(is_admin);
    url.ok_or_else(|| {
        "no admin address: write http://address:port, or https://name for a proxy that ends TLS, and no path behind it"
            .to_owned()
    })
}

fn is_admin(url: &Url) -> bool {
    // Each call has a path and a query of its own: what is here would be lost, or sent along.
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    matches!(url.scheme(), "http" | "https") && is_bare
}

/// What is asked of a replica.
struct Request<'a> {
    method: Method,
    path: &'a [&'a str],
    query: &'a [(&'a str, &'a str)],
    body: Vec<u8>,
    /// It may leave something behind, be its answer heard or not.
    is_change: bool,
    /// How long its answer may take.
    within: Duration,
}

impl<'a> Request<'a> {
    fn of(
        method: Method,
        path: &'a [&'a str],
        query: &'a [(&'a str, &'a str)],
        body: Vec<u8>,
    ) -> Self {
        // A question whose body is too long for a URL.
        let is_change = method != Method::GET && path != ["explain"];
        let is_long = is_change || body.len() > LONG_BODY_BYTES;
        Self {
            method,
            path,
            query,
            body,
            is_change,
            within: if is_long {
                LONG_ANSWER_WITHIN
            } else {
                ANSWER_WITHIN
            },
        }
    }
}

/// A client of one replica's admin API.
#[derive(Clone)]
pub(super) struct AdminClient {
    http: reqwest::Client,
    url: Url,
    token: Option<String>,
    /// The token was given for TLS, and this address has none.
    would_bare_token: bool,
}

impl AdminClient {
    pub(super) fn new(args: &AdminArgs) -> Result<Self, Failure> {
        Self::trusting(args.admin.clone(), args.token.clone(), &args.ca)
    }

    /// A client of the admin port at this address; of an https one the system's authorities are believed.
    pub(super) fn at(url: Url, token: Option<String>) -> Result<Self, Failure> {
        Self::trusting(url, token, &CaArg { admin_ca: None })
    }

    /// The same; of an https address this authority is believed, if one is named.
    pub(super) fn trusting(url: Url, token: Option<String>, ca: &CaArg) -> Result<Self, Failure> {
        if !is_admin(&url) {
            let what = format!("{url} is no admin address: write http://address:port");
            return Err(Failure::Usage(what));
        }
        let http = match (url.scheme(), &ca.admin_ca) {
            ("https", Some(file)) => http_client_with_ca(file)?,
            ("https", None) => http_client_with_roots()?,
            (_, Some(_)) => {
                let what = format!(
                    "--ca (GRAPEVINE_ADMIN_CA) names an authority, and {url} has no TLS: write https://, or leave it out"
                );
                return Err(Failure::Usage(what));
            }
            _ => http_client()?,
        };
        let client = Self {
            http,
            url,
            token: None,
            would_bare_token: false,
        };
        client.with_token(token)
    }

    /// The same address, with this token: to read the system's authorities takes a while.
    pub(super) fn with_token(&self, token: Option<String>) -> Result<Self, Failure> {
        let is_header = |token: &String| HeaderValue::from_str(token).is_ok();
        if !token.iter().all(is_header) {
            let what = "the admin token has characters that no header may have".to_owned();
            return Err(Failure::Usage(what));
        }
        Ok(Self {
            token,
            ..self.clone()
        })
    }

    /// The same, token included, for another replica of the cluster, at the `host:port` that it names; none where it names
    /// no such address. A token that was given for TLS is not sent without: then the other one is not asked.
    pub(super) fn elsewhere(&self, admin: &str) -> Option<Self> {
        let url = Url::parse(&format!("http://{admin}")).ok()?;
        let would_bare_token = self.url.scheme() == "https" && self.token.is_some();
        Some(Self {
            would_bare_token,
            ..Self::at(url, self.token.clone()).ok()?
        })
    }

    /// Where it asks.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// Whether this answer came from the replica that is meant, since many have the same loopback address.
    /// Errors: it came from another one.
    pub(super) fn must_be(&self, id: &str, answer: &Value) -> Result<(), Failure> {
        let answers = field(answer, "replica");
        if answers == id {
            return Ok(());
        }
        let url = &self.url;
        Err(Failure::Refused(format!(
            "{answers} answers at {url}, where it says to be: an address of its own machine alone"
        )))
    }

    pub(super) async fn get(&self, path: &[&str]) -> Result<Value, Failure> {
        self.get_with(path, &[]).await
    }

    pub(super) async fn get_with(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<Value, Failure> {
        self.call(Method::GET, path, query, Vec::new()).await
    }

    /// What is no JSON, such as metrics.
    pub(super) async fn text(&self, path: &[&str]) -> Result<String, Failure> {
        let request = Request {
            within: LONG_ANSWER_WITHIN,
            ..Request::of(Method::GET, path, &[], Vec::new())
        };
        let (_, bytes) = self.exchange(request).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Sends a JSON body to the address made of these segments and reads the JSON answer.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<Value, Failure> {
        let request = Request::of(method, path, query, body);
        let (status, bytes) = self.exchange(request).await?;
        serde_json::from_slice(&bytes).map_err(|_| {
            let what = format!(
                "{} answers, but not as a Grapevine admin port: {status}",
                self.url
            );
            Failure::Refused(what)
        })
    }

    /// Sends a body and reads the answer, which is a good one.
    async fn exchange(&self, request: Request<'_>) -> Result<(StatusCode, bytes::Bytes), Failure> {
        let Request {
            method,
            path,
            query,
            body,
            is_change,
            within,
        } = request;
        // A URL's segments leave these out without a word: something else would be meant, or all of them.
        let is_left_out =
            |segment: &&&str| matches!(**segment, "." | "..") || segment.contains(char::is_control);
        if let Some(segment) = path.iter().find(is_left_out) {
            let what =
                format!("{segment:?} is no name: it is a dot or two, or has control characters");
            return Err(Failure::Usage(what));
        }
        // The replica would refuse it before it is all sent, and close: whether that answer arrives is chance.
        if body.len() > BODY_BYTES_MAX {
            return Err(Failure::Refused(format!(
                "the body has {} bytes, and an admin port takes {BODY_BYTES_MAX} at most",
                body.len()
            )));
        }
        if self.would_bare_token {
            return Err(Failure::Unreachable(format!(
                "{} is not asked: it has no TLS, and the token was given for an https address; ask it by itself with \
                 --admin",
                self.url
            )));
        }
        let mut url = self.url.clone();
        // Segment by segment: a worker's id is a URL, and its slashes must not part it.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.clear().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method, url).timeout(within);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if !body.is_empty() {
            request = request
                .header("content-type", "application/json")
                .body(body);
        }
        let failed = |error: reqwest::Error| {
            let failure = self.unreachable(&error, within);
            // Without a connection nothing was asked for.
            match is_change && !error.is_connect() {
                true => failure.or_done(),
                false => failure,
            }
        };
        let answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(failed)?;
        if !status.is_success() {
            return Err(self.refused(status, &bytes));
        }
        Ok((status, bytes))
    }

    /// What is said of a replica that takes connections and gives no answer.
    pub(super) fn silent(&self, within: Duration) -> Failure {
        Failure::Unreachable(format!(
            "the replica at {} takes connections and gave no answer in {within:?}: it is overloaded, paused or stopped; its \
             log may say which, and another replica is asked with --admin",
            self.url
        ))
    }

    fn unreachable(&self, error: &reqwest::Error, within: Duration) -> Failure {
        if error.is_timeout() && !error.is_connect() {
            return self.silent(within);
        }
        let cause = chain(error);
        if let Some(what) = disbelieved(&cause) {
            return Failure::Unreachable(format!("{} is not asked: {what}", self.url));
        }
        if self.url.scheme() == "https" && cause.contains(NO_TLS) {
            return Failure::Unreachable(format!(
                "what answers at {} does not speak TLS: write http://",
                self.url
            ));
        }
        Failure::Unreachable(format!(
            "no replica answers at {} ({}); is `grapevine serve` running there? Another address \
             is given by --admin",
            self.url, cause
        ))
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> Failure {
        if status == StatusCode::UNAUTHORIZED {
            return Failure::Unauthorized(format!(
                "{} refuses the admin token: give it by --token or GRAPEVINE_ADMIN__TOKEN",
                self.url
            ));
        }
        let body: Option<Value> = serde_json::from_slice(body).ok();
        let message = body.as_ref().and_then(|body| {
            let openai = body.pointer("/error/message");
            openai.or_else(|| body.get("error"))?.as_str()
        });
        let what = match message {
            // It may quote what others chose, and have a line for each mistake.
            Some(message) => {
                let lines: Vec<_> = message.lines().map(clean).collect();
                format!("{status}: {}", lines.join("\n"))
            }
            None => format!("{} answers {status}", self.url),
        };
        if status.is_server_error() {
            Failure::Overloaded(what)
        } else {
            Failure::Refused(what)
        }
    }
}

/// A client that asks the address it is given, and no other.
pub(super) fn http_client() -> Result<reqwest::Client, Failure> {
    // Explicitly no roots: loading the system's fails where there are none (bare images).
    client_with(Vec::new())
}

/// The same, for addresses with TLS: the system's authorities are believed.
pub(super) fn http_client_with_roots() -> Result<reqwest::Client, Failure> {
    let found = rustls_native_certs::load_native_certs();
    let roots = found.certs.iter();
    let roots = roots.filter_map(|root| reqwest::Certificate::from_der(root).ok());
    client_with(roots.collect())
}

/// The same, for addresses whose certificate is of this authority.
fn http_client_with_ca(file: &Path) -> Result<reqwest::Client, Failure> {
    let wrong = |why: String| Failure::Usage(format!("--ca: {why}"));
    let found = read_certificates(file).map_err(|error| wrong(error.to_string()))?;
    let roots = found
        .iter()
        .map(|root| reqwest::Certificate::from_der(root));
    let roots: Result<Vec<_>, _> = roots.collect();
    client_with(roots.map_err(|error| wrong(chain(&error)))?)
}

fn client_with(roots: Vec<reqwest::Certificate>) -> Result<reqwest::Client, Failure> {
    let builder = reqwest::Client::builder()
        .tls_certs_only(roots)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(LONG_ANSWER_WITHIN);
    builder
        .build()
        .map_err(|error| Failure::Refused(chain(&error)))
}

/// What to do about a certificate, where that is why a connection failed.
fn disbelieved(cause: &str) -> Option<String> {
    let why = cause.strip_prefix("invalid peer certificate: ")?;
    Some(match why.contains("CaUsedAsEndEntity") {
        // What `openssl req -x509` makes unless told otherwise.
        true => "its certificate is that of an authority (CA:TRUE), which no server may show; give it one that this \
                 authority signed, or one without (basicConstraints=CA:FALSE)"
            .to_owned(),
        false => format!("its certificate is not believed ({why}); --ca names the authority that signed it"),
    })
}

/// The innermost cause, which names the fault (`connection refused`); the outer ones repeat the URL.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a replica may take for the answer to a question: somebody waits for it, and it reads what it has in memory.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The same of what takes long by nature: a change, which waits for its first confirmation or reads files, all metrics, and
/// a body of many megabytes.
const LONG_ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Bytes of a body from which on it is a long one.
const LONG_BODY_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
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
}
