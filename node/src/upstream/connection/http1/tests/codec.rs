//! What the bytes of an answer mean, without a socket: tables.

use bytes::{Bytes, BytesMut};
use http::Method;
use hyper::ext::ReasonPhrase;

use super::{Seen, read};
use crate::upstream::connection::broken::{Broken, SendError};
use crate::upstream::connection::http1::HeadReader;
use crate::upstream::head_count::HEAD_BYTES_MAX;

fn read_all(text: &str) -> Result<Seen, SendError> {
    read([text.as_bytes()])
}

/// The body of a chunked answer, if that is one.
fn chunks(text: &str) -> Option<String> {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let seen = read_all(&format!("{head}{text}")).expect("a head");
    let body = String::from_utf8(seen.body).expect("text");
    (seen.is_whole && seen.behind.is_empty()).then_some(body)
}

#[test]
fn chunks_are_read_as_the_rfc_says_and_nothing_else_is() {
    let long = "x".repeat(5000);
    let extensions = format!("1;{}\r\na\r\n", "x".repeat(4000));
    let table: &[(&str, Option<&str>)] = &[
        ("0\r\n\r\n", Some("")),
        ("5\r\nhello\r\n0\r\n\r\n", Some("hello")),
        ("5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", Some("hello!")),
        ("0005\r\nhello\r\n000\r\n\r\n", Some("hello")),
        ("A\r\n0123456789\r\n0\r\n\r\n", Some("0123456789")),
        ("1;name=value\r\na\r\n0 ; x\r\n\r\n", Some("a")),
        ("1 \t\r\na\r\n0\r\nsum: 1\r\n\r\n", Some("a")),
        ("5\r\nhello\r\n", None),
        ("5\r\nhello\r\n0\r\n", None),
        ("5\r\nhello!\r\n0\r\n\r\n", None),
        ("5\nhello\r\n0\r\n\r\n", None),
        ("5\r\nhello\n0\r\n\r\n", None),
        ("\r\n\r\n", None),
        (" 5\r\nhello\r\n0\r\n\r\n", None),
        ("+5\r\nhello\r\n0\r\n\r\n", None),
        ("0x5\r\nhello\r\n0\r\n\r\n", None),
        ("5 5\r\nhello\r\n0\r\n\r\n", None),
        ("5;\x00\r\nhello\r\n0\r\n\r\n", None),
        ("ffffffffffffffff\r\nhello", None),
        ("1\r\na\r\n0\r\n folded\r\n\r\n", None),
        ("1\r\na\r\n0\r\nno colon\r\n\r\n", None),
        ("1\r\na\r\n0\r\nsum: 1\n\r\n", None),
        ("1\r\na\r\n0\r\nsum: 1\r\n\n", None),
    ];
    for (text, expected) in table {
        assert_eq!(chunks(text).as_deref(), *expected, "{text:?}");
    }
    assert_eq!(chunks(&format!("1;{long}\r\na\r\n0\r\n\r\n")), None);
    let within = format!("{}0\r\n\r\n", extensions.repeat(4));
    assert_eq!(chunks(&within).as_deref(), Some("aaaa"));
    assert_eq!(chunks(&format!("{}0\r\n\r\n", extensions.repeat(5))), None);
    let trailers = |lines: usize| format!("0\r\n{}\r\n", format!("x: {long}\r\n").repeat(lines));
    assert_eq!(chunks(&trailers(3)).as_deref(), Some(""));
    assert_eq!(chunks(&trailers(4)), None);
}

#[test]
fn a_body_ends_where_its_head_says() {
    let of = |method: &Method, text: &str| {
        let mut buf = BytesMut::from(text);
        let head = HeadReader::of(method).take(&mut buf);
        let head = head.expect("valid").expect("whole");
        (head.body.length(), head.keeps_alive)
    };
    let (get, head) = (&Method::GET, &Method::HEAD);
    let table = [
        (
            get,
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n",
            Some(5),
            true,
        ),
        (
            get,
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n",
            Some(0),
            true,
        ),
        (get, "HTTP/1.1 200 OK\r\n", None, false),
        (
            get,
            "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n",
            Some(5),
            false,
        ),
        (
            get,
            "HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 5\r\n",
            Some(5),
            true,
        ),
        (
            get,
            "HTTP/1.1 200 OK\r\nconnection: x, Close\r\nconnection: keep-alive\r\ncontent-length: 5\r\n",
            Some(5),
            false,
        ),
        (
            get,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n",
            None,
            true,
        ),
        (get, "HTTP/1.1 204 No Content\r\n", Some(0), true),
        (
            get,
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n",
            Some(0),
            true,
        ),
        (
            head,
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n",
            Some(0),
            true,
        ),
        (
            get,
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n",
            Some(0),
            false,
        ),
    ];
    for (method, lines, length, keeps_alive) in table {
        let text = format!("{lines}\r\n");
        assert_eq!(
            of(method, &text),
            (length, keeps_alive),
            "{method} {lines:?}"
        );
    }
}

#[test]
fn informational_heads_are_passed_over_and_reasons_are_kept() {
    let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n\
                HTTP/1.1 200 Fine\r\nEmpty:\r\ncontent-length: 2\r\n\r\nok!";
    let mut buf = BytesMut::from(text);
    let head = HeadReader::of(&Method::GET).take(&mut buf);
    let response = head.expect("valid").expect("whole").response;
    let reason = response.extensions().get::<ReasonPhrase>();
    assert_eq!(reason.map(ReasonPhrase::as_bytes), Some(&b"Fine"[..]));
    assert_eq!(response.headers()["empty"], "");
    let seen = read_all(text).expect("an answer");
    assert_eq!(
        (seen.status, &*seen.body, &*seen.behind),
        (200, &b"ok"[..], &b"!"[..])
    );
}

#[test]
fn heads_have_limits_and_a_form() {
    let of = |lines: &str| {
        read_all(&format!(
            "HTTP/1.1 200 OK\r\n{lines}content-length: 0\r\n\r\n"
        ))
    };
    let around = "HTTP/1.1 200 OK\r\nx: \r\ncontent-length: 0\r\n\r\n".len();
    let line = |bytes: usize| format!("x: {}\r\n", "v".repeat(bytes));
    assert!(of(&line(HEAD_BYTES_MAX - around)).is_ok());
    let long = of(&line(HEAD_BYTES_MAX - around + 1));
    assert!(matches!(long, Err(SendError::HeadTooLong)), "{long:?}");
    assert!(of(&"x: y\r\n".repeat(99)).is_ok());
    let many = of(&"x: y\r\n".repeat(100));
    assert!(matches!(many, Err(SendError::HeadTooLong)), "{many:?}");
    let endless = "x".repeat(HEAD_BYTES_MAX);
    let endless = read_all(&format!("HTTP/1.1 200 OK\r\nx: {endless}"));
    assert!(
        matches!(endless, Err(SendError::HeadTooLong)),
        "{endless:?}"
    );
    let hints = "HTTP/1.1 103 Hints\r\n\r\n".repeat(HEAD_BYTES_MAX / 22 + 1);
    let hints = read_all(&hints);
    assert!(matches!(hints, Err(SendError::HeadTooLong)), "{hints:?}");
    for wrong in [
        "a b: c\r\n",
        " folded\r\n",
        "x: y\r\n folded\r\n",
        "x\x00: y\r\n",
        "x: \x01\r\n",
        ": y\r\n",
    ] {
        let seen = of(wrong);
        assert!(
            matches!(seen, Err(SendError::Malformed(Broken::Head(_)))),
            "{wrong:?}: {seen:?}"
        );
    }
    for doubtful in ["content-length: 1\r\n", "transfer-encoding: chunked\r\n"] {
        let seen = of(doubtful);
        assert!(
            matches!(seen, Err(SendError::LengthInDoubt)),
            "{doubtful:?}: {seen:?}"
        );
    }
    for wrong in [
        "SSH-2.0-x\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 099 Low\r\n\r\n",
        "{}",
    ] {
        assert!(
            matches!(read_all(wrong), Err(SendError::Malformed(_))),
            "{wrong:?}"
        );
    }
}

#[test]
fn a_head_in_small_pieces_is_refused_at_its_first_line_that_is_none() {
    let mut reader = HeadReader::of(&Method::GET);
    let mut buf = BytesMut::from("HTTP/1.1 200 OK\r\n");
    assert!(reader.take(&mut buf).expect("a beginning").is_none());
    buf.extend_from_slice(b"no colon");
    assert!(
        reader
            .take(&mut buf)
            .expect("looked at with its end")
            .is_none()
    );
    buf.extend_from_slice(b"\r\n");
    assert!(reader.take(&mut buf).is_err());
    assert!(
        HeadReader::of(&Method::GET)
            .take(&mut BytesMut::from("garbage"))
            .is_err()
    );
}

/// The frames of what came in one read.
fn frames(head: &str, body: &str) -> (Vec<Bytes>, *const u8) {
    let mut buf = BytesMut::from(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").as_str());
    let head = HeadReader::of(&Method::GET).take(&mut buf);
    let mut reader = head.expect("valid").expect("whole").body;
    let (mut all, begins) = (Vec::new(), buf.as_ptr());
    while let Some(frame) = reader.take(&mut buf).expect("valid") {
        all.push(frame.into_data().expect("data"));
    }
    assert_eq!(buf.capacity(), 0, "the buffer went with what was in it");
    (all, begins)
}

#[test]
fn bytes_go_on_from_where_they_were_read() {
    let (all, begins) = frames("content-length: 5", "hello");
    assert_eq!(all, ["hello"]);
    assert_eq!(all[0].as_ptr(), begins, "no copy");
    let (all, begins) = frames("transfer-encoding: chunked", "5\r\nhello\r\n");
    assert_eq!(all, ["hello"]);
    assert_eq!(all[0].as_ptr(), begins.wrapping_add(3), "no copy");
}

#[test]
fn chunks_that_lie_together_are_one_frame_unless_they_are_long() {
    let coding = "transfer-encoding: chunked";
    let (all, begins) = frames(coding, "3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n");
    assert_eq!(all, ["onetwothree"]);
    assert_eq!(
        all[0].as_ptr(),
        begins.wrapping_add(3),
        "the first is not copied"
    );
    let long = "x".repeat(5000);
    let (all, _) = frames(coding, &format!("3\r\none\r\n1388\r\n{long}\r\n0\r\n\r\n"));
    assert_eq!(all, ["one", &long]);
}

#[test]
fn data_before_a_chunk_that_is_none_are_given() {
    let mut buf =
        BytesMut::from("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\nnone");
    let head = HeadReader::of(&Method::GET).take(&mut buf);
    let mut body = head.expect("valid").expect("whole").body;
    let frame = body.take(&mut buf).expect("valid so far").expect("data");
    assert_eq!(frame.into_data().expect("data"), "one");
    assert!(matches!(body.take(&mut buf), Err(Broken::Content(_))));
}
