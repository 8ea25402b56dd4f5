//! `grapevine quarantine`: the requests that no worker gets, and how one of them is let through again.

use clap::Subcommand;
use reqwest::Method;
use serde_json::Value;

use super::client::{AdminArgs, AdminClient};
use super::failure::Failure;
use super::show::{Column, field, print_json, print_line, print_table, rows};

/// Lists and lifts marks of requests during which two workers ended.
///
/// Such a request gets 422 `query_of_death` from every replica, without being sent, for `retry.quarantine` (10 min).
/// One that was only there when another request ended both workers is innocent: lift its mark. If it ends
/// two more workers it is marked again.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  grapevine quarantine                      # what is marked; the hash is `body` in the log
  grapevine quarantine lift 5f0c9e13a7b2d4486f1e0b5c3d9a7e21   # one mark, on every replica
  grapevine quarantine lift --all       # after the engine was mended"
)]
pub struct QuarantineArgs {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Subcommand)]
enum Action {
    /// Shows every mark: hash, length of the body, age, and what is left, in seconds.
    List {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Lets a request through again, on every replica that can be reached within seconds, and later on the others.
    Lift {
        /// Hash of the mark, 32 hexadecimal digits.
        #[arg(
            value_name = "HASH",
            value_parser = hash,
            required_unless_present = "all",
            conflicts_with = "all"
        )]
        hash: Option<String>,
        /// All marks.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

fn hash(text: &str) -> Result<String, String> {
    let is_hash = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hash.then(|| text.to_owned()).ok_or_else(|| {
        "a hash is 32 hexadecimal digits, as `grapevine quarantine list` shows it".to_owned()
    })
}

const COLUMNS: &[Column] = &[
    Column("HASH", "hash"),
    Column("BODY-BYTES", "body_bytes"),
    Column("AGE-S", "age_s"),
    Column("LEFT-S", "left_s"),
];

/// Does what was asked and prints what the replica answered.
/// Errors: no replica answers, or it knows no such mark.
pub async fn quarantine(args: QuarantineArgs) -> Result<(), Failure> {
    match args.action {
        None => list(&args.admin).await,
        Some(Action::List { admin }) => list(&admin).await,
        Some(Action::Lift { hash, admin, .. }) => {
            let client = AdminClient::new(&admin)?;
            let path: Vec<&str> = ["quarantine"].into_iter().chain(hash.as_deref()).collect();
            let answer = client.call(Method::DELETE, &path, &[], Vec::new()).await?;
            if admin.json {
                return print_json(&answer);
            }
            print_line(&told(&answer))
        }
    }
}

/// What became of it. Of marks that this replica does not know, the others hear nothing.
fn told(answer: &Value) -> String {
    match answer["lifted"].as_u64() {
        Some(0) => "nothing is marked at this replica, so nothing was lifted; each replica lists what it knows".to_owned(),
        _ => format!(
            "{} lifted here; the other replicas follow within seconds",
            field(answer, "lifted")
        ),
    }
}

async fn list(admin: &AdminArgs) -> Result<(), Failure> {
    let marks = AdminClient::new(admin)?.get(&["quarantine"]).await?;
    if admin.json {
        return print_json(&marks);
    }
    match rows(&marks, "quarantine") {
        [] => print_line("nothing is marked"),
        marks => print_table(COLUMNS, marks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nothing_was_lifted_is_said() {
        let told = |lifted: u64| told(&serde_json::json!({ "lifted": lifted }));
        assert!(told(0).contains("nothing was lifted"), "{}", told(0));
        assert!(told(2).starts_with("2 lifted here; the other replicas"));
    }

    #[test]
    fn what_is_no_hash_lifts_nothing() {
        let good = "5f0c9e13a7b2d4486f1e0b5c3d9a7E21";
        assert_eq!(hash(good).as_deref(), Ok(good));
        for wrong in [
            "",
            ".",
            "..",
            "5f0c",
            &good[1..],
            "..0c9e13a7b2d4486f1e0b5c3d9a7e21",
        ] {
            assert!(hash(wrong).is_err(), "{wrong:?}");
        }
    }
}
