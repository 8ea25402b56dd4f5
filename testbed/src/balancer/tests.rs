//! The balancer between plain sockets and fake workers.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::fake_worker::{self, FakeWorker, Fault, Rule, When};

const LIMIT: Duration = Duration::from_secs(20);

async fn workers(count: usize) -> (Vec<FakeWorker>, Vec<String>) {
    let mut workers = Vec::new();
    for _ in 0..count {
        let worker = FakeWorker::start(fake_worker::Config::default());
        workers.push(worker.await.expect("port 0 is always free"));
    }
    let addresses = workers.iter().map(|w| w.addr().to_string()).collect();
    (workers, addresses)
}

/// One request on a new connection; `None` when there is no answer.
async fn ask(balancer: &Balancer) -> Option<String> {
    let mut stream = TcpStream::connect(balancer.addr())
        .await
        .expect("listening");
    let request = b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut reply = String::new();
    let exchange = async {
        stream.write_all(request).await?;
        stream.read_to_string(&mut reply).await
    };
    let done = timeout(LIMIT, exchange).await.expect("answered or cut");
    done.ok().map(|_| reply).filter(|reply| !reply.is_empty())
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LIMIT, wait)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test]
async fn connections_are_spread_and_a_dead_backend_is_skipped() {
    let (mut workers, addresses) = workers(3).await;
    let balancer = Balancer::start(Config::new(addresses))
        .await
        .expect("starts");
    for _ in 0..6 {
        assert!(ask(&balancer).await.expect("answer").contains("0.32.0"));
    }
    assert!(workers.iter().all(|worker| worker.stats().connections == 2));
    workers.remove(1).kill().await;
    for _ in 0..6 {
        assert!(ask(&balancer).await.is_some(), "the next backend answers");
    }
    let stats = balancer.stats();
    assert!(stats[1].refused >= 2 && stats[1].connections == 2);
    eventually("counted out", || {
        balancer.stats().iter().all(|b| b.open == 0)
    })
    .await;
    assert!(balancer.stats()[0].bytes_down > 0);
}

#[tokio::test]
async fn without_any_backend_the_client_is_cut() {
    let (workers, addresses) = workers(1).await;
    let balancer = Balancer::start(Config::new(addresses))
        .await
        .expect("starts");
    for worker in workers {
        worker.kill().await;
    }
    assert_eq!(ask(&balancer).await, None);
    assert!(Balancer::start(Config::new(Vec::new())).await.is_err());
}

#[tokio::test]
async fn a_backend_that_is_not_ready_gets_nothing_new() {
    let (workers, addresses) = workers(2).await;
    let check = Check {
        path: "/health".into(),
        interval: Duration::from_millis(10),
        timeout: Duration::from_secs(5),
    };
    let config = Config {
        check: Some(check),
        ..Config::new(addresses)
    };
    let balancer = Balancer::start(config).await.expect("starts");
    let when = When {
        path: Some("/health".into()),
        ..When::default()
    };
    let not_ready = Rule {
        when,
        ..Rule::always(Fault::status(503))
    };
    workers[0].add_rule(not_ready).expect("room");
    eventually("seen down", || !balancer.stats()[0].up).await;
    for _ in 0..4 {
        assert!(ask(&balancer).await.is_some());
    }
    assert_eq!(balancer.stats()[1].connections, 4);
    workers[0].clear_rules();
    eventually("seen up", || balancer.stats()[0].up).await;
}

#[tokio::test]
async fn a_backend_that_comes_later_is_checked_and_gets_connections() {
    let worker = async || FakeWorker::start(fake_worker::Config::default()).await;
    let (first, second) = (
        worker().await.expect("starts"),
        worker().await.expect("starts"),
    );
    let config = Config {
        check: Some(Check {
            path: "/health".into(),
            interval: Duration::from_millis(10),
            timeout: LIMIT,
        }),
        ..Config::new(vec![first.addr().to_string()])
    };
    let balancer = Balancer::start(config).await.expect("starts");
    balancer.add(second.addr().to_string());
    for _ in 0..4 {
        assert!(ask(&balancer).await.is_some());
    }
    let given: Vec<u64> = balancer.stats().iter().map(|b| b.connections).collect();
    assert_eq!(given, [2, 2]);
    drop(second);
    eventually("seen down", || !balancer.stats()[1].up).await;
}

/// A listener that hands out the backend's end of each connection.
async fn backend() -> (TcpListener, Balancer) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("free port");
    let address = listener.local_addr().expect("bound").to_string();
    let balancer = Balancer::start(Config::new(vec![address]))
        .await
        .expect("starts");
    (listener, balancer)
}

#[tokio::test]
async fn a_half_close_passes_and_the_answer_still_comes() {
    let (listener, balancer) = backend().await;
    let mut client = TcpStream::connect(balancer.addr())
        .await
        .expect("listening");
    client.write_all(b"question").await.expect("open");
    client.shutdown().await.expect("open");
    let (mut server, _) = listener.accept().await.expect("connected");
    let mut seen = String::new();
    server
        .read_to_string(&mut seen)
        .await
        .expect("half-close passes");
    assert_eq!(seen, "question");
    server
        .write_all(b"answer")
        .await
        .expect("other half is open");
    drop(server);
    let mut reply = String::new();
    client
        .read_to_string(&mut reply)
        .await
        .expect("orderly end");
    assert_eq!(reply, "answer");
}

#[tokio::test]
async fn a_reset_stays_a_reset() {
    let (listener, balancer) = backend().await;
    let mut client = TcpStream::connect(balancer.addr())
        .await
        .expect("listening");
    let (server, _) = listener.accept().await.expect("connected");
    reset(&server);
    drop(server);
    let read = timeout(LIMIT, client.read(&mut [0])).await.expect("ended");
    assert_eq!(
        read.expect_err("reset").kind(),
        io::ErrorKind::ConnectionReset
    );
}
