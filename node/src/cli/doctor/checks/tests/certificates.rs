//! Certificates that end.

use super::check;
use crate::cli::doctor::facts::ClusterFacts;
use crate::cli::doctor::finding::Severity::{Advice, Problem};

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
