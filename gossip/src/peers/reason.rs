//! Why a message is refused.

/// Why a message did not reach chitchat; also the label of the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// Longer than chitchat ever writes.
    TooLong,
    /// Not a chitchat 0.11.1 message.
    Malformed,
    /// The compressed part grows beyond the limit.
    Inflated,
    /// More nodes or keys than a cluster can have.
    TooMany,
    /// A key or value that chitchat could not handle.
    BadValue,
    /// Heartbeat or version out of order, or further than the replica can have come.
    Implausible,
    /// It claims to know more of our own state than we have written.
    OwnState,
    /// It comes from, or answers, another cluster.
    OtherCluster,
    /// More than any honest replica sends.
    Flood,
    /// The sender was cut off before.
    Banned,
    /// The sender never shook hands, or has left: messages on other streams may come after its goodbye.
    Unknown,
}

impl Reason {
    /// Every reason.
    pub(crate) const ALL: [Self; 11] = [
        Self::TooLong,
        Self::Malformed,
        Self::Inflated,
        Self::TooMany,
        Self::BadValue,
        Self::Implausible,
        Self::OwnState,
        Self::OtherCluster,
        Self::Flood,
        Self::Banned,
        Self::Unknown,
    ];

    /// Label of the counter.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
            Self::Inflated => "inflated",
            Self::TooMany => "too_many",
            Self::BadValue => "bad_value",
            Self::Implausible => "implausible",
            Self::OwnState => "own_state",
            Self::OtherCluster => "other_cluster",
            Self::Flood => "flood",
            Self::Banned => "banned",
            Self::Unknown => "unknown",
        }
    }
}
