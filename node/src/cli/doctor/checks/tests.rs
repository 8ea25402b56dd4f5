//! Tables: facts as replicas and files give them, and what is found. Each fault is planted in a cluster that is well.

use serde_json::{Value, json};

use super::all;
use crate::cli::doctor::facts::{
    CertificateFact, ClusterFacts, ConfigFacts, DataPort, Facts, PortFact, PortState, ReplicaFacts,
    SeedFact, WorkerFact,
};
use crate::cli::doctor::finding::{Finding, Severity};

fn row(id: &str) -> Value {
    json!({
        "id": id, "live": true, "ready": true, "leaving": false, "ring": "d", "registry": "g", "settings": "s",
        "version": "0.9.0", "for_s": 40, "certificate_days": 80, "gossip": "10.0.0.1:30002",
    })
}

fn worker(id: &str) -> Value {
    json!({
        "id": id, "state": "active", "verdict": "good", "verdict_for_s": 40, "models": ["m"], "drained": false,
        "unlisted_models": [], "clock_ahead_s": 0, "usage_with_details": 100, "usage_without_details": 30,
        "kv_caches": [{ "connected": true, "believed": true }],
    })
}

fn about(settings: Value) -> Value {
    json!({
        "now_ms": 1_700_000_000_000_u64, "settings": settings, "seeds": ["10.0.0.1:30002"], "kv_events": true,
        "threads": null, "connections_max": 65_536, "connections_fit": 65_536, "body_bytes_max": 1 << 20,
        "listen": { "data": "127.0.0.1:30000", "admin": "127.0.0.1:30001", "metrics": null, "keys": true,
            "admin_token": false, "tls": false },
        "machine": {
            "files": { "open": 40, "most": 1_000_000 },
            "cpu": { "usable": 4, "quota": null, "held_up": null },
            "udp": { "dropped": 0, "buffer_bytes": 212_992 },
        },
        "memory": { "limit": 1 << 30, "used": 1 << 28 },
        "paths": [{ "replica": "r2", "mtu": 1_452, "black_holes": 0, "packets_sent": 5_000, "packets_lost": 3 }],
    })
}

fn replica(id: &str) -> ReplicaFacts {
    ReplicaFacts {
        id: id.to_owned(),
        cluster: json!({ "replica": id, "missing": [], "silent_seeds": [] }),
        about: about(json!({ "cluster.policy": "\"prefix\"", "cluster.seed": "0" })),
        ahead_ms: Some(3),
        unsure_ms: 2,
        metrics: vec![("grapevine_log_lines_dropped_total".to_owned(), 0.0)],
    }
}

/// Three replicas and two workers, and nothing to say about them.
fn well() -> ClusterFacts {
    let rows = ["r1", "r2", "r3"].map(row);
    ClusterFacts {
        cluster: json!({
            "replica": "r1", "digest": "d", "settings": "s", "replicas": rows,
            "unheard": [], "lost": [], "twins": [], "silent_seeds": [],
        }),
        workers: ["http://a:1", "http://b:1"].map(worker).into(),
        replicas: ["r1", "r2", "r3"].map(replica).into(),
        ..ClusterFacts::default()
    }
}

fn found(cluster: ClusterFacts) -> Vec<Finding> {
    all(&Facts {
        cluster: Some(cluster),
        config: None,
    })
}

/// One finding and no other, of this severity and check; `parts` are in what it says or what to do.
fn is_one(found: &[Finding], severity: Severity, check: &str, parts: &[&str]) {
    let [finding] = found else {
        panic!("{check}: not one finding: {found:#?}");
    };
    assert_eq!(
        (finding.severity, finding.check),
        (severity, check),
        "{finding:?}"
    );
    let text = format!("{} → {}", finding.what, finding.todo);
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    let is_silent = severity != Info && finding.todo.is_empty();
    assert!(!is_silent, "it does not say what to do: {text}");
}

/// Plants a fault in a cluster that is well.
fn check(plant: impl FnOnce(&mut ClusterFacts), severity: Severity, name: &str, parts: &[&str]) {
    let mut cluster = well();
    plant(&mut cluster);
    is_one(&found(cluster), severity, name, parts);
}

use Severity::{Advice, Info, Problem};

#[test]
fn of_a_cluster_that_is_well_nothing_is_said() {
    assert_eq!(found(well()), []);
    assert_eq!(all(&Facts::default()), []);
}

#[test]
fn replicas_in_trouble_are_named() {
    let of = |at: usize, key: &'static str, value: Value| {
        move |facts: &mut ClusterFacts| facts.cluster["replicas"][at][key] = value
    };
    check(
        of(2, "live", false.into()),
        Problem,
        "replica",
        &["r3 is dead for 40 s", "start it again"],
    );
    check(
        of(2, "leaving", true.into()),
        Info,
        "replica",
        &["r3 is leaving for 40 s"],
    );
    let not_ready = |facts: &mut ClusterFacts| {
        facts.cluster["replicas"][1]["ready"] = false.into();
        facts.replicas[1].cluster["missing"] = json!(["no_worker_reachable"]);
    };
    check(
        not_ready,
        Problem,
        "replica",
        &["r2 is not ready for 40 s: no_worker_reachable", "Readiness"],
    );
    let lost =
        |facts: &mut ClusterFacts| facts.cluster["lost"] = json!([{ "id": "r4", "for_s": 300 }]);
    check(lost, Problem, "replica", &["r4 died 5 min ago"]);
    let twins = |facts: &mut ClusterFacts| {
        facts.cluster["twins"] =
            json!([{ "id": "r2", "kept": "10.0.0.2:2", "cut_off": "10.0.0.9:2" }]);
    };
    check(
        twins,
        Problem,
        "twins",
        &["two processes run as r2", "10.0.0.9:2 is cut off", "revoke"],
    );
    let silent = |facts: &mut ClusterFacts| {
        facts.replicas[0].cluster["silent_seeds"] = json!([{ "seed": "r9:30002", "for_s": 50, "why": null }, { "seed": "r8:1", "for_s": 2, "why": "revoked" }]);
    };
    check(
        silent,
        Problem,
        "seeds",
        &[
            "r1 is alone",
            "r9:30002 (no answer for 50 s)",
            "r8:1 (revoked)",
            "UDP",
            "1,228",
        ],
    );
    let single = |facts: &mut ClusterFacts| {
        facts.cluster["replicas"] = json!([row("r1")]);
        facts.replicas.truncate(1);
        facts.replicas[0].about["seeds"] = json!([]);
    };
    check(
        single,
        Advice,
        "alone",
        &["r1 is the only replica", "--seed"],
    );
    let not_asked = |facts: &mut ClusterFacts| {
        facts.replicas.pop();
        facts
            .not_asked
            .push(("r3".to_owned(), "refused".to_owned()));
    };
    check(not_asked, Info, "asked", &["r3 was not asked: refused"]);
    let earlier = |facts: &mut ClusterFacts| facts.replicas[1].about = Value::Null;
    check(earlier, Info, "asked", &["r2 does not tell"]);
}

#[test]
fn what_differs_between_replicas_is_named() {
    let of = |key: &'static str, value: &'static str| {
        move |facts: &mut ClusterFacts| facts.cluster["replicas"][2][key] = value.into()
    };
    check(
        of("ring", "e"),
        Problem,
        "rings",
        &["rings differ: r1, r2: d; r3: e"],
    );
    check(
        of("registry", "h"),
        Problem,
        "registry",
        &["r1, r2: g; r3: h"],
    );
    check(
        of("version", "0.8.0"),
        Advice,
        "releases",
        &["2 releases", "r3: 0.8.0; r1, r2: 0.9.0", "finish the roll"],
    );
    let three = |facts: &mut ClusterFacts| {
        facts.cluster["replicas"][1]["version"] = "0.7.0".into();
        facts.cluster["replicas"][2]["version"] = "0.8.0".into();
    };
    check(three, Advice, "releases", &["3 releases", "neighbouring"]);
    let settings = |facts: &mut ClusterFacts| {
        let row = &mut facts.cluster["replicas"][2];
        // Rings differ with them, and that is not said twice.
        (row["settings"], row["ring"]) = ("t".into(), "e".into());
        facts.replicas[2].about["settings"] = json!({ "cluster.policy": "\"random\"", "health.slow_start": "\"1s\"", "cluster.seed": "0" });
    };
    let parts = [
        "cluster.policy is \"prefix\" on r1, r2 and \"random\" on r3",
        "health.slow_start is \"1s\" on r3 and not there on r1, r2",
        "make them equal",
    ];
    check(settings, Problem, "settings", &parts);
    let unnamed = |facts: &mut ClusterFacts| facts.cluster["replicas"][2]["settings"] = "t".into();
    check(
        unnamed,
        Problem,
        "settings",
        &["differ between r1, r2 and r3", "compare their files"],
    );
}

#[test]
fn clocks_that_are_off_are_named() {
    let ahead =
        |at: usize, ms: i64| move |facts: &mut ClusterFacts| facts.replicas[at].ahead_ms = Some(ms);
    let mut cluster = well();
    ahead(1, 1_500)(&mut cluster);
    assert_eq!(found(cluster), [], "below what matters");
    check(
        ahead(1, 5_003),
        Advice,
        "clock",
        &[
            "the clock of r2 is 5.0 s ahead of those of the other replicas",
            "time service",
        ],
    );
    check(
        ahead(2, -90_000),
        Problem,
        "clock",
        &["the clock of r3 is 90 s behind", "certificates"],
    );
    let of_two = |facts: &mut ClusterFacts| {
        facts.replicas.pop();
        facts.replicas[1].ahead_ms = Some(-7_210_000);
    };
    let mut cluster = well();
    of_two(&mut cluster);
    let of_replicas: Vec<Finding> = found(cluster)
        .into_iter()
        .filter(|finding| finding.severity != Info)
        .collect();
    is_one(
        &of_replicas,
        Problem,
        "clock",
        &["the clocks of r1 and r2 are 2 h apart"],
    );
    let slow_answer = |facts: &mut ClusterFacts| {
        (facts.replicas[1].ahead_ms, facts.replicas[1].unsure_ms) = (Some(3_000), 2_500);
    };
    let mut cluster = well();
    slow_answer(&mut cluster);
    assert_eq!(found(cluster), [], "it may be the answer that was slow");
    let here = |facts: &mut ClusterFacts| {
        facts
            .replicas
            .iter_mut()
            .for_each(|replica| replica.ahead_ms = Some(30_000))
    };
    check(here, Info, "clock", &["this machine is 30 s behind"]);
    let of_worker = |facts: &mut ClusterFacts| facts.workers[1]["clock_ahead_s"] = json!(-600);
    check(
        of_worker,
        Advice,
        "clock",
        &[
            "1 worker has a clock that is up to 10 min from that of r1",
            "http://b:1",
        ],
    );
}

#[test]
fn paths_between_replicas_are_looked_at() {
    let unheard = |facts: &mut ClusterFacts| {
        facts.cluster["unheard"] = json!([{ "replica": "r2", "other": "r1" }])
    };
    check(
        unheard,
        Problem,
        "unheard",
        &["r2 does not hear r1", "both ways", "--links"],
    );
    let path = |key: &'static str, value: u64| {
        move |facts: &mut ClusterFacts| facts.replicas[0].about["paths"][0][key] = value.into()
    };
    check(
        path("black_holes", 2),
        Advice,
        "mtu",
        &[
            "from r1 to r2 large packets ceased to pass, 2 times",
            "1452",
        ],
    );
    check(
        path("mtu", 1_200),
        Info,
        "mtu",
        &["1200 bytes and no larger"],
    );
    check(
        path("packets_lost", 400),
        Advice,
        "loss",
        &["8 % of 5000 packets"],
    );
    let few = |facts: &mut ClusterFacts| {
        let path = &mut facts.replicas[0].about["paths"][0];
        (path["packets_sent"], path["packets_lost"]) = (20.into(), 10.into());
    };
    let mut cluster = well();
    few(&mut cluster);
    assert_eq!(found(cluster), [], "few packets say nothing");
    let udp = |key: &'static str, value: u64| {
        move |facts: &mut ClusterFacts| {
            facts.replicas[1].about["machine"]["udp"][key] = value.into()
        }
    };
    check(
        udp("dropped", 5_000),
        Advice,
        "udp_buffer",
        &["the kernel of r2 dropped 5000 packets", "rmem_default"],
    );
    check(
        udp("buffer_bytes", 4_096),
        Advice,
        "udp_buffer",
        &["a buffer of 4096 bytes"],
    );
    let data_port = |facts: &mut ClusterFacts| {
        let port = |replica: &str, failed: Option<&str>| DataPort {
            replica: replica.to_owned(),
            address: "10.0.0.3:30000".to_owned(),
            failed: failed.map(str::to_owned),
        };
        facts.data_ports = vec![port("r1", None), port("r3", Some("no answer"))];
    };
    check(
        data_port,
        Advice,
        "data_port",
        &["the data port of r3 (10.0.0.3:30000)", "no answer"],
    );
}

#[test]
fn workers_in_trouble_are_named_with_what_to_do() {
    let of = |key: &'static str, value: Value| {
        move |facts: &mut ClusterFacts| facts.workers[1][key] = value
    };
    let frozen = of("verdict", "stalled".into());
    check(
        frozen,
        Problem,
        "worker",
        &["1 worker is giving no tokens: http://b:1", "engine's log"],
    );
    let refused = |facts: &mut ClusterFacts| {
        for worker in &mut facts.workers {
            (worker["verdict"], worker["failed_check"]) = ("unreachable".into(), "refused".into());
            worker["why"] = "a long chain of causes".into();
        }
    };
    check(
        refused,
        Problem,
        "worker",
        &[
            "2 workers are refusing connections: http://a:1, http://b:1 →",
            "workers remove",
        ],
    );
    check(
        of("unlisted_models", json!(["m"])),
        Problem,
        "models",
        &["http://b:1 is registered for m", "/v1/models"],
    );
    let without = |facts: &mut ClusterFacts| facts.workers[1]["usage_with_details"] = 0.into();
    check(
        without,
        Advice,
        "usage",
        &[
            "1 worker says not how much",
            "--enable-prompt-tokens-details",
        ],
    );
    let mut few = well();
    (
        few.workers[1]["usage_with_details"],
        few.workers[1]["usage_without_details"],
    ) = (0.into(), 3.into());
    assert_eq!(found(few), [], "three cold prompts say nothing");
    check(
        of("kv_caches", json!([])),
        Advice,
        "kv_events",
        &[
            "1 worker publishes no KV events: http://b:1; the others do",
            "--kv-events-config",
        ],
    );
    let nobody = |facts: &mut ClusterFacts| {
        facts
            .workers
            .iter_mut()
            .for_each(|worker| worker["kv_caches"] = json!([]))
    };
    check(
        nobody,
        Info,
        "kv_events",
        &["2 workers publish no KV events"],
    );
    let off = |facts: &mut ClusterFacts| {
        nobody(facts);
        facts
            .replicas
            .iter_mut()
            .for_each(|replica| replica.about["kv_events"] = false.into());
    };
    let mut cluster = well();
    off(&mut cluster);
    assert_eq!(found(cluster), [], "they are turned off");
    let cut = of(
        "kv_caches",
        json!([{ "connected": false, "believed": false }]),
    );
    check(cut, Advice, "kv_events", &["does not stand: http://b:1"]);
    let contradicted = of(
        "kv_caches",
        json!([{ "connected": true, "believed": false }]),
    );
    check(contradicted, Info, "kv_events", &["not believed"]);
    check(
        of("models", json!(["n"])),
        Info,
        "models",
        &["one worker alone serves 2 models: m, n"],
    );
    check(
        of("drained", true.into()),
        Info,
        "worker",
        &["1 worker is drained by hand", "activate"],
    );
    check(
        |facts| facts.workers.clear(),
        Problem,
        "worker",
        &["there is no worker"],
    );
    let source = |facts: &mut ClusterFacts| {
        facts.sources = vec![json!({ "source": "dns", "up": false, "failure": "no such name" })];
    };
    check(
        source,
        Problem,
        "source",
        &["dns is not seen: no such name"],
    );
    let contested = |facts: &mut ClusterFacts| {
        facts.sources = vec![json!({ "source": "dns", "up": true, "contested": 2, "refused": 0 })];
    };
    check(
        contested,
        Advice,
        "source",
        &["see dns differently", "2 workers"],
    );
}

#[test]
fn certificates_that_end_are_named() {
    let days = |days: i64| {
        move |facts: &mut ClusterFacts| {
            facts.cluster["replicas"][2]["certificate_days"] = days.into()
        }
    };
    check(
        days(20),
        Advice,
        "certificate",
        &[
            "the certificate of r3 ends in 20 days",
            "grapevine ca issue r3 --force",
        ],
    );
    check(days(7), Problem, "certificate", &["ends in 7 days"]);
    check(days(0), Problem, "certificate", &["ends today"]);
    check(days(-2), Problem, "certificate", &["ended 2 days ago"]);
    let listener = |facts: &mut ClusterFacts| {
        let series = "grapevine_tls_certificate_expires_seconds{files=\"listener\"}".to_owned();
        facts.replicas[1]
            .metrics
            .push((series, 1_700_000_000.0 + 3.5 * 86_400.0));
    };
    check(
        listener,
        Problem,
        "certificate",
        &["of listener at r2 ends in 3 days"],
    );
}

#[test]
fn what_a_machine_lacks_is_named() {
    let of = |pointer: &'static str, value: Value| {
        move |facts: &mut ClusterFacts| {
            *facts.replicas[1].about.pointer_mut(pointer).expect(pointer) = value;
        }
    };
    check(
        of("/machine/files/open", json!(900_000)),
        Problem,
        "files",
        &["r2 has 900000 of 1000000 files open", "LimitNOFILE"],
    );
    check(
        of("/connections_fit", json!(400)),
        Advice,
        "files",
        &["hold 400 connections of limits.connections = 65536"],
    );
    check(
        of("/connections_fit", json!(9_000)),
        Info,
        "files",
        &["hold 9000"],
    );
    check(
        of(
            "/machine/cpu",
            json!({ "usable": 1, "quota": 0.5, "held_up": 0.0 }),
        ),
        Advice,
        "cpu",
        &["0.5 of a processor"],
    );
    check(
        of(
            "/machine/cpu",
            json!({ "usable": 2, "quota": 2.0, "held_up": 0.3 }),
        ),
        Advice,
        "cpu",
        &["held up for it in 30 %"],
    );
    check(
        of("/threads", json!(9)),
        Advice,
        "cpu",
        &["9 threads, and may use 4 processors"],
    );
    check(
        of("/memory/used", json!(u64::from(1_u32 << 30) * 9 / 10)),
        Problem,
        "memory",
        &["uses 90 % of its 1024 MiB", "refuses"],
    );
    check(
        of("/memory/used", json!(u64::from(1_u32 << 30) * 3 / 4)),
        Advice,
        "memory",
        &["uses 75 %"],
    );
    check(
        of("/body_bytes_max", json!(1_u64 << 31)),
        Advice,
        "memory",
        &["2048 MiB of bodies", "1024 MiB of memory"],
    );
    let mut unlimited = well();
    of("/memory", Value::Null)(&mut unlimited);
    assert_eq!(found(unlimited), [], "no limit, nothing to say");
}

#[test]
fn what_was_counted_is_told() {
    let of = |series: &'static str| {
        move |facts: &mut ClusterFacts| facts.replicas[0].metrics.push((series.to_owned(), 7.0))
    };
    check(
        of("grapevine_log_lines_dropped_total"),
        Advice,
        "log",
        &["r1 dropped 7 lines"],
    );
    check(
        of("grapevine_limits_reached_total{limit=\"body\"}"),
        Info,
        "limits",
        &["body (7 times)"],
    );
}

#[test]
fn open_ports_are_told() {
    let listen = |key: &'static str, value: Value| {
        move |facts: &mut ClusterFacts| facts.replicas[0].about["listen"][key] = value
    };
    check(
        listen("admin", "0.0.0.0:30001".into()),
        Problem,
        "admin_port",
        &["r1 is open", "no token", "admin.token"],
    );
    let with_token = |facts: &mut ClusterFacts| {
        listen("admin", "10.0.0.1:30001".into())(facts);
        listen("admin_token", true.into())(facts);
    };
    check(with_token, Info, "admin_port", &["plain HTTP"]);
    let without_keys = |facts: &mut ClusterFacts| {
        listen("data", "[::]:30000".into())(facts);
        listen("keys", false.into())(facts);
    };
    check(without_keys, Info, "data_port", &["without keys"]);
    check(
        listen("metrics", "0.0.0.0:29000".into()),
        Info,
        "metrics_port",
        &["r1"],
    );
}

/// A file that is good, on a machine that has what it wants.
fn good() -> ConfigFacts {
    ConfigFacts {
        path: "g.toml".to_owned(),
        replica: "r1".to_owned(),
        gossips: true,
        seeds: vec![seed("r2:30002")],
        ports: vec![port(PortState::Free)],
        workers: vec![tried("http://a:1", None), tried("http://b:1", None)],
        connections: (1_000, 1_000),
        files_max: Some(4_000),
        memory: (1 << 20, Some(1 << 30)),
        threads: (None, 4),
        udp_buffer_bytes: Some(212_992),
        settings: json!({ "cluster.policy": "\"prefix\"", "cluster.seed": "0" }),
        ..ConfigFacts::default()
    }
}

fn seed(name: &str) -> SeedFact {
    SeedFact {
        seed: name.to_owned(),
        addresses: Ok(vec!["10.0.0.2:30002".to_owned()]),
        is_own: false,
        route_mtu: Some((1_500, false)),
    }
}

fn port(state: PortState) -> PortFact {
    PortFact {
        setting: "admin.port",
        address: "127.0.0.1:30001".to_owned(),
        state,
    }
}

fn tried(url: &str, failed: Option<&str>) -> WorkerFact {
    WorkerFact {
        url: url.to_owned(),
        failed: failed.map(str::to_owned),
    }
}

fn check_file(
    plant: impl FnOnce(&mut ConfigFacts),
    severity: Severity,
    name: &str,
    parts: &[&str],
) {
    let mut config = good();
    plant(&mut config);
    let facts = Facts {
        config: Some(config),
        cluster: None,
    };
    is_one(&all(&facts), severity, name, parts);
}

#[test]
fn of_a_file_that_is_good_nothing_is_said_and_of_others_what_is_wrong() {
    let facts = |config| Facts {
        config: Some(config),
        cluster: None,
    };
    assert_eq!(all(&facts(good())), []);
    check_file(
        |file| file.mistakes = vec!["g.toml:3:1: wrong".to_owned()],
        Problem,
        "config",
        &["g.toml:3:1", "--check"],
    );
    check_file(
        |file| file.notes = vec!["no workers".to_owned()],
        Info,
        "config",
        &["no workers"],
    );
    check_file(
        |file| file.ports = vec![port(PortState::Taken)],
        Problem,
        "port",
        &["127.0.0.1:30001 (admin.port) is taken"],
    );
    check_file(
        |file| file.ports = vec![port(PortState::Refused("no such address".to_owned()))],
        Problem,
        "port",
        &["no such address"],
    );
    check_file(
        |file| file.ports = vec![port(PortState::Own); 3],
        Info,
        "port",
        &["r1 runs here already"],
    );
    check_file(
        |file| file.seeds[0].addresses = Err("no such name".to_owned()),
        Problem,
        "seeds",
        &["r2:30002 has no address", "no such name"],
    );
    check_file(
        |file| file.seeds[0].route_mtu = Some((1_220, false)),
        Problem,
        "mtu",
        &["1220 bytes; gossip needs 1228"],
    );
    check_file(
        |file| file.seeds[0].route_mtu = Some((1_240, true)),
        Problem,
        "mtu",
        &["gossip needs 1248"],
    );
    check_file(
        |file| file.seeds[0].is_own = true,
        Info,
        "seeds",
        &["no seed but itself"],
    );
    check_file(
        |file| file.gossips = false,
        Advice,
        "alone",
        &["no certificates for gossip", "grapevine ca init"],
    );
    check_file(
        |file| file.workers[1] = tried("http://b:1", Some("refused")),
        Advice,
        "worker",
        &["1 of 2 workers is not reached", "http://b:1 (refused)"],
    );
    check_file(
        |file| file.connections = (65_536, 500),
        Advice,
        "files",
        &["may open 4000 files", "ulimit -n"],
    );
    check_file(
        |file| file.memory.1 = Some(1 << 10),
        Advice,
        "memory",
        &["limits.body_bytes_total"],
    );
    check_file(
        |file| file.threads.0 = Some(64),
        Advice,
        "cpu",
        &["listen.threads = 64, and 4"],
    );
    check_file(
        |file| file.udp_buffer_bytes = Some(9),
        Advice,
        "udp_buffer",
        &["9 bytes"],
    );
    check_file(
        |file| file.admin_beyond_loopback = true,
        Info,
        "admin_port",
        &["plain HTTP"],
    );
    check_file(
        |file| file.data_without_keys = true,
        Info,
        "data_port",
        &["without keys"],
    );
    let certificate = |days| CertificateFact {
        setting: "tls.cert",
        file: "c.pem".to_owned(),
        days,
        renewal: "replace it".to_owned(),
    };
    check_file(
        |file| file.certificates = vec![certificate(90), certificate(3)],
        Problem,
        "certificate",
        &["c.pem (tls.cert) ends in 3 days", "replace it"],
    );
}

#[test]
fn a_file_that_differs_from_what_runs_is_told_by_name() {
    let mut config = good();
    config.settings["cluster.seed"] = "7".into();
    let facts = Facts {
        config: Some(config),
        cluster: Some(well()),
    };
    let parts = ["cluster.seed is 7 there, 0 runs", "at r1", "config reload"];
    is_one(&all(&facts), Advice, "file", &parts);
    let same = Facts {
        config: Some(good()),
        cluster: Some(well()),
    };
    assert_eq!(all(&same), []);
}

#[test]
fn the_worst_comes_first() {
    let mut cluster = well();
    cluster.cluster["replicas"][2]["leaving"] = true.into();
    cluster.cluster["replicas"][1]["version"] = "0.8.0".into();
    cluster.workers[0]["verdict"] = "stalled".into();
    let found = found(cluster);
    let severities: Vec<Severity> = found.iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [Problem, Advice, Info]);
}
