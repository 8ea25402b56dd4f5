//! What happens to blocks, kept for those who publish it.

/// What happened to a block, as vLLM publishes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It can be hit from now on; with the block before it in its chain, and the sequence that computed it.
    Stored {
        parent: Option<u64>,
        block: u64,
        owner: u64,
    },
    /// It cannot be hit any more.
    Removed(u64),
}

/// Changes since they were last taken; none unless somebody wants them.
#[derive(Debug, Default)]
pub(super) struct Changes(Option<Vec<Change>>);

impl Changes {
    /// Keeps them from now on.
    pub(super) fn keep(&mut self) {
        self.0.get_or_insert_default();
    }

    /// Those since the last call.
    pub(super) fn take(&mut self) -> Vec<Change> {
        self.0.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn note(&mut self, change: Change) {
        if let Some(changes) = &mut self.0 {
            changes.push(change);
        }
    }
}
