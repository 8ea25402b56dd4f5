//! Mistakes, each with its place and what to do, and notes on what is missing.

use super::*;

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
        "port = 1\n[log]\njson = true",
        &[
            "g.toml:1:1: port: a key that stands in no section: write it below [listen] or [admin] or [metrics] or [gossip] or [kubernetes]",
        ],
    );
    check(
        "nothing = 1",
        &[
            "g.toml:1:1: nothing: a key that stands in no section, and no section has one of this name; --print-config \
             writes all of them",
        ],
    );
    check(
        "[listen]\nport = 30000.0",
        &["g.toml:2:8: listen.port: expected a whole number from 0 to 65535, found 30000.0"],
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
        "[limits]\nrequests = 5_000_000_000",
        &[
            "g.toml:2:12: limits.requests: expected a whole number from 0 to 4294967295, found 5000000000",
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
           \"10.0.0.5:8000\": it has no scheme; write http://host:port or https://host:port",
        ],
    );
    check(
        "[workers]\nurls = [\"http://w:8000/v1\"]",
        &[
            "g.toml:2:8: workers.urls: expected an address such as \"http://10.0.0.5:8000\", found \
           \"http://w:8000/v1\": it ends in /v1, which every request brings itself; leave that out",
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
fn all_mistakes_of_a_worker_are_told_each_at_its_line() {
    let text = "[[worker]]\nurl = \"http://a:1\"\nzone = \"a b\"\nmax_in_flight = 0\nid = \"\"";
    let found = messages(file(text));
    let expected = [
        "g.toml:3:8: worker.zone: ",
        "g.toml:4:17: worker.max_in_flight: ",
        "g.toml:5:6: worker.id: ",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, begin) in found.iter().zip(expected) {
        assert!(found.starts_with(begin), "{found}");
    }
}

#[test]
fn sections_must_fit_together() {
    let check = |text: &str, expected: &str| {
        assert_eq!(messages(file(text)), [expected], "{text}");
    };
    check(
        "[[worker]]\nurl = \"http://a:1\"\n\n[workers]\nurls = [\"http://a:1\"]",
        "g.toml:5:8: workers.urls: http://a:1 is there twice",
    );
    check(
        "[[worker]]\nurl = \"http://a:1\"\n[[worker]]\nurl = \"http://a:1\"",
        "g.toml:3:1: worker: http://a:1 is there twice",
    );
    check(
        "[listen]\nport = 8000\n[[worker]]\nurl = \"http://127.0.0.1:8000\"",
        "g.toml:3:1: worker: http://127.0.0.1:8000 is the data port of this replica, not a worker: give the address of an \
         engine",
    );
    for (section, port) in [("admin", "admin port"), ("metrics", "metrics port")] {
        let expected = format!(
            "g.toml:3:1: worker: http://127.0.0.1:8000 is the {port} of this replica, not a worker: give the address of an \
             engine"
        );
        check(
            &format!("[{section}]\nport = 8000\n[[worker]]\nurl = \"http://127.0.0.1:8000\""),
            &expected,
        );
    }
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
        "[admission]\npriority = \"high\"",
        "g.toml:2:12: admission.priority: high is more urgent than admission.priority_max, normal, which no request \
         without a key goes beyond",
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
        "g.toml:2:8: workers.urls: 169.254.1.1 is a link-local address or a cloud's metadata service; \
         if a worker is there, put its network into workers.allow",
    );
    check(
        "[workers]\nurls = [\"http://10.1.2.3:1\", \"http://gpu.lab:1\", \"http://11.0.0.1:1\"]\n\
         allow = [\"10.0.0.0/8\", \"*.lab\"]",
        "g.toml:2:8: workers.urls: 11.0.0.1 is not in workers.allow",
    );
    for (list, column) in [("prefill_urls", 16), ("decode_urls", 15)] {
        check(
            &format!("[workers]\n{list} = [\"http://a:1\", \"http://a:1\"]"),
            &format!("g.toml:2:{column}: workers.{list}: http://a:1 is there twice"),
        );
    }
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
fn a_free_admin_port_is_not_named_before_it_is_known() {
    let note = |text: &str| {
        let notes = Config::from_layers(file(text)).expect("valid").notes();
        notes.first().cloned().unwrap_or_default()
    };
    let free = note("[admin]\nport = 0");
    assert!(
        free.contains("--admin the admin address that is logged"),
        "{free}"
    );
    assert!(note("").contains("--admin http://127.0.0.1:30001`"));
}

#[test]
fn an_engine_that_is_there_with_ranks_and_without_is_noted() {
    let noted = |urls: &str| {
        let text = format!("[workers]\nurls = [{urls}]\n");
        let notes = Config::from_layers(file(&text)).expect("valid").notes();
        let is_it = |note: &&String| note.contains("@... are workers, too");
        notes.into_iter().filter(|note| is_it(&note)).count()
    };
    assert_eq!(
        noted("\"http://a:1\", \"http://a:1@0\", \"http://a:1/@1\""),
        1
    );
    assert_eq!(
        noted("\"http://a:1@0\", \"http://a:1@1\", \"http://a:2\""),
        0
    );
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
fn more_than_a_source_watches_is_refused_with_its_place() {
    let many = |count: usize, end: &str| {
        let all: Vec<String> = (0..count).map(|n| format!("\"n{n}{end}\"")).collect();
        all.join(", ")
    };
    let names = |count| {
        format!(
            "[dns]\nnames = [\"all:80\"]\ndecode_names = [{}]",
            many(count, ".lab:80")
        )
    };
    assert_eq!(messages(file(&names(63))), [""; 0]);
    assert_eq!(
        messages(file(&names(64))),
        [
            "g.toml:3:16: dns.decode_names: 65 names in the lists together are more than 64; put several workers under one \
             name"
        ]
    );
    let pods = |count| {
        let selectors = "prefill_selector = [\"a=p\"]\ndecode_selector = [\"a=d\"]";
        format!(
            "[kubernetes]\nenabled = true\n{selectors}\nnamespaces = [{}]",
            many(count, "")
        )
    };
    if cfg!(feature = "kubernetes") {
        assert_eq!(messages(file(&pods(32))), [""; 0]);
        let found = messages(file(&pods(33)));
        let expected =
            "g.toml:5:14: kubernetes.namespaces: 66 namespaces times selectors are more than 64";
        assert!(
            matches!(&found[..], [one] if one.starts_with(expected)),
            "{found:?}"
        );
    }
}

#[cfg(feature = "kubernetes")]
#[test]
fn lists_of_labels_become_selectors() {
    let text = "[kubernetes]\nenabled = true\nselector = [\"app=vllm\", \"tier in (a,b)\"]";
    let config = Config::from_layers(file(text)).expect("valid");
    let settings = config.kubernetes.source();
    assert_eq!(settings.selector.as_deref(), Some("app=vllm,tier in (a,b)"));
    assert_eq!(settings.decode_selector, None);
    assert_eq!(settings.check(), Ok(()));
}

#[test]
fn ports_meet_where_their_addresses_do() {
    let messages = |host: &str, other: &str| {
        let token = "token = \"0123456789abcdef\"";
        let text = format!(
            "[listen]\nhost = {host:?}\nport = 8000\n[admin]\nhost = {other:?}\nport = 8000\n{token}"
        );
        messages(file(&text))
    };
    let clash = ["g.toml:6:8: admin.port: 8000 is the port of [listen], too"];
    for (host, other) in [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("::", "0.0.0.0"),
        ("::", "::1"),
        ("::1", "::1"),
    ] {
        assert_eq!(messages(host, other), clash, "{host} {other}");
        assert_eq!(messages(other, host), clash, "{other} {host}");
    }
    for (host, other) in [
        ("0.0.0.0", "::1"),
        ("127.0.0.1", "::1"),
        ("10.0.0.1", "127.0.0.1"),
    ] {
        assert_eq!(messages(host, other), [""; 0], "{host} {other}");
        assert_eq!(messages(other, host), [""; 0], "{other} {host}");
    }
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
