//! `grapevine config`: a replica reads its configuration again.

use clap::Subcommand;
use reqwest::Method;
use serde_json::Value;

use super::client::{AdminArgs, AdminClient};
use super::failure::Failure;
use super::show::{print_json, print_line};
use crate::shown::words;
use crate::shown::{field, plain, rows};

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
/// Errors: no replica answers, or the file cannot be used.
pub async fn config(args: ConfigArgs) -> Result<(), Failure> {
    let Action::Reload { admin } = args.action;
    let client = AdminClient::new(&admin)?;
    let path = ["config", "reload"];
    let answer = client.call(Method::POST, &path, &[], Vec::new()).await?;
    if admin.json {
        return print_json(&answer);
    }
    told(&answer).iter().try_for_each(|line| print_line(line))
}

/// What became of it, line by line.
fn told(answer: &Value) -> Vec<String> {
    let count = |key: &str| answer[key].as_u64().unwrap_or_default();
    let mut lines = vec![format!(
        "read again: {} new or changed, {} taken out",
        words::count(count("put") as usize, "worker"),
        count("retracted")
    )];
    for row in rows(answer, "left_out") {
        let [worker, by, bring_back] = ["worker", "by", "bring_back"].map(|name| field(row, name));
        lines.push(format!(
            "worker {worker} of the file is left out: {by}; `{bring_back}` brings it back"
        ));
    }
    for row in rows(answer, "stay") {
        let [worker, by] = ["worker", "declared_by"].map(|name| field(row, name));
        lines.push(format!(
            "worker {worker} is gone from the file and stays: {by} declares it too; `grapevine workers remove {worker}` \
             takes it out"
        ));
    }
    let changed = rows(answer, "changed").iter().map(plain);
    lines.extend(changed.map(|setting| format!("{setting} changed")));
    let waiting = rows(answer, "needs_restart").iter().map(plain);
    lines.extend(
        waiting.map(|setting| format!("{setting} differs from what runs; it needs a restart")),
    );
    let differs = rows(answer, "differs").iter().map(plain);
    lines.extend(differs.map(|worker| {
        format!(
            "worker {worker}: the cluster knows something else than this file; `grapevine workers list` shows what. What \
             an administrator wrote counts, else the last file that changed"
        )
    }));
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reading_tells_who_is_left_out_and_who_stays() {
        let answer = json!({
            "put": 1, "retracted": 0, "changed": ["log.level"], "needs_restart": ["listen.port"], "differs": ["w3"],
            "left_out": [{
                "worker": "w1", "by": "an administrator removed it", "bring_back": "grapevine workers add http://w1:1",
            }],
            "stay": [{ "worker": "w2", "declared_by": ["admin", "dns"] }],
        });
        let lines = told(&answer);
        assert_eq!(lines.len(), 6, "{lines:?}");
        for (line, parts) in lines.iter().zip([
            &["1 worker new or changed, 0 taken out"][..],
            &[
                "w1",
                "an administrator removed it",
                "`grapevine workers add http://w1:1`",
            ],
            &["w2", "stays: admin,dns declares it too"],
            &["log.level changed"],
            &["listen.port", "needs a restart"],
            &["w3", "something else"],
        ]) {
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        }
    }
}
