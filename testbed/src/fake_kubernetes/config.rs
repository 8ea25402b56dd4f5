//! What a fake API server is told at its start, with its limits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Configuration of a fake API server.
#[derive(Debug, Clone)]
pub struct Config {
    /// HTTPS; port 0 chooses a free one.
    pub listen: SocketAddr,
    /// Plain HTTP for commands; it stays reachable when the other port does not.
    pub control: SocketAddr,
    /// Where kubeconfig, token and authority are written; a folder that ends with the server if none.
    pub directory: Option<PathBuf>,
    /// Namespaces at the start; more by `POST /api/v1/namespaces`.
    pub namespaces: Vec<String>,
    /// Name of the one user.
    pub user: String,
    /// The node that new pods are on.
    pub node: String,
    /// Pods at most; then 403.
    pub pods_max: usize,
    /// Namespaces at most; then 403.
    pub namespaces_max: usize,
    /// Changes that a watch can go back; older ones are compacted away.
    pub history_max: usize,
    /// Open connections at most; further ones are closed at once.
    pub connections_max: usize,
    /// Bytes of a request's body at most; then 413.
    pub body_bytes_max: usize,
    /// Time between bookmarks of a quiet watch.
    pub bookmark_every: Duration,
    /// How long a watch lasts that does not say.
    pub watch_for: Duration,
}

impl Default for Config {
    fn default() -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            listen: any,
            control: any,
            directory: None,
            namespaces: vec!["default".to_owned()],
            user: "system:serviceaccount:default:grapevine".to_owned(),
            node: "node-1".to_owned(),
            pods_max: 10_000,
            namespaces_max: 100,
            history_max: 10_000,
            connections_max: 1_024,
            body_bytes_max: 3 << 20,
            bookmark_every: Duration::from_secs(60),
            watch_for: Duration::from_secs(30 * 60),
        }
    }
}
