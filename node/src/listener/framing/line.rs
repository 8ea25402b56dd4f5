//! What heads and chunked bodies are made of: lines, fields, and counted bytes.

use std::borrow::Cow;

use memchr::memchr;

/// Takes a line with its line feed off the front of `rest`; what is no whole line yet is kept in `begun`, and `rest` is
/// empty then.
pub(super) fn next_line<'a>(begun: &mut Vec<u8>, rest: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let Some(end) = memchr(b'\n', rest) else {
        begun.extend_from_slice(rest);
        *rest = &[];
        return None;
    };
    let (line, after) = rest.split_at(end + 1);
    *rest = after;
    if begun.is_empty() {
        return Some(Cow::Borrowed(line));
    }
    begun.extend_from_slice(line);
    Some(Cow::Owned(std::mem::take(begun)))
}

/// Takes up to `left` bytes off the front of `rest`; whether those were the last of them.
pub(super) fn skip(left: &mut u64, rest: &mut &[u8]) -> bool {
    let taken = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
    *left -= taken as u64;
    *rest = &rest[taken..];
    *left == 0
}

/// Name and value of a field line; none if it is malformed (RFC 9112, section 5).
pub(super) fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, value) = line.split_at(memchr(b':', line)?);
    let is_name = !name.is_empty() && name.iter().all(|byte| is_token(*byte));
    let value = &value[1..];
    // No early exit, so that the compiler can look at many bytes at once.
    let is_bad = value
        .iter()
        .fold(false, |bad, byte| bad | is_control(*byte));
    (is_name && !is_bad).then_some((name, value.trim_ascii()))
}

/// What no value has.
pub(super) fn is_control(byte: u8) -> bool {
    (byte < b' ' && byte != b'\t') || byte == 0x7f
}

/// RFC 9110, section 5.6.2.
pub(super) fn is_token(byte: u8) -> bool {
    TOKEN[byte as usize]
}

const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = matches!(byte as u8, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'!' | b'#' | b'$' | b'%' | b'&'
            | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~');
        byte += 1;
    }
    table
};
