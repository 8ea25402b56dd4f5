//! Headers for a collector, such as its key, as OpenTelemetry's variables have them: `name=value,name=value`. Pure.
//!
//! For metrics; the exporter of spans reads its own. They are secrets, so no error holds a value.

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

/// A header that cannot be sent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("header {0} is not `name=value`")]
pub struct HeaderError(usize);

/// Reads a list of headers; values are percent-encoded, and none is printed in logs.
/// Errors: one of them is no header; its number, from 1.
pub fn headers(list: &str) -> Result<HeaderMap, HeaderError> {
    let mut headers = HeaderMap::new();
    for (number, pair) in (1..).zip(list.split(',')) {
        // A comma at the end is usual.
        if pair.trim().is_empty() {
            continue;
        }
        let (name, value) = header(pair).ok_or(HeaderError(number))?;
        headers.insert(name, value);
    }
    Ok(headers)
}

fn header(pair: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = pair.split_once('=')?;
    let name = HeaderName::try_from(name.trim()).ok()?;
    let value: Vec<u8> = percent_decode_str(value.trim()).collect();
    let mut value = HeaderValue::try_from(value).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_headers_is_read() {
        let read = headers("api-key=a%2Cb==, Authorization = Basic%20x ,").expect("headers");
        assert_eq!(read.len(), 2);
        assert_eq!(read["api-key"], "a,b==");
        assert_eq!(read["authorization"], "Basic x");
        assert!(!format!("{read:?}").contains("Basic"), "{read:?}");
        assert_eq!(headers(""), Ok(HeaderMap::new()));
    }

    #[test]
    fn what_is_no_header_is_an_error_without_its_value() {
        for (list, number) in [
            ("secret", 1),
            ("a=b,c d=secret", 2),
            ("a=b,,c=%0Asecret", 3),
        ] {
            let error = headers(list).expect_err(list);
            assert_eq!(error, HeaderError(number));
            assert!(!error.to_string().contains("secret"));
        }
    }
}
