//! What a replica that starts gives up for the cluster that it meets.

use super::{Entry, Registry, RegistryError};
use crate::hlc::Stamp;
use crate::worker::{Source, WorkerId, WorkerSpec};

/// Whether it is configuration as read at a start, which no stamp puts before or behind another.
fn is_of_start(entry: &Entry) -> bool {
    entry.source == Source::Config && entry.stamp == Stamp::ZERO
}

impl Registry {
    /// [`Registry::configure`] of a replica that has met its cluster already: what that knows of a worker from a
    /// configuration stays, as in [`Registry::yield_to`].
    /// Errors: [`RegistryError::Full`].
    pub(crate) fn configure_late(
        &mut self,
        id: WorkerId,
        spec: WorkerSpec,
    ) -> Result<Option<Entry>, RegistryError> {
        if self.entry(&id, &Source::Config).is_none() {
            return self.configure(id, spec);
        }
        self.configured.insert(id);
        Ok(None)
    }

    /// Those of a cluster's entries that a replica which starts may have read otherwise from its own configuration.
    pub(crate) fn read_at_starts(entries: &[Entry]) -> Vec<Entry> {
        let of_starts = entries.iter().filter(|entry| is_of_start(entry));
        of_starts.cloned().collect()
    }

    /// Takes these, of the first cluster that this replica meets, in place of what it read at its start: a start describes no
    /// worker anew. By the order of entries the greater description would win, which is chance.
    ///
    /// All replicas still end with one: nobody takes anything of a replica that has met no cluster, so what is given up here
    /// is in no map that goes on. Returns how many have changed.
    pub(crate) fn yield_to(&mut self, of_cluster: Vec<Entry>) -> usize {
        let mut changed = 0;
        for entry in of_cluster {
            let key = (entry.id.clone(), entry.source.clone());
            let Some(own) = self.entries.get_mut(&key) else {
                continue;
            };
            if is_of_start(own) && own.order(&entry).is_ne() {
                *own = entry;
                changed += 1;
            }
        }
        if changed > 0 {
            self.summary.take();
        }
        changed
    }
}
