//! `grapevine man` and `grapevine completions`: what packages install beside the program, made from the table of
//! commands, so that neither can drift from it.

use std::fs;
use std::path::PathBuf;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::show::print_line;
use super::{Cli, Failure};

/// Writes manual pages, one for each command.
#[derive(clap::Args)]
pub struct ManArgs {
    /// Folder for the pages; made if it is missing, pages of the same name are replaced.
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
}

/// Prints completions for a shell, as `source <(grapevine completions bash)` reads them.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell that is to complete
    shell: Shell,
}

/// Writes one page of section 1 for the program and for each command: `grapevine.1`, `grapevine-serve.1`, ...
/// Errors: the folder or a page cannot be written.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    let out = &args.out;
    fs::create_dir_all(out)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), out))
        .map_err(|error| {
            Failure::Refused(format!("cannot write pages to {}: {error}", out.display()))
        })
}

/// Writes the completions to standard output.
/// Errors: standard output cannot be written, as on a full disk.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    print_line(completions_of(args.shell).trim_end())
}

pub(super) fn completions_of(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut offered(&Cli::command()), "grapevine", &mut text);
    String::from_utf8(text).expect("names and help are UTF-8")
}

/// A command without what nobody should be offered: flags of other routers, which are there to be answered. clap can
/// hide a flag from its help and from no shell, so the command is made anew without them.
fn offered(command: &clap::Command) -> clap::Command {
    let visible = |arg: &&clap::Arg| !arg.is_hide_set();
    let about = command.get_about().cloned().unwrap_or_default();
    // clap keeps names for ever; the process ends with the text.
    let name: &'static str = command.get_name().to_owned().leak();
    clap::Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .args(command.get_arguments().filter(visible).cloned())
        .subcommands(command.get_subcommands().map(offered))
}
