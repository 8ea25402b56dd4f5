//! The front of a buffer, given away without a copy.

use std::mem::take;

use bytes::{Bytes, BytesMut};

/// Takes `length` bytes off the front of `buf`, of which the first `data` are given. A buffer that has nothing else is
/// given away: the next read takes a new one.
pub(super) fn front_of(buf: &mut BytesMut, length: usize, data: usize) -> Bytes {
    let mut front = match length == buf.len() {
        true => take(buf),
        false => buf.split_to(length),
    };
    front.truncate(data);
    front.freeze()
}
