//! Dry runs against peers that answer nothing, never, or something else.

use std::time::Duration;

use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use tokio_util::task::TaskTracker;

use super::tests::{LIMIT, start};
use super::*;
use crate::dry_run::{Refusal, Reply};
use crate::frame::{self, Header};
use crate::identity;
use crate::transport::Receiver;
use crate::wire::{self, HelloAck};

/// What a false peer does with a request.
#[derive(Clone, Copy)]
enum Manner {
    /// Ends the stream: a release that knows no such kind.
    Ends,
    /// Holds it.
    Holds,
    /// Answers with a frame of another kind.
    Confuses,
    /// Answers with a frame that is damaged.
    Damages,
}

/// A socket that shakes hands as replica `z` and then behaves in this manner.
fn false_peer(authority: &identity::Authority, manner: Manner, tasks: &TaskTracker) -> SocketAddr {
    let leaf = identity::issue(&authority.cert_pem, &authority.key_pem, "demo", "z").expect("leaf");
    let identity = Identity::from_pem(
        "demo",
        "z",
        &authority.cert_pem,
        &leaf.cert_pem,
        &leaf.key_pem,
    )
    .expect("identity");
    let server = identity::server_config(&identity).expect("config");
    let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).expect("binds");
    let endpoint = Endpoint::new(
        EndpointConfig::default(),
        Some(server),
        socket,
        Arc::new(TokioRuntime),
    )
    .expect("endpoint");
    let address = endpoint.local_addr().expect("bound");
    let of_one = tasks.clone();
    tasks.spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            of_one.spawn(async move {
                let Ok(connection) = incoming.await else {
                    return;
                };
                let mut held = Vec::new();
                let mut is_greeted = false;
                while let Ok((mut send, mut receive)) = connection.accept_bi().await {
                    let _ = receive.read_to_end(frame::FRAME_BYTES_MAX).await;
                    let ack = Message::HelloAck(HelloAck {
                        replica: "z".parse().expect("valid"),
                        generation_seen: 0,
                        hints: Vec::new(),
                    });
                    let mut bytes = Vec::new();
                    wire::encode(&mut bytes, 5, 0, &ack).expect("fits");
                    match manner {
                        _ if !is_greeted => is_greeted = true,
                        Manner::Ends => bytes.clear(),
                        Manner::Holds => {
                            held.push((send, receive));
                            continue;
                        }
                        Manner::Confuses => {}
                        Manner::Damages => bytes[30] ^= 1,
                    }
                    let _ = send.write_all(&bytes).await;
                    let _ = send.finish();
                }
            });
        }
    });
    address
}

async fn outcome(manner: Manner) -> AskError {
    let authority = identity::create("demo").expect("authority");
    let tasks = TaskTracker::new();
    let address = false_peer(&authority, manner, &tasks);
    let agent = start(&authority, &[address.to_string()]).await;
    let peer: ReplicaId = "z".parse().expect("valid");
    let asked = async {
        loop {
            match agent.ask(&peer, DryRun::default()).await {
                Err(AskError::NotLinked) => tokio::time::sleep(Duration::from_millis(5)).await,
                other => return other.expect_err("no decision"),
            }
        }
    };
    let error = timeout(LIMIT, asked).await.expect("linked in time");
    assert!(agent.ready_peers().is_empty(), "it never gossiped");
    agent.shutdown().await;
    error
}

#[tokio::test]
async fn a_peer_of_an_earlier_release_is_too_old() {
    assert_eq!(outcome(Manner::Ends).await, AskError::TooOld);
}

#[tokio::test]
async fn a_silent_peer_is_waited_for_a_second() {
    let started = Instant::now();
    assert_eq!(outcome(Manner::Holds).await, AskError::TimedOut);
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn an_answer_that_is_none_is_broken() {
    assert_eq!(outcome(Manner::Confuses).await, AskError::Broken);
    assert_eq!(outcome(Manner::Damages).await, AskError::Broken);
}

/// What a peer is answered.
fn asked(agent: &Agent, peer: &ReplicaId) -> Vec<Message> {
    let question = Message::DryRunRequest(Arc::default());
    let mut bytes = Vec::new();
    wire::encode(&mut bytes, 5, 0, &question).expect("fits");
    let header = Header::read(&bytes).expect("whole");
    agent.0.driver.message(peer, header, question, bytes.len())
}

/// Past its allowance a peer is refused and struck; at the tenth strike it is cut off.
#[tokio::test]
async fn a_flood_of_questions_is_struck() {
    let authority = identity::create("demo").expect("authority");
    let agent = start(&authority, &[]).await;
    let handler: DryRunHandler = Arc::new(|_, _| Some(DryRunAnswer::default()));
    agent.answer_dry_runs(handler);
    let peer: ReplicaId = "b".parse().expect("valid");
    let replies: Vec<_> = (0..500)
        .flat_map(|_| asked(&agent, &peer))
        .map(|reply| match reply {
            Message::DryRunAnswer(reply) => *reply,
            other => panic!("{other:?}"),
        })
        .collect();
    let decided = |reply: &&Reply| matches!(reply, Reply::Decided(_));
    let refused = Reply::Refused(Refusal::TooMany);
    assert!((100..300).contains(&replies.iter().filter(decided).count()));
    assert_eq!(replies.last(), Some(&refused));
    let why = crate::metrics::Why { reason: "too_many" };
    let strikes = agent.0.driver.metrics().refusals.get_or_create(&why).get();
    assert_eq!(
        strikes,
        replies.iter().filter(|reply| **reply == refused).count() as u64
    );
    // Others are answered all the same.
    let other: ReplicaId = "c".parse().expect("valid");
    let answer = asked(&agent, &other);
    assert!(
        matches!(&answer[..], [Message::DryRunAnswer(reply)] if matches!(**reply, Reply::Decided(_)))
    );
    agent.shutdown().await;
}
