use super::*;
use crate::tenants::metrics::{TenantLabels, TenantReasonLabels};

/// Names with their suffixes, as the README's table gives them. A family without series is not encoded,
/// so each gets one.
fn registered() -> Vec<String> {
    let metrics = Metrics::new();
    let worker: Arc<str> = "w".into();
    let endpoint = "e";
    let of_worker = WorkerLabels {
        worker: Arc::clone(&worker),
    };
    drop(metrics.requests.get_or_create(&RequestLabels {
        endpoint,
        outcome: "o",
    }));
    drop(
        metrics
            .request_seconds
            .get_or_create(&EndpointLabels { endpoint }),
    );
    let of_model = ModelLabels {
        model: Arc::clone(&worker),
    };
    for family in [
        &metrics.first_token_seconds,
        &metrics.inter_token_seconds,
        &metrics.stream_pause_seconds,
    ] {
        drop(family.get_or_create(&of_model));
    }
    drop(
        metrics
            .placements
            .get_or_create(&ReasonLabels { reason: "r" }),
    );
    metrics.health.fill(&worker);
    drop(
        metrics
            .not_ready
            .get_or_create(&ReasonLabels { reason: "r" }),
    );
    let models = vec![(Arc::clone(&worker), 1)];
    metrics.admission.show_models(models, Vec::new());
    drop(metrics.attempts.get_or_create(&AttemptLabels {
        worker,
        result: "r",
    }));
    for family in [
        &metrics.prompt_tokens,
        &metrics.cached_tokens,
        &metrics.expected_tokens,
        &metrics.completion_tokens,
    ] {
        drop(family.get_or_create(&of_worker));
    }
    drop(metrics.worker_in_flight.get_or_create(&of_worker));
    drop(metrics.worker_in_flight_cluster.get_or_create(&of_worker));
    drop(metrics.probes.get_or_create(&ResultLabels { result: "r" }));
    drop(metrics.health_claims.get_or_create(&ClaimLabels {
        claim: "c",
        believed: "yes",
    }));
    drop(metrics.errors.get_or_create(&ErrorLabels { code: "c" }));
    metrics.limit_reached("l");
    metrics.proxy_header("r");
    metrics.query_of_death("found");
    drop(metrics.seats("p", "l"));
    drop(
        metrics
            .failovers
            .get_or_create(&ResultLabels { result: "r" }),
    );
    drop(metrics.agreement_samples.get_or_create(&AgreementLabels {
        result: "r",
        prompt: "p",
    }));
    drop(
        metrics
            .sketch_events
            .get_or_create(&EventLabels { event: "e" }),
    );
    for family in [
        &metrics.warmup.ended,
        &metrics.warmup.prompts,
        &metrics.cache.requests,
        &metrics.cache.answers,
        &metrics.trace.spans,
        &metrics.config_reloads,
        &metrics.response_searches,
    ] {
        drop(family.get_or_create(&ResultLabels { result: "r" }));
    }
    metrics.tls.handshake("r");
    metrics.tls.reloaded("f", "r");
    metrics.tls.expires("f", Some(std::time::SystemTime::now()));
    for family in [
        &metrics.cache.bypassed,
        &metrics.cache.evicted,
        &metrics.admin_refusals,
    ] {
        drop(family.get_or_create(&ReasonLabels { reason: "r" }));
    }
    let tenant: Arc<str> = "t".into();
    let labels = TenantLabels {
        tenant: Arc::clone(&tenant),
    };
    drop(metrics.tenants.requests.get_or_create(&labels));
    let reason = "r";
    let labels = TenantReasonLabels { tenant, reason };
    drop(metrics.tenants.refusals.get_or_create(&labels));
    let events = &metrics.warmup.prompt_events;
    drop(events.get_or_create(&EventLabels { event: "e" }));
    let encoded = metrics.encode();
    let mut names: Vec<String> = encoded
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| match line.split_once(' ') {
            Some((name, "counter")) => format!("{name}_total"),
            Some((name, _)) => name.to_owned(),
            None => line.to_owned(),
        })
        .collect();
    names.sort();
    names
}

#[test]
fn the_table_in_the_readme_lists_every_metric() {
    let readme = include_str!("../../README.md");
    let mut listed: Vec<String> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("| `grapevine_"))
        .filter_map(|line| line.split_once('`'))
        .filter(|(_, rest)| rest.matches('|').count() == 4)
        .map(|(name, _)| format!("grapevine_{name}"))
        .collect();
    listed.sort();
    assert_eq!(listed, registered());
}

#[test]
fn a_worker_that_left_leaves_no_series() {
    let metrics = Metrics::new();
    let worker: Arc<str> = "http://w:1".into();
    let labels = WorkerLabels {
        worker: Arc::clone(&worker),
    };
    metrics.health.fill(&worker);
    metrics.cached_tokens.get_or_create(&labels).inc();
    let attempts = AttemptLabels {
        worker: Arc::clone(&worker),
        result: crate::proxy::ATTEMPT_RESULTS[0],
    };
    metrics.attempts.get_or_create(&attempts).inc();
    assert!(metrics.encode().contains("http://w:1"));
    metrics.forget_worker(&worker);
    assert!(!metrics.encode().contains("http://w:1"));
}

/// The guide must not tell anybody to look at, or alarm on, what is not there.
#[test]
fn the_operations_guide_names_metrics_that_exist() {
    let readme = include_str!("../../README.md");
    let gossip = include_str!("../../../gossip/src/metrics.rs");
    let guide = include_str!("../../OPERATIONS.md");
    let (_, alarms) = guide.split_once("## Alarms").expect("it has alarms");
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let names = alarms.split(|c: char| !is_name(c));
    let names = names.filter_map(|word| word.strip_prefix("grapevine_"));
    let mut checked = 0;
    for name in names {
        let known = match name.strip_prefix("gossip_") {
            Some(name) => gossip.contains(&format!("\"{}\"", name.trim_end_matches("_total"))),
            None => readme.contains(&format!("`grapevine_{name}`")),
        };
        assert!(known, "grapevine_{name}");
        checked += 1;
    }
    assert!(checked > 20, "{checked} names");
}
