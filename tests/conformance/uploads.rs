//! Uploads: a file and the model's name in one body, which is kept in memory once and parsed while it
//! arrives.

use std::time::Duration;

use bytes::Bytes;
use grapevine_testbed::fake_worker::{Config, Entry};
use grapevine_tests::chat::MODEL;
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::wait::so;
use serde_json::Value;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use crate::errors::assert_error;
use crate::house::{House, quick};

const PATH: &str = "/v1/audio/transcriptions";
const KIND: (&str, &str) = ("content-type", "multipart/form-data; boundary=XbOuNdX");

/// A model of its own, and one that all have.
fn serving(model: &str) -> Config {
    let models = vec![model.to_owned(), MODEL.to_owned()];
    Config { models, ..quick() }
}

/// One worker for each of two models, and an alias of the second.
async fn two_models(plan: Plan) -> House {
    let aliases = r#"[{ name = "alias", targets = ["second"] }]"#;
    let plan = plan.set("model", aliases);
    House::of(plan, vec![serving("first"), serving("second")]).await
}

fn field(name: &str, value: &str) -> String {
    format!("--XbOuNdX\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

/// A part with a file of this many bytes, which look like boundaries here and there.
fn file(bytes: usize) -> String {
    let noise = "RIFF\r\n--XbOuNd\r\nname=\"model\"\r\n\r\nfirst\r\n";
    let content = &noise.repeat(bytes / noise.len() + 1)[..bytes];
    format!(
        "--XbOuNdX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
         Content-Type: audio/wav\r\n\r\n{content}\r\n"
    )
}

fn upload(parts: &[String]) -> String {
    format!("{}--XbOuNdX--\r\n", parts.concat())
}

/// Log entries since the last call, each with the index of its worker.
fn seen(house: &House) -> Vec<(usize, Entry)> {
    let mut seen = Vec::new();
    for (index, worker) in house.workers.iter().enumerate() {
        seen.extend(worker.log().into_iter().map(|entry| (index, entry)));
        worker.reset();
    }
    seen
}

/// Sends an upload in chunks of this size, and waits for the answer.
async fn send_in(house: &House, body: &str, chunk: usize) -> http1::Response {
    let mut connection = Connection::open(house.data()).await;
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: a\r\n{}: {}\r\ntransfer-encoding: chunked\r\n\r\n",
        KIND.0, KIND.1
    );
    connection.send(head.as_bytes()).await.expect("taken");
    for piece in body.as_bytes().chunks(chunk) {
        let piece = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        connection.send(&piece).await.expect("taken");
    }
    connection.send(b"0\r\n\r\n").await.expect("taken");
    connection.response().await.expect("answered")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_reaches_a_worker_of_its_model_unchanged() {
    let house = two_models(Plan::default()).await;
    for (named, worker, model) in [
        ("first", 0, "first"),
        ("second", 1, "second"),
        ("alias", 1, "second"),
    ] {
        for bytes in [0, 100, 100_000] {
            let file = file(bytes);
            let orders = [
                |model: String, file: String| upload(&[model, field("language", "en"), file]),
                |model: String, file: String| upload(&[file, field("stream", "false"), model]),
            ];
            for order in orders {
                let body = order(field("model", named), file.clone());
                let expected = order(field("model", model), file.clone());
                let whole =
                    http1::exchange(house.data(), "POST", PATH, &[KIND], body.as_bytes()).await;
                let pieces = send_in(&house, &body, 7 + bytes / 50).await;
                let seen = seen(&house);
                assert_eq!(seen.len(), 2, "{named}: {} {}", whole.text(), pieces.text());
                // The worker reads the same words, in whatever pieces the body arrived.
                for answer in [&whole, &pieces] {
                    assert_eq!(answer.head.status, 200, "{}", answer.text());
                    let text = answer.json::<Value>()["text"].clone();
                    assert!(text.as_str().is_some_and(|text| !text.is_empty()), "{text}");
                }
                assert_eq!(whole.text(), pieces.text());
                for (index, entry) in seen {
                    assert_eq!(index, worker, "{named} {bytes}");
                    assert_eq!(entry.body_bytes, expected.len() as u64, "{named} {bytes}");
                    let hash = format!("{:016x}", xxh3_64(expected.as_bytes()));
                    assert_eq!(entry.body_hash, hash, "{named} {bytes}");
                }
            }
        }
    }
    for (body, status, code) in [
        (upload(&[file(10)]), 400, "invalid_request"),
        (
            upload(&[field("model", "a"), field("model", "a")]),
            400,
            "invalid_request",
        ),
        (
            upload(&[field("model", "nobody"), file(10)]),
            404,
            "model_not_found",
        ),
        ("{\"model\":\"first\"}".to_owned(), 400, "invalid_request"),
        (field("model", "first"), 400, "invalid_request"),
    ] {
        let answer = http1::exchange(house.data(), "POST", PATH, &[KIND], body.as_bytes()).await;
        assert_error(&answer, status, code);
    }
    let json = [("content-type", "application/json")];
    let answer = http1::exchange(house.data(), "POST", PATH, &json, b"{\"model\":\"first\"}").await;
    assert_error(&answer, 400, "invalid_request");
    assert_eq!(seen(&house).len(), 0, "a worker saw one of them");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_cannot_be_served_end_early() {
    let plan = Plan::default()
        .set("limits.upload_bytes", "\"1MiB\"")
        .set("timeouts.body_progress", "\"2s\"");
    let house = two_models(plan).await;
    let head = |length: usize| {
        format!(
            "POST {PATH} HTTP/1.1\r\nhost: a\r\n{}: {}\r\ncontent-length: {length}\r\n\r\n",
            KIND.0, KIND.1
        )
    };
    // The file never arrives: the model alone decides.
    let mut unknown = Connection::open(house.data()).await;
    let begun = [head(500_000), field("model", "nobody"), file(10)].concat();
    unknown.send(begun.as_bytes()).await.expect("taken");
    assert_error(
        &unknown.response().await.expect("answered"),
        404,
        "model_not_found",
    );

    let mut large = Connection::open(house.data()).await;
    large
        .send(head((1 << 20) + 1).as_bytes())
        .await
        .expect("taken");
    assert_error(
        &large.response().await.expect("answered"),
        413,
        "request_too_large",
    );

    let mut slow = Connection::open(house.data()).await;
    let begun = [head(500_000), field("model", "first")].concat();
    let since = Instant::now();
    slow.send(begun.as_bytes()).await.expect("taken");
    assert_error(
        &slow.response().await.expect("answered"),
        408,
        "request_timeout",
    );
    assert!(
        since.elapsed() >= Duration::from_secs(2),
        "{:?}",
        since.elapsed()
    );

    let mut cut = Connection::open(house.data()).await;
    cut.send(
        [head(500_000), field("model", "first"), file(1_000)]
            .concat()
            .as_bytes(),
    )
    .await
    .expect("taken");
    cut.half_close().await;
    match cut.response().await {
        Ok(answer) => drop(assert_error(&answer, 400, "invalid_request")),
        Err(cut) => assert_eq!(cut, http1::Cut),
    }
    assert_eq!(seen(&house).len(), 0, "a worker saw one of them");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_upload_is_held_once() {
    const BYTES: usize = 24 << 20;
    let house = two_models(Plan::default()).await;
    let body = Bytes::from(upload(&[file(BYTES), field("model", "second")]));
    let process = house.cluster.replicas[0].process();
    let before = process.resident_kib();
    let mut connection = Connection::open(house.data()).await;
    let bytes = http1::request("POST", PATH, &[KIND], &body);
    // All but the end: the body is held, and not sent yet.
    let (begin, end) = bytes.split_at(bytes.len() - 10);
    connection.send(begin).await.expect("taken");
    let mut held = 0;
    grapevine_tests::wait::eventually(grapevine_tests::wait::LIMIT, "it has come", async || {
        held = process.resident_kib().saturating_sub(before);
        so(held >= (BYTES >> 10) as u64 * 9 / 10, || {
            format!("{held} KiB")
        })
    })
    .await;
    println!(
        "{} KiB uploaded, {held} KiB more in memory",
        body.len() >> 10
    );
    connection.send(end).await.expect("taken");
    connection.response().await.expect("answered");
    let seen = seen(&house);
    assert_eq!((seen.len(), seen[0].0), (1, 1));
    assert_eq!(seen[0].1.body_bytes, body.len() as u64);
    let after = process.resident_kib().saturating_sub(before);
    let copies = after as f64 / (BYTES >> 10) as f64;
    println!("{after} KiB more afterwards");
    assert!(copies < 1.7, "{after} KiB for one upload");
    house.close().await;
}
