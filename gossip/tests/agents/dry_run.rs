//! Dry runs between agents with real sockets and certificates on loopback.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::running::{LIMIT, Running, authority};
use grapevine_gossip::config::Facts;
use grapevine_gossip::dry_run::{
    AskError, DryRun, DryRunAnswer, KeyParts, MARKS_MAX, REASON_BYTES_MAX, Refusal,
};
use grapevine_gossip::{Agent, Metrics, ReplicaId};
use tokio::time::timeout;

fn dry_runs(of: &Running, side: &str, outcome: &str) -> u64 {
    of.count(&format!(
        "gossip_dry_runs_total{{side=\"{side}\",outcome=\"{outcome}\"}} "
    ))
}

fn id(name: &str) -> ReplicaId {
    name.parse().expect("valid")
}

fn question(pool: &str) -> DryRun {
    DryRun {
        pool: pool.into(),
        key: KeyParts {
            model: 1,
            group: Some((2, 64)),
            home: 3,
            session: Some(4),
            user: None,
            stable_tokens: 5,
            prompt_tokens: 200_000,
            marks: (0..MARKS_MAX as u64)
                .map(|n| (n << 40, n as u32 * 700))
                .collect(),
        },
        at_us: None,
    }
}

/// Answers with what it was asked, so that the test sees what arrived.
fn decide(asked: DryRun, _: Option<Instant>) -> Option<DryRunAnswer> {
    (asked == question("known")).then(|| DryRunAnswer {
        worker: Some("http://10.0.0.1:8000".parse().expect("valid")),
        reason: "spill_bound".into(),
        ring: 1,
        settings: 2,
        heat: 3,
        home: None,
        expected_tokens: 4,
    })
}

#[tokio::test]
async fn peers_say_what_they_would_decide() {
    let authority = authority();
    let a = Running::of(&authority, "a", &[]).await;
    let b = Running::of(&authority, "b", &[a.seed()]).await;
    assert!(b.agent.ready_peers().is_empty(), "nobody said so yet");
    a.agent.set_ready(true);
    let listed = async {
        while b.agent.ready_peers() != [id("a")] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, listed).await.expect("a becomes ready");

    let ask = async |pool: &str| b.agent.ask(&id("a"), question(pool)).await;
    let refused = |refusal| Err(AskError::Refused(refusal));
    assert_eq!(ask("known").await, refused(Refusal::NotServed));
    a.agent.answer_dry_runs(Arc::new(decide));
    assert_eq!(ask("known").await.ok(), decide(question("known"), None));
    assert_eq!(ask("unknown").await, refused(Refusal::Declined));
    // A handler that breaks a limit is refused where it is, not held against its replica.
    a.agent.answer_dry_runs(Arc::new(|_, _| {
        Some(DryRunAnswer {
            reason: "r".repeat(REASON_BYTES_MAX + 1),
            ..DryRunAnswer::default()
        })
    }));
    assert_eq!(ask("known").await, refused(Refusal::Declined));

    assert_eq!(ask(&"m".repeat(257)).await, Err(AskError::Malformed));
    let nobody = b.agent.ask(&id("c"), question("known")).await;
    assert_eq!(nobody, Err(AskError::NotLinked));
    let itself = b.agent.ask(&id("b"), question("known")).await;
    assert_eq!(itself, Err(AskError::NotLinked));

    // An honest replica stops itself before it is struck.
    a.agent.answer_dry_runs(Arc::new(decide));
    let mut stopped = 0;
    for _ in 0..300 {
        match ask("known").await {
            Ok(_) => {}
            Err(AskError::TooMany) => stopped += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(stopped > 0);
    assert_eq!(dry_runs(&a, "answered", "too_many"), 0);
    assert_eq!(dry_runs(&b, "asked", "too_many"), stopped);
    assert_eq!(
        dry_runs(&a, "answered", "decided"),
        dry_runs(&b, "asked", "answered")
    );
    assert_eq!(dry_runs(&a, "answered", "not_served"), 1);
    assert_eq!(dry_runs(&a, "answered", "declined"), 2);
    assert_eq!(dry_runs(&b, "asked", "refused"), 3);
    assert_eq!(dry_runs(&b, "asked", "malformed"), 1);
    assert_eq!(dry_runs(&b, "asked", "not_linked"), 2);

    a.agent.shutdown().await;
    let gone = async {
        while !b.agent.ready_peers().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, gone).await.expect("a is not asked any more");
    b.agent.shutdown().await;
}

/// By the clock that the asker's frames of load show.
#[tokio::test]
async fn a_question_is_about_the_moment_that_the_asker_names() {
    let authority = authority();
    let a = Running::of(&authority, "a", &[]).await;
    let b = Running::of(&authority, "b", &[a.seed()]).await;
    let (heard, mut moments) = tokio::sync::mpsc::channel(4);
    a.agent.answer_dry_runs(Arc::new(move |_, at| {
        heard.try_send(at).expect("the test listens");
        None
    }));
    let ask = async |at_us: Option<u64>| {
        let question = DryRun {
            at_us,
            ..question("known")
        };
        b.agent.ask(&id("a"), question).await
    };
    let named = async {
        loop {
            // Before that it is declined without a look at what it is about.
            let answer = ask(Some(1_000)).await;
            if let Ok(moment) = moments.try_recv() {
                assert_eq!(answer, Err(AskError::Refused(Refusal::Declined)));
                return assert!(moment.is_some());
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    timeout(LIMIT, named).await.expect("a learns b's clock");
    let declined = ask(None).await;
    assert_eq!(declined, Err(AskError::Refused(Refusal::Declined)));
    assert_eq!(moments.recv().await, Some(None), "as of when it is asked");
    b.agent.shutdown().await;
    a.agent.shutdown().await;
}

#[tokio::test]
async fn a_cluster_of_one_has_nobody_to_ask() {
    let agent = Agent::solo("demo", "a", &Facts::default(), Metrics::default()).expect("valid");
    assert!(agent.ready_peers().is_empty());
    let asked = agent.ask(&id("b"), DryRun::default()).await;
    assert_eq!(asked, Err(AskError::NotLinked));
}
