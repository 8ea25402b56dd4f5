//! The name of a replica.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Greatest length of a replica id in bytes: it is one label of a DNS name in the certificate.
const REPLICA_ID_BYTES_MAX: usize = 63;

/// Name of one router process, unique in its cluster and kept over restarts.
///
/// One DNS label: 1 to 63 lower-case ASCII letters, digits or inner hyphens, because the
/// certificate carries it as `<replica>.<cluster>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(Arc<str>);

/// The text is not a replica id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "replica id {0:?} is not 1 to {REPLICA_ID_BYTES_MAX} lower-case letters, digits or inner hyphens"
)]
pub struct ReplicaIdError(String);

impl ReplicaId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ReplicaId {
    type Err = ReplicaIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_valid = (1..=REPLICA_ID_BYTES_MAX).contains(&text.len())
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !text.starts_with('-')
            && !text.ends_with('-');
        if is_valid {
            Ok(Self(text.into()))
        } else {
            // Bounded: the text may come from a peer and ends in a log line.
            Err(ReplicaIdError(
                text.chars().take(REPLICA_ID_BYTES_MAX).collect(),
            ))
        }
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dns_labels_are_ids() {
        for good in ["r1", "router-2", "0", &"a".repeat(63)] {
            assert_eq!(good.parse::<ReplicaId>().expect("valid").as_str(), good);
        }
        for bad in ["", "-r", "r-", "R1", "r.1", "r 1", "é", &"a".repeat(64)] {
            assert!(bad.parse::<ReplicaId>().is_err(), "{bad:?}");
        }
    }
}
