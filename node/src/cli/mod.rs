//! The command line: one binary, `grapevine`, and what each of its commands does.
//!
//! `serve` is a router replica; `status`, `top`, `doctor`, `workers`, `cache`, `quarantine` and `explain` talk to the
//! admin port of any replica; `bench` sends load to any endpoint; `register` is a worker's way into the cluster; `ca` makes
//! certificates, `keys` keys of clients; `probe` is for health checks, `man` and `completions` for packages. The others
//! are the testbed's, and are there with the feature of that name alone: what is shipped is built without it.
//!
//! Exit codes: 0 done; 1 refused or failed; 2 wrong command line or configuration; 3 no replica
//! answers; 4 `status`, `top --once` or `doctor` found something wrong. Those of `serve` are with [`crate::shutdown::Ending`].

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser, Subcommand};

mod ca;
mod cache;
mod check;
mod client;
mod config;
mod description;
mod doctor;
mod drain;
mod events;
mod explain;
mod failure;
mod keys;
mod manuals;
mod migration;
mod probe;
mod quarantine;
mod register;
mod serve;
mod settings;
mod show;
mod status;
mod top;
mod workers;

pub use ca::{CaArgs, ca};
pub use cache::{CacheArgs, cache};
pub use check::check;
pub use config::{ConfigArgs, config};
pub use doctor::{DoctorArgs, doctor};
pub use events::{EventsArgs, events};
pub use explain::{ExplainArgs, explain};
pub use failure::Failure;
pub use keys::{KeysArgs, keys};
pub use manuals::{CompletionsArgs, ManArgs, completions, man};
pub use probe::{ProbeArgs, probe};
pub use quarantine::{QuarantineArgs, quarantine};
pub use register::{RegisterArgs, register};
pub use serve::{ServeArgs, Task};
pub use show::{print_line, say};
pub use status::{StatusArgs, status};
pub use top::{TopArgs, top};
pub use workers::{WorkersArgs, workers};

/// A leaderless router cluster for vLLM.
///
/// Several replicas share one view of the workers and send the same prefix to the same worker,
/// whichever of them is asked.
#[derive(Parser)]
#[command(name = "grapevine", version, long_version = LONG_VERSION, after_help = examples(), propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `--version` prints; `-V` prints the version alone.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("GRAPEVINE_BUILD"),
    ")"
);

fn examples() -> String {
    let demo = "  See it work, with fake workers, on this machine alone:
    grapevine demo
";
    let demo = if cfg!(feature = "testbed") { demo } else { "" };
    format!(
        "\
Examples:
{demo}  Route to two workers:
    grapevine serve --worker-urls http://10.0.0.5:8000 http://10.0.0.6:8000
  Ask where a prompt goes:
    grapevine explain --prompt 'Why is the sky blue?'

Exit codes:
  0  done, and as it should be
  1  refused, by a replica or the system
  2  the command line or the configuration is wrong; nothing was done
  3  no replica answers at the admin address; whether a change was made is not known
  4  of `status`, `top --once` and `doctor`: something is wrong
  5  of `serve`: a second signal ended it at once"
    )
}

/// The commands. What each does is said once, at its arguments: a doc comment here would take the place of all of it.
#[derive(Subcommand)]
pub enum Command {
    #[command(alias = "launch")]
    Serve(Box<ServeArgs>),
    Status(StatusArgs),
    Top(TopArgs),
    Doctor(DoctorArgs),
    Events(EventsArgs),
    Workers(WorkersArgs),
    Register(Box<RegisterArgs>),
    Quarantine(QuarantineArgs),
    Cache(CacheArgs),
    Config(ConfigArgs),
    Explain(ExplainArgs),
    Bench(Box<grapevine_bench::cli::BenchArgs>),
    Ca(CaArgs),
    Keys(KeysArgs),
    Probe(ProbeArgs),
    Man(ManArgs),
    Completions(CompletionsArgs),
    /// Fake workers, replay, balancer and demo: no router code in them.
    #[cfg(feature = "testbed")]
    #[command(flatten)]
    Testbed(grapevine_testbed::cli::Command),
}

impl Cli {
    /// Reads the process's command line; ends the process with what is wrong with it, or with the help it asks for.
    pub fn read() -> Self {
        Self::of(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    /// The same for any words.
    /// Errors: the words cannot be followed.
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
            Some(command) if is_left_out(command) => {
                let message = format!(
                    "`{command}` is part of the testbed, which is not in this build; in a clone of the \
                     repository: cargo run --release -- {command} ...\n"
                );
                clap::Error::raw(ErrorKind::InvalidSubcommand, message)
            }
            Some("serve" | "launch") => without_dead_tip(error),
            _ => error,
        })
    }
}

/// clap proposes the nearest flag that it knows, also one of another router's that `serve` refuses.
fn without_dead_tip(mut error: clap::Error) -> clap::Error {
    let is_refused = |flag: &str| {
        let mut foreign = migration::foreign();
        let is_foreign = foreign.any(|name| flag.strip_prefix("--") == Some(name));
        is_foreign && migration::refusal(flag.trim_start_matches('-'), &[]).is_some()
    };
    if let Some(ContextValue::String(flag)) = error.get(ContextKind::SuggestedArg)
        && is_refused(flag)
    {
        error.remove(ContextKind::SuggestedArg);
    }
    error
}

/// Whether a command is one of the testbed's, and the testbed is not here.
fn is_left_out(command: &str) -> bool {
    !cfg!(feature = "testbed") && TESTBED_COMMANDS.contains(&command)
}

const TESTBED_COMMANDS: [&str; 6] = [
    "balancer",
    "chaos",
    "demo",
    "fake-kubernetes",
    "fake-worker",
    "replay",
];

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

#[cfg(test)]
mod examples_tests;
#[cfg(test)]
mod fake_replica;
#[cfg(test)]
mod tests;
