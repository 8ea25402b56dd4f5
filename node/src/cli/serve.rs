//! `grapevine serve`: flags, file and environment to a configuration.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _};

use crate::config::{Config, ConfigError, Flag, Layers, Origin, Problem, read_keys};

use super::settings::SettingFlags;

/// Runs a router replica until SIGTERM or SIGINT.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Configuration file (TOML); --print-config writes one to begin with.
    #[arg(long, value_name = "FILE", env = "GRAPEVINE_CONFIG",
          value_parser = OsStringValueParser::new().try_map(config_file))]
    config: Option<PathBuf>,
    /// Check the configuration and every file that it names, report all mistakes, and start nothing.
    #[arg(long)]
    check: bool,
    /// Write the documented configuration with all defaults to standard output, whatever file and variables say.
    #[arg(long, conflicts_with = "check")]
    print_config: bool,
    #[command(flatten)]
    settings: SettingFlags,
}

/// An empty name is no missing one: a replica that starts with nothing but defaults, because a variable was empty, would
/// be found late.
fn config_file(name: OsString) -> Result<PathBuf, &'static str> {
    match name.is_empty() {
        true => Err(
            "it names no file; leave the flag out, or unset GRAPEVINE_CONFIG, to start without a file",
        ),
        false => Ok(name.into()),
    }
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
    /// Check the configuration and the files that it names (`check.rs`).
    Check(Box<Layers>),
    /// Run a replica; the configuration may be read again from where it came.
    Run(Box<Config>, Box<Layers>),
}

impl ServeArgs {
    /// Reads the file, lays environment and flags over it, and checks the result, with the file of keys; for a check,
    /// reads the file alone.
    /// Errors: a file cannot be read, or the configuration is wrong; nothing was started.
    pub fn task(
        self,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Task, ConfigError> {
        if self.print_config {
            return self.settings.print_config();
        }
        let mut layers = Layers {
            environment: environment.collect(),
            flags: self.settings.0,
            ..Layers::default()
        };
        if let Some(path) = &self.config {
            layers.read_file(path)?;
        }
        if self.check {
            return Ok(Task::Check(Box::new(layers)));
        }
        let origin = Box::new(layers.clone());
        let config = Box::new(Config::from_layers(layers)?);
        if let Some(keys) = &config.keys.file {
            read_keys(keys)?;
        }
        Ok(Task::Run(config, origin))
    }
}

impl SettingFlags {
    /// A flag beside `--print-config` would be lost without a word.
    fn print_config(self) -> Result<Task, ConfigError> {
        if self.0.is_empty() {
            return Ok(Task::PrintConfig);
        }
        let problem = |(flag, _): (Flag, Vec<String>)| {
            Problem {
            origin: Origin::Flag(flag.name),
            key: String::new(),
            what: "--print-config writes the defaults; set this in the file that it makes, or at the start".to_owned(),
        }
        };
        Err(ConfigError::Invalid(
            self.0.into_iter().map(problem).collect(),
        ))
    }
}
