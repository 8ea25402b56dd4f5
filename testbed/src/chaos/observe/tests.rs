//! The observer against small servers that answer as an admin API does.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;
use grapevine_bench::client::Target;

const LIMIT: Duration = Duration::from_secs(20);
const EVERY: Duration = Duration::from_millis(20);

/// A replica of this digest that sends everything to this worker.
async fn replica(digest: &'static str, worker: &'static str) -> (Target, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port 0");
    let target = format!("http://{}", listener.local_addr().expect("bound"));
    let serve = async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(move |request: Request<_>| async move {
                let text = answer(&request, digest, worker);
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
            });
            connections.spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    };
    let task = AbortOnDropHandle::new(tokio::spawn(serve));
    (target.parse().expect("URL"), task)
}

fn answer<B>(request: &Request<B>, digest: &str, worker: &str) -> String {
    let token = request.headers().get("authorization");
    if token.is_none_or(|token| token != "Bearer secret") {
        return "no token".to_owned();
    }
    match request.uri().path() {
        "/ring" => {
            format!(r#"{{"digest":"{digest}","workers":4,"registry":{{"crc":"0a"}},"pools":[]}}"#)
        }
        "/metrics" => {
            "grapevine_ready 1\ngrapevine_gossip_peers_live 1\ngrapevine_gossip_isolated 0\n\
             grapevine_requests_active 7\nprocess_resident_memory_bytes 5000\n# EOF\n"
                .to_owned()
        }
        // With regard to load this worker, without it always the same one.
        "/explain"
            if request
                .uri()
                .query()
                .unwrap_or_default()
                .contains("load=ignore") =>
        {
            r#"{"worker":"home","order":[]}"#.to_owned()
        }
        _ => format!(r#"{{"worker":"{worker}","order":[]}}"#),
    }
}

fn seat(number: usize, admin: Option<Target>) -> Seat {
    Seat {
        node: Node::Replica(number),
        name: format!("r{number}"),
        state: SeatState::Running,
        admin,
        token: Some("secret".into()),
        metrics: None,
        http: None,
        pid: None,
    }
}

fn prompts() -> Vec<Ask> {
    let prompts = grapevine_bench::load::Prompts::default();
    (0..3).map(|number| prompts.ask(number)).collect()
}

#[tokio::test]
async fn what_replicas_say_is_sampled_and_a_dead_one_is_silent() {
    let (first, _first) = replica("aa", "w1").await;
    let (second, second_task) = replica("bb", "w2").await;
    let mut all = vec![seat(1, Some(first)), seat(2, Some(second)), seat(3, None)];
    all[2].state = SeatState::Stopped;
    all[0].pid = Some(std::process::id());
    let worker = Seat {
        node: Node::Worker(1),
        ..seat(9, None)
    };
    all.push(worker);
    let (_seats, receiver) = watch::channel(all);
    let observer = Observer::start(receiver, EVERY, prompts(), Origin::now());
    let asked = observer.until(LIMIT, |sample| {
        sample
            .agreement
            .is_some_and(|agreement| agreement.asked > 0)
    });
    let sample = asked.await.expect("two replicas answer");
    let states: Vec<_> = sample
        .replicas
        .iter()
        .map(|r| (r.name.as_str(), r.state))
        .collect();
    let (up, stopped) = (ReplicaState::Up, ReplicaState::Stopped);
    assert_eq!(states, [("r1", up), ("r2", up), ("r3", stopped)]);
    assert_eq!(
        (sample.rings(), sample.registries()),
        (vec!["aa", "bb"], vec!["0a"])
    );
    assert_eq!(sample.agreement, Some(Agreement { asked: 3, equal: 0 }));
    assert_eq!(
        sample.agreement_idle,
        Some(Agreement { asked: 3, equal: 3 })
    );
    let seen = sample.replicas[1].seen.clone().expect("up");
    assert_eq!(
        (seen.ready, seen.in_flight, seen.live_peers, seen.workers),
        (true, 7, 1, 4)
    );
    assert_eq!(
        sample.replicas[1].rss_bytes,
        Some(5_000),
        "as it says itself"
    );
    assert!(
        sample.replicas[0].rss_bytes > Some(100 << 10),
        "as the system says"
    );
    assert!(sample.replicas[0].open_files.is_some() && sample.replicas[1].open_files.is_none());

    let fault = observer.mark(MarkKind::Fault, Some("r2"), "kill r2");
    drop(second_task);
    let silent = observer.until(LIMIT, |sample| {
        sample.replicas[1].state == ReplicaState::Silent && sample.agreement.is_some()
    });
    let sample = silent.await.expect("a dead one does not answer");
    assert_eq!(
        (sample.rings(), sample.agreement),
        (vec!["aa"], Some(Agreement::default())),
        "one alone agrees with nobody"
    );
    observer.end(fault);
    observer.end(fault);
    let never = observer.until(Duration::from_millis(100), |sample| {
        sample.replicas.is_empty()
    });
    assert_eq!(never.await, None);
    let observed = observer.finish();
    assert!(observed.samples.len() >= 2 && observed.notes.is_empty());
    let mark = &observed.marks[0];
    assert!(mark.until_ms >= Some(mark.at_ms) && mark.node.as_deref() == Some("r2"));
}

#[tokio::test]
async fn marks_are_bounded_and_counted() {
    let (_seats, receiver) = watch::channel(Vec::new());
    let observer = Observer::start(receiver, EVERY, Vec::new(), Origin::now());
    let ids: Vec<MarkId> = (0..MARKS_MAX + 3)
        .map(|number| observer.mark(MarkKind::Note, None, number.to_string()))
        .collect();
    assert_eq!(
        (ids[MARKS_MAX - 1], ids[MARKS_MAX]),
        (MarkId(Some(MARKS_MAX - 1)), MarkId(None))
    );
    observer.end(ids[MARKS_MAX]);
    let observed = observer.finish();
    assert_eq!(observed.marks.len(), MARKS_MAX);
    assert!(observed.marks.iter().all(|mark| mark.until_ms.is_none()));
    assert_eq!(observed.notes, ["3 further marks were not kept"]);
}

#[test]
fn agreement_counts_what_all_were_asked_and_all_answered() {
    let placement = |worker: &str| look::Placement {
        now: Some(worker.to_owned()).filter(|worker| !worker.is_empty()),
        idle: None,
    };
    let all = |workers: &[&str]| workers.iter().map(|w| placement(w)).collect::<Placements>();
    let (long, short, none) = (all(&["a", "b", ""]), all(&["a", "c"]), all(&[]));
    let of = |answers: &[&Placements]| {
        let found = agreement(answers, |placement| &placement.now);
        (found.asked, found.equal)
    };
    assert_eq!(of(&[&long, &short]), (2, 1));
    assert_eq!(of(&[&long, &long]), (3, 2), "no worker is no agreement");
    assert_eq!(
        (of(&[&long]), of(&[&long, &none]), of(&[])),
        ((0, 0), (0, 0), (0, 0))
    );
}
