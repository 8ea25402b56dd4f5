//! The first 64 bytes of each side: signature, version, mechanism.

use bytes::{Buf, BytesMut};

use crate::Violation;

const GREETING_BYTES: usize = 64;
/// The signature's first byte and last one; what is between is for peers of version 1.
const SIGNATURE: (u8, u8) = (0xff, 0x7f);
const SIGNATURE_BYTES: usize = 10;
const MAJOR: u8 = 3;
/// The mechanism's name, filled up with zeros.
const MECHANISM: std::ops::Range<usize> = 12..32;
const NULL: [u8; 20] = *b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Our greeting: version 3.0, mechanism NULL, in which neither side is the server.
pub(crate) fn own() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[SIGNATURE_BYTES - 1]) = SIGNATURE;
    greeting[SIGNATURE_BYTES] = MAJOR;
    greeting[MECHANISM].copy_from_slice(&NULL);
    greeting
}

/// Takes a peer's greeting from the front; false while it is not all there.
///
/// What is there is looked at byte by byte, so that a peer of another kind is recognised by its first ones and not
/// waited for.
pub(crate) fn read(bytes: &mut BytesMut) -> Result<bool, Violation> {
    let is_at = |at: usize, allowed: fn(u8) -> bool| bytes.get(at).is_none_or(|b| allowed(*b));
    let is_greeting = is_at(0, |b| b == SIGNATURE.0)
        && is_at(SIGNATURE_BYTES - 1, |b| b & 1 == 1)
        && is_at(SIGNATURE_BYTES, |b| b >= MAJOR);
    if !is_greeting {
        return Err(Violation::Greeting);
    }
    if bytes.len() < GREETING_BYTES {
        return Ok(false);
    }
    if bytes[MECHANISM] != NULL {
        return Err(Violation::Mechanism);
    }
    bytes.advance(GREETING_BYTES);
    Ok(true)
}
