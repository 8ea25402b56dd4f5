//! Short sums by which two replicas find out whether, and where, their registries differ.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use super::entry::Entry;
use crate::hlc::Stamp;
use crate::worker::{WorkerId, write_text};

/// Number of parts that the map is compared by. With 64, one change among 4,096 entries sends
/// about 64 of them instead of all, for 256 bytes more in the question.
pub const BUCKETS: usize = 64;

/// Sum over a whole registry. Equal digests mean equal maps (up to crc collisions, which also
/// would have to hit count and greatest stamp).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest {
    /// crc32 over the canonical bytes of all entries in key order, tombstones included.
    pub crc: u32,
    /// Number of entries, tombstones included.
    pub count: u32,
    /// Greatest stamp of any entry.
    pub stamp: Stamp,
}

/// A digest with one crc for each part of the map: the question of anti-entropy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Sum over the whole map.
    pub digest: Digest,
    /// crc32 of each part; a worker's entries are all in one part.
    pub buckets: [u32; BUCKETS],
}

impl Summary {
    /// That of an empty map: whoever is asked by it answers with everything.
    pub(crate) fn of_nothing() -> Self {
        Self::of(std::iter::empty())
    }

    /// Sums over entries that come in key order.
    pub(super) fn of<'a>(entries: impl Iterator<Item = &'a Entry>) -> Self {
        let mut whole = crc32fast::Hasher::new();
        let mut parts = vec![crc32fast::Hasher::new(); BUCKETS];
        let mut digest = Digest::default();
        let mut bytes = Vec::new();
        for (entry, bucket) in with_buckets(entries) {
            bytes.clear();
            entry.write_canonical(&mut bytes);
            whole.update(&bytes);
            parts[bucket].update(&bytes);
            digest.count += 1;
            digest.stamp = digest.stamp.max(entry.stamp);
        }
        digest.crc = whole.finalize();
        let mut buckets = [0; BUCKETS];
        for (bucket, part) in buckets.iter_mut().zip(parts) {
            *bucket = part.finalize();
        }
        Self { digest, buckets }
    }
}

/// Entries that come in key order, each with the part of the map that it belongs to: that of its worker.
pub(super) fn with_buckets<'a>(
    entries: impl Iterator<Item = &'a Entry>,
) -> impl Iterator<Item = (&'a Entry, usize)> {
    let mut bytes = Vec::new();
    let mut latest: Option<(&WorkerId, usize)> = None;
    entries.map(move |entry| {
        let bucket = match latest {
            Some((worker, bucket)) if *worker == entry.id => bucket,
            _ => {
                bytes.clear();
                write_text(&mut bytes, entry.id.as_str());
                crc32fast::hash(&bytes) as usize % BUCKETS
            }
        };
        latest = Some((&entry.id, bucket));
        (entry, bucket)
    })
}

/// `crc:count:stamp` in hexadecimal, decimal, hexadecimal: the form gossiped, logged and shown.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:08x}:{}:{:016x}",
            self.crc,
            self.count,
            self.stamp.bits()
        )
    }
}

/// The text is not `crc:count:stamp`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("registry digest is not crc:count:stamp")]
pub struct DigestError(#[source] Option<ParseIntError>);

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let mut parts = text.splitn(3, ':');
        let (Some(crc), Some(count), Some(stamp)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(DigestError(None));
        };
        let bad = |cause| DigestError(Some(cause));
        Ok(Self {
            crc: u32::from_str_radix(crc, 16).map_err(bad)?,
            count: count.parse().map_err(bad)?,
            stamp: Stamp::from_bits(u64::from_str_radix(stamp, 16).map_err(bad)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_is_read_back() {
        let digest = Digest {
            crc: 0x9f,
            count: 12,
            stamp: Stamp::from_bits(0xabc),
        };
        assert_eq!(digest.to_string(), "0000009f:12:0000000000000abc");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for bad in ["", "1:2", "x:1:2", "1:x:2", "1:2:x", "1:2:3:4"] {
            assert!(bad.parse::<Digest>().is_err(), "{bad:?}");
        }
    }
}
