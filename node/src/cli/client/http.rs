//! HTTP clients of the control path, and what their failures say.

use std::path::Path;
use std::time::Duration;

use super::LONG_ANSWER_WITHIN;
use crate::cli::failure::Failure;
use crate::tls::read_certificates;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A client that asks the address it is given, and no other.
pub(in crate::cli) fn http_client() -> Result<reqwest::Client, Failure> {
    // Explicitly no roots: loading the system's fails where there are none (bare images).
    client_with(Vec::new())
}

/// The same, for addresses with TLS: the system's authorities are believed.
pub(in crate::cli) fn http_client_with_roots() -> Result<reqwest::Client, Failure> {
    let found = rustls_native_certs::load_native_certs();
    let roots = found.certs.iter();
    let roots = roots.filter_map(|root| reqwest::Certificate::from_der(root).ok());
    client_with(roots.collect())
}

/// The same, for addresses whose certificate is of this authority.
pub(super) fn http_client_with_ca(file: &Path) -> Result<reqwest::Client, Failure> {
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
pub(super) fn disbelieved(cause: &str) -> Option<String> {
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
pub(in crate::cli) fn chain(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
