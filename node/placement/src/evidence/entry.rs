//! One entry of a prefix index, with its places in the two lists that it is in.

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct IndexEntry {
    pub(super) mark: u64,
    /// The mark before it in its chain, or the root if that is not known or there is none.
    pub(super) parent: u64,
    pub(super) slot: u32,
    /// Second of the last use.
    pub(super) second: u32,
    /// Number of the record that used it last.
    pub(super) used: u64,
    /// Second in which a record of what follows it in its chain renewed it last.
    pub(super) renewed: u32,
    /// Own requests that went there with it since it is here, but for those that were given up before they were computed.
    pub(super) requests: u16,
    /// Another replica told of it, or of what follows it.
    pub(super) is_told: bool,
    pub(super) holders: Place,
    /// In the list of its worker's entries: the next one that was used later.
    pub(super) newer: u32,
    /// The next one that was used earlier.
    pub(super) older: u32,
}

/// An entry's place in the list of its mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) next: u32,
    pub(super) before: u32,
}

impl Place {
    /// In no list yet.
    pub(super) const NOWHERE: Self = Self {
        next: NONE,
        before: NONE,
    };
}
