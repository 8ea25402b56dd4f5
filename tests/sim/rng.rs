//! The same random numbers in each run with the same seed.
//!
//! chitchat draws its peers from the system's generator, hash maps their keys, TLS its nonces. All of them
//! call `getrandom(2)`; this binary has its own, with one sequence for each test thread.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};

thread_local! {
    static SEQUENCE: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
}

/// Starts the sequence of this thread.
pub(crate) fn start(seed: u64) {
    SEQUENCE.set(seed);
}

/// SplitMix64: Steele, Lea, Flood 2014.
pub(crate) fn next() -> u64 {
    let state = SEQUENCE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    SEQUENCE.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A number below `end`.
pub(crate) fn below(end: usize) -> usize {
    usize::try_from(next() % end as u64).expect("below a usize")
}

/// A number from 0 to 1, 1 left out.
pub(crate) fn share() -> f64 {
    (next() >> 11) as f64 / (1_u64 << 53) as f64
}

/// True in this share of all cases. Draws nothing for a share of zero.
pub(crate) fn happens(share_of_all: f64) -> bool {
    share_of_all > 0.0 && share() < share_of_all
}

/// # Safety
/// As getrandom(2): `buffer` must be valid for `length` bytes.
#[allow(
    unsafe_code,
    reason = "replaces the C library's function for this test binary only"
)]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: c_uint) -> isize {
    // SAFETY: the caller promises a buffer of this length.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&next().to_le_bytes()[..chunk.len()]);
    }
    isize::try_from(length).expect("a buffer is shorter than half of the address space")
}
