//! What a worker may make this replica hold, in both versions of HTTP.

/// Most bytes that are read ahead of a slow client.
pub(super) const READ_BYTES_MAX: u32 = 64 * 1024;
/// Most header lines that a worker may answer with.
pub(super) const HEADERS_MAX: usize = 100;
