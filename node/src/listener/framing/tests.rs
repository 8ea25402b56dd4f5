//! The framing of requests, whole and in pieces.

use proptest::prelude::*;

use super::chunked::CHUNK_LINE_BYTES_MAX;
use super::*;

const LIMITS: HeadLimits = HeadLimits {
    bytes: 512,
    lines: 8,
};

fn fed(bytes: &[u8]) -> (Framing, Result<(), FramingError>) {
    let mut framing = Framing::new(LIMITS);
    let result = framing.feed(bytes);
    (framing, result)
}

fn malformed(bytes: &str) -> bool {
    matches!(
        fed(bytes.as_bytes()).1,
        Err(FramingError::Head(_, Fault::Malformed(_)))
    )
}

#[test]
fn good_requests_pass_one_after_the_other() {
    let stream = "GET / HTTP/1.1\r\nhost: a\r\n\r\n\
        \r\n\
        POST /x?y=%20 HTTP/1.1\r\nHost:a\r\nContent-Length: 3 \r\nx-utf8: caf\u{e9}\r\nempty:\r\n\r\nabc\
        POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: Chunked\r\n\r\n\
        3;ext=\"v\"\r\nabc\r\n0a\r\n0123456789\r\n0\r\nx-trailer: 1\r\n\r\n\
        GET / HTTP/1.0\r\n\r\n";
    let (framing, result) = fed(stream.as_bytes());
    assert_eq!(result, Ok(()));
    assert_eq!((framing.heads, framing.open_head()), (4, None));
    let (framing, result) = fed(b"GET / HT");
    assert_eq!((framing.open_head(), result), (Some(1), Ok(())));
    // Only an empty line: no head has begun.
    assert_eq!(fed(b"\r\n").0.open_head(), None);
}

#[test]
fn what_comes_before_a_bad_head_is_told() {
    let good = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab";
    let (_, result) = fed(format!("{good}GET / HTTP/1.1\n\n").as_bytes());
    assert!(matches!(result, Err(FramingError::Head(at, _)) if at == good.len()));
    // Begun in an earlier piece: nothing of this one is good.
    let (mut framing, _) = fed(format!("{good}GET /").as_bytes());
    assert!(matches!(
        framing.feed(b" x\r\n"),
        Err(FramingError::Head(0, _))
    ));
}

#[test]
fn ambiguous_heads_are_malformed() {
    for head in [
        "content-length: 3\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "content-length: 3\r\ncontent-length: 3\r\n",
        "content-length: 18446744073709551616\r\n",
        "content-length:\r\n",
        "host: b\r\n",
        "x-a: 1\n",
        "x-a: 1\r\n folded\r\n",
        "x-a : 1\r\n",
        "x-a: \x7f\r\n",
        "x-a: 1\x0c\r\n",
        "x-a: 1\r\r\n",
        ": 1\r\n",
        "no colon\r\n",
    ] {
        let bytes = format!("POST / HTTP/1.1\r\nhost: a\r\n{head}\r\n");
        assert!(malformed(&bytes), "{head:?}");
    }
    for line in [
        "GET / HTTP/1.1 \r\n",
        "GET  / HTTP/1.1\r\n",
        "GET /\r\n",
        "GET\t/ HTTP/1.1\r\n",
        "GET /\u{e9} HTTP/1.1\r\n",
        "GET / http/1.1\r\n",
        "GET / HTTP/2.0\r\n",
        " GET / HTTP/1.1\r\n",
        "\nGET / HTTP/1.1\r\n",
    ] {
        assert!(malformed(&format!("{line}host: a\r\n\r\n")), "{line:?}");
    }
    assert!(malformed("GET / HTTP/1.1\r\n\r\n"), "no host");
    let with_host = |host: &str| malformed(&format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n"));
    let mut bad = "a b,a/,b@a,a?,a#,a\\,\"a\",http://a,caf\u{e9}".split(',');
    assert_eq!(bad.find(|host| !with_host(host)), None);
    let mut good = ",a_b.c:80,[::1%25eth0]:80,127.0.0.1,xn--caf-dma".split(',');
    assert_eq!(good.find(|host| with_host(host)), None);
    assert!(malformed(
        "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"
    ));
}

#[test]
fn what_is_no_http_is_refused_before_its_line_ends() {
    for noise in [
        "\0",
        "GET\r",
        " ",
        "hello\x01",
        "GET /\x7f",
        "GET  ",
        "GET / HTP",
        "GET / HTTP/2",
        "GET / HTTP/1.12",
        "\r\n\r!",
        "GET / HTTP/1.1\r\n:",
        "GET / HTTP/1.1\r\nx-a ",
        "GET / HTTP/1.1\r\nx-a\r",
        "GET / HTTP/1.1\r\nx-a: 1\0",
        "GET / HTTP/1.1\r\nx-a: 1\r ",
    ] {
        assert!(malformed(noise), "{noise:?}");
    }
    for begun in [
        "G",
        "GET / HTTP/1.1\r",
        "GET / HTTP/1.0\r\nx-a",
        "GET / HTTP/1.1\r\nx-a:\t\u{e9} 1\r",
        "GET / HTTP/1.1\r\nhost: a\r\n\r",
    ] {
        assert_eq!(fed(begun.as_bytes()).1, Ok(()), "{begun:?}");
    }
}

#[test]
fn limits_hold_for_heads_that_never_end() {
    let long = "v".repeat(LIMITS.bytes);
    let fault = |bytes: String| match fed(bytes.as_bytes()).1 {
        Err(FramingError::Head(0, fault)) => fault,
        other => panic!("{other:?}"),
    };
    assert_eq!(fault(format!("GET /{long}")), Fault::TargetTooLong);
    let line = "GET / HTTP/1.1\r\n";
    assert_eq!(fault(format!("{line}x: {long}")), Fault::HeadTooLarge);
    let many = "x: 1\r\n".repeat(LIMITS.lines + 1);
    assert_eq!(fault(format!("{line}{many}")), Fault::HeadTooLarge);
    assert_eq!(fault("\r\n".repeat(LIMITS.bytes)), Fault::TargetTooLong);
}

#[test]
fn bad_chunks_are_refused() {
    let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    for body in [
        "\r\n",
        "x\r\n",
        "+3\r\nabc\r\n",
        "0x3\r\nabc\r\n",
        "3\nabc\r\n",
        "3\r\nabcd\r\n",
        "3\r\nabc\n",
        "3 \r\nabc\r\n",
        "3 4\r\nabc\r\n",
        "ffffffffffffffffff\r\n",
        "0\r\nno colon\r\n\r\n",
        "0\r\n\n",
    ] {
        let (_, result) = fed(format!("{head}{body}").as_bytes());
        assert!(
            matches!(result, Err(FramingError::Body(..))),
            "{body:?}: {result:?}"
        );
    }
    let extended = format!("1;{}\r\na\r\n", "e".repeat(1000));
    let (few, many) = (extended.repeat(16), extended.repeat(17));
    assert_eq!(fed(format!("{head}{few}").as_bytes()).1, Ok(()));
    assert!(matches!(
        fed(format!("{head}{many}").as_bytes()).1,
        Err(FramingError::Body(..))
    ));
    let endless = format!("{head}1;{}", "e".repeat(2 * CHUNK_LINE_BYTES_MAX));
    assert!(matches!(
        fed(endless.as_bytes()).1,
        Err(FramingError::Body(..))
    ));
}

fn request() -> impl Strategy<Value = String> {
    let fixed = "[a-z]{0,9}".prop_map(|body| {
        format!(
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    });
    let chunked = proptest::collection::vec("[\r\na-z]{1,9}", 0..4).prop_map(|parts| {
        let chunks = parts
            .iter()
            .map(|part| format!("{:x}\r\n{part}\r\n", part.len()));
        let chunks: String = chunks.collect();
        format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
    });
    let odd = "[ -~\r\n]{0,40}";
    prop_oneof![4 => fixed, 4 => chunked, 1 => odd]
}

proptest! {
    #[test]
    fn the_pieces_do_not_matter(
        requests in proptest::collection::vec(request(), 1..5),
        cuts in proptest::collection::vec(0.0..1.0_f64, 0..6),
    ) {
        let bytes = requests.concat().into_bytes();
        let (whole, expected) = fed(&bytes);
        let mut cuts: Vec<usize> =
            cuts.iter().map(|cut| (cut * bytes.len() as f64) as usize).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut framing = Framing::new(LIMITS);
        let mut found = Ok(());
        for pair in cuts.windows(2) {
            found = framing.feed(&bytes[pair[0]..pair[1]]);
            if found.is_err() {
                break;
            }
        }
        let fault = |refused| match refused {
            FramingError::Head(_, fault) => Ok(fault),
            FramingError::Body(_, what) => Err(what),
        };
        prop_assert_eq!(found.map_err(fault), expected.map_err(fault));
        prop_assert_eq!(framing.heads, whole.heads);
    }

    #[test]
    fn any_bytes_have_a_verdict(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = fed(&bytes);
    }
}
