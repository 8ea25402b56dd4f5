//! `grapevine cache`: what the workers' caches hold.

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::client::{AdminArgs, AdminClient};
use super::failure::Failure;
use super::show::{Column, print_json, print_line, print_table, rows};

/// Shows what workers that publish KV events hold.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  grapevine cache top                # the prefixes that take most room, and who holds them
  grapevine cache top --count 5 --json")]
pub struct CacheArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Shows the prefixes that take most room, and how much each worker holds.
    ///
    /// Tokens of each worker, and how many of them no other worker holds: what would be lost with it. Then prefixes, by
    /// the room that they take on all workers together, without what shorter ones share. The prompts themselves are known
    /// to nobody: NAME is the session id by which the engine knows a text.
    Top {
        /// Prefixes to show.
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=10_000))]
        count: u16,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

const WORKERS: &[Column] = &[
    Column("WORKER", "worker"),
    Column("GPU-TOKENS", "gpu"),
    Column("HOST", "host"),
    Column("STORAGE", "storage"),
    Column("ONLY-HERE", "only_here_tokens"),
];

const PREFIXES: &[Column] = &[
    Column("NAME", "name"),
    Column("TOKENS", "tokens"),
    Column("OWN", "own_tokens"),
    Column("TEXTS", "texts"),
    Column("ROOM", "held_tokens"),
    Column("WORKERS", "holders"),
];

/// Holders of a prefix in the table; all of them are in the JSON.
const HOLDERS: usize = 3;

/// Prints what one replica knows of the caches.
/// Errors: no replica answers, or it refuses.
pub async fn cache(args: CacheArgs) -> Result<(), Failure> {
    let Action::Top { count, admin } = args.action;
    let client = AdminClient::new(&admin)?;
    let query = [("limit", &*count.to_string())];
    let top = client
        .call(Method::GET, &["cache"], &query, Vec::new())
        .await?;
    if admin.json {
        return print_json(&top);
    }
    let workers: Vec<Value> = rows(&top, "workers").iter().map(worker).collect();
    if workers.is_empty() {
        return print_line(
            "nothing is known of any cache: no worker publishes KV events (docs/kv-events.md), or none has computed a prompt yet",
        );
    }
    print_table(WORKERS, &workers)?;
    print_line("")?;
    let prefixes: Vec<Value> = rows(&top, "prefixes").iter().map(prefix).collect();
    print_table(PREFIXES, &prefixes)
}

/// Says how much of what a worker's cache holds is nowhere else; nothing of one that does not publish.
pub(super) async fn say_what_goes_with(
    client: &AdminClient,
    drained: &Value,
) -> Result<(), Failure> {
    // A replica of an earlier release does not know; the drain is none the worse for it.
    let Ok(top) = client.get(&["cache"]).await else {
        return Ok(());
    };
    let mut workers = rows(&top, "workers").iter();
    let Some(row) = workers.find(|row| row["worker"] == drained["id"]) else {
        return Ok(());
    };
    let held = row["tokens"].as_object().into_iter().flatten();
    let held: u64 = held.filter_map(|(_, tokens)| tokens.as_u64()).sum();
    let alone = row["only_here_tokens"].as_u64().unwrap_or(0);
    match held {
        0 => Ok(()),
        _ => print_line(&format!(
            "no other worker holds {alone} of the {held} tokens in its cache: they are computed again where they are asked for"
        )),
    }
}

fn worker(row: &Value) -> Value {
    let tokens = &row["tokens"];
    json!({
        "worker": row["worker"],
        "gpu": tokens["gpu"],
        "host": tokens["host"],
        "storage": tokens["storage"],
        "only_here_tokens": row["only_here_tokens"],
    })
}

fn prefix(row: &Value) -> Value {
    let mut row = row.clone();
    let holders = rows(&row, "workers");
    let mut shown: Vec<String> = holders
        .iter()
        .take(HOLDERS)
        .map(|holder| {
            format!(
                "{}: {}",
                holder["worker"].as_str().unwrap_or("-"),
                holder["tokens"]
            )
        })
        .collect();
    if holders.len() > HOLDERS {
        shown.push(format!("and {} more", holders.len() - HOLDERS));
    }
    row["holders"] = shown.join(", ").into();
    row
}
