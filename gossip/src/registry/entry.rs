//! One cell of the registry map, and the total order that merging is.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::hlc::Stamp;
use crate::replica::ReplicaId;
use crate::worker::{Source, WorkerId, WorkerSpec, write_text};

/// What one source declares about one worker, since when, and through which replica.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The worker it is about.
    pub id: WorkerId,
    /// The source.
    pub source: Source,
    /// When it was declared; [`Stamp::ZERO`] for configuration read at start, the epoch as a number for a
    /// restart.
    pub stamp: Stamp,
    /// The replica that wrote it; `None` for configuration read at start, where every replica with
    /// the same file must write the same entry.
    pub writer: Option<ReplicaId>,
    /// The worker as the source describes it; `None` = removed by this source (a tombstone).
    pub spec: Option<Arc<WorkerSpec>>,
    /// For how long nothing has depended on this entry, in milliseconds of contact with other
    /// replicas. Travels with the entry, so that all replicas drop it at about the same time; no
    /// part of its identity, order or digest.
    pub unused_ms: u64,
}

impl Entry {
    /// Whether this release can read all of it.
    pub(crate) fn is_read(&self) -> bool {
        let spec = self.spec.as_ref();
        !matches!(self.source, Source::Later(_)) && spec.is_none_or(|spec| spec.is_read())
    }

    /// Whether the source removed the worker.
    pub fn is_removed(&self) -> bool {
        self.spec.is_none()
    }

    /// Which of two entries of one key is kept: the greater one.
    ///
    /// By stamp, then removed over present, then writer, then the bytes of the description: total,
    /// so that merging is commutative, associative and idempotent.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        self.stamp
            .cmp(&other.stamp)
            .then_with(|| self.is_removed().cmp(&other.is_removed()))
            .then_with(|| self.writer.cmp(&other.writer))
            .then_with(|| self.spec_bytes().cmp(&other.spec_bytes()))
    }

    fn spec_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(spec) = &self.spec {
            spec.write_canonical(&mut out);
        }
        out
    }

    /// Appends the bytes that digests are made of; any two different entries have different bytes.
    pub(super) fn write_canonical(&self, out: &mut Vec<u8>) {
        write_text(out, self.id.as_str());
        out.push(match &self.source {
            Source::Admin => 0,
            Source::Config => 1,
            Source::Provider(_) => 2,
            Source::Learned => 3,
            Source::Restart => 4,
            Source::Labels => 5,
            Source::Drain => 6,
            Source::Later(later) => later.code(),
        });
        match &self.source {
            Source::Provider(name) => write_text(out, name.as_str()),
            // A release that adds a source has to keep to this: then the sums of earlier ones are its own.
            Source::Later(later) => write_text(out, later.name()),
            Source::Labels | Source::Drain => write_text(out, ""),
            Source::Admin | Source::Config | Source::Learned | Source::Restart => {}
        }
        out.extend_from_slice(&self.stamp.bits().to_le_bytes());
        write_text(out, self.writer.as_ref().map_or("", ReplicaId::as_str));
        out.push(u8::from(self.is_removed()));
        if let Some(spec) = &self.spec {
            spec.write_canonical(out);
        }
    }
}
