//! Generated answers, whole, changed and cut: any split gives the same, and what is whole here is so for hyper.

use std::fmt::Write as _;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{lines, read};

prop_compose! {
    fn chunk()(bytes in prop_oneof![1_usize..40, 3000..6000_usize], extended in any::<bool>()) -> String {
        let extension = if extended { ";e=1" } else { "" };
        format!("{bytes:x}{extension}\r\n{}\r\n", "data: x\n".repeat(bytes / 8 + 1).get(..bytes).expect("ASCII"))
    }
}

prop_compose! {
    /// Bytes of a connection that are an answer, mostly.
    fn stream()(
        hints in 0_usize..3,
        version in prop_oneof![9 => Just(1), 1 => Just(0)],
        status in prop::sample::select(vec![200, 200, 200, 204, 304, 404, 503]),
        length in prop_oneof![Just(None), (0_usize..50).prop_map(Some)],
        is_chunked in any::<bool>(),
        chunks in prop::collection::vec(chunk(), 0..6),
        trailers in 0_usize..3,
        behind in prop_oneof![3 => Just(""), 1 => Just("HTTP/1.1 200 OK\r\n\r\n")],
        change in prop_oneof![3 => Just(None), 2 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(Some)],
        cut in prop_oneof![3 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)],
    ) -> Vec<u8> {
        let mut text = "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n".repeat(hints);
        write!(text, "HTTP/1.{version} {status} Any\r\nserver: x\r\n").expect("a string");
        if let Some(length) = length {
            write!(text, "content-length: {length}\r\n").expect("a string");
        }
        match is_chunked && (length.is_none() || status != 200) {
            true => {
                text.push_str("Transfer-Encoding: chunked\r\n\r\n");
                text.extend(chunks);
                text.push_str("0\r\n");
                text.push_str(&"sum: 1\r\n".repeat(trailers));
                text.push_str("\r\n");
            }
            false => {
                text.push_str("\r\n");
                text.push_str(&"y".repeat(length.unwrap_or(7)));
            }
        }
        text.push_str(behind);
        let mut bytes = text.into_bytes();
        if let Some((at, byte)) = change {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(at) = cut {
            bytes.truncate(at.index(bytes.len()));
        }
        bytes
    }
}

/// What hyper makes of an answer, up to the connection's end.
async fn read_by_hyper(bytes: &[u8]) -> Option<(Response<()>, Vec<u8>)> {
    let (client, mut worker) = tokio::io::duplex(1 << 20);
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(client))
        .await
        .expect("nothing is sent yet");
    let request = Request::post("/")
        .body(Empty::<Bytes>::new())
        .expect("valid");
    let asking = async {
        let response = sender.send_request(request).await.ok()?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.ok()?.to_bytes().to_vec();
        Some((Response::from_parts(parts, ()), body))
    };
    let serving = async {
        let mut read = [0; 1024];
        let _ = worker.read(&mut read).await;
        let _ = worker.write_all(bytes).await;
        drop(worker);
    };
    let (answer, (), _) = tokio::join!(asking, serving, driver);
    answer
}

proptest! {
    #[test]
    fn an_answer_is_the_same_in_whatever_pieces_it_comes(
        bytes in stream(),
        steps in prop::collection::vec(1_usize..60, 1..4),
    ) {
        let mut rest = &bytes[..];
        let pieces = steps.iter().cycle().map_while(|step| {
            let (piece, more) = rest.split_at((*step).min(rest.len()));
            rest = more;
            (!piece.is_empty()).then_some(piece)
        });
        match (read([&bytes[..]]), read(pieces)) {
            (Ok(whole), Ok(parts)) => prop_assert_eq!(whole, parts),
            (Err(_), Err(_)) => {}
            (whole, parts) => prop_assert!(false, "{whole:?} and {parts:?}"),
        }
    }

    #[test]
    fn an_answer_that_is_whole_here_is_the_same_one_for_hyper(bytes in stream()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let hypers = runtime.block_on(read_by_hyper(&bytes));
        if let Ok(ours) = read([&bytes[..]]) && ours.is_whole && ours.status != 101 {
            let (response, body) = hypers.expect("hyper read it, too");
            prop_assert_eq!(ours.status, response.status().as_u16());
            prop_assert_eq!(ours.version, response.version());
            prop_assert_eq!(ours.headers, lines(response.headers()));
            prop_assert_eq!(ours.body, body);
        }
    }
}
