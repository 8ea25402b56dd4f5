//! Where an answer's body ends, as its head says it (RFC 9112, section 6.3).

use http::{HeaderMap, Version, header};

use crate::http::syntax::decimal;

/// Where a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyLength {
    /// After so many bytes.
    Fixed(u64),
    /// As its chunks say.
    Chunked,
    /// The head does not say: with the connection, or as the frames of HTTP/2 say.
    Open,
}

/// None where the head says more than one thing, or something that is not understood here: a reader behind another
/// proxy may take another part of it.
pub(super) fn body_length(version: Version, headers: &HeaderMap) -> Option<BodyLength> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (lengths.next(), codings.next()) {
        (None, None) => Some(BodyLength::Open),
        (Some(length), None) => {
            let fixed = decimal(length.as_bytes()).map(BodyLength::Fixed);
            fixed.filter(|_| lengths.next().is_none())
        }
        (None, Some(coding)) => {
            let is_chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
            // HTTP/1.0 has no codings.
            let is_known = version == Version::HTTP_11 && codings.next().is_none();
            (is_chunked && is_known).then_some(BodyLength::Chunked)
        }
        (Some(_), Some(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const LENGTH: &str = "content-length";
    const CODING: &str = "transfer-encoding";

    type Lines<'a> = &'a [(&'static str, &'static str)];

    fn of(version: Version, lines: Lines<'_>) -> Option<BodyLength> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        body_length(version, &headers)
    }

    #[test]
    fn one_length_or_one_coding_is_understood_and_nothing_else() {
        let fixed = |bytes| Some(BodyLength::Fixed(bytes));
        let table: &[(Lines<'_>, Option<BodyLength>)] = &[
            (&[], Some(BodyLength::Open)),
            (&[(LENGTH, "0")], fixed(0)),
            (&[(LENGTH, "007")], fixed(7)),
            (&[(LENGTH, "18446744073709551615")], fixed(u64::MAX)),
            (&[(LENGTH, "18446744073709551616")], None),
            (&[(LENGTH, "")], None),
            (&[(LENGTH, "+5")], None),
            (&[(LENGTH, "5, 5")], None),
            (&[(LENGTH, "5"), (LENGTH, "5")], None),
            (&[(CODING, "Chunked")], Some(BodyLength::Chunked)),
            (&[(CODING, "gzip, chunked")], None),
            (&[(CODING, "chunked"), (CODING, "chunked")], None),
            (&[(CODING, "chunked"), (LENGTH, "5")], None),
        ];
        for (lines, expected) in table {
            assert_eq!(of(Version::HTTP_11, lines), *expected, "{lines:?}");
        }
        assert_eq!(of(Version::HTTP_10, &[(CODING, "chunked")]), None);
        assert_eq!(of(Version::HTTP_10, &[(LENGTH, "5")]), fixed(5));
    }
}
