//! The size of a head over HTTP/2, as its client sent it. Heads of HTTP/1 are measured while they are read.

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

/// What of a head is above its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooLarge {
    /// Its target alone.
    Target,
    /// All of it, or the number of its fields.
    Head,
}

impl TooLarge {
    /// Measures a head before anything is written into it. As many bytes count as it would have over HTTP/1, without its
    /// first line's other words.
    #[must_use]
    pub fn of(target: &Uri, headers: &HeaderMap, bytes: usize, fields: usize) -> Option<Self> {
        let target = target
            .path_and_query()
            .map_or("/", |target| target.as_str());
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            name.as_str().len() + value.len() + ": \r\n".len()
        };
        let lines: usize = headers.iter().map(line).sum();
        if target.len() > bytes {
            Some(Self::Target)
        } else if target.len() + lines > bytes || headers.len() > fields {
            Some(Self::Head)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_may_have_as_much_as_the_limits_say_and_no_more() {
        let target = Uri::from_static("http://grapevine.test/twelve-bytes");
        let headers = |fields: u8| -> HeaderMap {
            let field = |number| {
                let name: HeaderName = format!("x-{number}").parse().expect("a name");
                (name, HeaderValue::from_static("1234"))
            };
            (0..fields).map(field).collect()
        };
        // A target of 13 bytes, and three fields of 11.
        for (fields, bytes, most, expected) in [
            (3, 46, 3, None),
            (3, 46, 2, Some(TooLarge::Head)),
            (3, 45, 3, Some(TooLarge::Head)),
            (0, 13, 0, None),
            (0, 12, 0, Some(TooLarge::Target)),
        ] {
            let measured = TooLarge::of(&target, &headers(fields), bytes, most);
            assert_eq!(measured, expected, "{fields} {bytes} {most}");
        }
    }
}
