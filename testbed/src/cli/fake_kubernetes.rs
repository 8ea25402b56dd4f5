//! `grapevine fake-kubernetes`: a Kubernetes API server for pods, to try discovery without a cluster.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::{StopSignals, print_json};
use crate::fake_kubernetes::{Config, FakeKubernetes};

/// Arguments of `fake-kubernetes`.
#[derive(Debug, Args)]
pub struct FakeKubernetesArgs {
    /// Address for HTTPS; port 0 chooses a free one
    #[arg(long, default_value = "127.0.0.1:6443")]
    listen: SocketAddr,
    /// Address for commands (`/fake/...`), plain HTTP
    #[arg(long, default_value = "127.0.0.1:0")]
    control: SocketAddr,
    /// Folder for kubeconfig, token and ca.crt [default: a temporary one]
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Namespaces that exist
    #[arg(long, num_args = 1.., default_value = "default")]
    namespaces: Vec<String>,
    /// Changes that a watch can go back
    #[arg(long, default_value_t = 10_000)]
    history: usize,
    /// Time between bookmarks of a quiet watch
    #[arg(long, value_parser = humantime::parse_duration, default_value = "60s")]
    bookmark_every: Duration,
}

impl FakeKubernetesArgs {
    /// Serves until a signal. Prints one line with its addresses and the path of a kubeconfig.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let mut signals = StopSignals::new()?;
        let server = FakeKubernetes::start(Config {
            listen: self.listen,
            control: self.control,
            directory: self.directory,
            namespaces: self.namespaces,
            history_max: self.history,
            bookmark_every: self.bookmark_every,
            ..Config::default()
        })
        .await?;
        print_json(&json!({
            "event": "listening", "https": server.url(), "control": server.control().to_string(),
            "kubeconfig": server.kubeconfig(),
        }))?;
        signals.next().await;
        Ok(ExitCode::SUCCESS)
    }
}
