//! `grapevine probe`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use hyper::Method;

use crate::client::{Client, Target};

/// Arguments of `probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// What to ask, as http://HOST:PORT/PATH
    #[arg(value_parser = split)]
    url: (Target, String),
    /// Limit for the answer
    #[arg(long, value_parser = humantime::parse_duration, default_value = "2s")]
    timeout: Duration,
}

fn split(url: &str) -> anyhow::Result<(Target, String)> {
    let path = url
        .strip_prefix("http://")
        .and_then(|rest| rest.find('/'))
        .map_or(url.len(), |at| "http://".len() + at);
    let (origin, path) = url.split_at(path);
    let path = if path.is_empty() { "/" } else { path };
    Ok((origin.parse()?, path.to_owned()))
}

impl ProbeArgs {
    /// Exit code 0 for a 2xx, 1 for anything else, said on stderr.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let (target, path) = self.url;
        Client::one(target)
            .text(Method::GET, &path, "", self.timeout)
            .await?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_an_origin_and_a_path() {
        for (url, authority, path) in [
            (
                "http://127.0.0.1:30000/readiness",
                "127.0.0.1:30000",
                "/readiness",
            ),
            ("http://worker-1:8000", "worker-1:8000", "/"),
            ("http://worker-1/health?x=/y", "worker-1:80", "/health?x=/y"),
        ] {
            let (target, rest) = split(url).expect("a good URL");
            assert_eq!((target.authority(), rest.as_str()), (authority, path));
        }
        for url in ["https://a/b", "127.0.0.1:1/x", "http:///x"] {
            assert!(split(url).is_err(), "{url}");
        }
    }
}
