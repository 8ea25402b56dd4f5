//! The commands' way to a replica: its admin API, by HTTP on the control path.

use std::time::Duration;

use http::HeaderValue;
use reqwest::{Method, StatusCode};
use serde_json::Value;
use url::Url;

use super::failure::Failure;
use crate::shown::field;

/// Where a replica's admin port is unless its configuration says otherwise.
pub(super) const DEFAULT_ADMIN: &str = "http://127.0.0.1:30001";

/// Variable with the address of another one.
pub(super) const ADMIN_URL: &str = "GRAPEVINE_ADMIN_URL";

/// Replica that gets the command; any will do, they share one view.
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
    /// Admin token, needed beyond loopback.
    #[arg(long, env = "GRAPEVINE_ADMIN__TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Write the replica's JSON instead of text.
    #[arg(long)]
    pub(super) json: bool,
}

/// An admin address as it is written on a command line.
///
/// # Errors
/// It is none.
pub(super) fn admin_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(is_admin);
    url.ok_or_else(|| "no admin address: write http://address:port".to_owned())
}

fn is_admin(url: &Url) -> bool {
    url.scheme() == "http" && !url.cannot_be_a_base()
}

/// A client of one replica's admin API.
pub(super) struct AdminClient {
    http: reqwest::Client,
    url: Url,
    token: Option<String>,
}

impl AdminClient {
    pub(super) fn new(args: &AdminArgs) -> Result<Self, Failure> {
        Self::at(args.admin.clone(), args.token.clone())
    }

    /// A client of the admin port at this address.
    pub(super) fn at(url: Url, token: Option<String>) -> Result<Self, Failure> {
        if !is_admin(&url) {
            let what = format!("{url} is no admin address: write http://address:port");
            return Err(Failure::Usage(what));
        }
        if token
            .as_deref()
            .is_some_and(|token| HeaderValue::from_str(token).is_err())
        {
            let what = "the admin token has characters that no header may have".to_owned();
            return Err(Failure::Usage(what));
        }
        Ok(Self {
            http: http_client()?,
            url,
            token,
        })
    }

    /// The same, token included, for another replica of the cluster.
    pub(super) fn elsewhere(&self, url: Url) -> Result<Self, Failure> {
        Self::at(url, self.token.clone())
    }

    /// Where it asks.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// Whether this answer came from the replica that is meant, since many have the same loopback address.
    ///
    /// # Errors
    /// It came from another one.
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
        let (_, bytes) = self.exchange(Method::GET, path, &[], Vec::new()).await?;
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
        let (status, bytes) = self.exchange(method, path, query, body).await?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|_| {
            let what = format!(
                "{} answers, but not as a Grapevine admin port: {status}",
                self.url
            );
            Failure::Refused(what)
        })
    }

    /// Sends a body and reads the answer, which is a good one.
    async fn exchange(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<(StatusCode, bytes::Bytes), Failure> {
        // A URL's segments leave these out without a word: something else would be meant, or all of them.
        let is_left_out =
            |segment: &&&str| matches!(**segment, "." | "..") || segment.contains(char::is_control);
        if let Some(segment) = path.iter().find(is_left_out) {
            let what =
                format!("{segment:?} is no name: it is a dot or two, or has control characters");
            return Err(Failure::Usage(what));
        }
        let mut url = self.url.clone();
        // Segment by segment: a worker's id is a URL, and its slashes must not part it.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.clear().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method, url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if !body.is_empty() {
            request = request
                .header("content-type", "application/json")
                .body(body);
        }
        let answer = request
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        let bytes = answer
            .bytes()
            .await
            .map_err(|error| self.unreachable(&error))?;
        if !status.is_success() {
            return Err(self.refused(status, &bytes));
        }
        Ok((status, bytes))
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        if error.is_timeout() && !error.is_connect() {
            return Failure::Unreachable(format!(
                "the replica at {} takes connections and gave no answer in {ANSWER_TIMEOUT:?}: it is overloaded, paused or \
                 stopped; its log may say which, and another replica is asked with --admin",
                self.url
            ));
        }
        Failure::Unreachable(format!(
            "no replica answers at {} ({}); is `grapevine serve` running there? Another address \
             is given by --admin",
            self.url,
            chain(error)
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
            Some(message) => format!("{status}: {message}"),
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

fn client_with(roots: Vec<reqwest::Certificate>) -> Result<reqwest::Client, Failure> {
    let builder = reqwest::Client::builder()
        .tls_certs_only(roots)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(ANSWER_TIMEOUT);
    builder
        .build()
        .map_err(|error| Failure::Refused(chain(&error)))
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
/// Above the second that a change waits for its first confirmation.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn client(address: std::net::SocketAddr, token: Option<&str>) -> AdminClient {
        // Another test of this process may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let args = AdminArgs {
            admin: format!("http://{address}").parse().expect("a URL"),
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
            "https://x",
            "http://",
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
        let found = refused("200 OK", "<html>").await;
        assert!(found.contains("not as a Grapevine admin port"), "{found}");
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
