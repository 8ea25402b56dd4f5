//! The commands' way to a replica: its admin API, by HTTP on the control path.

mod args;
mod http;
#[cfg(test)]
mod tests;

use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Method, StatusCode};
use serde_json::Value;
use url::Url;

use self::args::is_admin;
pub(super) use self::args::{ADMIN_URL, AdminArgs, CA, CaArg, DEFAULT_ADMIN, TOKEN, admin_url};
pub(super) use self::http::{chain, http_client, http_client_with_roots};
use self::http::{disbelieved, http_client_with_ca};
use super::failure::Failure;
use crate::admin::BODY_BYTES_MAX;
use crate::shown::{clean, field};
use crate::tls::NO_TLS;

/// How long a replica may take for the answer to a question: somebody waits for it, and it reads what it has in memory.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The same of what takes long by nature: a change, which waits for its first confirmation or reads files, all metrics, and
/// a body of many megabytes.
const LONG_ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Bytes of a body from which on it is a long one.
const LONG_BODY_BYTES: usize = 1 << 20;

/// Why a replica of the cluster was not asked.
pub(super) const NO_ADMIN_ADDRESS: &str = "it names no admin address";

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
