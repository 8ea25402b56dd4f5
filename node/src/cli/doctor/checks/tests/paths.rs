//! Paths between replicas.

use super::{check, found, well};
use crate::cli::doctor::facts::{ClusterFacts, DataPort};
use crate::cli::doctor::finding::Severity::{Advice, Info, Problem};
use serde_json::json;

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
    let ends = |facts: &mut ClusterFacts| {
        data_port(facts);
        facts.cluster["replicas"][2]["leaving"] = true.into();
    };
    check(ends, Info, "replica", &["r3 is leaving"]);
}
