//! Disconnects, freezes, idle connections, and the ways a worker stops.

use super::*;

async fn slow() -> FakeWorker {
    // 20 ms for each token: still running whenever a test looks.
    let engine = EngineConfig {
        step_base: Duration::from_millis(20),
        ..EngineConfig::default()
    };
    start(Config {
        engine,
        ..Config::default()
    })
    .await
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    #[derive(Debug, Clone, Copy)]
    enum Leaves {
        Close,
        Reset,
        HalfClose,
        CloseAfterExtraByte,
    }
    for leaves in [
        Leaves::Close,
        Leaves::Reset,
        Leaves::HalfClose,
        Leaves::CloseAfterExtraByte,
    ] {
        for stream in [true, false] {
            let worker = slow().await;
            let mut client = Client::connect(&worker).await;
            client
                .post("/v1/chat/completions", "", &chat(stream, 10_000))
                .await;
            eventually("running", || {
                worker.worker.ranks[0].pacer.gauges().running == 1
            })
            .await;
            let left = ledger::unix_us();
            let _half_closed = match leaves {
                Leaves::Close => {
                    drop(client);
                    None
                }
                Leaves::Reset => {
                    let socket = socket2::SockRef::from(&client.0);
                    socket.set_linger(Some(Duration::ZERO)).expect("supported");
                    drop(client);
                    None
                }
                Leaves::HalfClose => {
                    client.0.shutdown().await.expect("open");
                    Some(client)
                }
                Leaves::CloseAfterExtraByte => {
                    client.send(b"G").await;
                    drop(client);
                    None
                }
            };
            eventually("engine idle", || {
                worker.worker.ranks[0].pacer.gauges().running == 0
            })
            .await;
            eventually("logged", || worker.stats().in_flight == 0).await;
            // Milliseconds on an idle machine; the bound is for one that is not.
            let gone = worker.log()[0].client_gone_us.expect("noticed") - left;
            assert!(gone < 1_000_000, "{leaves:?}, stream {stream}: {gone} us");
        }
    }
}

#[tokio::test]
async fn a_slow_reader_does_not_slow_the_engine_and_may_leave() {
    let worker = fast().await;
    let mut client = Client::connect(&worker).await;
    client
        .post("/v1/chat/completions", "", &chat(true, 100_000))
        .await;
    // Never read: the socket buffers fill (some 25 MB of events), the engine goes on.
    eventually("all produced", || {
        worker.worker.ranks[0].pacer.counters().generated_tokens == 100_000
    })
    .await;
    assert_eq!(
        worker.stats().in_flight,
        1,
        "the reply is still being written"
    );
    drop(client);
    eventually("gone", || worker.stats().in_flight == 0).await;
    assert_eq!(worker.log()[0].tokens, 100_000);
}

#[tokio::test]
async fn a_frozen_engine_looks_healthy_and_sends_comments() {
    let comments = Some(Duration::from_millis(50));
    let worker = start(Config {
        sse_keep_alive: comments,
        ..Config::default()
    })
    .await;
    let mut client = Client::connect(&worker).await;
    client
        .post("/v1/chat/completions", "", &chat(true, 50))
        .await;
    client.until("\"content\":\" ").await;
    worker.freeze(true);
    client.until("e\r\n: keep-alive\n\n\r\n").await;
    let silent = client.until("e\r\n: keep-alive\n\n\r\n").await;
    assert!(!silent.contains("data:"), "{silent}");
    assert!(get(&worker, "/health").await.0.starts_with("HTTP/1.1 200 "));
    assert!(
        get(&worker, "/metrics")
            .await
            .1
            .contains("num_requests_running{engine=\"0\",model_name=\"fake-model\"} 1.0")
    );
    worker.freeze(false);
    client.until("[DONE]").await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_time_but_a_new_one_is_not() {
    let keep_alive = Duration::from_millis(60);
    let worker = start(Config {
        keep_alive,
        ..Config::default()
    })
    .await;
    let mut fresh = Client::connect(&worker).await;
    let mut used = Client::connect(&worker).await;
    used.send(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n").await;
    used.until("0.32.0\"}").await;
    let since = tokio::time::Instant::now();
    assert_eq!(used.rest().await, (Vec::new(), End::Fin));
    assert!(
        since.elapsed() >= Duration::from_millis(55),
        "{:?}",
        since.elapsed()
    );
    assert!(fresh.is_silent().await);
}

#[tokio::test]
async fn told_to_hang_it_leaves_streams_open_and_refuses_new_connections() {
    let mut worker = slow().await;
    let mut open = Client::connect(&worker).await;
    open.post("/v1/chat/completions", "", &chat(true, 10_000))
        .await;
    open.until("\"content\":\" ").await;
    let mut idle = Client::connect(&worker).await;
    idle.send(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n").await;
    idle.until("0.32.0\"}").await;
    let mut late = Client::connect(&worker).await;
    eventually("accepted", || worker.stats().connections == 3).await;
    worker.terminate(StopMode::Hang);
    late.post(
        "/v1/chat/completions",
        "connection: close\r\n",
        &chat(false, 1),
    )
    .await;
    let (head, body) = split(late.rest().await.0);
    assert!(
        head.starts_with("HTTP/1.1 500 "),
        "for a moment it still answers"
    );
    assert_eq!(
        body,
        r#"{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,"code":500}}"#
    );
    assert_eq!(idle.rest().await.1, End::Fin, "idle connections are closed");
    let addr = worker.addr();
    let refused = timeout(LIMIT, async {
        while TcpStream::connect(addr).await.is_ok() {}
    })
    .await;
    assert!(refused.is_ok(), "the port is closed");
    // Bytes that had arrived before are read; then nothing arrives, not even an end.
    while !open.is_silent().await {}
    assert_eq!(worker.stats().in_flight, 1);
    drop(open);
    timeout(LIMIT, worker.stopped())
        .await
        .expect("gone with its last client");
}

#[tokio::test]
async fn draining_finishes_streams_and_refuses_new_requests_behind_a_200_health() {
    let mut worker = slow().await;
    let mut open = Client::connect(&worker).await;
    open.post(
        "/v1/chat/completions",
        "connection: close\r\n",
        &chat(true, 20),
    )
    .await;
    open.until("\"content\":\" ").await;
    worker.terminate(StopMode::Drain(LIMIT));
    assert!(get(&worker, "/health").await.0.starts_with("HTTP/1.1 200 "));
    let (head, _) = ask(&worker, "/v1/chat/completions", "", &chat(false, 1)).await;
    assert!(head.starts_with("HTTP/1.1 500 "));
    let (bytes, end) = open.rest().await;
    assert!(String::from_utf8_lossy(&bytes).contains("[DONE]"));
    assert_eq!(end, End::Fin);
    timeout(LIMIT, worker.stopped())
        .await
        .expect("nothing left to drain");
}

#[tokio::test]
async fn a_drain_that_lasts_too_long_is_cut() {
    let mut worker = slow().await;
    let mut open = Client::connect(&worker).await;
    open.post("/v1/chat/completions", "", &chat(true, 10_000))
        .await;
    open.until("\"content\":\" ").await;
    worker.terminate(StopMode::Drain(Duration::from_millis(50)));
    let (bytes, _) = open.rest().await;
    assert!(!String::from_utf8_lossy(&bytes).contains("[DONE]"));
    timeout(LIMIT, worker.stopped())
        .await
        .expect("its time is over");
}

#[tokio::test]
async fn killed_it_cuts_streams_and_its_port_can_be_taken_again() {
    let worker = slow().await;
    let addr = worker.addr();
    let mut open = Client::connect(&worker).await;
    open.post("/v1/chat/completions", "", &chat(true, 10_000))
        .await;
    open.until("\"content\":\" ").await;
    worker.kill().await;
    let (bytes, _) = open.rest().await;
    assert!(
        !String::from_utf8_lossy(&bytes).ends_with("0\r\n\r\n"),
        "no clean end"
    );
    let again = start(Config {
        listen: addr,
        ..Config::default()
    })
    .await;
    assert_eq!(again.addr(), addr);
    assert_eq!(again.stats().requests, 0);
}

#[tokio::test]
async fn a_senseless_configuration_is_refused() {
    for config in [
        Config {
            models: Vec::new(),
            ..Config::default()
        },
        Config {
            speed: 0.0,
            ..Config::default()
        },
        Config {
            speed: f64::NAN,
            ..Config::default()
        },
        Config {
            engine: EngineConfig {
                blocks: 0,
                ..EngineConfig::default()
            },
            ..Config::default()
        },
    ] {
        assert!(FakeWorker::start(config).await.is_err());
    }
}
