//! `grapevine keys`: clients' keys and the file that lists their hashes.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Subcommand;
use serde_json::{Value, json};

use super::failure::Failure;
use super::show::{print_json, print_line};
use crate::config::{KeyConfig, Name, check_tenant, parse_keys, read_keys};
use crate::tenants::secret;

/// Makes keys for clients, and checks the file that lists them.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  grapevine keys new acme-web --tenant acme       # the key, once, and the entry for the file
  grapevine keys new acme-web >> keys.toml   # the entry into the file, the key on the terminal
  grapevine keys check keys.toml
  grapevine serve --api-keys-file keys.toml       # requests need a key from now on

The file holds hashes only. A replica reads it again when it changes, and at SIGHUP. Besides `name`
and `hash` an entry may have: tenant, priority, models, max_requests, requests_per_minute,
tokens_per_minute, cluster, weight, expires.")]
pub struct KeysArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Makes a key: writes it to standard error, once, and its entry to standard output.
    New {
        /// Name of the key, in logs; no other key of the file has it.
        name: String,
        /// Tenant that the key belongs to. Default: the key's name.
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Reads a file of keys as a replica would, and reports what it found.
    Check {
        /// The file.
        file: PathBuf,
        /// Writes JSON instead of text.
        #[arg(long)]
        json: bool,
    },
}

/// Does what was asked.
/// Errors: a name that no key may have, a file that cannot be used, or standard output is closed.
pub fn keys(args: KeysArgs) -> Result<(), Failure> {
    match args.action {
        Action::New { name, tenant } => new(&name, tenant.as_deref()),
        Action::Check { file, json: true } => {
            let keys: Vec<_> = read(&file)?.iter().map(json_of).collect();
            print_json(&json!({"keys": keys}))
        }
        Action::Check { file, json: false } => {
            let keys = read(&file)?;
            for key in &keys {
                print_line(&described(key, SystemTime::now()))?;
            }
            if keys.is_empty() {
                print_line("it has no key: every client is refused")?;
            }
            print_line("the file of keys is good")
        }
    }
}

/// The keys of a file, which is no configuration.
fn read(file: &Path) -> Result<Vec<KeyConfig>, Failure> {
    read_keys(file).map_err(|error| {
        let indented = error.to_string().replace('\n', "\n  ");
        Failure::Usage(format!("the file of keys cannot be used:\n  {indented}"))
    })
}

fn new(name: &str, tenant: Option<&str>) -> Result<(), Failure> {
    let usage = |what: &str| Failure::Usage(what.to_owned());
    let expected =
        "the name of a key is 1 to 63 lower-case letters, digits or hyphens, no hyphen at the ends";
    let name = Name::new(name).ok_or_else(|| usage(expected))?;
    let checked = tenant.map_or(Ok(()), check_tenant);
    checked.map_err(|what| {
        usage(&format!(
            "--tenant: {what}; without it, the tenant is called as the key"
        ))
    })?;
    let key = secret::new_key()
        .map_err(|_| Failure::Refused("the system gives no random bytes".to_owned()))?;
    let entry = entry(&name, tenant, &key);
    parse_keys(Path::new("the entry"), &entry)?;
    print_line(&entry)?;
    // Where it goes nowhere, nobody has the key of this entry.
    writeln!(io::stderr(), "{key}").map_err(|error| {
        Failure::Refused(format!("cannot write the key to standard error: {error}"))
    })
}

fn entry(name: &Name, tenant: Option<&str>, key: &str) -> String {
    let hash = secret::hash_of(key.as_bytes());
    let tenant = tenant.map(|tenant| format!("\ntenant = {}", toml::Value::from(tenant)));
    let tenant = tenant.unwrap_or_default();
    format!("[[key]]\nname = \"{name}\"\nhash = \"{hash}\"{tenant}")
}

/// A key, without its hash; what has no limit is null, and an empty list of models is all of them.
fn json_of(key: &KeyConfig) -> Value {
    let end = key.expires.as_ref();
    json!({
        "name": key.name.to_string(),
        "tenant": key.tenant_name().to_string(),
        "priority": key.priority.as_str(),
        "weight": key.weight,
        "max_requests": key.max_requests,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        "cluster": key.cluster,
        "models": key.models,
        "expires": end.map(|end| humantime::format_rfc3339_seconds(end.0).to_string()),
    })
}

/// One line for a key.
fn described(key: &KeyConfig, now: SystemTime) -> String {
    let mut line = format!(
        "{}: tenant {}, priority {}, weight {}",
        key.name,
        key.tenant_name(),
        key.priority.as_str(),
        key.weight
    );
    let scope = if key.cluster {
        "in the cluster"
    } else {
        "on each replica"
    };
    if let Some(most) = key.max_requests {
        line += &format!(", {most} requests at once {scope}");
    }
    if let Some(rate) = key.requests_per_minute {
        line += &format!(", {rate} requests a minute {scope}");
    }
    if let Some(rate) = key.tokens_per_minute {
        line += &format!(", {rate} tokens a minute {scope}");
    }
    if key.max_requests == Some(0) || key.requests_per_minute == Some(0) {
        line += ": EVERY REQUEST IS REFUSED";
    }
    if !key.models.is_empty() {
        line += &format!(", models {}", key.models.join(" "));
    }
    if let Some(end) = key.expires {
        let ends = if end.0 <= now { "ended" } else { "ends" };
        line += &format!(", {ends} {}", humantime::format_rfc3339_seconds(end.0));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_told_in_their_order_as_those_of_a_file_of_keys() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let hash = secret::hash_of(b"k");
        // The first is found when all keys are compared, the others when each is read.
        let text = format!(
            "[[key]]\nname = \"a\"\n\n[[key]]\nname = \"a\"\nhash = \"{hash}\"\nweight = -1\n\n[[key]]\nnam = \"c\"\n"
        );
        std::fs::write(file.path(), text).expect("written");
        let failure = read(file.path()).expect_err("mistakes").to_string();
        let mut lines = failure.lines();
        assert_eq!(lines.next(), Some("the file of keys cannot be used:"));
        let path = format!("{}:", file.path().display());
        let place = |line: &str| {
            let place = line.trim().strip_prefix(&path).expect("a place");
            let line = place.split(':').next().expect("a line");
            line.parse::<usize>().expect("a number")
        };
        let places: Vec<usize> = lines.map(place).collect();
        assert!(places.len() > 3 && places.is_sorted(), "{failure}");
    }

    #[test]
    fn an_entry_is_that_of_its_key_and_does_not_have_it() {
        let name = Name::new("acme-web").expect("a name");
        let entry = entry(&name, Some("Acme\"Corp"), "gv-canary");
        assert!(!entry.contains("canary"), "{entry}");
        let keys = parse_keys(Path::new("k"), &entry).expect("a good entry");
        assert_eq!(keys[0].hash, secret::hash_of(b"gv-canary"));
        assert_eq!(keys[0].tenant_name(), "Acme\"Corp");
    }

    #[test]
    fn bad_names_are_refused() {
        for (name, tenant, told) in [
            ("Acme Web", None, "the name of a key is"),
            ("acme", Some("two words"), "--tenant: expected"),
            ("acme", Some(""), "--tenant: expected 1 to"),
        ] {
            let refused = new(name, tenant).expect_err("refused");
            let is_told = matches!(&refused, Failure::Usage(why) if why.starts_with(told));
            assert!(is_told, "{refused}");
        }
    }

    #[test]
    fn a_limit_of_nothing_is_said_to_refuse_everything() {
        let hash = secret::hash_of(b"k");
        for (limit, is_refused) in [
            ("requests_per_minute = 0", true),
            ("max_requests = 0", true),
            ("requests_per_minute = 1", false),
            ("max_requests = 1", false),
        ] {
            let text = format!("[[key]]\nname = \"a\"\nhash = \"{hash}\"\n{limit}");
            let keys = parse_keys(Path::new("k"), &text).expect("a good entry");
            let line = described(&keys[0], SystemTime::UNIX_EPOCH);
            let found = line.ends_with("in the cluster: EVERY REQUEST IS REFUSED");
            assert_eq!(found, is_refused, "{line}");
        }
    }

    #[test]
    fn a_key_is_described_in_one_line() {
        let hash = secret::hash_of(b"k");
        let text = format!(
            "[[key]]\nname = \"a\"\nhash = \"{hash}\"\nmax_requests = 3\nrequests_per_minute = 60\n\
             tokens_per_minute = 9000\ncluster = false\nmodels = [\"m\"]\nexpires = \"2027-01-31T00:00:00Z\""
        );
        let keys = parse_keys(Path::new("k"), &text).expect("a good entry");
        let line = "a: tenant a, priority normal, weight 1, 3 requests at once on each replica, 60 requests a \
                    minute on each replica, 9000 tokens a minute on each replica, models m";
        let end = keys[0].expires.expect("an end").0;
        for (now, ends) in [(SystemTime::UNIX_EPOCH, "ends"), (end, "ended")] {
            assert_eq!(
                described(&keys[0], now),
                format!("{line}, {ends} 2027-01-31T00:00:00Z")
            );
        }
        let shown = json!({
            "name": "a", "tenant": "a", "priority": "normal", "weight": 1.0, "max_requests": 3,
            "requests_per_minute": 60, "tokens_per_minute": 9000, "cluster": false, "models": ["m"],
            "expires": "2027-01-31T00:00:00Z",
        });
        assert_eq!(json_of(&keys[0]), shown);
    }
}
