//! `grapevine explain`: where a request would go, and why, without sending it.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::{Value, json};

use super::client::{AdminArgs, AdminClient};
use super::failure::Failure;
use super::show::{Column, field, print_json, print_line, print_table, rows};
use crate::shown::clean;
use crate::shown::models::askable;
use crate::shown::tenants;
use crate::shown::trouble::ON_TRIAL;

/// Shows where a request would go, and why, without sending it.
#[derive(clap::Args)]
#[command(
    override_usage = "grapevine explain [OPTIONS] <FILE>\n       grapevine explain [OPTIONS] --prompt <TEXT>",
    after_help = "\
Examples:
  grapevine explain request.json
  curl-like input:   echo '{\"model\":\"m\",\"messages\":[...]}' | grapevine explain -
  a prompt:          grapevine explain --model m --prompt 'Why is the sky blue?'
  for a tenant:      grapevine explain request.json --tenant acme
  by content alone:  grapevine explain request.json --ignore-load"
)]
pub struct ExplainArgs {
    /// JSON body of the request; - is standard input.
    #[arg(required_unless_present = "prompt", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// One user message, in place of a body.
    #[arg(long)]
    prompt: Option<String>,
    /// Model of --prompt; needed when the cluster serves several.
    #[arg(long, requires = "prompt", conflicts_with = "file")]
    model: Option<String>,
    /// Path that the request would be sent to.
    #[arg(long, default_value = "/v1/chat/completions")]
    path: String,
    /// Decides as for this tenant, which is part of every key; where clients have keys, that of the key's entry.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Decides as if no worker had any load, so that answers of several replicas can be compared.
    #[arg(long)]
    ignore_load: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Asks one replica and prints its decision.
/// Errors: the body cannot be read, no replica answers, or it refuses.
pub async fn explain(args: ExplainArgs) -> Result<(), Failure> {
    let body = match (&args.prompt, &args.file) {
        (Some(prompt), _) => body_of(prompt, args.model.as_deref()),
        (None, Some(file)) => read(file)?,
        (None, None) => return Err(Failure::Usage("give a file, - or --prompt".to_owned())),
    };
    let mut query = vec![("path", args.path.as_str())];
    if let Some(tenant) = &args.tenant {
        query.push(("tenant", tenant));
    }
    if args.ignore_load {
        query.push(("load", "ignore"));
    }
    let client = AdminClient::new(&args.admin)?;
    let asked = client.call(Method::POST, &["explain"], &query, body).await;
    let answer = match asked {
        Err(Failure::Refused(why)) if args.prompt.is_some() => {
            let rings = client.get(&["ring"]).await?;
            let cluster = client.get(&["cluster"]).await?;
            // Without a model a request goes to the only one that there is; an alias for it changes nothing.
            let is_one = askable(&rings, &Value::Null).len() < 2;
            let models = askable(&rings, &cluster);
            return Err(without_model(args.model.as_deref(), is_one, &models, why));
        }
        asked => asked?,
    };
    if args.admin.json {
        return print_json(&answer);
    }
    for name in ANSWER {
        print_line(&format!("{name:16} {}", field(&answer, name)))?;
    }
    if let Some(split) = answer["split"].as_str() {
        print_line(&format!("{:16} {split}", "split"))?;
    }
    let prefill = &answer["prefill"];
    if prefill.is_object() {
        for name in ["worker", "reason"] {
            print_line(&format!("prefill {name:8} {}", field(prefill, name)))?;
        }
        note(prefill)?;
        print_line("")?;
        print_order(prefill)?;
    }
    note(&answer)?;
    let how = "--tenant NAME names one, and grapevine keys check lists those of the keys";
    if let Some(whose) = tenants::note(&answer, how) {
        print_line(&format!("{:16} {whose}", "note"))?;
    }
    print_line("")?;
    print_order(&answer)
}

/// What a refusal comes from, if it is the model: one must be named where several are served.
fn without_model(model: Option<&str>, is_one: bool, models: &[String], why: String) -> Failure {
    /// More are counted.
    const NAMED: usize = 20;
    let more = match models.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named: Vec<_> = models
        .iter()
        .take(NAMED)
        .map(|model| clean(model))
        .collect();
    let named = format!("{}{more}", named.join(", "));
    match model {
        None if !is_one => {
            let what =
                format!("the cluster serves several models; choose one with --model: {named}");
            Failure::Usage(what)
        }
        Some(model) if !models.is_empty() && !models.iter().any(|known| known == model) => {
            Failure::Refused(format!("{why}; the cluster serves {named}"))
        }
        _ => Failure::Refused(why),
    }
}

/// The workers in their order, with what KV events say of each where any publishes.
fn print_order(choice: &Value) -> Result<(), Failure> {
    let mut order = rows(choice, "order").to_vec();
    if !order.iter().any(|row| row["events"].is_object()) {
        return print_table(ORDER, &order);
    }
    for row in &mut order {
        let events = &row["events"];
        if let (Some(held), Some(of)) =
            (events["held_tokens"].as_u64(), events["of_tokens"].as_u64())
        {
            row["told"] = match of {
                // It is not known to tell all that it holds.
                0 => format!("{held} at least").into(),
                _ => format!("{held}/{of}").into(),
            };
        }
    }
    let columns: Vec<_> = ORDER.iter().chain([&EVENTS]).copied().collect();
    print_table(&columns, &order)
}

/// Says why a worker that is not well is named all the same.
fn note(choice: &Value) -> Result<(), Failure> {
    match last_resort(choice) {
        Some(line) => print_line(&line),
        None => Ok(()),
    }
}

fn last_resort(choice: &Value) -> Option<String> {
    let worker = choice["worker"].as_str()?;
    let mut order = rows(choice, "order").iter();
    let row = order.find(|row| row["worker"] == worker)?;
    let health = row["health"].as_str().filter(|health| *health != "good")?;
    if health == "on_trial" {
        return Some(format!(
            "{:16} {worker} is {ON_TRIAL}: such a request shows how it is",
            "note"
        ));
    }
    let why = match choice["panic"].as_bool() {
        Some(true) => {
            "more than half of the workers are bad, and then their health is not believed"
        }
        _ => "no other worker may take it",
    };
    Some(format!(
        "{:16} {worker} is {health}, and would be tried all the same: {why}",
        "note"
    ))
}

const ANSWER: [&str; 10] = [
    "worker",
    "reason",
    "home",
    "replica",
    "model",
    "tenant",
    "policy",
    "key",
    "prompt_tokens",
    "digest",
];

const ORDER: &[Column] = &[
    Column("ORDER", "worker"),
    Column("VERDICT", "verdict"),
    Column("HEALTH", "health"),
    Column("COST", "cost"),
    Column("IN-FLIGHT", "in_flight"),
    Column("LIMIT", "limit"),
    Column("PREFILL", "pending_prefill_tokens"),
    Column("CONTEXT", "context_tokens"),
    Column("EXPECTED", "expected_tokens"),
];

/// Tokens that the worker's KV events say it holds, of how many they say anything.
const EVENTS: Column = Column("EVENTS", "told");

fn body_of(prompt: &str, model: Option<&str>) -> Vec<u8> {
    let mut body = json!({ "messages": [{ "role": "user", "content": prompt }] });
    if let Some(model) = model {
        body["model"] = model.into();
    }
    body.to_string().into_bytes()
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut body)
    } else {
        std::fs::File::open(file).and_then(|mut file| file.read_to_end(&mut body))
    };
    match read {
        Ok(_) => Ok(body),
        Err(error) => Err(Failure::Usage(format!(
            "cannot read {}: {error}",
            file.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::fake_replica::{port, serve};
    use crate::cli::{Cli, Command};

    #[test]
    fn a_model_must_be_named_where_several_are_served() {
        let models = ["a", "b"].map(str::to_owned);
        let refused = |model, models: &[String]| {
            without_model(model, models.len() < 2, models, "no".to_owned())
        };
        let several = refused(None, &models);
        assert!(matches!(several, Failure::Usage(_)));
        assert!(several.to_string().ends_with("--model: a, b"), "{several}");
        let unknown = refused(Some("c"), &models);
        assert_eq!(unknown.to_string(), "no; the cluster serves a, b");
        for (model, models) in [(None, &models[..1]), (Some("a"), &models[..]), (None, &[])] {
            assert_eq!(refused(model, models).to_string(), "no");
        }
    }

    #[tokio::test]
    async fn aliases_are_among_the_models_to_choose_from() {
        let (listener, at) = port().await;
        let _replica = serve(listener, |line| match line.split(' ').nth(1) {
            Some("/ring") => (
                200,
                json!({ "pools": [{ "model": "a" }, { "model": "b" }] }),
            ),
            Some("/cluster") => (
                200,
                json!({ "models": [{ "name": "chat", "targets": ["a"] }] }),
            ),
            _ => (400, json!({ "error": { "message": "no model" } })),
        });
        let admin = format!("http://{at}");
        let words = ["grapevine", "explain", "--prompt", "hi", "--admin", &admin];
        let Ok(Command::Explain(args)) = Cli::try_parse_from(words).map(|cli| cli.command) else {
            panic!("not explain");
        };
        let failure = explain(args).await.expect_err("no model was named");
        assert!(
            failure.to_string().ends_with("--model: a, b, chat"),
            "{failure}"
        );
    }

    #[test]
    fn a_worker_that_is_named_though_it_is_bad_comes_with_the_reason() {
        let choice = |health: &str, panic: bool| {
            json!({ "worker": "w", "panic": panic, "order": [
                { "worker": "v", "health": "unhealthy" }, { "worker": "w", "health": health },
            ] })
        };
        assert_eq!(last_resort(&choice("good", true)), None);
        let line = last_resort(&choice("unreachable", true)).expect("it is bad");
        assert!(
            line.contains("w is unreachable") && line.contains("more than half"),
            "{line}"
        );
        let line = last_resort(&choice("doubted", false)).expect("it is doubted");
        assert!(line.contains("no other worker"), "{line}");
        let line = last_resort(&choice("on_trial", false)).expect("nothing is known of it");
        assert!(
            line.ends_with("w is on trial after failed requests: such a request shows how it is"),
            "{line}"
        );
        // Of an older release, and where nobody is named.
        assert_eq!(
            last_resort(&json!({ "worker": "w", "order": [{ "worker": "w" }] })),
            None
        );
        assert_eq!(last_resort(&json!({ "worker": null, "order": [] })), None);
    }
}
