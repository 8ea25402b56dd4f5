//! Sums of made-up outcomes.

use super::*;
use crate::client::{Complaint, Failure, Usage};

#[test]
fn sums() {
    let mut tally = Tally::default();
    let good = Outcome {
        latency: Duration::from_millis(100),
        first_event: Some(Duration::from_millis(9)),
        first_token: Some(Duration::from_millis(10)),
        gaps: vec![Duration::from_millis(5); 3],
        usage: Some(Usage {
            prompt: 100,
            completion: 4,
            cached: Some(50),
        }),
        worker: Some("w1".into()),
        ..Outcome::default()
    };
    tally.add(&good, Duration::from_millis(7));
    tally.add(
        &Outcome {
            failure: Some(Failure::Cut),
            ..good.clone()
        },
        Duration::ZERO,
    );
    tally.add(
        &Outcome {
            failure: Some(Failure::Status(503)),
            complaint: Some(Complaint {
                code: "no_worker".into(),
                message: "none".into(),
            }),
            ..Outcome::default()
        },
        Duration::ZERO,
    );
    let summary = tally.summary(Duration::from_secs(2));
    assert_eq!(
        (
            summary.requests,
            summary.succeeded,
            summary.failed_before_begin
        ),
        (3, 1, 1)
    );
    assert_eq!(
        summary.failures.keys().collect::<Vec<_>>(),
        ["cut", "status_503"]
    );
    assert!(
        (summary.ttft.p50_ms - 17.0).abs() < 0.1,
        "{:?}",
        summary.ttft
    );
    assert_eq!(
        (summary.gap.count, summary.hit_rate, summary.workers["w1"]),
        (3, 0.5, 2),
        "times are of requests that were answered whole"
    );
    assert_eq!((summary.tpot.count, summary.tpot.p50_ms.round()), (1, 30.0));
    assert_eq!(
        (summary.answer_events, summary.answer_tokens),
        (4, 4),
        "and so are tokens"
    );
    let code = summary
        .errors
        .iter()
        .find(|error| error.code == "no_worker");
    assert_eq!(code.expect("counted").message, "none");
    assert!(summary.to_string().contains("status_503 no_worker: none"));
    let mut twice = Tally::default();
    twice.merge(&tally);
    twice.merge(&tally);
    let twice = twice.summary(Duration::from_secs(4));
    assert_eq!(
        (twice.requests, twice.ttft.count, twice.workers["w1"]),
        (6, 2, 4)
    );
    assert_eq!((twice.failures["cut"], twice.hit_rate), (2, 0.5));
}

#[test]
fn rates_are_over_the_time_in_which_requests_were_sent_or_answered() {
    let mut tally = Tally::default();
    let good = Outcome {
        usage: Some(Usage {
            prompt: 1,
            completion: 10,
            cached: None,
        }),
        ..Outcome::default()
    };
    for _ in 0..20 {
        tally.add(&good, Duration::ZERO);
    }
    let hangs = Outcome {
        failure: Some(Failure::Timeout),
        ..Outcome::default()
    };
    tally.add(&hangs, Duration::ZERO);
    let summary = tally.summary(Took {
        elapsed: Duration::from_secs(70),
        active: Duration::from_secs(10),
        late: 1,
    });
    assert_eq!((summary.elapsed_s, summary.active_s), (70.0, 10.0));
    assert_eq!(
        (summary.requests_per_s, summary.answered_per_s()),
        (2.0, 2.0)
    );
    assert_eq!(summary.answer_tokens_per_s(), 20.0);
    let text = summary.to_string();
    assert!(
        text.contains("21 in 10.0 s (2.0/s), 20 succeeded"),
        "{text}"
    );
    assert!(text.contains("waited     60.0 s more"), "{text}");
}

#[test]
fn replies_that_do_not_tell_of_caches_do_not_count_as_misses() {
    let mut tally = Tally::default();
    for cached in [None, Some(30)] {
        let usage = Some(Usage {
            prompt: 100,
            completion: 1,
            cached,
        });
        let outcome = Outcome {
            usage,
            ..Outcome::default()
        };
        tally.add(&outcome, Duration::ZERO);
    }
    let summary = tally.summary(Duration::from_secs(1));
    assert_eq!(
        (summary.prompt_tokens, summary.prompt_tokens_told),
        (200, 100)
    );
    assert_eq!(summary.hit_rate, 0.3);
}

#[test]
fn codes_without_end_are_counted_by_kind() {
    let mut tally = Tally::default();
    for number in 0..1_000 {
        let complaint = Complaint {
            code: format!("c{number}"),
            message: String::new(),
        };
        let outcome = Outcome {
            failure: Some(Failure::Status(400)),
            complaint: Some(complaint),
            ..Outcome::default()
        };
        tally.add(&outcome, Duration::ZERO);
    }
    let errors = tally.summary(Duration::from_secs(1)).errors;
    assert_eq!(errors.len(), ERRORS_MAX + 1);
    assert_eq!(errors.iter().map(|error| error.count).sum::<u64>(), 1_000);
}

#[test]
fn error_events_that_each_have_a_code_of_their_own_fill_no_memory() {
    let mut all = Tally::default();
    for round in 0..10 {
        let mut tally = Tally::default();
        for number in 0..100 {
            let code = format!("c{round}-{number}");
            let outcome = Outcome {
                failure: Some(Failure::ErrorEvent(code.clone())),
                complaint: Some(Complaint {
                    code,
                    message: String::new(),
                }),
                ..Outcome::default()
            };
            tally.add(&outcome, Duration::ZERO);
        }
        all.merge(&tally);
    }
    let cut = Outcome {
        failure: Some(Failure::Cut),
        ..Outcome::default()
    };
    all.add(&cut, Duration::ZERO);
    let summary = all.summary(Duration::from_secs(1));
    assert_eq!(summary.failures[OTHER_EVENT], 1_000 - KINDS_MAX as u64);
    assert_eq!(summary.failures["cut"], 1, "kinds of our own are all told");
    assert_eq!(summary.failures.len(), KINDS_MAX + 2);
    assert_eq!(summary.errors.len(), KINDS_MAX + 2);
    let counts = [
        summary.failures.values().sum::<u64>(),
        summary.errors.iter().map(|error| error.count).sum(),
    ];
    assert_eq!(counts, [1_001; 2]);
}

#[test]
fn nothing_is_not_a_division_by_zero() {
    let summary = Tally::default().summary(Duration::ZERO);
    assert_eq!((summary.hit_rate, summary.latency), (0.0, Times::default()));
}
