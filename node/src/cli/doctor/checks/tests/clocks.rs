//! Clocks of replicas, workers and this machine.

use super::{check, found, is_one, well};
use crate::cli::doctor::facts::ClusterFacts;
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::finding::Severity::{Advice, Info, Problem};
use serde_json::json;

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
