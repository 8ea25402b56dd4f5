//! Canonical bytes: the one encoding under every digest of this crate.
//!
//! Numbers are little-endian 64-bit; every field of bytes has its length in front, so that `a1` + `1`
//! and `a` + `11` differ.

use std::fmt;

/// CRC-32 (IEEE) over canonical bytes: equal digests mean equal rings or settings.
///
/// Printed as 8 hexadecimal digits. It detects difference; it is no protection against forgery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u32);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Builder of canonical bytes.
#[derive(Default)]
pub(crate) struct Canonical(Vec<u8>);

impl Canonical {
    /// Starts with a domain name, so that bytes of one kind never read as another kind.
    pub(crate) fn new(domain: &str) -> Self {
        Self::default().bytes(domain.as_bytes())
    }

    pub(crate) fn number(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, value: &[u8]) -> Self {
        self.0
            .extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest(crc32fast::hash(&self.0))
    }
}
