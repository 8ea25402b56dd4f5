//! Where a worker is reached, as requests and certificates need it.

use grapevine_gossip::worker::{WorkerSpec, WorkerUrl};
use http::uri::Scheme;
use http::{HeaderValue, Uri};
use rustls::pki_types::ServerName;

/// Where a worker is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Its URL, and its rank if it shares that with others.
    pub url: WorkerUrl,
    /// Value of `Host`.
    pub host: HeaderValue,
    /// What an https worker's certificate must name.
    pub server_name: Option<ServerName<'static>>,
    /// Path that all of its requests are below; mostly empty.
    path: Box<str>,
}

/// A worker whose address cannot be dialled.
#[derive(Debug, thiserror::Error)]
#[error("worker {worker}: {problem}")]
pub struct AddressError {
    worker: String,
    problem: &'static str,
}

impl Address {
    /// From a checked specification.
    /// Errors: the URL's host or path cannot stand in a request, or in a certificate.
    pub fn of(spec: &WorkerSpec) -> Result<Self, AddressError> {
        let url = spec.url().clone();
        let error = |problem| AddressError {
            worker: url.base().to_owned(),
            problem,
        };
        url.base()
            .parse::<Uri>()
            .map_err(|_| error("its URL is not a URI"))?;
        let server_name = url
            .is_tls()
            .then(|| ServerName::try_from(url.host().to_owned()))
            .transpose()
            .map_err(|_| error("its host is neither a DNS name nor an address"))?;
        Ok(Self {
            host: HeaderValue::from_str(url.authority())
                .map_err(|_| error("its host is not ASCII"))?,
            server_name,
            path: url.path().into(),
            url,
        })
    }

    /// The scheme of requests to it.
    pub fn scheme(&self) -> Scheme {
        match self.server_name {
            None => Scheme::HTTP,
            Some(_) => Scheme::HTTPS,
        }
    }

    /// Data-parallel rank, for workers that share an address.
    pub fn rank(&self) -> Option<u32> {
        self.url.rank()
    }

    /// The target of a request at this worker.
    pub fn target(&self, path_and_query: &Uri) -> Uri {
        let base = &*self.path;
        if base.is_empty() {
            return path_and_query.clone();
        }
        format!("{base}{path_and_query}")
            .parse()
            .unwrap_or_else(|_| path_and_query.clone())
    }

    /// URL of a path at this worker, for the control path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url.base())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grapevine_gossip::worker::RawWorker;

    fn address(url: &str) -> Result<Address, AddressError> {
        Address::of(&WorkerSpec::new(RawWorker::at(url)).expect("valid worker"))
    }

    #[test]
    fn targets() {
        let plain = address("http://Host:8000@3").expect("address");
        assert_eq!(plain.host, "host:8000");
        assert_eq!((plain.rank(), plain.server_name.as_ref()), (Some(3), None));
        let path: Uri = "/v1/models?x=1".parse().expect("uri");
        assert_eq!(plain.target(&path), path);
        assert_eq!(plain.url("/health"), "http://host:8000/health");
        let below = address("http://host:8000/engine").expect("address");
        assert_eq!(below.target(&path), "/engine/v1/models?x=1");
        assert_eq!(below.url("/health"), "http://host:8000/engine/health");
    }

    #[test]
    fn https_workers_have_a_name_to_prove() {
        for (url, name) in [
            ("https://Host", "host"),
            ("https://10.0.0.5:8443", "10.0.0.5"),
            ("https://[::1]:8443/base@2", "::1"),
        ] {
            let address = address(url).expect("address");
            let proven = address.server_name.expect("a name");
            assert_eq!(proven.to_str(), name, "{url}");
        }
    }
}
