//! Canonical CBOR of what vLLM hashes: RFC 8949, section 4.2.1.

use super::ExtraKey;

const UNSIGNED: u8 = 0;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const NULL: u8 = 0xf6;

pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    head(out, TEXT, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// `(parent, (token, ...), ((key, value), ...) or null)`.
pub(super) fn block(out: &mut Vec<u8>, parent: &[u8], tokens: &[u32], extra: &[ExtraKey<'_>]) {
    head(out, ARRAY, 3);
    head(out, BYTES, parent.len() as u64);
    out.extend_from_slice(parent);
    head(out, ARRAY, tokens.len() as u64);
    for token in tokens {
        head(out, UNSIGNED, u64::from(*token));
    }
    if extra.is_empty() {
        out.push(NULL);
        return;
    }
    head(out, ARRAY, extra.len() as u64);
    for key in extra {
        head(out, ARRAY, key.texts().count() as u64);
        key.texts().for_each(|part| text(out, part));
    }
}

/// A kind and a number, in as few bytes as it has.
fn head(out: &mut Vec<u8>, kind: u8, number: u64) {
    let kind = kind << 5;
    if number < 24 {
        out.push(kind | number as u8);
    } else if let Ok(number) = u8::try_from(number) {
        out.extend_from_slice(&[kind | 24, number]);
    } else if let Ok(number) = u16::try_from(number) {
        out.push(kind | 25);
        out.extend_from_slice(&number.to_be_bytes());
    } else if let Ok(number) = u32::try_from(number) {
        out.push(kind | 26);
        out.extend_from_slice(&number.to_be_bytes());
    } else {
        out.push(kind | 27);
        out.extend_from_slice(&number.to_be_bytes());
    }
}
