//! What a worker is called: its address, and the id that follows from it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use url::{ParseError, Url};

use super::WorkerError;

/// Greatest length of a worker's URL in bytes, without `@rank`.
pub const URL_BYTES_MAX: usize = 512;

/// Greatest length of a worker id in bytes: a URL and its rank.
pub const ID_BYTES_MAX: usize = URL_BYTES_MAX + 16;

/// Greatest number of data-parallel ranks behind one URL.
pub const DP_SIZE_MAX: u32 = 1024;

/// Base URL of a worker in the one spelling that all replicas use, and its data-parallel rank.
///
/// Lower-case host, explicit port, no trailing slash, no user information, query or fragment;
/// `http` or `https`. `HTTP://Host/@3` is read as rank 3 of `http://host:80` and shown as
/// `http://host:80@3`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerUrl {
    base: String,
    rank: Option<u32>,
}

impl WorkerUrl {
    /// The URL that requests go to, without rank and trailing slash.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Whether the worker speaks TLS: the scheme is `https`.
    pub fn is_tls(&self) -> bool {
        self.base.starts_with("https:")
    }

    /// `host:port`, an IPv6 address in brackets.
    pub fn authority(&self) -> &str {
        let (_, rest) = self.base.split_once("://").expect("a base has a scheme");
        rest.split_once('/')
            .map_or(rest, |(authority, _)| authority)
    }

    /// Name or address, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        let (host, _) = self.host_and_port();
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        bare.unwrap_or(host)
    }

    /// The port; never 0.
    pub fn port(&self) -> u16 {
        let (_, port) = self.host_and_port();
        port.parse().expect("a base has a port")
    }

    fn host_and_port(&self) -> (&str, &str) {
        let authority = self.authority();
        authority.rsplit_once(':').expect("a base has a port")
    }

    /// Path in front of every request's, without trailing slash; mostly empty.
    pub fn path(&self) -> &str {
        let (_, rest) = self.base.split_once("://").expect("a base has a scheme");
        &rest[self.authority().len()..]
    }

    /// The data-parallel rank, when the worker is one of several behind the same URL.
    pub fn rank(&self) -> Option<u32> {
        self.rank
    }
}

impl FromStr for WorkerUrl {
    type Err = WorkerError;

    fn from_str(text: &str) -> Result<Self, WorkerError> {
        // First, so that no message, log line or parser ever meets an unbounded text.
        if text.len() > ID_BYTES_MAX {
            return Err(WorkerError::UrlTooLong(text.len()));
        }
        // A URL parser takes `host:8000@3` for user information, so the rank is cut off first.
        let (text_base, rank) = match cut_rank(text) {
            Some((before, digits)) => {
                let rank = digits.parse().ok().filter(|rank| *rank < DP_SIZE_MAX);
                let rank = rank.ok_or_else(|| WorkerError::Rank(digits.to_owned()))?;
                (before, Some(rank))
            }
            None => (text, None),
        };
        let refuse = |why| {
            // The message goes to logs; what may be a password does not.
            let (scheme, rest) = text_base.split_once("://").unwrap_or(("", text_base));
            let bare = rest
                .rsplit_once('@')
                .map(|(_, host)| format!("{scheme}://{host}"));
            Err(WorkerError::Url {
                url: bare.unwrap_or_else(|| text.to_owned()),
                why,
            })
        };
        let url = match web_url(text_base) {
            Ok(url) => url,
            Err(why) => return refuse(why),
        };
        if !url.username().is_empty() || url.password().is_some() {
            // The message goes to logs.
            let mut bare = url;
            let _ = (bare.set_username(""), bare.set_password(None));
            return Err(WorkerError::Url {
                url: bare.to_string(),
                why: "user information is not allowed",
            });
        }
        if url.query().is_some() || url.fragment().is_some() {
            return refuse("a query or fragment is not allowed");
        }
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return refuse("it names no host");
        };
        if port == 0 {
            return refuse("port 0 cannot be reached");
        }
        let path = url.path().trim_end_matches('/');
        // The base URL of an OpenAI client ends so; requests would go to `/v1/v1/…`.
        if path == "/v1" {
            return refuse("it ends in /v1, which every request brings itself; leave that out");
        }
        let base = format!("{}://{host}:{port}{path}", url.scheme());
        // The parser decodes the host: `%22` in it is a quote by now.
        if !stands_unescaped(&base) {
            return refuse("it has characters that no host or path has");
        }
        // `/@1/` has lost its last slash by now and would read as a rank wherever it is read again.
        if cut_rank(&base).is_some() {
            return refuse("a rank stands at the very end");
        }
        if base.len() > URL_BYTES_MAX {
            return Err(WorkerError::UrlTooLong(base.len()));
        }
        Ok(Self { base, rank })
    }
}

/// The URL that a text without rank is; else what is wrong with it.
fn web_url(text: &str) -> Result<Url, &'static str> {
    // The parser leaves some of them out silently, and another address remains.
    if text.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err("it has spaces or control characters in it");
    }
    let url = Url::parse(text).map_err(|error| match error {
        ParseError::RelativeUrlWithoutBase => {
            "it has no scheme; write http://host:port or https://host:port"
        }
        ParseError::InvalidPort => "its port is no number up to 65535",
        ParseError::EmptyHost => "it names no host",
        _ => "it is no URL; write http://host:port or https://host:port",
    })?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        _ => Err("it does not begin with http:// or https://"),
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)?;
        match self.rank {
            Some(rank) => write!(f, "@{rank}"),
            None => Ok(()),
        }
    }
}

/// Identity of a worker on the ring: a name given by the operator, else its [`WorkerUrl`].
///
/// 1 to 528 visible ASCII characters without `"` and `\`, so that it stands unescaped in headers,
/// labels, logs and JSON.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(Arc<str>);

impl WorkerId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id of the worker at this URL, however it is spelled.
    /// Errors: the URL is not one of a worker; nothing was changed.
    pub fn from_url(url: &str) -> Result<Self, WorkerError> {
        url.parse::<WorkerUrl>()?.to_string().parse()
    }
}

/// What stands before `@` and the digits at the end, and these.
fn cut_rank(text: &str) -> Option<(&str, &str)> {
    let (before, digits) = text.rsplit_once('@')?;
    let is_rank = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_rank.then_some((before, digits))
}

/// Only visible ASCII characters without `"` and `\`.
fn stands_unescaped(text: &str) -> bool {
    text.bytes()
        .all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\')
}

impl FromStr for WorkerId {
    type Err = WorkerError;

    fn from_str(text: &str) -> Result<Self, WorkerError> {
        if (1..=ID_BYTES_MAX).contains(&text.len()) && stands_unescaped(text) {
            Ok(Self(text.into()))
        } else {
            Err(WorkerError::Id(text.chars().take(64).collect()))
        }
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_per_url() {
        let check = |text: &str, expected: &str| {
            assert_eq!(WorkerId::from_url(text).expect(text).as_str(), expected);
        };
        check("http://10.0.0.1:8000", "http://10.0.0.1:8000");
        check("HTTP://Worker.Example/", "http://worker.example:80");
        check("https://w", "https://w:443");
        check("http://w:8000/base//", "http://w:8000/base");
        check("http://w:8000@3", "http://w:8000@3");
        check("http://w:8000/@0", "http://w:8000@0");
        check("http://[::1]:8000@1", "http://[::1]:8000@1");
    }

    #[test]
    fn parts_of_a_url() {
        let check = |text: &str, expected: (bool, &str, &str, u16, &str)| {
            let url: WorkerUrl = text.parse().expect(text);
            let parts = (
                url.is_tls(),
                url.authority(),
                url.host(),
                url.port(),
                url.path(),
            );
            assert_eq!(parts, expected, "{text}");
        };
        check("http://W:8000@3", (false, "w:8000", "w", 8000, ""));
        check("https://w/a/b/", (true, "w:443", "w", 443, "/a/b"));
        check("https://[::1]/x", (true, "[::1]:443", "::1", 443, "/x"));
        check(
            "http://0x7f.1:80",
            (false, "127.0.0.1:80", "127.0.0.1", 80, ""),
        );
    }

    #[test]
    fn bad_urls_are_refused() {
        for bad in [
            "",
            "w:8000",
            "ftp://w:8000",
            "file:///etc/passwd",
            "gopher://w:70",
            "data:text/plain,x",
            "http://",
            "http://u:p@w:8000",
            "http://u@w",
            "http://w?x=1",
            "http://w#x",
            "http://w%22x:8000",
            "http://w:8000/a@1/",
            "http://w:0",
            "http://w:8000/v1",
            "http://w:8000/v1/",
            "http://w:99999",
            "http://w:80\n00",
            "http://w\t:8000",
            " http://w:8000",
            "http://w@1024",
            "http://w@99999999999999999999",
        ] {
            assert!(WorkerId::from_url(bad).is_err(), "{bad:?}");
        }
        for secret in [
            "http://u:hush@w:8000",
            "http://u:hush@w:99999",
            "ftp://u:hush@w:1",
        ] {
            let refused = WorkerId::from_url(secret).expect_err("user information");
            assert!(!refused.to_string().contains("hush"), "{refused}");
        }
        assert!(WorkerId::from_url(&format!("http://w/{}", "a".repeat(600))).is_err());
    }

    #[test]
    fn given_ids_need_no_escaping() {
        for good in ["w1", "gpu-7/a", "http://w:80@1", &"a".repeat(ID_BYTES_MAX)] {
            assert!(good.parse::<WorkerId>().is_ok(), "{good:?}");
        }
        for bad in [
            "",
            "a b",
            "a\"b",
            "a\\b",
            "ä",
            "a\n",
            &"a".repeat(ID_BYTES_MAX + 1),
        ] {
            assert!(bad.parse::<WorkerId>().is_err(), "{bad:?}");
        }
    }
}
