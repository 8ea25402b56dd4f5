//! Layers, messages and the printed file.

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

#[test]
fn mistakes_are_named_with_place_and_remedy() {
    let check = |text: &str, expected: &[&str]| {
        assert_eq!(messages(file(text)), expected, "{text}");
    };
    check(
        "[listen]\nprot = 1",
        &["g.toml:2:1: listen.prot: unknown key; did you mean `port`?"],
    );
    check(
        "[log]\ncolour = 1",
        &["g.toml:2:1: log.colour: unknown key; known are: level, json, access"],
    );
    check(
        "[lisen]\nport = 1",
        &["g.toml:1:2: [lisen]: unknown section; did you mean `listen`?"],
    );
    check(
        "listen = 1",
        &["g.toml:1:1: [listen]: expected a section: write [listen] on a line of its own"],
    );
    check(
        "[worker]\nurl = 'http://a:1'",
        &[
            "g.toml:1:2: [[worker]]: expected a list: write [[worker]] with two brackets, once a worker",
        ],
    );
    check(
        "[model]\nname = 'a'",
        &[
            "g.toml:1:2: [[model]]: expected a list: write [[model]] with two brackets, once a model",
        ],
    );
    check(
        "[[model]]\ntargets = [\"a\"]",
        &["g.toml:1:1: [[model]]: `name` is missing: write name = \"what-clients-ask-for\""],
    );
    check(
        "[[model]]\nname = \"a\"\ntarget = [\"b\"]",
        &["g.toml:3:1: model.target: unknown key; did you mean `targets`?"],
    );
    check(
        "[[model]]\nname = \"a\"\ntargets = [\"b\", \"c:0\"]",
        &["g.toml:3:11: model.targets: the weight in \"c:0\" is not from 0.001 to 100"],
    );
    check(
        "[[worker]]\nweight = 2",
        &["g.toml:1:1: [[worker]]: `url` is missing: write url = \"http://address:port\""],
    );
    check(
        "[listen]\nport = 70000",
        &["g.toml:2:8: listen.port: expected a whole number from 0 to 65535, found 70000"],
    );
    check(
        "[listen]\nport = \"30000\"",
        &["g.toml:2:8: listen.port: expected a whole number from 0 to 65535, found \"30000\""],
    );
    check(
        "[timeouts]\nconnect = 5",
        &[
            "g.toml:2:11: timeouts.connect: expected a duration with its unit, such as \"250ms\", \
           \"10s\" or \"5min\", found 5",
        ],
    );
    check(
        "[timeouts]\nconnect = \"0s\"",
        &["g.toml:2:11: timeouts.connect: must be \"1ms\" to \"1min\", found \"0s\""],
    );
    check(
        "[timeouts]\nwhole_request = \"9223372036854775807s\"",
        &[
            "g.toml:2:17: timeouts.whole_request: must be \"0s\" to \"8760h\", found \"9223372036854775807s\"",
        ],
    );
    check(
        "[limits]\nmemory = \"1KiB\"",
        &["g.toml:2:10: limits.memory: must be \"1MiB\" to \"16384GiB\", found \"1KiB\""],
    );
    check(
        "[limits]\nbody_bytes = \"16MB\"",
        &[
            "g.toml:2:14: limits.body_bytes: expected a size such as 4096, \"64KiB\" or \"16MiB\", \
           found \"16MB\"",
        ],
    );
    check(
        "[trace]\nprotocol = \"http/json\"",
        &[
            "g.toml:2:12: trace.protocol: \"http/json\" is not spoken here; every collector that takes it takes \
           http/protobuf at the same port",
        ],
    );
    check(
        "[trace]\nendpoint = \"collector:4317\"",
        &[
            "g.toml:2:12: trace.endpoint: host:port is how gRPC's addresses are written: set trace.protocol = \
           \"grpc\" (--otlp-traces-protocol grpc), or write http://host:port for OTLP over HTTP",
        ],
    );
    check(
        "[metrics_export]\nendpoint = \"collector:4317\"",
        &[
            "g.toml:2:12: metrics_export.endpoint: host:port is how gRPC's addresses are written: set \
           metrics_export.protocol = \"grpc\" (--otlp-metrics-protocol grpc), or write http://host:port for OTLP over \
           HTTP",
        ],
    );
    check(
        "[metrics_export]\nprotocol = \"grpc\"\nendpoint = \"http://collector:4317/v1/metrics\"",
        &[
            "g.toml:3:12: metrics_export.endpoint: a gRPC collector has no path: write http://host:port",
        ],
    );
    check(
        "[trace]\nprotocol = \"grpc\"\nendpoint = \"http://collector:4317/v1/traces\"",
        &["g.toml:3:12: trace.endpoint: a gRPC collector has no path: write http://host:port"],
    );
    for good in ["collector:4317", "[::1]:80", "https://collector:4317"] {
        let text = format!("[trace]\nprotocol = \"grpc\"\nendpoint = {good:?}");
        let config = Config::from_layers(file(&text)).expect("good");
        let endpoint = config.trace.endpoint.expect("set");
        assert_eq!(endpoint.to_string().trim_end_matches('/'), good);
        assert_eq!(endpoint.url.path(), "/");
    }
    check(
        "[cluster]\nbound = 0.5",
        &["g.toml:2:9: cluster.bound: must be 1.0 to 100.0, found 0.5"],
    );
    check(
        "[cluster]\npolicy = \"bucket\"",
        &[
            "g.toml:2:10: cluster.policy: \"bucket\" sorts prompts by their length; use prefix, which prices what must be computed",
        ],
    );
    check(
        "[cluster]\nhash_bound = \"requests:0.9\"",
        &[
            "g.toml:2:14: cluster.hash_bound: expected \"off\", \"requests:FACTOR\" or \
           \"prefill:FACTOR\" with a factor from 1 to 100, such as \"requests:1.25\", found \
           \"requests:0.9\"",
        ],
    );
    check(
        "[gossip]\nseeds = [\"router-1\"]",
        &[
            "g.toml:2:9: gossip.seeds: expected an address with its port, such as \
           \"10.0.0.5:30002\" or \"router-2:30002\", found \"router-1\"",
        ],
    );
    check(
        "[workers]\nurls = [\"10.0.0.5:8000\"]",
        &[
            "g.toml:2:8: workers.urls: expected an address such as \"http://10.0.0.5:8000\", found \
           \"10.0.0.5:8000\"",
        ],
    );
    check(
        "[admin]\ntoken = \"gehe im\"",
        &["g.toml:2:9: admin.token: expected a text of 1 to 512 visible ASCII characters"],
    );
}

#[test]
fn every_mistake_of_a_file_is_reported_at_once() {
    let found = messages(file("[listen]\nport = true\nhots = 1\n[nonsense]\n"));
    assert_eq!(found.len(), 3, "{found:?}");
    // A section that nobody knows hides what is wrong in those that it was not meant for.
    let wrong = "[admin]\nhost = \"0.0.0.0\"\n";
    let found = messages(file(&format!("{wrong}[nonsense]\n")));
    assert_eq!(found.len(), 2, "{found:?}");
    let found = messages(file(&format!(
        "{wrong}[admn]\ntoken = \"a-long-enough-token\"\n"
    )));
    assert_eq!(found.len(), 1, "{found:?}");
    let found = messages(file("[gossip]\nseeds = [\"nohost\", \"a:1\", \"a:b:c\"]\n"));
    assert!(
        found[0].contains("nohost") && found[0].contains("a:b:c"),
        "{found:?}"
    );
}

#[test]
fn syntax_errors_have_a_place() {
    let found = messages(file("[listen]\nport =\n"));
    assert!(found[0].starts_with("g.toml:2:"), "{found:?}");
    let found = messages(file("[listen]\nport = 1\nport = 2\n"));
    assert_eq!(found, ["g.toml:3:1: duplicate key `port`"]);
}

#[test]
fn unsafe_binds_are_refused_with_what_to_set() {
    let check = |text: &str, expected: &[&str]| {
        assert_eq!(messages(file(text)), expected, "{text}");
    };
    check(
        "[admin]\nhost = \"0.0.0.0\"",
        &[
            "g.toml:2:8: admin.host: 0.0.0.0 is beyond loopback, so a token is required: set \
           admin.token, GRAPEVINE_ADMIN__TOKEN or --admin-token",
        ],
    );
    check(
        "[admin]\nhost = \"0.0.0.0\"\ntoken = \"0123456789abcde\"",
        &[
            "g.toml:3:9: admin.token: beyond loopback a token has at least 16 characters, so that it cannot be \
           guessed: `openssl rand -hex 16` makes one",
        ],
    );
    check(
        "[admin]\nhost = \"0.0.0.0\"\ntoken = \"0123456789abcdef\"",
        &[],
    );
    check("[admin]\ntoken = \"t\"", &[]);
    let make = "run `grapevine ca init` once and `grapevine ca issue r1` for this replica, then \
                set gossip.ca, gossip.cert and gossip.key";
    check(
        "[gossip]\nhost = \"10.0.0.1\"",
        &[&format!(
            "g.toml:2:8: gossip.host: 10.0.0.1 is beyond loopback, so certificates are required: \
             {make}"
        )],
    );
    check(
        "[replica]\nid = \"r1\"\n[gossip]\nseeds = [\"r2:30002\"]",
        &[&format!(
            "g.toml:4:9: gossip.seeds: replicas know each other by certificates, and there are \
             none: {make}"
        )],
    );
    let certified = "ca = \"ca.pem\"\ncert = \"r1.pem\"\nkey = \"r1.key\"\n";
    check(
        &format!("[gossip]\nhost = \"0.0.0.0\"\n{certified}[replica]\nid = \"r1\""),
        &[
            "configuration: gossip.advertise: missing; gossip is bound to 0.0.0.0, so say where \
             the others reach this replica, as \"host:port\"",
        ],
    );
    check(
        &format!("[gossip]\n{certified}"),
        &[
            "configuration: replica.id: missing; a replica with seeds or certificates needs a \
             name that no other one has",
        ],
    );
    check(
        "[gossip]\nca = \"ca.pem\"\ncert = \"r1.pem\"\n[replica]\nid = \"r1\"",
        &["g.toml:2:6: gossip.key: missing; ca, cert and key go together"],
    );
}

#[test]
fn sections_must_fit_together() {
    let check = |text: &str, expected: &str| {
        assert_eq!(messages(file(text)), [expected], "{text}");
    };
    check(
        "[[worker]]\nurl = \"http://a:1\"\n\n[workers]\nurls = [\"http://a:1\"]",
        "g.toml:5:8: worker: http://a:1 is there twice",
    );
    check(
        "[[worker]]\nurl = \"http://a:1\"\n[[worker]]\nurl = \"http://a:1\"",
        "g.toml:3:1: worker: http://a:1 is there twice",
    );
    check(
        "[listen]\nport = 8000\n[admin]\nport = 8000",
        "g.toml:4:8: admin.port: 8000 is the port of [listen], too",
    );
    check(
        "[admin]\nport = 30001\n[pings]\nlisten = \"0.0.0.0:30001\"",
        "g.toml:4:10: pings.listen: 30001 is the port of [admin], too",
    );
    check(
        "[limits]\nbody_bytes = \"64MiB\"\nbody_bytes_total = \"32MiB\"",
        "g.toml:2:14: limits.body_bytes: 64MiB for one body is more than \
         limits.body_bytes_total, 32MiB for all",
    );
    check(
        "[tls]\ncert = \"a.pem\"",
        "g.toml:2:8: tls.key: missing; cert and key go together",
    );
    check(
        "[tls]\nclient_ca = \"a.pem\"",
        "g.toml:2:13: tls.client_ca: certificates of clients need TLS: set tls.cert and tls.key",
    );
    check(
        "[workers]\nclient_key = \"a.key\"",
        "g.toml:2:14: workers.client_cert: missing; client_key and client_cert go together",
    );
    let twice = "the key is given twice; keep api_key or api_key_file";
    check(
        "[workers]\napi_key = \"k\"\napi_key_file = \"f\"",
        &format!("g.toml:3:16: workers.api_key_file: {twice}"),
    );
    check(
        "[[worker]]\nurl = \"https://a\"\napi_key_file = \"f\"\napi_key = \"k\"",
        &format!("g.toml:3:16: worker.api_key_file: {twice}"),
    );
    check(
        "[workers]\nurls = [\"http://a:1\", \"http://169.254.1.1:8000\"]",
        "g.toml:2:8: worker: 169.254.1.1 is a link-local address or a cloud's metadata service; \
         if a worker is there, put its network into workers.allow",
    );
    check(
        "[workers]\nurls = [\"http://10.1.2.3:1\", \"http://gpu.lab:1\", \"http://11.0.0.1:1\"]\n\
         allow = [\"10.0.0.0/8\", \"*.lab\"]",
        "g.toml:2:8: worker: 11.0.0.1 is not in workers.allow",
    );
    check(
        "[workers]\nallow = [\"10.0.0.0/33\"]",
        "g.toml:2:9: workers.allow: expected a network such as \"10.0.0.0/8\", an address, a host, \
         or \"*.domain\", found \"10.0.0.0/33\"",
    );
    check(
        "[health]\npath = \"health\"",
        "g.toml:2:8: health.path: must begin with a slash, such as \"/health\"",
    );
    check(
        "[retry]\ninitial_backoff = \"40s\"",
        "g.toml:2:19: retry.initial_backoff: longer than retry.max_backoff",
    );
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
    use super::setting::Setting as _;
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
        messages(environment(&[("GRAPEVINE_LISTEN__PORT", "x")])),
        [
            "environment variable GRAPEVINE_LISTEN__PORT: listen.port: expected a whole number from \
          0 to 65535, found \"x\""
        ]
    );
}

#[test]
fn the_printed_file_is_the_defaults() {
    let printed = documented_defaults();
    let config = Config::from_layers(file(&printed)).expect("the printed file is valid");
    assert_eq!(config, Config::default());
    for (section, row) in rows() {
        assert!(
            !row.about.is_empty(),
            "{section}.{} is not documented",
            row.key
        );
        let set = format!("\n{} = ", row.key);
        let unset = format!("\n# {} = ", row.key);
        assert!(
            printed.contains(&set) || printed.contains(&unset),
            "{section}.{}",
            row.key
        );
    }
}

#[test]
fn examples_in_the_printed_file_are_valid() {
    let printed = documented_defaults();
    let example = |name: &str| {
        let begin = printed.find(&format!("# [[{name}]]")).expect("an example");
        let lines = printed[begin..].lines();
        // The next section begins with a line that is no comment; its own lines have no `=` before it.
        let own = lines.take_while(|line| line.is_empty() || line.starts_with('#'));
        let own = own.map(|line| line.trim_start_matches("# "));
        let is_toml = |line: &&str| {
            line.starts_with("[[") || (line.contains(" = ") && !line.ends_with("(unset)"))
        };
        let example: Vec<&str> = own.filter(is_toml).collect();
        Config::from_layers(file(&example.join("\n"))).expect("valid")
    };
    assert_eq!(example("worker").worker, [WorkerConfig::default()]);
    assert_eq!(example("model").model, [ModelConfig::default()]);
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

#[test]
fn secrets_are_not_printed() {
    let text = "[admin]\ntoken = \"hush\"\n[workers]\napi_key = \"hush\"\n\
                [[worker]]\nurl = \"http://a:1\"\napi_key = \"hush\"";
    let config = Config::from_layers(file(text)).expect("valid");
    assert_eq!(
        config.admin.token.as_ref().map(Secret::reveal),
        Some("hush")
    );
    assert!(!format!("{config:?} {config:#?}").contains("hush"));
    // Nor when it is wrong, wherever it was written.
    let wrong = "a hush with spaces";
    let in_file = Config::from_layers(file(&format!("[admin]\ntoken = {wrong:?}")));
    let in_list = Config::from_layers(file(&format!("[workers]\napi_key = [{wrong:?}]")));
    let in_variable = Config::from_layers(Layers {
        environment: vec![("GRAPEVINE_ADMIN__TOKEN".to_owned(), wrong.to_owned())],
        ..Layers::default()
    });
    let in_url = |text: &str| Config::from_layers(file(text));
    let of_workers = in_url("[workers]\nurls = [\"http://u:hush@h:1\"]");
    let of_worker = in_url("[[worker]]\nurl = \"http://u:hush@h:99999\"");
    let of_trace = in_url("[trace]\nendpoint = \"http://u:hush@h:1\"");
    for refused in [
        in_file,
        in_list,
        in_variable,
        of_workers,
        of_worker,
        of_trace,
    ] {
        let error = refused.expect_err("no secret has spaces");
        assert!(!format!("{error} {error:?}").contains("hush"), "{error}");
    }
}

#[test]
fn notes_say_what_is_missing() {
    let check = |text: &str, expected: &[&str]| {
        let notes = Config::from_layers(file(text)).expect("valid").notes();
        let begins: Vec<&str> = notes
            .iter()
            .filter_map(|note| note.split(':').next())
            .collect();
        assert_eq!(begins, expected, "{text}");
    };
    let workers = "[workers]\nurls = [\"http://a:1\"]\n";
    let identity = "[replica]\nid = \"r1\"\n[gossip]\nca = \"a\"\ncert = \"b\"\nkey = \"c\"\n";
    let alone = "no certificates are configured";
    check("", &["no workers are configured", alone]);
    check(workers, &[alone]);
    check(
        &format!("{workers}{identity}"),
        &["no seeds are configured"],
    );
    check(&format!("{workers}{identity}seeds = [\"r2:1\"]"), &[]);
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

#[test]
fn selectors_and_short_secrets_are_judged_with_their_place() {
    let check = |text: &str, expected: &str| {
        let messages = messages(file(text));
        assert!(
            messages.iter().any(|said| said.starts_with(expected)),
            "{messages:?}"
        );
    };
    let pods = "[kubernetes]\nenabled = true\n";
    check(
        &format!("{pods}selector = [\"app=two words\"]"),
        "g.toml:3:12: kubernetes.selector: \"two words\" is no value of a label",
    );
    check(
        &format!("{pods}selector = [\"app=vllm\"]\ndecode_selector = [\"tier in (a\"]"),
        "g.toml:4:19: kubernetes.decode_selector: \"tier in (a\" does not close",
    );
    check(
        "[leases]\nsecret = \"short\"",
        "g.toml:2:10: leases.secret: has at least 16 characters",
    );
}

#[test]
fn one_role_without_the_other_is_noted() {
    let notes = |text: &str| {
        let notes = Config::from_layers(file(text)).expect("valid").notes();
        let of_roles = |note: &String| note.contains("of the role");
        notes.into_iter().filter(of_roles).collect::<Vec<_>>()
    };
    let alone = notes("workers.prefill_urls = [\"http://a:1\"]");
    assert!(alone[0].contains("none of the role decode"), "{alone:?}");
    let both = "workers.prefill_urls = [\"http://a:1\"]\nworkers.decode_urls = [\"http://b:1\"]";
    assert!(notes(both).is_empty());
}
