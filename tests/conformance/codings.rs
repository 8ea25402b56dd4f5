//! Compressed request bodies: inflated where this is configured, with a limit on the inflated size.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use grapevine_tests::chat::{CHATS, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Response};

use crate::errors::assert_error;
use crate::house::{House, quick};

pub(crate) fn packed(coding: &str, plain: &[u8]) -> Vec<u8> {
    let finished = match coding {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(plain).and_then(|()| encoder.finish())
        }
        _ => zstd::encode_all(plain, 19),
    };
    finished.expect("memory takes everything")
}

async fn post(house: &House, coding: &str, body: &[u8]) -> Response {
    let headers = [("content-encoding", coding)];
    http1::exchange(house.data(), "POST", CHATS, &headers, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_gets_the_plain_body() {
    let plan = Plan::default().set("listen.request_codings", r#"["gzip", "zstd"]"#);
    let house = House::of(plan, vec![quick()]).await;
    let plain = chat(&"what is compressed is said again ".repeat(3_000), 1).to_string();
    let by_itself = http1::exchange(house.data(), "POST", CHATS, &[], plain.as_bytes()).await;
    assert_eq!(by_itself.head.status, 200, "{}", by_itself.text());
    let expected = house.workers[0].log().last().expect("asked").clone();
    for coding in ["gzip", "zstd", "GZIP"] {
        let body = packed(&coding.to_lowercase(), plain.as_bytes());
        assert!(body.len() < plain.len() / 10, "{coding}");
        let answer = post(&house, coding, &body).await;
        assert_eq!(answer.head.status, 200, "{coding}: {}", answer.text());
        let seen = house.workers[0].log().last().expect("asked").clone();
        assert_eq!(seen.body_hash, expected.body_hash, "{coding}");
        assert_eq!(seen.body_bytes, plain.len() as u64);
        assert_eq!(seen.header("content-encoding"), None, "{coding}");
        let length = seen.header("content-length");
        assert_eq!(length, Some(plain.len().to_string().as_str()));
    }
    let answer = post(&house, "deflate", plain.as_bytes()).await;
    assert_error(&answer, 415, "unsupported_content_encoding");
    let taken = answer.head.header("accept-encoding");
    assert_eq!(taken, Some("gzip, zstd, identity"));
    let asked = house.workers[0].log().len();
    for (coding, body) in [
        ("gzip", plain.as_bytes()),
        ("zstd", &packed("zstd", plain.as_bytes())[..100]),
        ("gzip", &packed("zstd", plain.as_bytes())),
    ] {
        let answer = post(&house, coding, body).await;
        assert_error(&answer, 400, "invalid_request");
    }
    assert_eq!(house.workers[0].log().len(), asked, "a worker was asked");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bomb_is_too_large_and_leaves_nothing_behind() {
    let plan = Plan::default()
        .set("listen.request_codings", r#"["gzip", "zstd"]"#)
        .set("limits.body_bytes", r#""1MiB""#)
        .set("limits.body_bytes_total", r#""1MiB""#);
    let house = House::of(plan, vec![quick()]).await;
    let bomb = vec![b' '; 256 << 20];
    for coding in ["gzip", "zstd"] {
        let body = packed(coding, &bomb);
        assert!(body.len() < 1 << 19, "{coding}: {} bytes", body.len());
        let before = house.cluster.replicas[0].process().resident_kib();
        let answer = post(&house, coding, &body).await;
        assert_error(&answer, 413, "request_too_large");
        let after = house.cluster.replicas[0].process().resident_kib();
        assert!(
            after < before + (64 << 10),
            "{coding}: {before} to {after} KiB"
        );
        // The whole budget is free again.
        let large = chat(&"x".repeat(450_000), 1).to_string();
        let answer = post(&house, coding, &packed(coding, large.as_bytes())).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    house.close().await;
}
