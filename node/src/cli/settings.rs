//! The flags of `serve` that set a configuration value, made from the table of settings.
//!
//! Names, help, defaults and checks come from the settings' own rows, so a flag cannot drift from
//! its setting. The flags of other routers are known too, `migration` says what each is here; all that are refused
//! are named in one answer.

use clap::builder::StyledStr;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, Error};

use crate::config::{Config, ConfigError, Flag, FlagKind, Layers, Origin, rows, variable};

use super::migration;

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
        let foreign = migration::foreign().map(|name| {
            let arg = Arg::new(name).long(name).hide(true);
            arg.num_args(0..)
                .allow_negative_numbers(true)
                .action(ArgAction::Append)
        });
        command.args(settings).args(foreign)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let theirs: Vec<(&str, Vec<String>)> = migration::foreign()
            .filter(|name| given(matches, name))
            .map(|name| (name, words(matches, name)))
            .collect();
        let refusal = |(name, words): &(&str, Vec<String>)| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            migration::refusal(name, &words)
        };
        let mut refused: Vec<String> = theirs.iter().filter_map(refusal).collect();
        let ours = rows().filter_map(|(_, row)| row.flag);
        let ours = ours.filter(|flag| given(matches, flag.name));
        let own = ours.map(|flag| match takes_value(flag.kind) {
            true => (flag, words(matches, flag.name)),
            false => (flag, Vec::new()),
        });
        // Under another router's name; the own name counts more.
        let renamed = theirs.into_iter().filter_map(|(name, words)| {
            let (ours, value) = migration::ours(name)?;
            let mut flags = rows().filter_map(|(_, row)| row.flag);
            let words = value.map_or(words, |value| vec![value.to_owned()]);
            Some((flags.find(|flag| flag.name == ours)?, words))
        });
        let flags = renamed.chain(own);
        let flags = flags.filter(|(flag, words)| !migration::is_default(flag.name, words));
        let flags: Vec<_> = flags.collect();
        if !refused.is_empty() {
            // In one answer, or each start would find the next one: also what another router's values mean here.
            refused.extend(wrong_values(&flags));
            let message = format!("{}\n", refused.join("\n       "));
            return Err(Error::raw(ErrorKind::UnknownArgument, message));
        }
        Ok(Self(flags))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What is wrong with the values of these flags, each for itself.
fn wrong_values(flags: &[(Flag, Vec<String>)]) -> Vec<String> {
    let layers = Layers {
        flags: flags.to_vec(),
        ..Layers::default()
    };
    match Config::from_layers(layers) {
        Err(ConfigError::Invalid(problems)) => {
            let of_flags = problems
                .iter()
                .filter(|p| matches!(p.origin, Origin::Flag(_)));
            of_flags.map(ToString::to_string).collect()
        }
        Ok(_) | Err(ConfigError::Unreadable { .. }) => Vec::new(),
    }
}

fn words(matches: &ArgMatches, name: &str) -> Vec<String> {
    let words = matches.get_many(name).into_iter().flatten();
    words.cloned().collect()
}

/// Whether a flag stood on the command line; clap counts the default of a switch as present.
fn given(matches: &ArgMatches, name: &str) -> bool {
    matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine)
}

fn takes_value(kind: FlagKind) -> bool {
    !matches!(kind, FlagKind::On | FlagKind::Off)
}

fn argument(flag: Flag) -> Arg {
    let arg = Arg::new(flag.name)
        .long(flag.name)
        .visible_aliases(flag.alias);
    match flag.kind {
        FlagKind::On | FlagKind::Off => arg.action(ArgAction::SetTrue),
        // A number below 0 is a wrong value, or another router's word for its default; no flag begins with a digit.
        FlagKind::Text => arg.value_name(flag.value_name).allow_negative_numbers(true),
        FlagKind::Millis => arg.value_name("MILLISECONDS"),
        FlagKind::Secs => arg.value_name("SECONDS"),
        FlagKind::List => arg
            .value_name(flag.value_name)
            .num_args(1..)
            .action(ArgAction::Append),
    }
}

fn heading(section: &'static str) -> &'static str {
    match section {
        "replica" | "gossip" | "cluster" => "Cluster",
        "listen" | "tls" | "cors" => "Data port",
        "admin" | "metrics" | "log" => "Admin, metrics, log",
        "workers" | "health" | "transfer" => "Workers",
        "discovery" | "files" | "dns" | "kubernetes" | "leases" | "pings" => {
            "Workers that are found"
        }
        "retry" | "breaker" => "Retries and breakers",
        "admission" | "keys" => "Admission and keys",
        _ => "Times and limits",
    }
}
