//! What is kept of each of a bounded number of replicas. Pure.

use std::collections::BTreeMap;

use super::HEADS_MAX;
use crate::replica::ReplicaId;

/// Something of each of [`HEADS_MAX`] replicas. Of more, the one that was not touched for the longest time goes: by its name one
/// replica would always be the first to go, whatever it does.
#[derive(Debug)]
pub(super) struct Kept<T> {
    by_id: BTreeMap<ReplicaId, (u64, T)>,
    /// Rises with each touch.
    touches: u64,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            by_id: BTreeMap::new(),
            touches: 0,
        }
    }
}

impl<T> Kept<T> {
    /// Touches what is kept of a replica, made by `new` if that is nothing.
    pub(super) fn touch(&mut self, id: &ReplicaId, new: impl FnOnce() -> T) -> &mut T {
        if self.by_id.len() >= HEADS_MAX && !self.by_id.contains_key(id) {
            let oldest = self.by_id.iter().min_by_key(|(_, (touched, _))| *touched);
            if let Some(oldest) = oldest.map(|(oldest, _)| oldest.clone()) {
                self.by_id.remove(&oldest);
            }
        }
        self.touches += 1;
        let kept = self.by_id.entry(id.clone()).or_insert_with(|| (0, new()));
        kept.0 = self.touches;
        &mut kept.1
    }

    /// What is kept of a replica; it is not touched by that.
    pub(super) fn get_mut(&mut self, id: &ReplicaId) -> Option<&mut T> {
        self.by_id.get_mut(id).map(|(_, kept)| kept)
    }

    pub(super) fn remove(&mut self, id: &ReplicaId) -> Option<T> {
        self.by_id.remove(id).map(|(_, kept)| kept)
    }

    pub(super) fn retain(&mut self, mut is_wanted: impl FnMut(&mut T) -> bool) {
        self.by_id.retain(|_, (_, kept)| is_wanted(kept));
    }

    /// Whether anything of this replica is kept.
    #[cfg(test)]
    pub(super) fn remembers(&self, id: &ReplicaId) -> bool {
        self.by_id.contains_key(id)
    }
}
