//! Each promise can be broken.

use super::super::fault::{Fault, Node};
use super::super::record::{Agreement, ReplicaState, Seen};
use super::*;
use grapevine_bench::tally::Summary;

fn failure(kind: &str, begun: bool) -> FailedRequest {
    FailedRequest {
        sent_ms: 5_000,
        failed_ms: 6_000,
        begun,
        replica: Some("r1".into()),
        worker: Some("w1".into()),
        kind: kind.into(),
    }
}

fn traffic(failures: Vec<FailedRequest>) -> TrafficReport {
    TrafficReport {
        windows: Vec::new(),
        totals: Summary {
            requests: 100,
            succeeded: 100 - failures.len() as u64,
            ..Summary::default()
        },
        failures,
        failures_beyond: 0,
        shed: 0,
    }
}

const LENIENT: Terms = Terms {
    may_refuse: true,
    ..Terms::STEADY
};

#[test]
fn a_failure_breaks_the_promise_unless_it_is_excused() {
    let excuse = Excuse::of(&Fault::Kill(Node::Replica(1)), "r1", 5_500).expect("it excuses");
    let excuses = [excuse];
    let cut = || vec![failure("cut", true)];
    assert!(requests(&traffic(Vec::new()), &[], &Terms::STEADY).held);
    assert!(!requests(&traffic(cut()), &[], &Terms::STEADY).held);
    assert!(requests(&traffic(cut()), &excuses, &Terms::STEADY).held);
    assert!(!streams(&traffic(cut()), &[]).held);
    assert!(streams(&traffic(cut()), &excuses).held);
    let refused = || vec![failure("status_503", false)];
    assert!(!requests(&traffic(refused()), &[], &Terms::STEADY).held);
    assert!(requests(&traffic(refused()), &[], &LENIENT).held);
    assert!(!requests(&traffic(cut()), &[], &LENIENT).held);
}

#[test]
fn nothing_answered_and_failures_unseen_are_no_success() {
    let mut none = traffic(Vec::new());
    none.totals.succeeded = 0;
    assert!(!requests(&none, &[], &Terms::STEADY).held);
    let mut beyond = traffic(Vec::new());
    beyond.failures_beyond = 1;
    assert!(!requests(&beyond, &[], &Terms::STEADY).held);
    let mut shed = traffic(Vec::new());
    shed.shed = 7;
    let judged = requests(&shed, &[], &Terms::STEADY);
    assert!(!judged.held && judged.seen.contains("7 were due and not sent"));
    assert!(requests(&shed, &[], &LENIENT).held, "more than was wanted");
}

fn sample(at_ms: u64, rings: &[&str], rss: f64) -> Sample {
    let replica = |(index, ring): (usize, &&str)| ReplicaSample {
        name: format!("r{}", index + 1),
        state: ReplicaState::Up,
        seen: Some(Seen {
            ready: true,
            ring: (*ring).to_owned(),
            registry: "x".into(),
            workers: 4,
            live_peers: 2,
            isolated: false,
            in_flight: 0,
        }),
        pid: Some(1),
        rss_bytes: Some(rss as u64),
        open_files: Some(50),
        cpu_s: Some(at_ms as f64),
    };
    Sample {
        at_ms,
        replicas: rings.iter().enumerate().map(replica).collect(),
        agreement: None,
        agreement_idle: Some(Agreement {
            asked: 10,
            equal: if rings[0] == rings[rings.len() - 1] {
                10
            } else {
                0
            },
        }),
    }
}

#[test]
fn one_other_ring_is_one_too_many() {
    let same = [sample(0, &["a", "a"], 0.0), sample(1, &["a", "a"], 0.0)];
    assert!(one_ring(&same).held && agreement(&same).held);
    let apart = [sample(0, &["a", "a"], 0.0), sample(1, &["a", "b"], 0.0)];
    assert!(!one_ring(&apart).held && !agreement(&apart).held);
    let later = [sample(0, &["a", "a"], 0.0), sample(1, &["b", "b"], 0.0)];
    assert!(!one_ring(&later).held);
    let mut starting = sample(1, &["a", "none"], 0.0);
    assert!(!one_ring(&[starting.clone()]).held, "ready without workers");
    let seen = starting.replicas[1].seen.as_mut().expect("it is up");
    seen.ready = false;
    assert!(one_ring(&[starting]).held, "still learning");
    assert!(!one_ring(&[]).held && !agreement(&[]).held, "nothing seen");
}

#[test]
fn a_live_replica_that_is_called_dead_is_one_too_many() {
    let well = sample(0, &["a", "a", "a"], 0.0);
    assert!(liveness(std::slice::from_ref(&well)).held);
    let mut missing = well.clone();
    missing.replicas[1].seen.as_mut().expect("up").live_peers = 1;
    assert!(!liveness(&[well.clone(), missing.clone()]).held);
    // At first it still learns who is there; but it has to.
    assert!(liveness(&[missing.clone(), well.clone()]).held);
    assert!(!liveness(std::slice::from_ref(&missing)).held);
    // Who gives no answer says nothing.
    missing.replicas[1].seen = None;
    assert!(liveness(&[well, missing]).held);
    assert!(!liveness(&[]).held, "nothing seen");
}

#[test]
fn a_leak_is_seen_and_a_plateau_is_none() {
    let hour = |mib: fn(f64) -> f64| -> Vec<Sample> {
        let at = (0..360).map(|step| step * 10_000);
        at.map(|at| sample(at, &["a"], 1_048_576.0 * mib(at as f64 / 3.6e6)))
            .collect()
    };
    let judged = |samples: &[Sample]| flat(samples).iter().map(|p| p.held).collect::<Vec<_>>();
    assert_eq!(judged(&hour(|_| 80.0)), [true, true]);
    assert_eq!(
        judged(&hour(|hour| 80.0 + 200.0 * hour.min(0.1))),
        [true, true]
    );
    let leak = hour(|hour| 80.0 + 20.0 * hour);
    assert_eq!(judged(&leak), [false, true]);
    let young = &leak[..120];
    assert_eq!(judged(young), [true, true], "ten minutes of warm life");
    assert!(flat(young)[0].seen.contains("long enough"));
}

#[test]
fn caches_that_go_cold_are_seen() {
    let window = |second: u64, cached_tokens| Window {
        at_ms: second * 1_000,
        length_ms: 1_000,
        prompt_tokens: 100,
        cached_tokens,
        ..Window::default()
    };
    let windows: Vec<Window> = (0..60)
        .map(|second| window(second, if (30..45).contains(&second) { 60 } else { 80 }))
        .collect();
    assert!(hit_dip(&windows, 30_000, 60_000, 10).held);
    assert!(!hit_dip(&windows, 30_000, 60_000, 9).held);
    assert!(!hit_dip(&windows, 30_000, 45_000, 19).held);
}

#[test]
fn loud_logs_break_the_promise() {
    assert!(quiet_logs(&Loud::default()).held);
    let loud = Loud {
        count: 1,
        lines: vec!["r1: panicked at".into()],
    };
    assert!(!quiet_logs(&loud).held);
}
