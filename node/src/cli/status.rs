//! `grapevine status`: the cluster as one replica sees it.

use super::client::{AdminArgs, AdminClient};
use super::failure::Failure;
use super::show::{Column, field, print_json, print_line, print_table, rows};

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
    Column("LIVE", "live"),
    Column("READY", "ready"),
    Column("LEAVING", "leaving"),
    Column("DATA", "data"),
    Column("ADMIN", "admin"),
    Column("GOSSIP", "gossip"),
    Column("VERSION", "version"),
    Column("RING", "ring"),
];

/// Prints the view of one replica.
///
/// # Errors
/// No replica answers, or it refuses.
pub async fn status(args: StatusArgs) -> Result<(), Failure> {
    let client = AdminClient::new(&args.admin)?;
    let cluster = client.get(&["cluster"]).await?;
    let workers = super::workers::all_workers(&client).await?;
    if args.admin.json {
        return print_json(&serde_json::json!({ "cluster": cluster, "workers": workers }));
    }
    print_line(&format!(
        "seen by {}: ring {}, {} of {} live replicas agree",
        field(&cluster, "replica"),
        field(&cluster, "digest"),
        field(&cluster, "agreeing"),
        field(&cluster, "live"),
    ))?;
    for twin in rows(&cluster, "twins") {
        print_line(&format!(
            "TWO PROCESSES run as {}: {} counts, {} is cut off and not ready; end one of them",
            field(twin, "id"),
            field(twin, "kept"),
            field(twin, "cut_off"),
        ))?;
    }
    if let Some(agreement) = cluster["agreement"].as_f64() {
        print_line(&format!(
            "of the last {} requests compared, a peer chose the same worker for {:.1} %",
            field(&cluster, "agreement_samples"),
            agreement * 100.0,
        ))?;
    }
    print_line("")?;
    print_table(REPLICAS, rows(&cluster, "replicas"))?;
    print_line("")?;
    print_table(super::workers::COLUMNS, rows(&workers, "workers"))
}
