//! HTTP/2 floods, written frame by frame: the flooding connection ends, and no other client notices.
//!
//! Frames by RFC 9113, section 4.1; the floods are CVE-2023-44487 (rapid reset), CVE-2025-8671 (resets that the
//! server is made to send), CVE-2024-27316 (CONTINUATION), and CVE-2019-9518, 9515 and 9512 (empty DATA,
//! SETTINGS, PING).

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_tests::chat::chat;
use grapevine_tests::http1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::timeout;

use crate::house::House;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Frames that a flooding connection may send before it gets GOAWAY or is closed.
const FRAMES_MAX: usize = 5_000;
/// Streams of a flood that may have reached a worker.
const STARTED_MAX: u64 = 100;
/// Resident memory that all floods together may add, in KiB; what was added is printed.
const RESIDENT_KIB_MAX: u64 = 32 * 1024;
/// Longest wait for the other side.
const WITHIN: Duration = Duration::from_secs(30);

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A frame's bytes.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("small").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header block for `POST /v1/chat/completions` (RFC 7541: static names, literal values).
fn post() -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (name, value) in [(4_u8, "/v1/chat/completions"), (1, "grapevine.test")] {
        block.push(name);
        block.push(u8::try_from(value.len()).expect("short"));
        block.extend(value.as_bytes());
    }
    block
}

/// One flood: the n-th bytes to send, and whether the connection must end because of it.
struct Flood {
    name: &'static str,
    ends: bool,
    frames_each: usize,
    each: fn(u32) -> Vec<u8>,
}

fn body() -> Vec<u8> {
    chat("flood", 50).to_string().into_bytes()
}

const FLOODS: [Flood; 6] = [
    Flood {
        name: "rapid reset",
        ends: true,
        frames_each: 3,
        each: |number| {
            let stream = 2 * number + 1;
            let cancel = 8_u32.to_be_bytes();
            [
                frame(HEADERS, END_HEADERS, stream, &post()),
                frame(DATA, END_STREAM, stream, &body()),
                frame(RST_STREAM, 0, stream, &cancel),
            ]
            .concat()
        },
    },
    Flood {
        name: "made to reset",
        ends: true,
        frames_each: 2,
        each: |number| {
            let stream = 2 * number + 1;
            [
                frame(HEADERS, END_HEADERS, stream, &post()),
                // An increment of nothing is an error of the stream.
                frame(WINDOW_UPDATE, 0, stream, &[0; 4]),
            ]
            .concat()
        },
    },
    Flood {
        name: "continuation",
        ends: true,
        frames_each: 1,
        each: |number| match number {
            0 => frame(HEADERS, 0, 1, &post()),
            _ => {
                // A literal header of 100 bytes, never the last.
                let mut block = vec![0, 1, b'a', 100];
                block.extend([b'b'; 100]);
                frame(CONTINUATION, 0, 1, &block)
            }
        },
    },
    Flood {
        name: "empty data",
        ends: true,
        frames_each: 1,
        each: |number| match number {
            0 => frame(HEADERS, END_HEADERS, 1, &post()),
            _ => frame(DATA, 0, 1, &[]),
        },
    },
    Flood {
        name: "settings",
        ends: false,
        frames_each: 1,
        each: |_| frame(SETTINGS, 0, 0, &[]),
    },
    Flood {
        name: "ping",
        ends: false,
        frames_each: 1,
        each: |_| frame(PING, 0, 0, &[7; 8]),
    },
];

/// Reads until GOAWAY or the end of the connection.
async fn told_to_go(mut incoming: OwnedReadHalf) {
    let mut head = [0; 9];
    while incoming.read_exact(&mut head).await.is_ok() {
        if head[3] == GOAWAY {
            return;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        if incoming.read_exact(&mut payload).await.is_err() {
            return;
        }
    }
}

/// Floods until GOAWAY or the end, or until [`FRAMES_MAX`]; returns the frames that were sent, and whether
/// the replica ended it.
async fn flood(address: SocketAddr, flood: &Flood) -> (usize, bool) {
    let stream = TcpStream::connect(address).await.expect("it listens");
    let (incoming, mut outgoing) = stream.into_split();
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    outgoing
        .write_all(&hello)
        .await
        .expect("a preface is taken");
    let mut reading = tokio::spawn(told_to_go(incoming));
    let mut sent = 0;
    for number in 0.. {
        if sent >= FRAMES_MAX || reading.is_finished() {
            break;
        }
        let bytes = (flood.each)(number);
        match timeout(WITHIN, outgoing.write_all(&bytes)).await {
            Ok(Ok(())) => sent += flood.frames_each,
            // The connection was reset, or the replica reads no more.
            Ok(Err(_)) | Err(_) => break,
        }
        // Gives the answer time to arrive, because the replica must see the frames first.
        if number % 16 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let within = if flood.ends { WITHIN } else { Duration::ZERO };
    let told = timeout(within, &mut reading).await.is_ok();
    reading.abort();
    (sent, told)
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_end_their_own_connection_and_nothing_else() {
    let house = House::new(1).await;
    let data = house.data();
    let replica = &house.cluster.replicas[0];
    let answered = async |prompt: &str| {
        let answer = http1::post(data, "/v1/chat/completions", &chat(prompt, 2)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    };
    answered("before").await;
    let before = replica.process().resident_kib();
    for kind in &FLOODS {
        let started = house.workers[0].stats().requests;
        let (outcome, ()) = tokio::join!(flood(data, kind), answered(kind.name));
        let (sent, told) = outcome;
        let started = house.workers[0].stats().requests - started - 1;
        println!(
            "{}: {sent} frames, ended: {told}, {started} requests at the worker",
            kind.name
        );
        if kind.ends {
            assert!(told, "{}: {sent} frames and no end", kind.name);
        }
        assert!(
            started <= STARTED_MAX,
            "{}: {started} requests at the worker",
            kind.name
        );
    }
    let grown = replica.process().resident_kib().saturating_sub(before);
    println!("resident memory grew by {grown} KiB");
    assert!(grown <= RESIDENT_KIB_MAX, "grew by {grown} KiB");
    answered("after").await;
    house.close().await;
}
