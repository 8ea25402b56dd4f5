//! The reader of heads against the rules, and against itself in other pieces.

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

use super::request::HeadReader;
use super::tests::LIMITS;
use super::*;
use crate::listener::framing::{Framing, FramingError};

type Verdict = Result<Vec<(String, String, Vec<(HeaderName, HeaderValue)>)>, Fault>;

/// The heads of requests without bodies, read in pieces that end at these places.
fn heads(bytes: &[u8], cuts: &[usize]) -> Verdict {
    let mut reader = HeadReader::default();
    let mut found = Vec::new();
    let mut from = 0;
    for to in cuts.iter().copied().chain([bytes.len()]) {
        let mut piece = Bytes::copy_from_slice(&bytes[from..to]);
        from = to;
        while !piece.is_empty() {
            if let Some(head) = reader.feed(&mut piece, LIMITS)? {
                reader = HeadReader::default();
                let headers = head.parts.headers.iter();
                let headers = headers.map(|(name, value)| (name.clone(), value.clone()));
                found.push((
                    head.parts.method.to_string(),
                    head.parts.uri.to_string(),
                    headers.collect(),
                ));
            }
        }
    }
    Ok(found)
}

fn head_text() -> impl Strategy<Value = String> {
    let field = ("[A-Za-z-]{1,8}", "[ -~\t]{0,12}").prop_map(|(name, value)| {
        let taken = ["content-length", "transfer-encoding", "host"];
        match taken.contains(&name.to_ascii_lowercase().as_str()) {
            true => String::new(),
            false => format!("{name}: {value}\r\n"),
        }
    });
    let fields = proptest::collection::vec(field, 0..6);
    let good = ("[A-Z]{1,6}", "/[a-z?=&%0-9]{0,12}", fields).prop_map(|(method, path, fields)| {
        format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\n{}\r\n",
            fields.concat()
        )
    });
    prop_oneof![6 => good, 1 => "[ -~\r\n]{0,40}"]
}

proptest! {
    #[test]
    fn heads_are_the_same_in_whatever_pieces_they_come(
        texts in proptest::collection::vec(head_text(), 1..4),
        cuts in proptest::collection::vec(0.0..1.0_f64, 0..6),
    ) {
        let bytes = texts.concat().into_bytes();
        let mut cuts: Vec<usize> =
            cuts.iter().map(|cut| (cut * bytes.len() as f64) as usize).collect();
        cuts.sort_unstable();
        prop_assert_eq!(heads(&bytes, &[]), heads(&bytes, &cuts));
    }

    #[test]
    fn what_the_rules_refuse_is_refused_and_no_more_but_targets_that_are_none(
        texts in proptest::collection::vec(head_text(), 1..4),
    ) {
        let bytes = texts.concat().into_bytes();
        let ruled = Framing::new(LIMITS).feed(&bytes);
        match (ruled, heads(&bytes, &[])) {
            (Ok(()), Ok(_)) => {}
            (Err(FramingError::Head(_, rule)), Err(own)) => prop_assert_eq!(rule, own),
            (Ok(()), Err(own)) => prop_assert!(
                own == Fault::Malformed("the request line has no method or no target that exists"),
                "{:?}", own
            ),
            (ruled, own) => prop_assert!(false, "{:?}, {:?}", ruled, own),
        }
    }
}
