//! The command line: one binary, `grapevine`, and what each of its commands does.
//!
//! `serve` is a router replica; `status`, `workers`, `quarantine` and `explain` talk to the admin port of any
//! replica; `ca` makes certificates, `keys` keys of clients; the others are the testbed's.
//!
//! Exit codes: 0 done; 1 refused or failed; 2 wrong command line or configuration; 3 no replica
//! answers. Those of `serve` are with [`crate::shutdown::Ending`].

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};

use crate::config::ConfigError;

mod ca;
mod client;
mod drain;
mod explain;
mod keys;
mod migration;
mod quarantine;
mod serve;
mod settings;
mod show;
mod status;
mod workers;

pub use ca::{CaArgs, ca};
pub use explain::{ExplainArgs, explain};
pub use keys::{KeysArgs, keys};
pub use quarantine::{QuarantineArgs, quarantine};
pub use serve::{ServeArgs, Task, check};
pub use show::print_line;
pub use status::{StatusArgs, status};
pub use workers::{WorkersArgs, workers};

/// A leaderless router cluster for vLLM.
///
/// Several replicas share one view of the workers and send the same prefix to the same worker,
/// whichever of them is asked.
#[derive(Parser)]
#[command(name = "grapevine", version, after_help = EXAMPLES, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  See it work, with fake workers, on this machine alone:
    grapevine demo
  Route to two workers:
    grapevine serve --worker-urls http://10.0.0.5:8000 http://10.0.0.6:8000
  Ask where a prompt goes:
    grapevine explain --prompt 'Why is the sky blue?'";

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Run a router replica.
    #[command(alias = "launch")]
    Serve(Box<ServeArgs>),
    /// Show the cluster: replicas, workers, agreement.
    Status(StatusArgs),
    /// List, add, drain or remove workers.
    Workers(WorkersArgs),
    /// List or lift marks of requests that no worker gets, because two ended while they had it.
    Quarantine(QuarantineArgs),
    /// Show where a request would go, and why, without sending it.
    Explain(ExplainArgs),
    /// Make the certificates by which replicas know each other.
    Ca(CaArgs),
    /// Make keys for clients, and check the file that lists them.
    Keys(KeysArgs),
    /// Fake workers, load, replay, balancer and demo: no router code in them.
    #[command(flatten)]
    Testbed(grapevine_testbed::cli::Command),
}

impl Cli {
    /// Reads the process's command line; ends the process with what is wrong with it, or with the help it asks for.
    #[must_use]
    pub fn read() -> Self {
        Self::of(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// The same for any words.
    ///
    /// # Errors
    /// The words cannot be followed.
    pub(crate) fn of(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let words: Vec<OsString> = words.into_iter().collect();
        let first = words.get(1).and_then(|word| word.to_str());
        Self::try_parse_from(&words).map_err(|error| match first {
            // As vllm-router and SMG are started.
            Some(flag) if is_flag_of_serve(flag) => {
                let message =
                    format!("a replica is started by `serve`: grapevine serve {flag} ...\n");
                clap::Error::raw(ErrorKind::MissingSubcommand, message)
            }
            _ => error,
        })
    }
}

/// Whether a word is a flag that `serve` knows and the program itself does not.
fn is_flag_of_serve(word: &str) -> bool {
    let Some(flag) = word.strip_prefix("--") else {
        return false;
    };
    let name = flag.split_once('=').map_or(flag, |(name, _)| name);
    let has = |command: &clap::Command| {
        let mut longs = command.get_arguments().filter_map(clap::Arg::get_long);
        longs.any(|long| long == name)
    };
    let command = Cli::command();
    !has(&command) && command.find_subcommand("serve").is_some_and(has)
}

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line cannot be followed; nothing was done.
    #[error("{0}")]
    Usage(String),
    /// A replica or the system refused.
    #[error("{0}")]
    Refused(String),
    /// Nobody answers at the admin address; whether a change was made is not known.
    #[error("{0}")]
    Unreachable(String),
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(match error {
            ConfigError::Unreadable { ref cause, .. } => format!("{error}: {cause}"),
            ConfigError::Invalid(_) => {
                let indented = error.to_string().replace('\n', "\n  ");
                format!("the configuration cannot be used:\n  {indented}")
            }
        })
    }
}

impl Failure {
    /// The process's exit code.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
        })
    }
}

#[cfg(test)]
mod tests;
