//! Settings of TLS on the data port. Those of TLS to workers are in `[workers]`.

use std::path::PathBuf;
use std::time::Duration;

use super::setting::{HOUR, ms, secs};
use super::table::section;

section! {
    /// TLS on the data port (1.2 and 1.3; HTTP/2 and HTTP/1.1 by ALPN). Without a certificate: plain HTTP.
    ///
    /// Files are read again on SIGHUP and when they change; new connections get what was read. What
    /// cannot be used is reported, and the old stays.
    [tls] TlsConfig {
        /// Certificate chain of the data port (PEM), leaf first. Clients then speak https.
        cert: Option<PathBuf> = None, flag "ssl-certfile" Text;
        /// Private key of the certificate (PEM), readable by this process only.
        key: Option<PathBuf> = None, flag "ssl-keyfile" Text;
        /// Authorities (PEM) of clients' certificates. Unset: clients are not asked for one.
        client_ca: Option<PathBuf> = None, flag "ssl-ca-certs" Text;
        /// With `client_ca`: refuse clients without a certificate.
        ///
        /// False: they are served, but a certificate that is shown must be good.
        client_cert_required: bool = true;
        /// How often the files of certificates and keys are looked at, also those of `[workers]` and `[gossip]`.
        ///
        /// Higher: a new certificate is used later, unless a SIGHUP comes.
        refresh: Duration = secs(10), in ms(100)..=24 * HOUR;
    }
}
