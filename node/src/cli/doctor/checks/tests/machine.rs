//! What a machine has for a replica, and what was counted there.

use super::{check, found, well};
use crate::cli::doctor::facts::ClusterFacts;
use crate::cli::doctor::finding::Severity::{Advice, Info, Problem};
use serde_json::{Value, json};

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
        of("/connections_fit", json!(1)),
        Problem,
        "files",
        &["hold 1 connections"],
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
        &["held up for it in 30 % of the periods of the last hour, or since its start"],
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
fn requests_without_room_are_told_and_those_of_a_keys_own_limits_are_not() {
    let of = |result: &'static str, times: f64, let_in: f64| {
        move |facts: &mut ClusterFacts| {
            let series = |class: &str, result: &str| {
                format!("grapevine_admissions_total{{class=\"{class}\",result=\"{result}\"}}")
            };
            facts.replicas[0].metrics.extend([
                (series("low", result), times),
                (series("normal", result), times),
                (series("normal", "admitted"), let_in),
            ]);
        }
    };
    let parts = [
        "r1 had no room for 40 requests since it started, and let in 60",
        "that a full queue refused (40)",
        "add workers",
    ];
    check(of("queue_full", 20.0, 60.0), Advice, "limits", &parts);
    let parts = ["that waited too long (2)"];
    check(of("queue_timeout", 1.0, 998.0), Info, "limits", &parts);
    for result in ["tenant_requests", "request_rate", "client_left"] {
        let mut facts = well();
        of(result, 20.0, 60.0)(&mut facts);
        assert_eq!(found(facts), [], "{result}");
    }
}
