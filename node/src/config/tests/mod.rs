//! Layers; the other files are about mistakes, the printed file, and reading it again.

mod again;
mod mistakes;
mod printed;

use std::path::PathBuf;
use std::time::Duration;

use super::*;

pub(super) fn file(text: &str) -> Layers {
    Layers {
        file: Some((PathBuf::from("g.toml"), text.to_owned())),
        ..Layers::default()
    }
}

fn environment(variables: &[(&str, &str)]) -> Layers {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Layers {
        environment: variables.iter().map(owned).collect(),
        ..Layers::default()
    }
}

pub(super) fn messages(layers: Layers) -> Vec<String> {
    match Config::from_layers(layers) {
        Ok(_) => Vec::new(),
        Err(error) => error.to_string().lines().map(str::to_owned).collect(),
    }
}

#[test]
fn later_layers_win() {
    let port = |layers: Layers| Config::from_layers(layers).expect("valid").listen.port;
    let text = "[listen]\nport = 1\n";
    let variables = [("GRAPEVINE_LISTEN__PORT", "2")];
    assert_eq!(port(Layers::default()), 30_000);
    assert_eq!(port(file(text)), 1);
    let mut layers = environment(&variables);
    layers.file = file(text).file;
    assert_eq!(port(layers), 2);
    let mut layers = environment(&variables);
    layers.file = file(text).file;
    let flag = rows().find_map(|(section, row)| {
        row.flag
            .filter(|_| section == "listen" && row.key == "port")
    });
    layers.flags = vec![(flag.expect("a flag"), vec!["3".to_owned()])];
    assert_eq!(port(layers), 3);
}

#[test]
fn bounds_of_consistent_hash_are_read_and_shown() {
    use crate::config::setting::Setting as _;
    use grapevine_placement::HashBound;
    for text in ["off", "requests:1.25", "prefill:2"] {
        let config = Config::from_layers(file(&format!("[cluster]\nhash_bound = \"{text}\"")));
        let bound = config.expect("valid").cluster_settings().policy.hash_bound;
        assert_eq!(bound.show(), Some(format!("\"{text}\"")));
        assert_eq!(bound == HashBound::Off, text == "off");
    }
    for text in ["requests", "requests:", "requests:inf", "tokens:2", "off:1"] {
        let found = messages(file(&format!("[cluster]\nhash_bound = \"{text}\"")));
        assert_eq!(found.len(), 1, "{text}");
    }
}

#[test]
fn the_environment_is_read_and_checked() {
    let config = Config::from_layers(environment(&[
        ("GRAPEVINE_WORKERS__URLS", "http://a:1, http://b:2"),
        ("GRAPEVINE_TIMEOUTS__FIRST_TOKEN", "90s"),
        ("GRAPEVINE_LOG__JSON", "true"),
        ("GRAPEVINE_ADMIN__TOKEN", "123"),
        // What Kubernetes sets for services called grapevine and grapevine-gossip.
        ("GRAPEVINE_PORT", "tcp://10.0.0.1:30000"),
        ("GRAPEVINE_GOSSIP_PORT", "tcp://10.0.0.1:30002"),
        ("HOME", "/root"),
    ]))
    .expect("valid");
    assert_eq!(config.worker.len(), 2);
    assert_eq!(config.timeouts.first_token, Duration::from_secs(90));
    assert!(config.log.json);
    assert_eq!(config.admin.token.expect("set").reveal(), "123");

    assert_eq!(
        messages(environment(&[("GRAPEVINE_ADMIN_TOKEN", "secret")])),
        [
            "environment variable GRAPEVINE_ADMIN_TOKEN: admin_token: no such setting; did you mean \
          GRAPEVINE_ADMIN__TOKEN?"
        ]
    );
    assert_eq!(
        messages(environment(&[("GRAPEVINE_LISTEN__PROT", "1")])),
        [
            "environment variable GRAPEVINE_LISTEN__PROT: listen.prot: no such setting; did you mean \
          GRAPEVINE_LISTEN__PORT?"
        ]
    );
    assert_eq!(
        messages(environment(&[("GRAPEVINE_FOO__BAR", "1")])),
        ["environment variable GRAPEVINE_FOO__BAR: foo.bar: no such setting"]
    );
    assert_eq!(
        messages(environment(&[("GRAPEVINE_LISTEN__PORT", "x")])),
        [
            "environment variable GRAPEVINE_LISTEN__PORT: listen.port: expected a whole number from \
          0 to 65535, found \"x\""
        ]
    );
}

#[test]
fn no_two_settings_share_a_flag_or_variable() {
    let mut names: Vec<String> = rows()
        .flat_map(|(section, row)| {
            let flags = row.flag.map(|flag| [Some(flag.name), flag.alias]);
            let flags = flags.into_iter().flatten().flatten().map(str::to_owned);
            flags.chain([variable(section, row.key)])
        })
        .collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
}
