//! Command lines, as people and scripts write them.

use std::time::Duration;

use clap::CommandFactory;
use http::Method;

use super::*;
use crate::config::{Config, WebOrigin, Wild};

fn parse(line: &str) -> Result<ServeArgs, clap::Error> {
    let words = ["grapevine", "serve"]
        .into_iter()
        .chain(line.split_whitespace());
    match Cli::try_parse_from(words)?.command {
        Command::Serve(args) => Ok(*args),
        _ => panic!("not serve: {line}"),
    }
}

fn config(line: &str) -> Config {
    let task = parse(line)
        .unwrap_or_else(|error| panic!("{error}"))
        .task(std::iter::empty())
        .expect(line);
    match task {
        Task::Run(config, _) => *config,
        _ => panic!("not a run: {line}"),
    }
}

#[test]
fn the_command_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
#[cfg(feature = "testbed")]
fn the_commands_of_the_testbed_are_known_where_it_is_left_out() {
    let testbed = <grapevine_testbed::cli::Command as Subcommand>::augment_subcommands(
        clap::Command::new("testbed"),
    );
    let mut names: Vec<&str> = testbed
        .get_subcommands()
        .map(clap::Command::get_name)
        .collect();
    names.sort_unstable();
    assert_eq!(names, TESTBED_COMMANDS);
}

#[test]
#[cfg(not(feature = "testbed"))]
fn a_command_of_the_testbed_is_told_where_it_is() {
    let refused = Cli::of(["grapevine", "demo"].map(Into::into)).err();
    let message = refused.expect("not in this build").to_string();
    assert!(message.contains("cargo run --release -- demo"), "{message}");
}

#[test]
fn the_printed_defaults_take_no_settings() {
    let task = |line: &str| parse(line).expect("known flags").task(std::iter::empty());
    assert!(matches!(task("--print-config"), Ok(Task::PrintConfig)));
    let refused = task("--print-config --port 1234 --log-json").expect_err("they would be lost");
    let refused = refused.to_string();
    let lines: Vec<_> = refused.lines().collect();
    assert_eq!(lines.len(), 2, "{refused}");
    assert!(
        lines[0].starts_with("--port: --print-config writes the defaults"),
        "{refused}"
    );
}

#[test]
fn without_flags_everything_is_default() {
    assert_eq!(config(""), Config::default());
}

#[test]
fn a_command_line_of_vllm_router_is_understood() {
    let config = config(
        "--host 127.0.0.1 --port 8080 --worker-urls http://a:8000 http://b:8000 \
         --policy consistent_hash --api-key k --log-level warning \
         --prometheus-host 127.0.0.2 --prometheus-port 9100 \
         --request-id-headers x-request-id x-my-id --request-timeout-secs 1800 \
         --max-payload-size 536870912 --max-concurrent-requests 64 \
         --retry-max-retries 3 --retry-initial-backoff-ms 100 --retry-max-backoff-ms 1000 \
         --retry-backoff-multiplier 2 --retry-jitter-factor 0.1 \
         --cb-failure-threshold 5 --cb-success-threshold 2 --cb-timeout-duration-secs 30 \
         --cb-window-duration-secs 90 --health-failure-threshold 4 --health-success-threshold 1 \
         --health-check-timeout-secs 3 --health-check-interval-secs 7 \
         --health-check-endpoint /ping \
         --cache-threshold 0.5 --balance-abs-threshold 32 --balance-rel-threshold 1.1",
    );
    let urls: Vec<&str> = config
        .worker
        .iter()
        .map(|worker| worker.url.base())
        .collect();
    assert_eq!(urls, ["http://a:8000", "http://b:8000"]);
    assert_eq!(config.listen.port, 8080);
    assert_eq!(
        config.listen.request_id_headers,
        ["x-request-id", "x-my-id"]
    );
    assert_eq!(config.cluster.policy.as_str(), "consistent_hash");
    let rule = config.cluster_settings().policy.cache_aware;
    assert_eq!(
        [
            rule.match_share.get(),
            rule.imbalance_requests.get(),
            rule.imbalance_factor.get()
        ],
        [0.5, 32.0, 1.1]
    );
    assert_eq!(config.workers.api_key.expect("set").reveal(), "k");
    assert_eq!(config.log.level, tracing::Level::WARN);
    assert_eq!(config.metrics.port, 9100);
    assert_eq!(
        config.timeouts.whole_request,
        Some(Duration::from_secs(1800))
    );
    assert_eq!(config.limits.body_bytes.0, 512 << 20);
    assert_eq!(config.limits.requests, 64);
    let retry = &config.retry;
    assert_eq!(retry.max_attempts.get(), 3);
    assert_eq!(retry.initial_backoff, Duration::from_millis(100));
    assert_eq!(retry.max_backoff, Duration::from_secs(1));
    assert_eq!((retry.backoff_multiplier, retry.jitter), (2.0, 0.1));
    let breaker = &config.breaker;
    assert_eq!(
        (
            breaker.failure_threshold.get(),
            breaker.success_threshold.get()
        ),
        (5, 2)
    );
    assert_eq!(breaker.open_for, Duration::from_secs(30));
    assert_eq!(breaker.window, Duration::from_secs(90));
    let health = &config.health;
    assert_eq!(
        (
            health.failure_threshold.get(),
            health.success_threshold.get()
        ),
        (4, 1)
    );
    assert_eq!(health.timeout, Duration::from_secs(3));
    assert_eq!(health.interval, Duration::from_secs(7));
    assert_eq!(health.path, "/ping");
}

#[test]
fn switches_of_vllm_router_turn_off_what_is_on() {
    let config = config("--disable-retries --disable-circuit-breaker --disable-prometheus");
    assert!(!config.retry.enabled && !config.breaker.enabled && !config.metrics.enabled);
}

#[test]
fn a_timeout_of_zero_is_off() {
    assert_eq!(
        config("--request-timeout-secs 0").timeouts.whole_request,
        None
    );
}

#[test]
fn seeds_are_repeated_or_parted_by_commas() {
    let line = "--replica-id r1 --gossip-ca a --gossip-cert b --gossip-key c \
                --seed r2:30002 --seed r3:30002,[::1]:30002";
    let seeds: Vec<String> = config(line)
        .gossip
        .seeds
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(seeds, ["r2:30002", "r3:30002", "[::1]:30002"]);
}

#[test]
fn origins_are_taken_as_vllm_and_as_vllm_router_write_them() {
    let expected = ["https://a.example", "http://b.example:3000"]
        .map(|origin| Wild::One(WebOrigin::new(origin).expect(origin)));
    for line in [
        "--cors-allowed-origins https://a.example http://b.example:3000",
        r#"--allowed-origins ["https://a.example","http://b.example:3000"]"#,
        "--allowed-origins https://a.example,http://b.example:3000",
    ] {
        assert_eq!(config(line).cors.allowed_origins, expected, "{line}");
    }
    let all =
        config(r#"--allowed-origins ["*"] --allowed-methods ["get"] --allowed-headers ["*"]"#);
    assert_eq!(all.cors.allowed_origins, [Wild::Any]);
    assert_eq!(all.cors.allowed_methods, [Wild::One(Method::GET)]);
    assert_eq!(all.cors.allowed_headers, [Wild::Any]);
    let refused = parse("--cors-allowed-origins * --allow-credentials");
    let refused = refused.expect("well formed").task(std::iter::empty());
    let error = refused.expect_err("no browser takes it").to_string();
    assert!(error.contains("cors.allow_credentials"), "{error}");
}

#[test]
fn all_flags_without_counterpart_are_told_at_once() {
    let line = "--log-dir /tmp --port 1 --mini-lb \
                --mesh-port 39527 --kv-penalty-external 0.6 --policy bucket";
    let error = parse(line).err().expect("refused");
    assert_eq!(error.exit_code(), 2);
    let message = error.to_string();
    let lines: Vec<&str> = message
        .lines()
        .map(|line| line.trim_start().trim_start_matches("error: "))
        .collect();
    let beginnings = [
        "--log-dir of vllm-router and SMG",
        "--mini-lb of vllm-router is not supported: use `grapevine balancer`",
        "--mesh-port of SMG is not supported: --gossip-port",
        "--policy: cluster.policy: \"bucket\" sorts prompts by their length; use prefix",
    ];
    for beginning in beginnings {
        let named = lines.iter().filter(|line| line.starts_with(beginning));
        assert_eq!(named.count(), 1, "{beginning} in {message}");
    }
    assert!(
        !message.contains("kv-penalty-external"),
        "its default changes nothing: {message}"
    );
}

#[test]
fn flags_that_change_nothing_are_taken() {
    let line = "--intra-node-data-parallel-size 1 --kv-connector nixl --enable-igw --max-tree-size 33554432 \
                --worker-startup-timeout-secs 600 --disable-tokenizer-autoload --history-backend none \
                --max-concurrent-requests -1";
    assert_eq!(config(line), Config::default());
}

#[test]
fn times_are_numbers_or_have_their_unit() {
    let drain = |written: &str| config(&format!("--drain-secs {written}")).timeouts.drain;
    for (written, seconds) in [
        ("90", 90.0),
        ("1.5", 1.5),
        ("0", 0.0),
        ("0.25", 0.25),
        ("10m", 600.0),
        ("1s", 1.0),
        ("500ms", 0.5),
        ("2h", 7200.0),
    ] {
        assert_eq!(
            drain(written),
            Duration::from_secs_f64(seconds),
            "{written}"
        );
    }
    let backoff = config("--retry-initial-backoff-ms 20 --retry-max-backoff-ms 2s").retry;
    assert_eq!(backoff.initial_backoff, Duration::from_millis(20));
    assert_eq!(backoff.max_backoff, Duration::from_secs(2));
    for (flag, unit) in [
        ("settle-secs", "seconds"),
        ("retry-max-backoff-ms", "milliseconds"),
    ] {
        for written in [
            "1x",
            "s",
            "1ss",
            "ten",
            "1.2.3",
            ".",
            "99999999999999999999999999",
        ] {
            let args = parse(&format!("--{flag} {written}")).expect("a flag of ours");
            let refused = args
                .task(std::iter::empty())
                .expect_err(written)
                .to_string();
            let expected = format!(
                "expected a number of {unit} such as 90, or a duration with its unit such as \"250ms\", \"10s\" or \
                 \"5min\", found {written:?}"
            );
            assert!(refused.starts_with(&format!("--{flag}: ")), "{refused}");
            assert!(refused.ends_with(&expected), "{refused}");
        }
    }
}

#[test]
fn flags_of_lists_take_several_values() {
    for (section, row) in crate::config::rows() {
        let is_list = (row.default)().is_some_and(|default| default.starts_with('['));
        if let Some(flag) = row.flag {
            let kind = flag.kind == crate::config::FlagKind::List;
            assert_eq!(kind, is_list, "--{} of {section}.{}", flag.name, row.key);
        }
    }
    let words = [
        "grapevine",
        "serve",
        "--open-paths",
        "GET /version",
        "POST /v1/a/*",
    ];
    let words = words.into_iter().chain(["--open-paths", "GET /b,GET /c"]);
    let parsed = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
    let Command::Serve(args) = parsed.command else {
        panic!("not serve");
    };
    let Ok(Task::Run(config, _)) = args.task(std::iter::empty()) else {
        panic!("not a run");
    };
    assert_eq!(config.listen.open_paths.len(), 4);
}

/// What stands in front of another part, such as the address of a replica, would take the place of the command's own.
#[test]
fn the_help_of_a_command_has_all_that_is_said_of_it() {
    let program = Cli::command();
    let said = |command: &clap::Command| {
        let about = command.get_long_about().or(command.get_about());
        about.map(ToString::to_string).unwrap_or_default()
    };
    for (name, words) in [
        ("status", "Exit code 4 where something is wrong"),
        ("top", "keys that `?` lists"),
        ("doctor", "Nothing is changed"),
        ("events", "which are asked, too, with the same token"),
        ("workers", "reaches all"),
        ("register", "renews its lease at any"),
        ("quarantine", "lift its mark"),
        ("cache", "that publish KV events"),
        ("explain", "without sending it"),
        ("bench", "latency counts from when a request was due"),
        ("probe", "containers without a shell"),
        ("man", "manual pages"),
        ("completions", "completions for a shell"),
    ] {
        let command = program.find_subcommand(name).expect(name);
        assert!(said(command).contains(words), "{name}: {}", said(command));
    }
}

#[test]
fn an_argument_that_would_change_nothing_is_refused() {
    for (command, without) in [
        ("top --once --width 80", "--once"),
        (
            "bench --url http://a:1 --against http://b:1 --rounds 3",
            "--against http://b:1",
        ),
        ("bench --url http://a:1 --rate 2 --pacing even", "--rate 2"),
        (
            "bench --url http://a:1 --rate 2 --in-flight-max 5",
            "--rate 2",
        ),
        (
            "register --worker http://w:1 --to http://r:1 --secret-file f --show-credential",
            "--show-credential",
        ),
    ] {
        let is_taken = |line: &str| {
            Cli::of(
                ["grapevine"]
                    .into_iter()
                    .chain(line.split_whitespace())
                    .map(Into::into),
            )
            .is_ok()
        };
        assert!(is_taken(command), "{command}");
        let rest = command.replace(without, "");
        assert!(!is_taken(&rest), "{rest}");
    }
}

#[test]
fn what_a_command_refuses_is_not_in_its_help() {
    let mut command = Cli::command();
    let top = command.find_subcommand_mut("top").expect("a command");
    let help = top.render_long_help().to_string();
    assert!(help.contains("--admin"), "{help}");
    assert!(!help.contains("--json"), "{help}");
}

#[test]
fn a_command_line_of_smg_is_understood() {
    let config = config(
        "--host 127.0.0.1 --worker-urls http://a:8000 --backend vllm --policy power_of_two --tls-cert-path c \
         --tls-key-path k --shutdown-grace-period-secs 20 --header-read-timeout-secs 30 \
         --idle-connection-timeout-secs 90 --upstream-pool-idle-timeout-secs 3 --cache-match-threshold 0.4 \
         --spill-abs-threshold 7 --log-json --sticky-sessions --max-concurrent-requests 64",
    );
    let timeouts = &config.timeouts;
    let seconds = [
        timeouts.drain,
        timeouts.header,
        timeouts.keep_alive,
        timeouts.upstream_idle,
    ];
    assert_eq!(seconds.map(|time| time.as_secs()), [20, 30, 90, 3]);
    let rule = config.cluster_settings().policy.cache_aware;
    assert_eq!(
        [rule.match_share.get(), rule.imbalance_requests.get()],
        [0.4, 7.0]
    );
    assert_eq!(config.tls.cert.as_deref(), Some("c".as_ref()));
    assert_eq!(config.tls.key.as_deref(), Some("k".as_ref()));
    assert!(config.log.json);
    assert_eq!(config.limits.requests, 64);
}

#[test]
fn workers_of_both_roles_are_given_as_other_routers_take_them() {
    use grapevine_gossip::worker::Role;

    use grapevine_transfer::Connector;

    let shown = |line: &str| {
        let config = config(line);
        let worker = |worker: &crate::config::WorkerConfig| {
            let port = worker.bootstrap_port.unwrap_or_default();
            (worker.url.to_string(), worker.role, port)
        };
        let workers: Vec<_> = config.worker.iter().map(worker).collect();
        (workers, config.transfer.connector)
    };
    let at = |url: &str, role, port| (url.to_owned(), role, port);
    let (workers, connector) = shown(
        "--vllm-pd-disaggregation --prefill http://p:1 8998 --prefill http://q:1 none --prefill http://r:1 \
         --decode http://d:1 --decode http://e:1 --kv-connector mooncake",
    );
    let expected = [
        at("http://p:1", Role::Prefill, 8998),
        at("http://q:1", Role::Prefill, 0),
        at("http://r:1", Role::Prefill, 0),
        at("http://d:1", Role::Decode, 0),
        at("http://e:1", Role::Decode, 0),
    ];
    assert_eq!(workers, expected);
    assert_eq!(connector, Connector::Mooncake);
    let (workers, connector) = shown(
        "--pd-disaggregation --prefill http://p:1 9001 --decode http://d:1 --intra-node-data-parallel-size 2",
    );
    let expected = [
        at("http://p:1@0", Role::Prefill, 9001),
        at("http://p:1@1", Role::Prefill, 9001),
        at("http://d:1@0", Role::Decode, 0),
        at("http://d:1@1", Role::Decode, 0),
    ];
    assert_eq!(workers, expected);
    assert_eq!(connector, Connector::Sglang);
    let (_, connector) = shown("--pd-disaggregation --kv-connector nixl");
    assert_eq!(connector, Connector::Nixl);
    let policies = config("--prefill-policy cache_aware --decode-policy round_robin");
    let settings = policies.cluster_settings();
    assert_eq!(
        settings.prefill_policy_of("m").policy.as_str(),
        "cache_aware"
    );
    assert_eq!(
        settings.decode_policy_of("m").policy.as_str(),
        "round_robin"
    );
    for (line, what) in [
        ("--prefill http://p:1 70000", "expected a port"),
        ("--prefill 8998", "expected an address"),
        ("--prefill http://p:1 8998 8999", "expected an address"),
    ] {
        let refused = parse(line).expect("well formed").task(std::iter::empty());
        let error = refused.expect_err(line).to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn serve_is_what_was_meant_where_its_flags_come_first() {
    let of = |line: &str| Cli::of(line.split_whitespace().map(Into::into));
    for line in [
        "grapevine --worker-urls http://a:8000",
        "grapevine --port=8080",
        "grapevine --prefill http://x",
    ] {
        let error = of(line).err().expect("refused");
        assert_eq!(error.exit_code(), 2);
        let flag = line.split(' ').nth(1).expect("a flag");
        let expected = format!("grapevine serve {flag} ...");
        assert!(error.to_string().contains(&expected), "{error}");
    }
    for line in ["grapevine --nonsense", "grapevine --help", "grapevine"] {
        let error = of(line).err().expect("no command");
        assert!(!error.to_string().contains("is started by"), "{error}");
    }
    let launched = of("grapevine launch --port 8080").map(|cli| cli.command);
    assert!(matches!(launched, Ok(Command::Serve(_))));
}

#[test]
fn no_flag_is_proposed_that_would_be_refused() {
    let told = |flag: &str| {
        let words = ["grapevine", "serve", flag, "x"].map(Into::into);
        let error = Cli::of(words).err().expect("no such flag");
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    assert!(told("--prot").contains("'--port'"));
    assert!(
        told("--tls-cert-pat").contains("'--tls-cert-path'"),
        "taken"
    );
    for flag in [
        "--wasm-middlewar",
        "--log-dirs",
        "--enable-program-schedulin",
    ] {
        let told = told(flag);
        assert!(told.contains(flag) && !told.contains("similar"), "{told}");
    }
}

#[test]
fn every_flag_of_vllm_router_is_known() {
    // Its launcher's parser, 0.1.17.
    let flags = "host port worker-urls enable-program-scheduling program-scheduling-config-json \
        policy prefill-policy decode-policy router-temperature kv-penalty-host \
        kv-penalty-external kv-penalty-disk kv-aware-session-affinity-ttl-secs kv-event-source \
        kv-event-replay-source kv-event-block-size kv-event-model pd-kv-events mini-lb \
        vllm-pd-disaggregation prefill decode worker-startup-timeout-secs \
        worker-startup-check-interval cache-threshold balance-abs-threshold \
        balance-rel-threshold eviction-interval-secs max-tree-size max-payload-size \
        wasm-middleware wasm-middleware-sha256 wasm-middleware-route \
        intra-node-data-parallel-size enable-igw api-key log-dir log-level service-discovery \
        selector service-discovery-port service-discovery-namespace prefill-selector \
        decode-selector vllm-discovery-address kv-connector prometheus-port prometheus-host \
        request-id-headers request-timeout-secs retry-max-retries retry-initial-backoff-ms \
        retry-max-backoff-ms retry-backoff-multiplier retry-jitter-factor disable-retries \
        cb-failure-threshold cb-success-threshold cb-timeout-duration-secs \
        cb-window-duration-secs disable-circuit-breaker health-failure-threshold \
        health-success-threshold health-check-timeout-secs health-check-interval-secs \
        health-check-endpoint max-concurrent-requests queue-size queue-timeout-secs \
        rate-limit-tokens-per-second cors-allowed-origins";
    let command = Cli::command();
    let serve = command.find_subcommand("serve").expect("there is serve");
    let known: Vec<&str> = serve
        .get_arguments()
        .filter_map(clap::Arg::get_long)
        .collect();
    assert_eq!(flags.split_whitespace().count(), 71);
    for flag in flags.split_whitespace() {
        assert!(known.contains(&flag), "--{flag}");
    }
}

#[test]
fn an_empty_name_of_a_file_is_told_with_what_to_do() {
    let refused = Cli::try_parse_from(["grapevine", "serve", "--config", ""]).err();
    let message = refused.expect("no file").to_string();
    assert!(message.contains("unset GRAPEVINE_CONFIG"), "{message}");
}

#[test]
fn a_bad_value_names_its_flag() {
    let args = parse("--port x").expect("the command line is well formed");
    let error = args.task(std::iter::empty()).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "--port: listen.port: expected a whole number from 0 to 65535, found \"x\""
    );
}

#[test]
fn levels_of_the_log_may_be_written_large() {
    for level in ["INFO", "Warning", "debug"] {
        let args = parse(&format!("--log-level {level}")).expect("the command line is well formed");
        assert!(args.task(std::iter::empty()).is_ok(), "{level}");
    }
}

#[test]
fn help_says_of_each_flag_what_its_value_is() {
    let serve = Cli::command();
    let serve = serve.find_subcommand("serve").expect("a command");
    let name_of = |flag: &str| {
        let argument = serve.get_arguments().find(|one| one.get_id() == flag);
        let names = argument.and_then(|one| one.get_value_names()).expect(flag);
        names[0].to_string()
    };
    for (flag, name) in [
        ("port", "PORT"),
        ("admin-host", "HOST"),
        ("gossip-cert", "FILE"),
        ("seed", "HOST:PORT"),
        ("worker-urls", "URL"),
        ("policy", "POLICY"),
        ("max-payload-size", "BYTES"),
    ] {
        assert_eq!(name_of(flag), name, "{flag}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let out = tempfile::tempdir().expect("a folder");
    let args = ManArgs {
        out: out.path().to_owned(),
    };
    man(&args).expect("written");
    let page = |name: &str| std::fs::read_to_string(out.path().join(name)).expect(name);
    let command = Cli::command();
    for command in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        let page = page(&format!("grapevine-{}.1", command.get_name()));
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(page("grapevine.1").contains("grapevine\\-serve(1)"));
    assert!(page("grapevine-ca-issue.1").contains("REPLICA"));
    let serve = page("grapevine-serve.1");
    assert!(serve.contains("\\-\\-worker\\-urls") && !serve.contains("bootstrap\\-port"));
}

#[test]
fn shells_complete_flags_of_ours_and_none_of_other_routers() {
    assert!(migration::foreign().any(|name| name == "mesh-tls-cert"));
    for shell in [
        clap_complete::Shell::Bash,
        clap_complete::Shell::Zsh,
        clap_complete::Shell::Fish,
    ] {
        let text = manuals::completions_of(shell);
        let has = |flag: &str| text.contains(flag);
        assert!(
            has("worker-urls") && has("completions") && has("prometheus-port"),
            "{shell}"
        );
        assert!(!has("mesh-tls-cert"), "{shell}");
    }
}

#[test]
fn the_long_version_names_the_build() {
    let version = |flag: &str| {
        Cli::of(["grapevine", flag].map(Into::into))
            .err()
            .expect("printed")
            .to_string()
    };
    assert_eq!(
        version("-V"),
        format!("grapevine {}\n", env!("CARGO_PKG_VERSION"))
    );
    let long = version("--version");
    assert!(
        long.contains("(commit ") && long.starts_with(version("-V").trim()),
        "{long}"
    );
    let features = [
        ("jemalloc", cfg!(feature = "jemalloc")),
        ("kubernetes", cfg!(feature = "kubernetes")),
        ("testbed", cfg!(feature = "testbed")),
    ];
    for (feature, is_built) in features {
        assert_eq!(long.contains(feature), is_built, "{feature}: {long}");
    }
}
