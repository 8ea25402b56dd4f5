//! `grapevine config`: a replica reads its configuration again.

use clap::Subcommand;
use reqwest::Method;

use super::client::{AdminArgs, AdminClient};
use super::failure::Failure;
use super::show::{print_json, print_line};

/// Has a running replica read its configuration again, as SIGHUP does, and tells what became of it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  grapevine serve --config grapevine.toml --check     # is the file in order?
  grapevine config reload --admin http://10.0.0.1:30001
  grapevine serve --print-config                      # every setting with its default and meaning")]
pub struct ConfigArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Reads the file again: its workers come and go for the whole cluster, and most settings change at once. Those that
    /// need a restart are named.
    ///
    /// A mistake anywhere in the file changes nothing. No request is dropped.
    Reload {
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// Does what was asked, and prints what the replica answered.
///
/// # Errors
/// No replica answers, or the file cannot be used.
pub async fn config(args: ConfigArgs) -> Result<(), Failure> {
    let Action::Reload { admin } = args.action;
    let client = AdminClient::new(&admin)?;
    let path = ["config", "reload"];
    let answer = client.call(Method::POST, &path, &[], Vec::new()).await?;
    if admin.json {
        return print_json(&answer);
    }
    let count = |key: &str| answer[key].as_u64().unwrap_or_default();
    print_line(&format!(
        "read again: {} workers new or changed, {} taken out",
        count("put"),
        count("retracted")
    ))?;
    let changed = answer["changed"].as_array();
    for setting in changed.into_iter().flatten() {
        print_line(&format!("{} changed", setting.as_str().unwrap_or_default()))?;
    }
    let waiting = answer["needs_restart"].as_array();
    for setting in waiting.into_iter().flatten() {
        let setting = setting.as_str().unwrap_or_default();
        print_line(&format!(
            "{setting} differs from what runs; it needs a restart"
        ))?;
    }
    let differs = answer["differs"].as_array();
    for worker in differs.into_iter().flatten() {
        let worker = worker.as_str().unwrap_or_default();
        print_line(&format!(
            "worker {worker}: the cluster knows something else than this file; `grapevine workers list` shows what. The \
             last file that changed counts, and what an operator took out stays out"
        ))?;
    }
    Ok(())
}
