//! Registry entries as they travel.
//!
//! Numbers stand for choices (`u8` codes). One that a later release added is carried by its number: stored, passed on
//! and summed like the others, so that replicas of both releases hold the same map.

use std::sync::Arc;

use super::body::Body;
use crate::frame::{Decode, Encode, FrameError};
use crate::hlc::Stamp;
use crate::registry::{EPOCH_MAX, Entry};
use crate::replica::ReplicaId;
use crate::worker::{LATER_SOURCES, RawWorker, Role, Source, State, WorkerSpec};

/// Greatest number of registry entries in one frame.
pub(super) const CHUNK_ENTRIES_MAX: usize = 512;

#[derive(Encode, Decode)]
pub(super) struct WireEntry {
    id: String,
    source: u8,
    provider: String,
    stamp: u64,
    writer: Option<String>,
    spec: Option<WireSpec>,
    unused_ms: u64,
}

#[derive(Encode, Decode)]
struct WireSpec {
    url: String,
    models: Vec<String>,
    weight_milli: u32,
    role: u8,
    dp_size: Option<u32>,
    zone: Option<String>,
    max_in_flight: Option<u32>,
    state: u8,
    until_ms: u64,
    epoch: u64,
}

impl Body for Vec<Entry> {
    type Wire = Vec<WireEntry>;

    fn to_wire(&self) -> Vec<WireEntry> {
        self.iter().map(WireEntry::from).collect()
    }

    /// Leaves out entries that break a rule.
    fn from_wire(wire: Vec<WireEntry>, refused: &mut usize) -> Result<Self, FrameError> {
        let count = wire.len();
        if count > CHUNK_ENTRIES_MAX {
            return Err(FrameError::Value("number of registry entries"));
        }
        let valid: Self = wire.into_iter().filter_map(WireEntry::checked).collect();
        *refused += count - valid.len();
        Ok(valid)
    }
}

impl From<&Entry> for WireEntry {
    fn from(entry: &Entry) -> Self {
        let (source, provider) = match &entry.source {
            Source::Admin => (0, ""),
            Source::Config => (1, ""),
            Source::Provider(name) => (2, name.as_str()),
            Source::Learned => (3, ""),
            Source::Restart => (4, ""),
            Source::Labels => (5, ""),
            Source::Drain => (6, ""),
            Source::Later(later) => (later.code(), later.name()),
        };
        Self {
            id: entry.id.to_string(),
            source,
            provider: provider.to_owned(),
            stamp: entry.stamp.bits(),
            writer: entry.writer.as_ref().map(ReplicaId::to_string),
            spec: entry.spec.as_deref().map(WireSpec::from),
            unused_ms: entry.unused_ms,
        }
    }
}

impl WireEntry {
    fn checked(self) -> Option<Entry> {
        let source = match self.source {
            0 => Source::Admin,
            1 => Source::Config,
            2 => Source::provider(&self.provider).ok()?,
            3 => Source::Learned,
            4 => Source::Restart,
            5 => Source::Labels,
            6 => Source::Drain,
            LATER_SOURCES.. => Source::later(self.source, &self.provider).ok()?,
        };
        let writer = self.writer.map(|writer| writer.parse()).transpose().ok()?;
        let spec = self.spec.map(WireSpec::checked);
        let spec = match spec {
            Some(None) => return None,
            Some(Some(spec)) => Some(Arc::new(spec)),
            None => None,
        };
        // Only configuration read at start is unsigned, and it has no time.
        let stamp = Stamp::from_bits(self.stamp);
        let is_initial = stamp == Stamp::ZERO;
        if is_initial != writer.is_none() || (is_initial && source != Source::Config) {
            return None;
        }
        let is_epoch =
            |spec: &Arc<WorkerSpec>| spec.epoch() == stamp.bits() && spec.epoch() <= EPOCH_MAX;
        if source == Source::Restart && !spec.as_ref().is_some_and(is_epoch) {
            return None;
        }
        let id = self.id.parse().ok()?;
        Some(Entry {
            id,
            source,
            stamp,
            writer,
            spec,
            unused_ms: self.unused_ms,
        })
    }
}

impl From<&WorkerSpec> for WireSpec {
    fn from(spec: &WorkerSpec) -> Self {
        let raw = spec.to_raw();
        let (state, until_ms) = spec.state_code();
        Self {
            url: raw.url,
            models: raw.models,
            weight_milli: raw.weight_milli,
            role: spec.role_code(),
            dp_size: raw.dp_size,
            zone: raw.zone,
            max_in_flight: raw.max_in_flight,
            state,
            until_ms,
            epoch: raw.epoch,
        }
    }
}

impl WireSpec {
    fn checked(self) -> Option<WorkerSpec> {
        let mut later_state = None;
        let raw = RawWorker {
            url: self.url,
            models: self.models,
            weight_milli: self.weight_milli,
            role: match self.role {
                0 => Role::Any,
                1 => Role::Prefill,
                2 => Role::Decode,
                code => Role::Later(code),
            },
            dp_size: self.dp_size,
            zone: self.zone,
            max_in_flight: self.max_in_flight,
            state: match self.state {
                0 => State::Active,
                1 => State::Warming {
                    until_ms: self.until_ms,
                },
                2 => State::Draining,
                code => {
                    later_state = Some((code, self.until_ms));
                    State::Active
                }
            },
            epoch: self.epoch,
        };
        let spec = WorkerSpec::new(raw).ok()?;
        Some(match later_state {
            Some((code, until_ms)) => spec.in_later_state(code, until_ms),
            None => spec,
        })
    }
}

/// Upper estimate of an entry's length on the wire in bytes.
pub(super) fn entry_len(entry: &Entry) -> usize {
    const FIXED: usize = 256;
    let spec = entry.spec.as_ref().map_or(0, |spec| {
        let models = spec
            .models()
            .iter()
            .map(|model| model.len() + 3)
            .sum::<usize>();
        spec.url().base().len() + models + spec.zone().map_or(0, str::len)
    });
    FIXED + entry.id.as_str().len() + spec
}
