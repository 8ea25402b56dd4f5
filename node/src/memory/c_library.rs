//! The C library's allocator, of a build without the feature `jemalloc`: it cannot be asked and takes no orders.

/// Nothing to start.
pub const fn start() {}

/// Bytes that the allocator holds and nobody uses: unknown.
pub const fn unused_bytes() -> Option<u64> {
    None
}

/// Bytes in use by the process's data: unknown.
pub const fn live_bytes() -> Option<u64> {
    None
}

/// Free pages are given back as the C library likes.
#[derive(Debug, Default)]
pub struct GivingBack;

impl GivingBack {
    /// Never.
    pub const fn is_at_once(&self) -> bool {
        false
    }

    /// Changes nothing.
    pub const fn at_once(&self, _wanted: bool) {}
}
