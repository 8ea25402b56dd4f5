//! Data-parallel ranks, against the capture.

use super::*;

async fn two_ranks() -> FakeWorker {
    start(Config {
        speed: 1_000.0,
        data_parallel: 2,
        ..Config::default()
    })
    .await
}

fn long_chat() -> Value {
    json!({"messages": [{"role": "user", "content": "once upon a time ".repeat(41)}], "max_tokens": 4})
}

async fn cached_on(worker: &FakeWorker, rank: &str) -> (u64, u64) {
    let header = format!("x-data-parallel-rank: {rank}\r\n");
    let (_, body) = ask(worker, "/v1/chat/completions", &header, &long_chat()).await;
    let body: Value = body.parse().expect("JSON");
    let details = &body["usage"]["prompt_tokens_details"];
    let count = |field: &str| details[field].as_u64().expect("a count");
    (count("cached_tokens"), count("created_cache_tokens"))
}

#[tokio::test]
async fn each_rank_has_a_cache_of_its_own() {
    let worker = two_ranks().await;
    for rank in ["0", "1"] {
        let (cached, created) = cached_on(&worker, rank).await;
        assert_eq!(cached, 0, "rank {rank}");
        assert!(created > 0);
        assert_eq!(cached_on(&worker, rank).await, (created, 0), "rank {rank}");
    }
    let log = worker.log();
    let ranks: Vec<u32> = log.iter().map(|entry| entry.rank).collect();
    assert_eq!(ranks, [0, 0, 1, 1]);
    let (_, page) = get(&worker, "/metrics").await;
    for rank in 0..2 {
        let line =
            format!("vllm:num_requests_running{{engine=\"{rank}\",model_name=\"fake-model\"}} 0.0");
        assert!(page.contains(&line), "{line} in {page}");
    }
    let helps = page.matches("# HELP vllm:num_requests_running ").count();
    assert_eq!(helps, 1);
}

#[tokio::test]
async fn a_rank_out_of_range_is_refused_and_one_that_is_no_number_is_ignored() {
    let worker = two_ranks().await;
    let header = "x-data-parallel-rank: 7\r\n";
    let (head, body) = ask(&worker, "/v1/chat/completions", header, &chat(false, 2)).await;
    assert!(head.starts_with("HTTP/1.1 400"), "{head}");
    let body: Value = body.parse().expect("JSON");
    assert_eq!(
        body,
        json!({"error": {"message": "data_parallel_rank 7 is out of range [0, 2).", "type": "BadRequestError", "param": null, "code": 400}})
    );
    for header in ["x-data-parallel-rank: abc\r\n", ""] {
        let (head, _) = ask(&worker, "/v1/chat/completions", header, &chat(false, 2)).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    }
}

#[tokio::test]
async fn kv_events_are_published_where_the_worker_listens() {
    let host = std::net::IpAddr::from([127, 0, 0, 2]);
    let worker = start(Config {
        listen: SocketAddr::from((host, 0)),
        data_parallel: 2,
        kv_events: Some(KvEventsConfig::default()),
        ..Config::default()
    })
    .await;
    let (_, body) = get(&worker, "/kv_event_sources").await;
    let sources: Value = body.parse().expect("JSON");
    for (rank, name) in [("0", "endpoint"), ("1", "replay_endpoint")] {
        let endpoint = sources[rank][name].as_str().expect("an endpoint");
        let port = endpoint.strip_prefix("tcp://*:").expect("any address");
        let port: u16 = port.parse().expect("a port");
        let reached = TcpStream::connect((host, port)).await;
        assert!(reached.is_ok(), "{endpoint}: {reached:?}");
    }
}
