//! Each fault as a raw client sees it.

use super::*;

/// A streamed chat of 4 tokens under a fault, given by header: all bytes and the end.
async fn under(fault: &Fault) -> (FakeWorker, String, End) {
    let worker = fast().await;
    let mut client = Client::connect(&worker).await;
    let header = format!("x-fault: {}\r\nconnection: close\r\n", json!(fault));
    client
        .post("/v1/chat/completions", &header, &chat(true, 4))
        .await;
    let (bytes, end) = client.rest().await;
    (worker, String::from_utf8_lossy(&bytes).into_owned(), end)
}

fn body_of(reply: &str) -> &str {
    reply.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[tokio::test]
async fn cut_at_a_byte_or_event() {
    for (how, end) in [(How::Fin, End::Fin), (How::Rst, End::Reset)] {
        let (_, reply, ended) = under(&Fault::stop(Point::Head(0), how)).await;
        assert_eq!((reply.as_str(), ended), ("", end));
    }
    let (_, reply, _) = under(&Fault::stop(Point::Head(12), How::Fin)).await;
    assert_eq!(reply, "HTTP/1.1 200");
    let (_, reply, _) = under(&Fault::stop(Point::Body(0), How::Fin)).await;
    assert!(
        reply.ends_with("\r\n\r\n") && body_of(&reply).is_empty(),
        "{reply}"
    );
    let (_, reply, _) = under(&Fault::stop(Point::Body(7), How::Fin)).await;
    assert!(
        body_of(&reply).ends_with("\r\ndata: {"),
        "7 bytes of payload: {reply}"
    );
    for count in [0, 1, 3] {
        let (_, reply, _) = under(&Fault::stop(Point::Event(count), How::Fin)).await;
        assert_eq!(reply.matches("data: ").count(), count as usize);
        assert!(!reply.contains("[DONE]"));
    }
    let (_, reply, _) = under(&Fault::stop(Point::Event(2), How::Crash)).await;
    assert_eq!(reply.matches("data: {\"id\"").count(), 2);
    assert!(reply.contains("data: {\"error\": {") && reply.contains("data: [DONE]"));
    assert!(reply.ends_with("\r\n0\r\n\r\n"), "{reply}");
    let (_, reply, _) = under(&Fault::stop(Point::Body(500), How::End)).await;
    assert_eq!(reply.matches("data: ").count(), 2, "whole events: {reply}");
    assert!(reply.ends_with("\n\n\r\n0\r\n\r\n"), "{reply}");
    let (worker, reply, _) = under(&Fault::stop(Point::Done, How::Fin)).await;
    assert!(reply.contains("\"finish_reason\":\"length\"") && !reply.contains("[DONE]"));
    assert!(worker.log().iter().all(|entry| !entry.complete));
}

#[tokio::test]
async fn a_stalled_stream_stays_open_until_the_client_leaves() {
    let worker = fast().await;
    for fault in [
        Fault::never_answer(),
        Fault::stop(Point::Event(2), How::Stall),
    ] {
        worker.add_rule(Rule::next(1, fault.clone())).expect("room");
        let mut client = Client::connect(&worker).await;
        client
            .post("/v1/chat/completions", "", &chat(true, 4))
            .await;
        if fault != Fault::never_answer() {
            client.until("\"token_ids\":null}]}\n\n\r\n").await;
        }
        assert!(client.is_silent().await);
        assert_eq!(worker.stats().in_flight, 1);
        drop(client);
        eventually("client noticed gone", || worker.stats().in_flight == 0).await;
    }
    assert_eq!(worker.stats().clients_gone, 2);
}

#[tokio::test]
async fn any_status_with_headers_and_body() {
    let worker = fast().await;
    let text = r#"{"times":1,"fault":{"reply":{"status":429,"headers":[["retry-after","7"]],"body":"slow down"}}}"#;
    let rule: Rule = serde_json::from_str(text).expect("valid");
    worker.add_rule(rule).expect("room");
    let (head, body) = ask(&worker, "/v1/chat/completions", "", &chat(false, 1)).await;
    assert!(head.starts_with("HTTP/1.1 429 ") && head.contains("\r\nretry-after: 7"));
    assert_eq!(body, "slow down");
    let (head, _) = ask(&worker, "/v1/chat/completions", "", &chat(false, 1)).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "the rule is used up");
    let (head, body) = ask(
        &worker,
        "/v1/completions",
        &format!("x-fault: {}\r\n", json!(Fault::status(500))),
        &json!({}),
    )
    .await;
    assert!(head.starts_with("HTTP/1.1 500 ") && body.contains("\"code\":500"));
    assert_eq!(
        worker.stats().queried_tokens,
        worker.log()[1].prompt_tokens,
        "canned replies compute nothing"
    );
}

#[tokio::test]
async fn a_rule_can_be_for_the_probe_path() {
    let worker = fast().await;
    let when = When {
        path: Some("/health".into()),
        ..When::default()
    };
    worker
        .add_rule(Rule {
            when,
            ..Rule::always(Fault::status(503))
        })
        .expect("room");
    assert!(get(&worker, "/health").await.0.starts_with("HTTP/1.1 503 "));
    assert!(
        ask(&worker, "/v1/chat/completions", "", &chat(false, 1))
            .await
            .0
            .starts_with("HTTP/1.1 200 ")
    );
    worker.clear_rules();
    assert!(get(&worker, "/health").await.0.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn odd_sse() {
    let all = |needle: &'static str| move |reply: &str| reply.contains(needle);
    type Holds = Box<dyn Fn(&str) -> bool>;
    let cases: Vec<(BadSse, Holds)> = vec![
        (
            BadSse::NoNewline(9_999),
            Box::new(|r| r.contains(&"x".repeat(9_999))),
        ),
        (BadSse::Nul, Box::new(all("\0\0"))),
        (BadSse::BadUtf8, Box::new(all("\u{fffd}"))),
        (
            BadSse::Crlf,
            Box::new(|r| r.matches("}\r\n\r\n").count() >= 5),
        ),
        (
            BadSse::DoneInContent,
            Box::new(all("\"content\":\"data: [DONE]\\n\\ndata: [DONE]")),
        ),
        (
            BadSse::NoDone,
            Box::new(|r| !r.contains("[DONE]") && r.ends_with("\r\n0\r\n\r\n")),
        ),
        (
            BadSse::BrokenJson,
            Box::new(|r| !r.contains("finish_reason") && r.contains("[DONE]")),
        ),
        (BadSse::NoSpace, Box::new(all("data:{\"id\""))),
        (BadSse::SmallChunks(5), Box::new(all("\r\n5\r\ndata:\r\n"))),
    ];
    for (variant, holds) in cases {
        let (_, reply, end) = under(&Fault::sse(variant)).await;
        assert!(holds(&reply), "{variant:?}: {reply}");
        assert_eq!(end, End::Fin);
    }
}

#[tokio::test]
async fn delay_drip_and_combined_faults() {
    let start = tokio::time::Instant::now();
    let (_, reply, _) = under(&Fault::delay_ms(80)).await;
    assert!(reply.contains("[DONE]") && start.elapsed() >= Duration::from_millis(80));
    let start = tokio::time::Instant::now();
    let drip: Fault =
        serde_json::from_str(r#"{"drip":{"bytes":100000,"every_ms":20},"early_hints":2}"#)
            .expect("valid");
    let (_, reply, _) = under(&drip).await;
    assert!(
        reply.contains("[DONE]") && start.elapsed() >= Duration::from_millis(7 * 20),
        "7 pieces"
    );
    assert_eq!(reply.matches("HTTP/1.1 103 Early Hints").count(), 2);
}

#[tokio::test]
async fn short_content_length_and_huge_headers() {
    let worker = fast().await;
    let fault = r#"x-fault: {"short_by":50,"header_bytes":100000}"#;
    let (head, body) = ask(
        &worker,
        "/v1/chat/completions",
        &format!("{fault}\r\n"),
        &chat(false, 1),
    )
    .await;
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .expect("length");
    assert_eq!(length.parse::<usize>().expect("number"), body.len() + 50);
    assert!(head.len() > 100_000);
}

#[tokio::test]
async fn a_gzip_bomb_and_megabytes_of_garbage() {
    let worker = fast().await;
    let rule =
        r#"{"fault":{"reply":{"status":200,"body":"0123456789","repeat":100000,"gzip":true}}}"#;
    worker
        .add_rule(serde_json::from_str(rule).expect("valid"))
        .expect("room");
    let mut client = Client::connect(&worker).await;
    client
        .post(
            "/v1/chat/completions",
            "connection: close\r\n",
            &chat(false, 1),
        )
        .await;
    let (bytes, _) = client.rest().await;
    assert!(bytes.len() < 50_000, "1 MB in {} bytes", bytes.len());
    assert!(String::from_utf8_lossy(&bytes).contains("content-encoding: gzip"));
    let fault = r#"x-fault: {"reply":{"status":200,"body":"0123456789","repeat":100000}}"#;
    let (_, body) = ask(
        &worker,
        "/v1/chat/completions",
        &format!("{fault}\r\n"),
        &chat(false, 1),
    )
    .await;
    assert_eq!(body.len(), 1_000_000);
}

#[tokio::test]
async fn the_control_api_over_http() {
    let worker = fast().await;
    let (_, added) = ask(
        &worker,
        "/_control/faults",
        "",
        &json!({"rules": [{"fault": {"reply": {"status": 418}}}]}),
    )
    .await;
    assert_eq!(added, r#"{"added":1}"#);
    assert!(
        ask(&worker, "/v1/chat/completions", "", &chat(false, 1))
            .await
            .0
            .starts_with("HTTP/1.1 418 ")
    );
    let (head, message) = ask(
        &worker,
        "/_control/faults",
        "",
        &json!({"fault": {"delay": 1}}),
    )
    .await;
    assert!(
        head.starts_with("HTTP/1.1 400 ") && message.contains("unknown field `delay`"),
        "{message}"
    );
    let log: Value = get(&worker, "/_control/log").await.1.parse().expect("JSON");
    assert_eq!(
        (
            log["entries"].as_array().map(Vec::len),
            &log["entries"][0]["status"]
        ),
        (Some(1), &json!(418))
    );
    let stats: Value = get(&worker, "/_control/stats")
        .await
        .1
        .parse()
        .expect("JSON");
    assert_eq!(
        (&stats["requests"], &stats["in_flight_peak"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(
        ask(&worker, "/_control/freeze", "", &json!({})).await.1,
        r#"{"frozen":true}"#
    );
    assert_eq!(
        ask(&worker, "/_control/unfreeze", "", &json!({})).await.1,
        r#"{"frozen":false}"#
    );
    let (head, message) = ask(
        &worker,
        "/v1/completions",
        "x-fault: nonsense\r\n",
        &json!({}),
    )
    .await;
    assert!(head.starts_with("HTTP/1.1 400 ") && message.contains("x-fault"));
}
