//! Which replica a command asks, as its line says it.

use std::path::{Path, PathBuf};

use url::Url;

/// Where a replica's admin port is unless its configuration says otherwise.
pub(in crate::cli) const DEFAULT_ADMIN: &str = "http://127.0.0.1:30001";

/// Variable with the address of another one.
pub(in crate::cli) const ADMIN_URL: &str = "GRAPEVINE_ADMIN_URL";

/// Variable with the token.
pub(in crate::cli) const TOKEN: &str = "GRAPEVINE_ADMIN__TOKEN";

/// Variable with the authority.
pub(in crate::cli) const CA: &str = "GRAPEVINE_ADMIN_CA";
// Replica that gets the command; any will do, they share one view. A plain comment: clap would show a doc comment in
// place of the command's.
#[derive(clap::Args)]
pub(in crate::cli) struct AdminArgs {
    /// Admin address of a replica.
    #[arg(
        long,
        value_name = "URL",
        default_value = DEFAULT_ADMIN,
        env = ADMIN_URL,
        value_parser = admin_url
    )]
    pub(super) admin: Url,
    #[command(flatten)]
    pub(super) ca: CaArg,
    /// Admin token, needed beyond loopback.
    #[arg(long, env = TOKEN, hide_env_values = true)]
    pub(super) token: Option<String>,
    /// Write the replica's JSON instead of text.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

// As above.
#[derive(clap::Args)]
pub(in crate::cli) struct CaArg {
    /// Authority (PEM) that signed the certificate of an https admin address [default: those of the system].
    #[arg(long = "ca", value_name = "FILE", env = CA)]
    pub(super) admin_ca: Option<PathBuf>,
}

impl CaArg {
    /// The file, if one was named.
    pub(in crate::cli) fn path(&self) -> Option<&Path> {
        self.admin_ca.as_deref()
    }
}

/// An admin address as it is written on a command line. A replica's admin port speaks plain HTTP; https is for a proxy in
/// front of it that ends TLS.
/// Errors: it is none.
pub(in crate::cli) fn admin_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(is_admin);
    url.ok_or_else(|| {
        "no admin address: write http://address:port, or https://name for a proxy that ends TLS, and no path behind it"
            .to_owned()
    })
}

pub(super) fn is_admin(url: &Url) -> bool {
    // Each call has a path and a query of its own: what is here would be lost, or sent along.
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    matches!(url.scheme(), "http" | "https") && is_bare
}
