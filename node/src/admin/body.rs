//! Bodies of the admin API: JSON, and what is wrong with one in words that do not presuppose Rust.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::api::ApiError;
use crate::api::error::ErrorKind;

/// Largest body, in bytes: `/explain` takes whole requests.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// How much of a body is taken, and for how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyLimits {
    /// Bytes.
    pub(super) bytes: usize,
    /// From the head to the end of the body.
    pub(super) within: Duration,
}

/// Of a caller who may ask.
const KNOWN: BodyLimits = BodyLimits {
    bytes: BODY_BYTES_MAX,
    within: Duration::from_secs(30),
};

/// How serde names what it found or expected, and what JSON's users call it.
const WORDS: [(&str, &str); 6] = [
    ("expected f64", "expected a number"),
    ("expected u16", "expected a whole number from 0 to 65535"),
    (
        "expected u32",
        "expected a whole number from 0 to 4294967295",
    ),
    ("expected a sequence", "expected a list"),
    ("invalid type: sequence", "invalid type: list"),
    ("invalid type: map", "invalid type: object"),
];

pub(super) async fn read(body: Incoming) -> Result<Bytes, ApiError> {
    read_within(body, KNOWN).await
}

pub(super) async fn read_within(body: Incoming, limits: BodyLimits) -> Result<Bytes, ApiError> {
    let limited = Limited::new(body, limits.bytes).collect();
    match timeout(limits.within, limited).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(_)) => Err(ApiError::new(
            ErrorKind::TooLarge,
            format!(
                "the body broke off or is larger than {} bytes",
                limits.bytes
            ),
        )),
        Err(_) => Err(ApiError::new(
            ErrorKind::RequestTimeout,
            "the body did not arrive in time",
        )),
    }
}

/// Reads a body.
/// Errors: 400 with the field, as `labels.a` or `[1].weight`, and the place: line and column count from 1.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        // The root is written as a dot.
        match error.path().to_string().as_str() {
            // A question mark is a member of which nothing is known yet.
            "." | "?" => format!("the body is wrong: {}", in_words(error.inner())),
            field => format!("{field} is wrong: {}", in_words(error.inner())),
        }
    });
    let read = read.and_then(|read| {
        let rest = reader.end();
        rest.map_err(|error| format!("the body is wrong: {}", in_words(&error)))?;
        Ok(read)
    });
    read.map_err(|what| ApiError::new(ErrorKind::InvalidRequest, what))
}

fn in_words(error: &serde_json::Error) -> String {
    let said = error.to_string();
    WORDS
        .iter()
        .fold(said, |said, (serdes, ours)| said.replacen(serdes, ours, 1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::parse;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, expecting = "a thing")]
    struct Thing {
        #[expect(dead_code)]
        weight: Option<f64>,
        #[expect(dead_code)]
        port: Option<u16>,
        #[expect(dead_code)]
        size: Option<u32>,
        #[expect(dead_code)]
        models: Option<Vec<String>>,
        #[expect(dead_code)]
        labels: Option<BTreeMap<String, String>>,
    }

    #[test]
    fn a_mistake_is_named_by_its_field_in_words_of_json() {
        let check = |body: &str, expected: &str| {
            let error = parse::<Thing>(body.as_bytes()).expect_err(body);
            assert_eq!(&*error.message, expected, "{body}");
        };
        check(
            r#"{"weight": "x"}"#,
            "weight is wrong: invalid type: string \"x\", expected a number at line 1 column 14",
        );
        check(
            r#"{"port": 70000}"#,
            "port is wrong: invalid value: integer `70000`, expected a whole number from 0 to 65535 at line 1 column 14",
        );
        check(
            r#"{"size": -1}"#,
            "size is wrong: invalid value: integer `-1`, expected a whole number from 0 to 4294967295 at line 1 column 11",
        );
        check(
            r#"{"models": {}}"#,
            "models is wrong: invalid type: object, expected a list at line 1 column 11",
        );
        check(
            r#"{"labels": {"a": []}}"#,
            "labels.a is wrong: invalid type: list, expected a string at line 1 column 17",
        );
        check(
            "5",
            "the body is wrong: invalid type: integer `5`, expected a thing at line 1 column 1",
        );
        check(
            "{",
            "the body is wrong: EOF while parsing an object at line 1 column 1",
        );
        check(
            "{} {}",
            "the body is wrong: trailing characters at line 1 column 4",
        );
        let list = parse::<Vec<Thing>>(br#"[{}, {"weight": []}]"#).expect_err("a list");
        assert_eq!(
            &*list.message,
            "[1].weight is wrong: invalid type: list, expected a number at line 1 column 16"
        );
    }
}
