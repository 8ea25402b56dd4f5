//! Evidence and heat: told to the peers in batches, heard from them, repaired after gaps.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use super::core::Core;
use crate::evidence::{Ear, Evidence, Heard, HeatReport, Record, Tell, Told};

/// Where the evidence for starting replicas comes from.
pub type EvidenceSource = Arc<dyn Fn() -> Vec<Evidence> + Send + Sync>;

/// The agent's part of the plane. Small locks of its own: requests tell under them.
#[derive(Default)]
pub(super) struct EvidenceDesk {
    told: Mutex<Told>,
    ear: Mutex<Ear>,
    source: Mutex<Option<EvidenceSource>>,
}

impl EvidenceDesk {
    pub(super) fn listen(&self) -> mpsc::Receiver<Heard> {
        lock(&self.ear).listen()
    }

    pub(super) fn serve(&self, source: EvidenceSource) {
        *lock(&self.source) = Some(source);
    }
}

impl Core {
    pub(super) fn tell_record(&self, record: Record) {
        self.metrics.evidence("told", 1);
        match lock(&self.evidence.told).tell(record) {
            Tell::Queued { dropped: 0 } => {}
            Tell::Queued { dropped } => self.metrics.evidence("queue_full", dropped),
            Tell::Malformed => self.metrics.evidence("malformed", 1),
        }
    }

    pub(super) fn tell_heat(&self, report: HeatReport) {
        if !lock(&self.evidence.told).heat(report) {
            self.metrics.evidence("malformed", 1);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under these locks is one call into a pure part, whole or not made.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
