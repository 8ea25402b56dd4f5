//! Restarts of workers: the epoch, which any replica raises and nobody lowers.
//!
//! An entry of its own for each worker, whose stamp *is* the epoch, as a number: the greater one is
//! kept, so writers of one value agree, a lower one changes nothing, and no record of another source can
//! lose it. Such stamps lie in 1970 for every clock: a worker's clock moves ours nowhere.

use std::sync::Arc;
use std::time::Duration;

use super::{Entry, Registry, RegistryError, effective};
use crate::hlc::Stamp;
use crate::worker::{Source, WorkerId};

/// Greatest epoch that travels; as seconds since 1970, nine million years.
pub const EPOCH_MAX: u64 = 1 << 48;

/// How far a worker's clock may be ahead: an epoch is never taken back, so a mistaken one is costly.
const EPOCH_LEAD_MAX: Duration = Duration::from_secs(24 * 60 * 60);

impl Registry {
    /// The worker's process started at `epoch`, in seconds since 1970. Returns the entry to push, or
    /// `None` if that or a later start is known.
    /// Errors: [`RegistryError::UnknownWorker`]; [`RegistryError::Epoch`] if it lies more than a day ahead of our
    /// clock; [`RegistryError::Full`].
    pub fn restarted(
        &mut self,
        id: &WorkerId,
        epoch: u64,
        now_ms: u64,
    ) -> Result<Option<Entry>, RegistryError> {
        let known = effective(&self.of_worker(id));
        let known = known.ok_or_else(|| RegistryError::UnknownWorker(id.clone()))?;
        if is_too_late(epoch, now_ms) || epoch > EPOCH_MAX {
            return Err(RegistryError::Epoch(epoch));
        }
        if epoch <= known.epoch() {
            return Ok(None);
        }
        self.room_for(id, &Source::Restart)?;
        let entry = Entry {
            id: id.clone(),
            source: Source::Restart,
            stamp: Stamp::from_bits(epoch),
            writer: Some(self.replica.clone()),
            spec: Some(Arc::new(known.started_at(epoch))),
            unused_ms: 0,
        };
        Ok(self.keep_greater(entry.clone()).then_some(entry))
    }
}

fn is_too_late(epoch: u64, now_ms: u64) -> bool {
    epoch > now_ms / 1000 + EPOCH_LEAD_MAX.as_secs()
}

/// Whether this tells of a start that no clock near ours has seen: it would hide every real one, since the latest counts,
/// whichever source tells of it. What a later release's source tells does not count here.
pub(super) fn is_ahead(entry: &Entry, now_ms: u64) -> bool {
    let epoch = match entry.source {
        Source::Restart => entry.stamp.bits(),
        Source::Later(_) => 0,
        _ => entry.spec.as_ref().map_or(0, |spec| spec.epoch()),
    };
    is_too_late(epoch, now_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{self, spec_with, sync, w};
    use crate::worker::WorkerSpec;

    const NOW: u64 = 1_700_000_000_000;
    const STARTED: u64 = NOW / 1000 - 60;

    fn spec(epoch: u64) -> WorkerSpec {
        spec_with(|raw| raw.epoch = epoch)
    }

    fn registry(name: &str) -> Registry {
        let mut registry = made::registry(name);
        registry.configure(w(), spec(0)).expect("room");
        registry
    }

    fn epoch(registry: &Registry) -> u64 {
        registry.workers()[0].spec.epoch()
    }

    #[test]
    fn an_epoch_only_rises() {
        let mut a = registry("a");
        assert!(a.restarted(&w(), STARTED, NOW).expect("known").is_some());
        assert!(a.restarted(&w(), STARTED, NOW).expect("known").is_none());
        assert!(
            a.restarted(&w(), STARTED - 1, NOW)
                .expect("known")
                .is_none()
        );
        assert_eq!(epoch(&a), STARTED);
        // Neither an admin, nor what is learned, nor another source lowers it.
        a.put(w(), Source::Admin, spec(3), NOW).expect("room");
        a.learn(w(), spec(0), NOW).expect("known");
        assert_eq!(epoch(&a), STARTED);
        a.put(w(), Source::Admin, spec(STARTED + 9), NOW)
            .expect("room");
        assert_eq!(epoch(&a), STARTED + 9);
        assert!(
            a.restarted(&w(), STARTED + 8, NOW)
                .expect("known")
                .is_none()
        );
        // Removed and added again: the process may be the same one.
        a.put(w(), Source::Admin, spec(0), NOW).expect("room");
        a.remove(&w(), Source::Admin, NOW).expect("known");
        assert_eq!(a.workers(), []);
        a.put(w(), Source::Admin, spec(0), NOW).expect("room");
        assert_eq!(epoch(&a), STARTED);
    }

    #[test]
    fn concurrent_writers_agree() {
        let (mut a, mut b) = (registry("a"), registry("b"));
        a.restarted(&w(), STARTED, NOW).expect("known");
        b.restarted(&w(), STARTED, NOW).expect("known");
        sync(&mut a, &mut b, NOW);
        assert_eq!((epoch(&a), a.digest()), (STARTED, b.digest()));
        // The later start wins, whichever replica reports it first, and the clocks have not moved.
        a.restarted(&w(), STARTED + 2, NOW).expect("known");
        b.restarted(&w(), STARTED + 1, NOW + 50).expect("known");
        sync(&mut a, &mut b, NOW);
        assert_eq!((epoch(&a), a.digest()), (STARTED + 2, b.digest()));
        assert_eq!(a.hybrid_ms(NOW), NOW);
    }

    #[test]
    fn mistaken_epochs_are_refused() {
        let mut a = registry("a");
        let day = 24 * 60 * 60;
        let far = NOW / 1000 + day + 1;
        assert_eq!(
            a.restarted(&w(), far, NOW).map(|_| ()),
            Err(RegistryError::Epoch(far))
        );
        assert!(a.restarted(&w(), far - 1, NOW).is_ok());
        let nobody: WorkerId = "v".parse().expect("valid");
        let unknown = a.restarted(&nobody, 1, NOW).map(|_| ());
        assert_eq!(unknown, Err(RegistryError::UnknownWorker(nobody)));
    }

    #[test]
    fn a_start_in_the_far_future_is_left_out_whoever_tells_of_it() {
        let day = 24 * 60 * 60;
        let far = NOW / 1000 + day + 1;
        for source in [Source::Admin, Source::Config, Source::Learned] {
            let mut liar = registry("liar");
            liar.put(w(), source, spec(far), NOW).expect("room");
            let lie: Vec<Entry> = liar.entries().cloned().collect();
            let mut a = registry("a");
            let merged = a.merge(lie.clone(), NOW).expect("no drift");
            assert_eq!((merged.ahead, merged.changed, epoch(&a)), (1, 0, 0));
            assert!(a.restarted(&w(), STARTED, NOW).expect("known").is_some());
            assert_eq!(epoch(&a), STARTED);
            let merged = a.merge(lie, NOW + 1_000).expect("no drift");
            assert_eq!((merged.ahead, epoch(&a)), (0, far), "a day is allowed");
        }
    }

    /// What is known of a worker that left is given up as learned facts are.
    #[test]
    fn it_makes_no_worker_and_is_given_up_in_time() {
        let mut a = registry("a");
        a.restarted(&w(), STARTED, NOW).expect("known");
        a.remove(&w(), Source::Config, NOW).expect("allowed");
        assert_eq!(a.workers(), []);
        assert_eq!(a.advance(super::super::RETENTION), 2);
        assert_eq!(a.digest().count, 0);
    }
}
