//! `--json` of the commands prints what `docs/json.md` says: no field without its row, no row without its field.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grapevine_testbed::fake_worker::{Config, KvEventsConfig};
use grapevine_tests::cluster::Plan;
use grapevine_tests::wait::{LIMIT, eventually, so};
use grapevine_tests::{chat, http1, process};
use serde_json::Value;

/// Fields by command, as documented; those with `?` may be left out.
type Documented = BTreeMap<String, Vec<(String, bool)>>;

fn documented() -> Documented {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/json.md");
    let text = std::fs::read_to_string(file).expect("the page is there");
    let mut found = Documented::new();
    let mut command = String::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            command = heading.to_owned();
        } else if let Some((field, _)) = line
            .strip_prefix("| `")
            .and_then(|rest| rest.split_once("` |"))
        {
            let is_optional = field.ends_with('?');
            let field = field.trim_end_matches('?').to_owned();
            found
                .entry(command.clone())
                .or_default()
                .push((field, is_optional));
        }
    }
    found
}

/// Fields of an answer: `a.b[].c`; of a map whose keys are names, `a.*`. An empty list, or null, is the field itself.
fn fields(value: &Value, path: &str, known: &BTreeSet<&str>, found: &mut BTreeSet<String>) {
    let below = |prefix: &str| known.iter().any(|of| of.starts_with(prefix));
    match value {
        Value::Object(map) if below(&format!("{path}.*")) => {
            found.insert(if map.is_empty() {
                path.to_owned()
            } else {
                format!("{path}.*")
            });
        }
        Value::Object(map) => {
            for (key, value) in map {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                fields(value, &path, known, found);
            }
        }
        Value::Array(list) if list.is_empty() => drop(found.insert(path.to_owned())),
        Value::Array(list) => list
            .iter()
            .for_each(|item| fields(item, &format!("{path}[]"), known, found)),
        _ => drop(found.insert(path.to_owned())),
    }
}

fn is_as_documented(command: &str, rows: &[(String, bool)], answer: &Value) {
    let known: BTreeSet<&str> = rows.iter().map(|(field, _)| field.as_str()).collect();
    let mut found = BTreeSet::new();
    fields(answer, "", &known, &mut found);
    // `a` is documented by `a.b` and `a[].b` as well: it was null, or empty.
    let is_part = |field: &str, of: &str| {
        of.strip_prefix(field)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    for field in &found {
        let is_documented = known.iter().any(|of| is_part(field, of));
        assert!(
            is_documented,
            "{command}: {field} is not in docs/json.md: {answer:#}"
        );
    }
    for (row, _) in rows.iter().filter(|(_, is_optional)| !is_optional) {
        let is_there = found.iter().any(|field| is_part(field, row));
        assert!(
            is_there,
            "{command}: docs/json.md has {row}, and the answer does not: {answer:#}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_json_of_each_command_is_as_documented() {
    let config = Config {
        kv_events: Some(KvEventsConfig::default()),
        ..chat::paced(Duration::from_millis(1))
    };
    let workers = chat::workers(2, &config).await;
    let cluster = Plan::default().workers(&workers).start(2).await;
    let replica = &cluster.replicas[0];
    let admin = format!("http://{}", replica.admin().0);
    let long = chat::chat(&"some words of a prompt ".repeat(200), 1);
    eventually(LIMIT, "a prompt is known to be in a cache", async || {
        let answer = http1::post(replica.data(), "/v1/chat/completions", &long).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let top: Value = http1::get(replica.admin().0, "/cache").await.json();
        let prefixes = top["prefixes"].as_array().expect("a list");
        so(!prefixes.is_empty(), || top.to_string())
    })
    .await;
    let authority = cluster.dir().join("ca").display().to_string();
    let keys = cluster.dir().join("keys.toml");
    let made = process::run(&["keys", "new", "a"]).await.text;
    // The key itself is on standard error.
    let is_entry = |line: &&str| line.starts_with('[') || line.contains(" = ");
    let entry: Vec<&str> = made.lines().filter(is_entry).collect();
    std::fs::write(&keys, entry.join("\n")).expect("written");
    let keys = keys.display().to_string();
    let [one, other] = [workers[0].url(), workers[1].url()];
    let commands: [(&str, Vec<&str>); 12] = [
        ("status", vec!["status", "--links", "--admin", &admin]),
        ("workers list", vec!["workers", "list", "--admin", &admin]),
        ("cache top", vec!["cache", "top", "--admin", &admin]),
        ("events", vec!["events", "--admin", &admin]),
        (
            "explain",
            vec!["explain", "--prompt", "hi", "--admin", &admin],
        ),
        (
            "quarantine list",
            vec!["quarantine", "list", "--admin", &admin],
        ),
        ("config reload", vec!["config", "reload", "--admin", &admin]),
        ("ca show", vec!["ca", "show", "--dir", &authority]),
        ("keys check", vec!["keys", "check", &keys]),
        ("doctor", vec!["doctor", "--admin", &admin]),
        (
            "workers drain",
            vec!["workers", "drain", &one, "--admin", &admin],
        ),
        (
            "workers add",
            vec![
                "workers", "add", &one, &other, "--weight", "2", "--admin", &admin,
            ],
        ),
    ];
    // The figures of the last minute come with the second sample.
    eventually(LIMIT, "the last minute is known", async || {
        let shown = process::run(&["status", "--json", "--admin", &admin]).await;
        let shown: Value = serde_json::from_str(&shown.text).map_err(|error| error.to_string())?;
        so(shown["cluster"]["minute"].is_object(), || shown.to_string())
    })
    .await;
    let documented = documented();
    for (command, words) in commands {
        let done = process::run(&[&words[..], &["--json"]].concat()).await;
        let answer: Result<Value, _> = serde_json::from_str(&done.text);
        let answer = answer.unwrap_or_else(|error| panic!("{command}: {error}: {}", done.text));
        if command == "doctor" {
            // It has a page of its own, whose test is `doctor.rs`; here: it is JSON and nothing else.
            continue;
        }
        is_as_documented(command, &documented[command], &answer);
    }
}
