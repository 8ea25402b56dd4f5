//! Workers that a private zone has: SRV records, and targets that no other name server knows.

use std::net::SocketAddr;

use grapevine_tests::chat::{self, MODEL};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{get, post};
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};
use tokio::net::UdpSocket;

use crate::house::{House, quick};

/// Names as they stand in a question.
const SERVICE: &[u8] = b"\x05_http\x04_tcp\x01w\x04test\x00";
const TARGET: &[u8] = b"\x02w0\x01w\x04test\x00";
const A: u8 = 1;
const SRV: u8 = 33;

/// A name server with one service, at `port` of its target, which is 127.0.0.1.
async fn zone(port: u16) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
    let at = socket.local_addr().expect("bound");
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        while let Ok((bytes, from)) = socket.recv_from(&mut buffer).await {
            let _gone = socket.send_to(&answer(&buffer[..bytes], port), from).await;
        }
    });
    at
}

/// RFC 1035, section 4: header, question, and a record of the question's name.
fn answer(question: &[u8], port: u16) -> Vec<u8> {
    let name = question[12..].iter().position(|&byte| byte == 0);
    let end = 12 + name.expect("a name") + 1;
    let asked = question[12..end].to_ascii_lowercase();
    let kind = question[end + 1];
    let data = match (&*asked, kind) {
        (SERVICE, SRV) => Some([&[0; 4], &port.to_be_bytes()[..], TARGET].concat()),
        (TARGET, A) => Some(vec![127, 0, 0, 1]),
        _ => None,
    };
    // Of another name: NXDOMAIN. What there is of another kind is no record, and no error.
    let is_known = [SERVICE, TARGET].contains(&&*asked);
    let code = if is_known { 0 } else { 3 };
    let count = u8::from(data.is_some());
    let mut answer = question[..2].to_vec();
    answer.extend([0x84, code, 0, 1, 0, count, 0, 0, 0, 0]);
    answer.extend(&question[12..end + 4]);
    if let Some(data) = data {
        answer.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 1]);
        let length = u16::try_from(data.len()).expect("it is short");
        answer.extend(length.to_be_bytes());
        answer.extend(data);
    }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_host_only_the_set_name_servers_know_serves() {
    let worker = chat::worker(quick()).await;
    let port = worker.url().rsplit(':').next().map(str::parse);
    let port = port.expect("a port").expect("a number");
    let server = zone(port).await;
    let plan = Plan::default()
        .set("dns.names", &json!(["_http._tcp.w.test."]).to_string())
        .set("dns.servers", &json!([server]).to_string());
    let house = House::with(plan, Vec::new()).await;
    let id = format!("w0.w.test:{port}");
    let admin = house.cluster.replicas[0].admin();
    eventually(
        LIMIT,
        "the worker is found, healthy, and asked for its models",
        async || {
            let known: Value = get(admin.0, "/workers").await.json();
            let shown = known.to_string();
            let known = admin.workers().await;
            let mut known = known.iter();
            let is_there = known.any(|worker| {
                worker.id == id && worker.health == "healthy" && worker.models == [MODEL]
            });
            is_there.then_some(()).ok_or(shown)
        },
    )
    .await;
    let answer = post(
        house.data(),
        "/v1/chat/completions",
        &chat::chat("hello", 1),
    )
    .await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    house.close().await;
}
