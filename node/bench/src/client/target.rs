//! Where requests go: the base of an endpoint's URL. Pure.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, ensure};
use url::Url;

/// The base URL of an OpenAI endpoint, `http://host:port` or `https://host/prefix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Without brackets where it is an IPv6 address.
    host: String,
    authority: String,
    /// As the `Host` header has it: without the port that the scheme implies.
    named: String,
    /// What stands before `/v1/...`: empty, or a path that begins with `/` and does not end with one.
    prefix: String,
    is_tls: bool,
}

impl Target {
    /// `host:port`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The host alone, as a certificate names it.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether its connections are encrypted.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    pub(super) fn named(&self) -> &str {
        &self.named
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.named, self.prefix)
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    /// Accepts `http://` and `https://` with a host, and with or without a port and a path; a `/v1` at the end is left
    /// out, since base URLs of OpenAI clients have it. What is refused is not repeated: it may hold a password.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let url = Url::parse(text).context("not a URL such as http://127.0.0.1:8000")?;
        let is_tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => anyhow::bail!("it does not begin with http:// or https://"),
        };
        ensure!(
            url.username().is_empty() && url.password().is_none(),
            "a URL has no room for a password; give a key by --api-key-env or --api-key-file"
        );
        ensure!(
            url.query().is_none() && url.fragment().is_none(),
            "a base URL ends before `?` and `#`"
        );
        let named = url.host_str().filter(|host| !host.is_empty());
        let named = named.context("it names no host")?;
        let port = url
            .port_or_known_default()
            .expect("both schemes have a port");
        let path = url.path().trim_end_matches('/');
        Ok(Self {
            host: named.trim_matches(['[', ']']).to_owned(),
            authority: format!("{named}:{port}"),
            named: url
                .port()
                .map_or_else(|| named.to_owned(), |port| format!("{named}:{port}")),
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
            is_tls,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_is_taken_as_clients_write_it() {
        for (url, authority, shown) in [
            (
                "http://127.0.0.1:8000",
                "127.0.0.1:8000",
                "http://127.0.0.1:8000",
            ),
            (
                "http://worker-1:8000/v1/",
                "worker-1:8000",
                "http://worker-1:8000",
            ),
            ("http://[::1]:8000", "[::1]:8000", "http://[::1]:8000"),
            ("http://worker", "worker:80", "http://worker"),
            (
                "https://api.example/openai/v1",
                "api.example:443",
                "https://api.example/openai",
            ),
        ] {
            let target: Target = url.parse().expect(url);
            assert_eq!(
                (target.authority(), target.to_string().as_str()),
                (authority, shown)
            );
        }
        let local: Target = "https://[::1]:8443".parse().expect("a URL");
        assert_eq!((local.host(), local.is_tls()), ("::1", true));
        for wrong in [
            "127.0.0.1:8000",
            "ftp://x",
            "http://",
            "http://x?key=1",
            "http://a:hush@b",
        ] {
            let refused = wrong.parse::<Target>().expect_err(wrong).to_string();
            assert!(!refused.contains("hush"), "{refused}");
        }
    }
}
