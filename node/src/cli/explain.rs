//! `grapevine explain`: where a request would go, and why, without sending it.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::{Value, json};

use super::Failure;
use super::client::{AdminArgs, AdminClient};
use super::show::{field, print_json, print_line};

/// Shows where a request would go, and why, without sending it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  grapevine explain request.json
  curl-like input:   echo '{\"model\":\"m\",\"messages\":[...]}' | grapevine explain -
  a prompt:          grapevine explain --model m --prompt 'Why is the sky blue?'
  by content alone:  grapevine explain request.json --ignore-load")]
pub struct ExplainArgs {
    /// JSON body of the request; - is standard input.
    #[arg(required_unless_present = "prompt", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// One user message, in place of a body.
    #[arg(long)]
    prompt: Option<String>,
    /// Model of --prompt; needed when the cluster serves several.
    #[arg(long, requires = "prompt")]
    model: Option<String>,
    /// Path that the request would be sent to.
    #[arg(long, default_value = "/v1/chat/completions")]
    path: String,
    /// Decides as if no worker had any load, so that answers of several replicas can be compared.
    #[arg(long)]
    ignore_load: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Asks one replica and prints its decision.
///
/// # Errors
/// The body cannot be read, no replica answers, or it refuses.
pub async fn explain(args: ExplainArgs) -> Result<(), Failure> {
    let body = match (&args.prompt, &args.file) {
        (Some(prompt), _) => body_of(prompt, args.model.as_deref()),
        (None, Some(file)) => read(file)?,
        (None, None) => return Err(Failure::Usage("give a file, - or --prompt".to_owned())),
    };
    let mut query = vec![("path", args.path.as_str())];
    if args.ignore_load {
        query.push(("load", "ignore"));
    }
    let client = AdminClient::new(&args.admin)?;
    let answer = client
        .call(Method::POST, &["explain"], &query, body)
        .await?;
    if args.admin.json {
        return print_json(&answer);
    }
    for name in ["worker", "reason", "replica", "key", "digest"] {
        print_line(&format!("{name:8} {}", field(&answer, name)))?;
    }
    let order = answer.get("order").and_then(Value::as_array);
    for (place, candidate) in order.into_iter().flatten().enumerate() {
        print_line(&format!("{:>8} {}", place + 1, describe(candidate)))?;
    }
    Ok(())
}

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

/// A candidate of the order: its name first, then what else the replica said about it.
fn describe(candidate: &Value) -> String {
    let Some(fields) = candidate.as_object() else {
        return candidate.as_str().unwrap_or_default().to_owned();
    };
    let others = fields.keys().filter(|name| *name != "worker");
    let said: Vec<String> = others
        .map(|name| format!("{name}={}", field(candidate, name)))
        .collect();
    format!("{}  {}", field(candidate, "worker"), said.join(" "))
}
