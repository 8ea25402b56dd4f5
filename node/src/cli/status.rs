//! `grapevine status`: the cluster as one replica sees it.

use serde_json::Value;

use super::Failure;
use super::client::{AdminArgs, AdminClient};
use super::show::{Column, field, print_json, print_line, print_table};

/// Shows the cluster: replicas, workers, and whether all hold the same ring.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  grapevine status
  grapevine status --admin http://10.0.0.2:30001 --json")]
pub struct StatusArgs {
    #[command(flatten)]
    admin: AdminArgs,
}

const REPLICAS: &[Column] = &[
    Column("REPLICA", "id"),
    Column("STATE", "state"),
    Column("READY", "ready"),
    Column("DATA", "http"),
    Column("GOSSIP", "gossip"),
    Column("VERSION", "version"),
    Column("RING", "digest"),
];

/// Prints the view of one replica.
///
/// # Errors
/// No replica answers, or it refuses.
pub async fn status(args: StatusArgs) -> Result<(), Failure> {
    let client = AdminClient::new(&args.admin)?;
    let cluster = client.get(&["cluster"]).await?;
    let workers = client.get(&["workers"]).await?;
    if args.admin.json {
        return print_json(&serde_json::json!({ "cluster": cluster, "workers": workers }));
    }
    print_line(&format!(
        "cluster {} seen by {}, ring {}",
        field(&cluster, "cluster"),
        field(&cluster, "replica"),
        field(&cluster, "digest"),
    ))?;
    print_line("")?;
    print_table(REPLICAS, rows(&cluster, "replicas"))?;
    print_line("")?;
    print_table(super::workers::COLUMNS, rows(&workers, "workers"))
}

/// The list under a key, or an answer that is itself the list.
pub(super) fn rows<'a>(answer: &'a Value, key: &str) -> &'a [Value] {
    let list = answer.get(key).unwrap_or(answer).as_array();
    list.map_or(&[], Vec::as_slice)
}
