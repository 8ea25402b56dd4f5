//! A configuration that is read again: what changes, and what needs a restart.

use super::*;

#[test]
fn a_file_that_was_emptied_is_not_taken_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("g.toml");
    let write = |text: &str| std::fs::write(&path, text).expect("written");
    let read = || {
        let mut layers = Layers::default();
        layers.read_file(&path).expect("readable");
        layers
    };
    write("[log]\nlevel = \"warn\"\n");
    let full = read();
    for emptied in ["", " \n\t\n"] {
        write(emptied);
        let error = full.clone().again().expect_err("empty");
        assert!(matches!(error, ConfigError::Unreadable { .. }), "{error}");
        assert!(read().again().is_ok(), "it was empty before");
    }
    write("# nothing\n");
    assert!(full.again().is_ok());
}

/// The rows of the table in the document, as it is to be: what a reload brings into use, and what needs a restart.
fn table_of_changes() -> String {
    let mut table = String::new();
    for (name, _, rows) in sections() {
        let keys = |wanted: bool| {
            let is_listed = |row: &&Row| {
                let is_list = WORKER_LISTS.contains(&format!("{name}.{}", row.key).as_str());
                (row.is_live || is_list) == wanted
            };
            let keys = rows
                .iter()
                .filter(is_listed)
                .map(|row| format!("`{}`", row.key));
            keys.collect::<Vec<_>>().join(", ")
        };
        let cell = |keys: String| match keys.as_str() {
            "" => "–".to_owned(),
            _ => keys,
        };
        table += &format!(
            "| `[{name}]` | {} | {} |\n",
            cell(keys(true)),
            cell(keys(false))
        );
    }
    table
}

#[test]
fn the_table_of_changes_lists_every_setting() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let document = std::fs::read_to_string(path).expect("the document is there");
    let table = table_of_changes();
    assert!(document.contains(&table), "write into {path}:\n{table}");
}

#[test]
fn a_reload_takes_over_what_may_change_and_names_the_rest() {
    let read = |text: &str| {
        let file = Some(("x.toml".into(), text.to_owned()));
        Config::from_layers(Layers {
            file,
            ..Layers::default()
        })
    };
    let mut current = read("").expect("defaults");
    let new = "admission.queue_timeout = \"7s\"\nlimits.requests = 9\nlimits.connections = 9\n\
               cors.allowed_origins = [\"https://a.example\"]\ncluster.policy = \"random\"\n\
               workers.urls = [\"http://w:8000\"]\n[[model]]\nname = \"m\"\n";
    let followed = current.follow(&read(new).expect("valid"));
    let changed = [
        "cors.allowed_origins",
        "admission.queue_timeout",
        "limits.requests",
    ];
    assert_eq!(followed.changed, changed);
    assert_eq!(
        followed.waiting,
        ["cluster.policy", "limits.connections", "model"]
    );
    assert_eq!((current.limits.requests, current.worker.len()), (9, 1));
    let defaults = LimitConfig::default();
    assert_eq!(current.limits.connections, defaults.connections);
    assert_eq!(
        current.is_whole().map_err(|error| error.to_string()),
        Ok(())
    );
    // Once it is taken over, it is no news.
    let again = current.follow(&read(new).expect("valid"));
    assert_eq!((again.changed.len(), again.waiting.len()), (0, 3));
}

#[test]
fn changed_keys_and_labels_of_workers_are_named() {
    let read = |of_a: &str| {
        let text =
            format!("[[worker]]\nurl = \"http://a:1\"\n{of_a}\n[[worker]]\nurl = \"http://b:1\"\n");
        let read = Config::from_layers(Layers {
            file: Some(("x.toml".into(), text)),
            ..Layers::default()
        });
        read.expect("valid")
    };
    let mut current = read("");
    let cases: [(&str, &[&str]); 7] = [
        ("api_key = \"one\"", &["worker.api_key"]),
        ("api_key = \"two\"", &["worker.api_key"]),
        (
            "api_key_file = \"/a\"",
            &["worker.api_key", "worker.api_key_file"],
        ),
        (
            "bootstrap_port = 8998",
            &["worker.api_key_file", "worker.labels"],
        ),
        (
            "bootstrap_port = 8998\nlabels = { gpu = \"h100\" }",
            &["worker.labels"],
        ),
        // A label that is declared no more stays.
        ("labels = { gpu = \"h100\" }", &[]),
        // That is another description, which is counted elsewhere.
        ("labels = { gpu = \"h100\" }\nweight = 2.0", &[]),
    ];
    for (of_a, changed) in cases {
        let followed = current.follow(&read(of_a));
        assert_eq!(followed.changed, changed, "{of_a}");
        assert!(followed.waiting.is_empty(), "{of_a}");
    }
}

#[test]
fn what_is_read_again_has_to_fit_what_stays() {
    let config = |text: &str| {
        let file = Some(("x.toml".into(), text.to_owned()));
        let read = Config::from_layers(Layers {
            file,
            ..Layers::default()
        });
        read.expect("valid")
    };
    let mut current = config("cache.bytes = \"1MiB\"");
    // Good together in the file; of the two only the second may change now.
    let followed = current.follow(&config(
        "cache.bytes = \"64MiB\"\ncache.entry_bytes = \"8MiB\"",
    ));
    assert_eq!(followed.waiting, ["cache.bytes"]);
    let error = current
        .is_whole()
        .expect_err("a larger answer than all of them");
    assert!(error.to_string().contains("cache.entry_bytes"), "{error}");

    // A new worker where the running rule lets this replica connect to nothing.
    let mut current = config("workers.allow = [\"10.0.0.0/16\"]");
    let followed = current.follow(&config(
        "workers.allow = [\"10.1.0.0/16\"]\n[[worker]]\nurl = \"http://10.1.0.5:8000\"",
    ));
    assert_eq!(followed.waiting, ["workers.allow"]);
    let error = current.is_whole().expect_err("it cannot be reached");
    assert!(
        error
            .to_string()
            .contains("10.1.0.5 is not in workers.allow"),
        "{error}"
    );
}
