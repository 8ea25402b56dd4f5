//! Agents with real sockets and certificates on loopback, each on a free port.

use std::sync::Arc;
use std::time::Duration;

use crate::running::{LIMIT, Running, authority, issue, until};
use grapevine_gossip::config::Facts;
use grapevine_gossip::identity::{self, Authority};
use grapevine_gossip::load::Load;
use grapevine_gossip::view::View;
use grapevine_gossip::worker::{Labels, RawWorker, Source, WorkerId, WorkerSpec};
use grapevine_gossip::{Agent, Metrics};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout};

async fn start(authority: &Authority, replica: &str, seeds: &[String]) -> Running {
    Running::start(issue(authority, "demo", replica), seeds).await
}

fn worker(port: u16) -> (WorkerId, WorkerSpec) {
    let spec = WorkerSpec::new(RawWorker::at(format!("http://127.0.0.1:{port}"))).expect("spec");
    (spec.default_id(), spec)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_agree_on_workers_and_load() {
    let authority = authority();
    let a = start(&authority, "a", &[]).await;
    // Any order, a dead one, the own address through another's list: all harmless.
    let dead = UdpSocket::bind("127.0.0.1:0").await.expect("socket");
    let dead = dead.local_addr().expect("bound").to_string();
    let b = start(&authority, "b", &[dead.clone(), a.seed()]).await;
    let c = start(&authority, "c", &[b.seed(), dead]).await;
    let all = [&a, &b, &c];
    for replica in all {
        replica.becomes_ready().await;
        replica.sees_live(3).await;
    }

    let (id, spec) = worker(8000);
    let started = Instant::now();
    let ack = b
        .agent
        .put_worker(id.clone(), Source::Admin, spec)
        .await
        .expect("added");
    assert!(ack.replicated && ack.confirmed_by >= 1, "{ack:?}");
    for replica in all {
        replica
            .sees("the worker", |view| view.worker(&id).is_some())
            .await;
    }
    println!("added everywhere after {:?}", started.elapsed());
    assert_eq!(a.agent.view().registry(), b.agent.view().registry());
    assert_eq!(a.agent.view().registry(), c.agent.view().registry());

    let cells = all.map(|replica| replica.agent.load().cell(&id));
    cells[0].add(Load {
        requests: 3,
        prefill_tokens: 100,
        context_tokens: 200,
    });
    let heard = timeout(LIMIT, async {
        while cells[1].others().requests < 3.0 || cells[2].others().requests < 3.0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    heard.await.expect("load reaches the others");
    assert_eq!(cells[0].others().requests, 0.0);

    c.agent
        .remove_worker(&id, Source::Admin)
        .await
        .expect("removed");
    for replica in all {
        replica
            .sees("the removal", |view| view.workers().is_empty())
            .await;
    }
    assert!(
        c.agent.remove_worker(&id, Source::Admin).await.is_err(),
        "no such worker"
    );
    for replica in all {
        replica.agent.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaving_replica_is_gone_at_once_and_a_newcomer_takes_the_registry() {
    let authority = authority();
    let a = start(&authority, "a", &[]).await;
    a.becomes_ready().await;
    let (id, spec) = worker(8000);
    let alone = a
        .agent
        .put_worker(id.clone(), Source::Admin, spec)
        .await
        .expect("added");
    assert!(!alone.replicated);
    let b = start(&authority, "b", &[a.seed()]).await;
    b.becomes_ready().await;
    assert!(
        b.agent.view().worker(&id).is_some(),
        "ready means that the registry was taken"
    );
    a.sees_live(2).await;
    assert_eq!(b.live(), 2, "and that the others count as alive");
    b.agent.shutdown().await;
    a.sees("b gone", |view| view.replicas().len() == 1).await;
    a.agent.shutdown().await;
}

/// Its first requests are placed by what the others have on the workers, not by zeros.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_is_ready_with_the_load_of_the_others() {
    let authority = authority();
    let a = start(&authority, "a", &[]).await;
    a.becomes_ready().await;
    let (id, spec) = worker(8000);
    let put = a.agent.put_worker(id.clone(), Source::Admin, spec).await;
    put.expect("added");
    let held = a.agent.load().cell(&id);
    held.add(Load {
        requests: 3,
        prefill_tokens: 100,
        context_tokens: 200,
    });
    // What is there for a moment only is told to nobody.
    until("the load has lasted", || held.known().requests == 3).await;
    for newcomer in ["b", "c", "d"] {
        let newcomer = start(&authority, newcomer, &[a.seed()]).await;
        // Before that nobody routes by its view, into which a peer may have pushed the worker already.
        newcomer.becomes_ready().await;
        assert!(newcomer.agent.view().worker(&id).is_some());
        let others = newcomer.agent.load().cell(&id).others();
        assert_eq!(others.requests, 3.0, "{}", newcomer.name());
        newcomer.agent.shutdown().await;
        a.sees_live(1).await;
    }
}

/// As a script writes them that does not wait: each is a push of its own as long as few are under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_labels_in_a_row_are_no_flood() {
    const WRITERS: u32 = 4;
    const EACH: u32 = 1_750;
    let authority = authority();
    let a = start(&authority, "a", &[]).await;
    let b = start(&authority, "b", &[a.seed()]).await;
    for replica in [&a, &b] {
        replica.becomes_ready().await;
        replica.sees_live(2).await;
    }
    let (id, spec) = worker(8000);
    let put = a.agent.put_worker(id.clone(), Source::Admin, spec).await;
    put.expect("added");
    let begun = Instant::now();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (agent, id) = (a.agent.clone(), id.clone());
        writers.spawn(async move {
            for number in 0..EACH {
                let label = (format!("w{writer}"), number.to_string());
                let labels = Labels::new([label]).expect("valid");
                agent.label_worker(&id, labels).await.expect("room");
            }
        });
    }
    writers.join_all().await;
    println!("{} labels in {:?}", WRITERS * EACH, begun.elapsed());
    let refused = b.count("gossip_refused_total");
    assert_eq!(refused, 0, "by the other replica");
    b.sees("the last label of each", |view| {
        view.registry() == a.agent.view().registry()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_reach_the_others() {
    let authority = authority();
    let a = start(&authority, "a", &[]).await;
    let b = start(&authority, "b", &[a.seed()]).await;
    b.agent.set_ready(true);
    b.agent.set_ring("9f3a01c2");
    a.sees("b's facts", |view| {
        view.replicas().iter().any(|replica| {
            replica.id.as_str() == "b"
                && replica.ready
                && replica.ring == "9f3a01c2"
                && replica.http == "127.0.0.1:80"
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_certificates_are_refused_on_both_sides() {
    let (ours, theirs) = (authority(), authority());
    let a = start(&ours, "a", &[]).await;
    let stranger = start(&theirs, "x", &[a.seed()]).await;
    stranger
        .counts("gossip_handshakes_total{reason=\"foreign_certificate\"}", 1)
        .await;
    // Same authority, another cluster: its certificate does not name ours.
    let other = issue(&ours, "prod", "y");
    let other = Running::start(other, &[a.seed()]).await;
    other
        .counts("gossip_handshakes_total{reason=\"foreign_certificate\"}", 1)
        .await;
    for lone in [&stranger, &other, &a] {
        lone.becomes_ready().await;
        assert_eq!(lone.agent.view().replicas().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_that_is_no_replica_hangs_nothing() {
    let authority = authority();
    let mute = UdpSocket::bind("127.0.0.1:0").await.expect("socket");
    // Speaks QUIC and has a certificate, but not our protocol.
    let leaf = identity::issue(&authority.cert_pem, &authority.key_pem, "demo", "z").expect("leaf");
    let chain = vec![CertificateDer::from_pem_slice(leaf.cert_pem.as_bytes()).expect("pem")];
    let key = PrivateKeyDer::from_pem_slice(leaf.key_pem.as_bytes()).expect("pem");
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_protocol_versions(&[&rustls::version::TLS13])
    .expect("versions")
    .with_no_client_auth()
    .with_single_cert(chain, key)
    .expect("certificate");
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).expect("tls");
    let server = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let web = quinn::Endpoint::server(server, ([127, 0, 0, 1], 0).into()).expect("endpoint");
    let web_address = web.local_addr().expect("bound").to_string();
    let serving = tokio::task::spawn(async move {
        while web
            .accept()
            .await
            .is_some_and(|incoming| incoming.accept().is_ok())
        {}
    });

    let seeds = [
        mute.local_addr().expect("bound").to_string(),
        web_address,
        "nowhere.invalid:1".into(),
    ];
    let a = start(&authority, "a", &seeds).await;
    a.becomes_ready().await;
    a.counts("gossip_handshakes_total{reason=\"silent\"}", 1)
        .await;
    a.counts("gossip_handshakes_total{reason=\"not_grapevine\"}", 1)
        .await;
    let (id, spec) = worker(8000);
    a.agent
        .put_worker(id, Source::Admin, spec)
        .await
        .expect("a cluster of one works");
    timeout(LIMIT, a.agent.shutdown()).await.expect("ends");
    serving.abort();
}

/// Of a replica that is killed by ending it.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("runtime")
}

/// Without keys derived from the certificate a restart would be noticed after the idle timeout of 5 s.
#[test]
fn a_killed_replica_that_restarts_is_noticed_by_reset() {
    let authority = authority();
    let (here, there) = (runtime(), runtime());
    let a = here.block_on(start(&authority, "a", &[]));
    let identity = issue(&authority, "demo", "b");
    let seeds = [a.seed()];
    let b = there.block_on(Running::start(identity.clone(), &seeds));
    let address = b.address();
    here.block_on(a.sees_live(2));
    let generation = |view: &View| {
        let b = view
            .replicas()
            .iter()
            .find(|replica| replica.id.as_str() == "b" && replica.live);
        b.map(|b| b.generation)
    };
    let former = generation(&a.agent.view()).expect("b is live");

    // No goodbye: the tasks and the socket are just gone.
    drop(b);
    there.shutdown_timeout(LIMIT);
    let again = runtime();
    let _b = again.block_on(Running::start_at(address, identity, &[]));
    let noticed = here.block_on(async {
        let started = Instant::now();
        a.sees("b's new generation", |view| {
            generation(view).is_some_and(|now| now > former)
        })
        .await;
        started.elapsed()
    });
    println!("restart noticed, reconnected and alive after {noticed:?}");
    assert!(
        noticed < Duration::from_secs(4),
        "{noticed:?}: not by the reset"
    );
}

#[tokio::test]
async fn a_cluster_of_one_needs_no_network() {
    let agent = Agent::solo("demo", "a", &Facts::default(), Metrics::default()).expect("starts");
    assert!(*agent.ready().borrow());
    assert_eq!(agent.local_addr(), None);
    let (id, spec) = worker(8000);
    let ack = agent
        .put_worker(id.clone(), Source::Admin, spec)
        .await
        .expect("added");
    assert!(!ack.replicated);
    assert!(agent.view().worker(&id).is_some());
    agent
        .remove_worker(&id, Source::Admin)
        .await
        .expect("removed");
    assert!(agent.view().workers().is_empty());

    let many: Vec<_> = (8001..8005).map(worker).collect();
    let ids: Vec<WorkerId> = many.iter().map(|(id, _)| id.clone()).collect();
    let added = agent.put_workers(Source::Config, many).await;
    added.expect("there is room");
    let mut views = agent.watch();
    views.mark_unchanged();
    // One of them was never there.
    let gone = [&ids[..3], &[id]].concat();
    let removed = agent.remove_workers(gone, Source::Config).await;
    removed.expect("those that are there");
    assert!(views.has_changed().expect("it runs"));
    let view = views.borrow_and_update().clone();
    assert_eq!(view.workers().len(), 1, "all in one view");
    assert_eq!(view.workers()[0].id, ids[3]);
    agent.shutdown().await;
}

/// A dead replica's place was given to another one: it is a peer, under its own name.
#[test]
fn another_replica_at_the_address_of_a_dead_one_is_no_stranger() {
    let authority = authority();
    let (here, there) = (runtime(), runtime());
    let a = here.block_on(start(&authority, "a", &[]));
    let b = there.block_on(start(&authority, "b", &[a.seed()]));
    here.block_on(a.sees_live(2));
    let address = b.address();
    drop(b);
    there.shutdown_timeout(LIMIT);
    let again = runtime();
    let c = issue(&authority, "demo", "c");
    let _c = again.block_on(Running::start_at(address, c, &[a.seed()]));
    here.block_on(async {
        a.counts("gossip_handshakes_total{reason=\"wrong_name\"}", 1)
            .await;
        a.sees("c alive and b dead", |view| {
            let live = view.replicas().iter().filter(|replica| replica.live);
            live.map(|replica| replica.id.as_str()).eq(["a", "c"])
        })
        .await;
    });
    assert_eq!(
        a.count("gossip_handshakes_total{reason=\"foreign_certificate\"}"),
        0
    );
}
