//! The flags of `serve` that set a configuration value, made from the table of settings.
//!
//! Names, help, defaults and checks come from the settings' own rows, so a flag cannot drift from
//! its setting. vllm-router's flags that have no counterpart are known too: taking one silently
//! would start a router that does something else than its command line says.

use clap::builder::StyledStr;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, Error};

use crate::config::{Flag, FlagKind, rows, variable};

use super::unsupported::UNSUPPORTED;

/// Flags that were given, with their arguments; they lie over the environment and the file.
#[derive(Default)]
pub(super) struct SettingFlags(pub(super) Vec<(Flag, Vec<String>)>);

impl clap::Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        let settings = rows().filter_map(|(section, row)| {
            let flag = row.flag?;
            let first_lines = row.about.iter().take_while(|line| !line.is_empty());
            let about: String = first_lines.copied().collect();
            let effect = match flag.kind {
                FlagKind::Off => format!("Sets {section}.{} to false: ", row.key),
                _ => String::new(),
            };
            let default = match (row.default)() {
                Some(default) if takes_value(flag.kind) && default != "[]" => {
                    format!(" [default: {}]", default.trim_matches('"'))
                }
                _ => String::new(),
            };
            let variable = variable(section, row.key);
            let help = format!("{effect}{}{default} [env: {variable}]", about.trim());
            Some(
                argument(flag)
                    .help(StyledStr::from(help))
                    .help_heading(heading(section)),
            )
        });
        let unsupported = UNSUPPORTED.iter().map(|(name, _)| {
            let arg = Arg::new(*name).long(*name).hide(true);
            arg.num_args(0..).action(ArgAction::Append)
        });
        command.args(settings).args(unsupported)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        if let Some((name, instead)) = UNSUPPORTED.iter().find(|(name, _)| given(matches, name)) {
            let message = format!("--{name} of vllm-router is not supported: {instead}");
            return Err(Error::raw(ErrorKind::UnknownArgument, message));
        }
        let flags = rows()
            .filter_map(|(_, row)| row.flag)
            .filter(|flag| given(matches, flag.name));
        let words = |flag: Flag| match takes_value(flag.kind) {
            true => matches
                .get_many(flag.name)
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
            false => Vec::new(),
        };
        Ok(Self(flags.map(|flag| (flag, words(flag))).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Whether a flag stood on the command line; clap counts the default of a switch as present.
fn given(matches: &ArgMatches, name: &str) -> bool {
    matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine)
}

fn takes_value(kind: FlagKind) -> bool {
    !matches!(kind, FlagKind::On | FlagKind::Off)
}

fn argument(flag: Flag) -> Arg {
    let arg = Arg::new(flag.name).long(flag.name);
    match flag.kind {
        FlagKind::On | FlagKind::Off => arg.action(ArgAction::SetTrue),
        FlagKind::Text => arg.value_name("VALUE"),
        FlagKind::Millis => arg.value_name("MILLISECONDS"),
        FlagKind::Secs => arg.value_name("SECONDS"),
        FlagKind::List => arg
            .value_name("VALUE")
            .num_args(1..)
            .action(ArgAction::Append),
    }
}

fn heading(section: &'static str) -> &'static str {
    match section {
        "replica" | "gossip" | "cluster" => "Cluster",
        "listen" | "tls" => "Data port",
        "admin" | "metrics" | "log" => "Admin, metrics, log",
        "workers" | "health" => "Workers",
        "retry" | "breaker" => "Retries and breakers",
        "admission" | "keys" => "Admission and keys",
        _ => "Times and limits",
    }
}
