//! Answers in HTTP/2 that break off, are abandoned, or are invalid.

use grapevine_tests::chat::{self, Ending, MODEL, chat, streamed};
use grapevine_tests::http1::{self};
use grapevine_tests::wait::{LIMIT, eventually, so};

use crate::errors::assert_error;
use crate::h2_floods::{CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, frame};
use crate::house::{House, quick};

use super::CHATS;
use super::front::{Http2Front, asking, until_healthy};
use super::scripted::*;

/// A request that a worker reports as not processed is sent again on another connection, and processed once.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_not_looked_at_is_sent_again() {
    const GOES: &[Say] = &[
        Say::Answer("{}"),
        Say::Last(|stream| goaway(stream - 2)),
        Say::Answer("{\"again\":1}"),
    ];
    const REFUSES: &[Say] = &[
        Say::Answer("{}"),
        Say::Frames(|stream| reset(stream, REFUSED_STREAM)),
        Say::Answer("{\"again\":1}"),
    ];
    // The worker sends GOAWAY after its answer, so the replica sends nothing more on that connection.
    const LEAVES: &[Say] = &[
        Say::Last(|stream| {
            let head = frame(
                HEADERS,
                END_HEADERS,
                stream,
                &head_block("application/json"),
            );
            let body = frame(DATA, END_STREAM, stream, b"{}");
            [goaway(stream), head, body].concat()
        }),
        Say::Answer("{\"again\":1}"),
    ];
    let (house, workers) = scripted(&[GOES, REFUSES, LEAVES]).await;
    let asked = [
        &[(0, 1), (0, 3), (1, 1)][..],
        &[(0, 1), (0, 3), (1, 1)],
        &[(0, 1), (1, 1)],
    ];
    for (number, expected) in asked.into_iter().enumerate() {
        for text in ["{}", "{\"again\":1}"] {
            let body = of_model(number, chat("hello", 1));
            let answer = http1::post(house.data(), CHATS, &body).await;
            assert_eq!(
                (answer.head.status, &*answer.text()),
                (200, text),
                "{number}"
            );
        }
        assert_eq!(workers[number].asked(), expected, "{number}");
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let answered = metrics.sum("grapevine_attempts_total", "result=\"answered\"");
    assert_eq!(answered, 6.0, "each attempt was answered");
}

/// The same for the first request of a connection: another worker gets it.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_goes_at_once_is_left_for_another() {
    for script in [
        &[Say::Last(|_| goaway(0))][..],
        &[Say::Frames(|stream| reset(stream, REFUSED_STREAM))],
    ] {
        let script: &'static [Say] = script;
        let goes = Scripted::start(script).await;
        let fake = chat::worker(quick()).await;
        let front = Http2Front::start(fake.addr(), None).await;
        let plan = asking("on")
            .set("health.interval", "\"1h\"")
            .set("cluster.policy", "\"round_robin\"")
            .worker(&goes.url, &[MODEL])
            .worker(&front.url("http"), &[MODEL]);
        let house = House::with(plan, vec![fake]).await;
        until_healthy(&house, 2).await;
        for _ in 0..4 {
            let answer = http1::post(house.data(), CHATS, &chat("hello", 1)).await;
            assert_eq!(answer.head.status, 200, "{}", answer.text());
        }
        assert_eq!(goes.asked().len(), 1, "then it is left alone");
        assert_eq!(front.requests().len(), 4);
    }
}

/// Room for a long body in many small pieces, together more than a head may have, is no head.
#[tokio::test(flavor = "multi_thread")]
async fn room_for_a_body_is_no_head() {
    let (house, _workers) = scripted(&[&[Say::Answer("{}")]]).await;
    let long = "x".repeat(4 << 20);
    let body = of_model(0, chat(&long, 1));
    let answer = http1::post(house.data(), CHATS, &body).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
}

/// A reset stream is a broken one, also if the reset carries NO_ERROR.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_answer_is_a_broken_one() {
    const SCRIPTS: &[&[Say]] = &[
        &[Say::Frames(|stream| {
            [first_event(stream), reset(stream, INTERNAL_ERROR)].concat()
        })],
        &[Say::Frames(|stream| {
            [first_event(stream), reset(stream, NO_ERROR)].concat()
        })],
        &[Say::Last(|stream| {
            [first_event(stream), goaway(0)].concat()
        })],
        &[Say::Last(first_event)],
    ];
    let (house, workers) = scripted(SCRIPTS).await;
    for (number, worker) in workers.iter().enumerate() {
        let outcome = chat::stream(house.data(), &of_model(number, streamed("cut", 9))).await;
        assert!(
            matches!(outcome.ending, Ending::ErrorEvent(_)),
            "{number}: {outcome:?}"
        );
        assert!(outcome.had_begun(), "{number}: {outcome:?}");
        assert_eq!(
            worker.asked().len(),
            1,
            "{number}: nothing is tried twice then"
        );
    }
}

/// A window full of small events, as they pile up while a client or a replica is busy for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_small_events_passes() {
    const EVENTS: usize = 1_000;
    const SCRIPT: &[Say] = &[Say::Frames(|stream| {
        let event = frame(DATA, 0, stream, b"data: {\"choices\":[]}\n\n");
        let done = frame(DATA, END_STREAM, stream, b"data: [DONE]\n\n");
        [first_event(stream), event.repeat(EVENTS), done].concat()
    })];
    let (house, workers) = scripted(&[SCRIPT]).await;
    for _ in 0..3 {
        let outcome = chat::stream(house.data(), &of_model(0, streamed("many", 9))).await;
        assert_eq!(outcome.ending, Ending::Done, "{:?}", outcome.events.len());
        assert_eq!(outcome.events.len(), 1 + EVENTS + 1);
    }
    assert_eq!(workers[0].asked(), [(0, 1), (0, 3), (0, 5)]);
}

/// The end of an answer may come in a frame behind all of its bytes, after which a client of HTTP/1.1 waits for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_whole_with_the_last_byte_that_its_head_promised() {
    const SCRIPT: &[Say] = &[Say::Frames(|stream| {
        let events = b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n";
        let length = events.len().to_string();
        let mut block = head_block("text/event-stream");
        block.extend([0x0f, 0x0d, u8::try_from(length.len()).expect("short")]);
        block.extend(length.as_bytes());
        [
            frame(HEADERS, END_HEADERS, stream, &block),
            frame(DATA, 0, stream, events),
            frame(DATA, END_STREAM, stream, b""),
        ]
        .concat()
    })];
    let (house, workers) = scripted(&[SCRIPT]).await;
    for _ in 0..2 {
        let outcome = chat::stream(house.data(), &of_model(0, streamed("whole", 9))).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    }
    assert_eq!(workers[0].asked(), [(0, 1), (0, 3)], "one connection");
    let admin = house.cluster.replicas[0].admin();
    eventually(LIMIT, "both have succeeded", async || {
        let metrics = admin.metrics().await;
        let ended = metrics.sum("grapevine_requests_total", "outcome=\"success\"");
        so(ended == 2.0, || format!("{ended}"))
    })
    .await;
}

/// Answers that are not valid in HTTP/2, or do not reach their end.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_answer_is_a_502() {
    const SCRIPTS: &[&[Say]] = &[
        // A head of 90 KiB.
        &[Say::Frames(|stream| {
            // Of 10,127 bytes: 127, and 10,000 in groups of seven bits.
            let line = |number: u8| {
                let begun = vec![0, 3, b'x', b'-', b'a' + number, 0x7f, 0x90, 0x4e];
                [begun, vec![b'v'; 10_127]].concat()
            };
            let mut bytes = frame(HEADERS, 0, stream, &head_block("application/json"));
            for number in 0..9 {
                bytes.extend(frame(CONTINUATION, 0, stream, &line(number)));
            }
            bytes.extend(frame(CONTINUATION, END_HEADERS, stream, &[]));
            bytes.extend(frame(DATA, END_STREAM, stream, b"{}"));
            bytes
        })],
        // A head of 200 lines.
        &[Say::Frames(|stream| {
            let mut block = head_block("application/json");
            for number in 0..200_u8 {
                block.extend([
                    0,
                    4,
                    b'x',
                    b'-',
                    b'a' + number / 20,
                    b'a' + number % 20,
                    1,
                    b'v',
                ]);
            }
            let head = frame(HEADERS, END_HEADERS, stream, &block);
            [head, frame(DATA, END_STREAM, stream, b"{}")].concat()
        })],
        // Early hints without an end.
        &[Say::Frames(|stream| {
            let hint = frame(HEADERS, END_HEADERS, stream, &[8, 3, b'1', b'0', b'3']);
            hint.repeat(100_000)
        })],
        // Less than its head says, and more.
        &[Say::Frames(|stream| {
            let head = frame(HEADERS, END_HEADERS, stream, &with_length("9"));
            [head, frame(DATA, END_STREAM, stream, b"wrong")].concat()
        })],
        &[Say::Frames(|stream| {
            let head = frame(HEADERS, END_HEADERS, stream, &with_length("3"));
            [head, frame(DATA, END_STREAM, stream, b"wrong")].concat()
        })],
        // Two lengths.
        &[Say::Frames(|stream| {
            let block = [with_length("5"), vec![0x0f, 0x0d, 1, b'6']].concat();
            let head = frame(HEADERS, END_HEADERS, stream, &block);
            [head, frame(DATA, END_STREAM, stream, b"wrong")].concat()
        })],
        // Headers of one hop.
        &[Say::Frames(|stream| {
            let mut block = head_block("application/json");
            block.extend([0x0f, 0x2a, 7]);
            block.extend(b"chunked");
            let head = frame(HEADERS, END_HEADERS, stream, &block);
            [head, frame(DATA, END_STREAM, stream, b"wrong")].concat()
        })],
        // Reset before its head, and in the middle of what its length says.
        &[Say::Frames(|stream| reset(stream, INTERNAL_ERROR))],
        &[Say::Frames(|stream| {
            let head = frame(HEADERS, END_HEADERS, stream, &with_length("9"));
            [
                head,
                frame(DATA, 0, stream, b"wrong"),
                reset(stream, NO_ERROR),
            ]
            .concat()
        })],
    ];
    let (house, workers) = scripted(SCRIPTS).await;
    for (number, worker) in workers.iter().enumerate() {
        let answer = http1::post(house.data(), CHATS, &of_model(number, chat("well?", 1))).await;
        println!("{number}: {}", answer.text());
        assert_error(&answer, 502, "upstream_failed");
        assert!(!answer.text().contains("wrong"), "{number}");
        assert_eq!(worker.asked().len(), 1, "{number}");
    }
}
