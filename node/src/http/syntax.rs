//! Small forms of HTTP that are read on both sides: numbers and lists. Strictly, since what two readers of one stream take
//! differently is how requests are smuggled.

use http::{HeaderMap, HeaderName};

/// A number of decimal digits and nothing else (RFC 9110, section 8.6); none for another text, and above 64 bits.
pub fn decimal(digits: &[u8]) -> Option<u64> {
    // `parse` alone would take a sign.
    let is_plain = digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).ok()?;
    text.parse().ok().filter(|_| is_plain)
}

/// The items of a list, such as the options of `Connection` (RFC 9110, section 5.6.1).
pub fn items(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Whether an item, in whatever case, is in one of the lists of this name.
pub fn has_item(headers: &HeaderMap, name: &HeaderName, item: &str) -> bool {
    let lists = headers.get_all(name).iter();
    lists
        .flat_map(|list| items(list.as_bytes()))
        .any(|one| one.eq_ignore_ascii_case(item.as_bytes()))
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    #[test]
    fn numbers_are_digits() {
        for (text, number) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("+1", None),
            (" 1", None),
            ("0x1", None),
            ("\u{661}", None),
        ] {
            assert_eq!(decimal(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn a_list_may_be_in_several_lines() {
        let mut headers = HeaderMap::new();
        for list in ["a ,Close", "", "\tupgrade\t"] {
            headers.append(header::CONNECTION, HeaderValue::from_static(list));
        }
        for (item, is_there) in [
            ("a", true),
            ("close", true),
            ("UPGRADE", true),
            ("b", false),
        ] {
            let found = has_item(&headers, &header::CONNECTION, item);
            assert_eq!(found, is_there, "{item}");
        }
    }
}
