//! `grapevine workers`: list, add, drain and remove workers, through any replica.

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::Failure;
use super::client::{AdminArgs, AdminClient};
use super::show::{Column, field, print_json, print_line, print_table, rows};

/// Lists and changes the cluster's workers. A change made through one replica reaches all.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  grapevine workers list
  grapevine workers add http://10.0.0.7:8000 --weight 2
  grapevine workers add http://10.0.0.7:8000 --no-warm-up   # requests at once, cold cache
  grapevine workers drain http://10.0.0.7:8000      # no new prefixes; sessions stay
  grapevine workers remove http://10.0.0.7:8000     # gone everywhere, also after restarts")]
pub struct WorkersArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Shows every worker with its health and load.
    List {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Adds a worker, or brings back a removed one.
    ///
    /// In a cluster with traffic it is warmed up first: the hottest prompts that will move to it are computed there.
    /// It takes requests when that is done, at the latest after `warmup.limit` (30 s).
    Add {
        /// Address, as http://host:port or https://host:port.
        url: String,
        /// Id in the cluster [default: the address].
        #[arg(long)]
        id: Option<String>,
        /// Model or adapter it serves; may be repeated [default: the worker is asked].
        #[arg(long = "model", value_name = "MODEL")]
        models: Vec<String>,
        /// Share of keys against other workers, 0.001 to 100 [default: 1].
        #[arg(long)]
        weight: Option<f64>,
        /// Requests in flight above which nothing more is sent to it [default: no limit].
        #[arg(long)]
        max_in_flight: Option<u32>,
        /// Where it stands, for display.
        #[arg(long)]
        zone: Option<String>,
        /// Let it take requests at once, with a cold cache.
        #[arg(long)]
        no_warm_up: bool,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Gives a worker no new prefixes; sessions it holds may stay until it is removed.
    Drain {
        /// Id or address of the worker.
        worker: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Removes a worker from every replica; only adding it again brings it back.
    Remove {
        /// Id or address of the worker.
        worker: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

pub(super) const COLUMNS: &[Column] = &[
    Column("WORKER", "id"),
    Column("URL", "url"),
    Column("STATE", "state"),
    Column("HEALTH", "health"),
    Column("VERDICT", "verdict"),
    Column("DOUBTED", "doubted"),
    Column("BREAKER", "breaker"),
    Column("IN-FLIGHT", "in_flight"),
    Column("WEIGHT", "weight"),
    Column("ZONE", "zone"),
    Column("MODELS", "models"),
];

/// Does what was asked and prints what the cluster answered.
///
/// # Errors
/// No replica answers, or it refuses.
pub async fn workers(args: WorkersArgs) -> Result<(), Failure> {
    match args.action {
        Action::List { admin } => {
            let answer = AdminClient::new(&admin)?.get(&["workers"]).await?;
            if admin.json {
                print_json(&answer)
            } else {
                print_table(COLUMNS, rows(&answer, "workers"))
            }
        }
        Action::Add {
            url,
            id,
            models,
            weight,
            max_in_flight,
            zone,
            no_warm_up,
            admin,
        } => {
            let optional = [
                ("id", id.map(Value::from)),
                ("models", (!models.is_empty()).then(|| json!(models))),
                ("weight", weight.map(Value::from)),
                ("max_in_flight", max_in_flight.map(Value::from)),
                ("zone", zone.map(Value::from)),
            ];
            let given = optional
                .into_iter()
                .filter_map(|(key, value)| Some((key.into(), value?)));
            let worker: Map<String, Value> = given
                .chain([("url".to_owned(), Value::from(url))])
                .collect();
            let body = Value::Object(worker).to_string().into_bytes();
            let client = AdminClient::new(&admin)?;
            let query: &[_] = if no_warm_up {
                &[("warmup", "false")]
            } else {
                &[]
            };
            let answer = client.call(Method::POST, &["workers"], query, body).await?;
            report("added", &answer, &admin)
        }
        Action::Drain { worker, admin } => {
            let client = AdminClient::new(&admin)?;
            let path = ["workers", &worker, "drain"];
            let answer = client.call(Method::POST, &path, &[], Vec::new()).await?;
            report("draining", &answer, &admin)
        }
        Action::Remove { worker, admin } => {
            let client = AdminClient::new(&admin)?;
            let path = ["workers", &worker];
            let answer = client.call(Method::DELETE, &path, &[], Vec::new()).await?;
            report("removed", &answer, &admin)
        }
    }
}

/// Says how far a change went: a replica that is alone keeps it, but nobody else has it yet.
fn report(done: &str, answer: &Value, admin: &AdminArgs) -> Result<(), Failure> {
    if admin.json {
        return print_json(answer);
    }
    let reach = match answer.get("replicated").and_then(Value::as_bool) {
        Some(true) => format!(
            ", confirmed by {} other replica(s)",
            field(answer, "confirmed_by")
        ),
        Some(false) => ", not confirmed by another replica yet".to_owned(),
        None => String::new(),
    };
    let warming = match answer.get("state").and_then(Value::as_str) {
        Some("warming") => "; it is being warmed up and takes requests soon, see `workers list`",
        _ => "",
    };
    print_line(&format!("{done} {}{reach}{warming}", field(answer, "id")))
}
