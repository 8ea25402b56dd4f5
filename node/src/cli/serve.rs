//! `grapevine serve`: flags, file and environment to a configuration.

use std::path::{Path, PathBuf};

use grapevine_gossip::Identity;

use crate::app;
use crate::config::{Config, ConfigError, Layers, Problem, read_keys};
use crate::listener::tls::ListenerTls;
use crate::upstream::Connector;

use super::failure::Failure;
use super::settings::SettingFlags;
use super::show::print_line;

/// Runs a router replica until SIGTERM or SIGINT.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Configuration file (TOML); --print-config writes one to begin with.
    #[arg(long, value_name = "FILE", env = "GRAPEVINE_CONFIG")]
    config: Option<PathBuf>,
    /// Check the configuration, report what is missing, and start nothing.
    #[arg(long)]
    check: bool,
    /// Write the documented configuration with all defaults to standard output.
    #[arg(long, conflicts_with = "check")]
    print_config: bool,
    #[command(flatten)]
    settings: SettingFlags,
}

const EXAMPLES: &str = "\
Every setting is described by --print-config; those without a flag are set in the file or by their
variable. Flags win over the environment, the environment over the file.

Examples:
  Two workers, one replica:
    grapevine serve --worker-urls http://10.0.0.5:8000 http://10.0.0.6:8000
  A replica of a cluster:
    grapevine ca init && grapevine ca issue r2
    grapevine serve --replica-id r2 --host 0.0.0.0 --gossip-host 10.0.0.2 --seed 10.0.0.1:30002 \\
      --gossip-ca ca/ca.pem --gossip-cert ca/r2.pem --gossip-key ca/r2.key
      (add --gossip-revoked ca/crl.pem, so that `grapevine ca revoke` can shut a replica out)
  TLS to clients; certificates are read again when they change, and on SIGHUP:
    grapevine serve --ssl-certfile tls.crt --ssl-keyfile tls.key --worker-urls https://gpu-1:8000
  Workers of the file come and go, and most settings change, at SIGHUP; what needs a restart is named in the log:
    kill -HUP PID
  A file to edit, and its check:
    grapevine serve --print-config > grapevine.toml
    grapevine serve --config grapevine.toml --check";

/// What `serve` was asked to do.
#[derive(Debug)]
pub enum Task {
    /// Write the documented defaults.
    PrintConfig,
    /// The configuration was checked; nothing else is to be done.
    Check(Box<Config>, Box<Layers>),
    /// Run a replica; the configuration may be read again from where it came.
    Run(Box<Config>, Box<Layers>),
}

impl ServeArgs {
    /// Reads the file, lays environment and flags over it, and checks the result, with the file of keys.
    ///
    /// # Errors
    /// A file cannot be read, or the configuration is wrong; nothing was started.
    pub fn task(
        self,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Task, ConfigError> {
        if self.print_config {
            return Ok(Task::PrintConfig);
        }
        let mut layers = Layers {
            environment: environment.collect(),
            flags: self.settings.0,
            ..Layers::default()
        };
        if let Some(path) = &self.config {
            layers.read_file(path)?;
        }
        let origin = Box::new(layers.clone());
        let config = Box::new(Config::from_layers(layers)?);
        if let Some(keys) = &config.keys.file {
            read_keys(keys)?;
        }
        Ok(if self.check {
            Task::Check(config, origin)
        } else {
            Task::Run(config, origin)
        })
    }
}

/// Checks what can be checked without a port, beyond the settings themselves, and says what is
/// missing.
///
/// # Errors
/// The certificates do not prove what this replica would claim, or standard output is closed.
pub fn check(config: &Config, origin: &Layers) -> Result<(), Failure> {
    if let Some(files) = config.gossip.identity() {
        let replica = config.replica_id();
        Identity::load(config.cluster.id.as_str(), &replica, &files)
            .map_err(|error| Failure::Usage(error.to_string()))?;
    }
    let usage = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
    ListenerTls::load(&config.tls).map_err(|error| usage(&error))?;
    Connector::load(app::reach_parts(
        config,
        config.timeouts.tls_handshake.into(),
    ))
    .map_err(|error| usage(&error))?;
    kubeconfig(config, origin)?;
    for note in config.notes() {
        print_line(&note)?;
    }
    print_line("the configuration is good")
}

/// A kubeconfig is read when pods are watched, and again whenever the API server refuses: here it is read once.
fn kubeconfig(config: &Config, origin: &Layers) -> Result<(), Failure> {
    let kubernetes = &config.kubernetes;
    let Some(path) = kubernetes
        .kubeconfig
        .as_ref()
        .filter(|_| kubernetes.enabled)
    else {
        return Ok(());
    };
    let Err(what) = read_kubeconfig(path) else {
        return Ok(());
    };
    let problem = Problem {
        origin: origin.origin_of("kubernetes", "kubeconfig"),
        key: "kubernetes.kubeconfig".to_owned(),
        what: format!("{}: {what}", path.display()),
    };
    Err(Failure::Usage(problem.to_string()))
}

#[cfg(feature = "kubernetes")]
fn read_kubeconfig(path: &Path) -> Result<(), String> {
    grapevine_discovery::kubernetes::check_kubeconfig(path)
}

#[cfg(not(feature = "kubernetes"))]
fn read_kubeconfig(path: &Path) -> Result<(), String> {
    let read = std::fs::read_to_string(path);
    read.map(drop).map_err(|error| error.to_string())
}
