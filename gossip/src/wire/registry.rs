//! Anti-entropy and the first snapshot as they travel. Entries: `entry.rs`.

use std::time::Duration;

use super::body::{Body, Frame, later};
use super::entry::{CHUNK_ENTRIES_MAX, WireEntry, entry_len};
use super::load::WireSparse;
use crate::frame::{self, Decode, Encode, FrameError};
use crate::hlc::Stamp;
use crate::load::LoadFrame;
use crate::registry::{BUCKETS, Digest, Entry, Summary, millis};

/// Question of anti-entropy (see [`Registry::differing`](crate::registry::Registry::differing)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// Sums of the asking registry.
    pub summary: Summary,
    /// For how long the asking replica was alone (see [`Reunion`](crate::registry::Reunion)).
    pub alone: Duration,
}

/// One frame of the answer of anti-entropy.
#[derive(Clone, Debug)]
pub struct SyncResponse {
    /// Sums of the answering registry.
    pub summary: Summary,
    /// For how long the answering replica was alone.
    pub alone: Duration,
    /// Its entries in the parts that differ.
    pub entries: Vec<Entry>,
    /// Whether this is the last frame of the answer.
    pub last: bool,
    /// The answering replica's wall clock, Unix milliseconds; `None` from a release that does not say it.
    pub clock_ms: Option<u64>,
}

/// One frame of everything that a starting replica takes from a peer.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Registry entries.
    pub entries: Vec<Entry>,
    /// Load of the answering replica, in the last frame.
    pub load: Option<LoadFrame>,
    /// Whether this is the last frame.
    pub last: bool,
    /// For how long the answering replica was alone; `None` from a release that does not say it.
    pub alone: Option<Duration>,
}

/// Cuts entries into pieces that fit one frame each; one empty piece if there are none.
pub fn chunks(entries: Vec<Entry>) -> Vec<Vec<Entry>> {
    const CHUNK_BYTES_MAX: usize = 128 * 1024;
    let mut chunks = vec![Vec::new()];
    let mut bytes = 0;
    for entry in entries {
        let len = entry_len(&entry);
        let current = chunks.last().map_or(0, Vec::len);
        if current == CHUNK_ENTRIES_MAX || (current > 0 && bytes + len > CHUNK_BYTES_MAX) {
            chunks.push(Vec::new());
            bytes = 0;
        }
        bytes += len;
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(entry);
        }
    }
    chunks
}

#[derive(Encode, Decode)]
struct WireSummary {
    crc: u32,
    count: u32,
    stamp: u64,
    buckets: [u32; BUCKETS],
}

#[derive(Encode, Decode)]
pub(super) struct WireSyncRequest {
    summary: WireSummary,
    alone_ms: u64,
}

#[derive(Encode, Decode)]
pub(super) struct WireSyncResponse {
    summary: WireSummary,
    alone_ms: u64,
    entries: Vec<WireEntry>,
    last: bool,
}

#[derive(Encode, Decode)]
pub(super) struct WireSnapshot {
    entries: Vec<WireEntry>,
    load: Option<WireSparse>,
    last: bool,
}

impl Body for SyncRequest {
    type Wire = WireSyncRequest;

    fn to_wire(&self) -> WireSyncRequest {
        WireSyncRequest {
            summary: WireSummary::from(&self.summary),
            alone_ms: millis(self.alone),
        }
    }

    fn from_wire(wire: WireSyncRequest, _: &mut usize) -> Result<Self, FrameError> {
        Ok(Self {
            summary: wire.summary.into(),
            alone: Duration::from_millis(wire.alone_ms),
        })
    }
}

impl Body for SyncResponse {
    type Wire = WireSyncResponse;

    fn to_wire(&self) -> WireSyncResponse {
        WireSyncResponse {
            summary: WireSummary::from(&self.summary),
            alone_ms: millis(self.alone),
            entries: self.entries.to_wire(),
            last: self.last,
        }
    }

    fn from_wire(wire: WireSyncResponse, refused: &mut usize) -> Result<Self, FrameError> {
        Ok(Self {
            summary: wire.summary.into(),
            alone: Duration::from_millis(wire.alone_ms),
            entries: Body::from_wire(wire.entries, refused)?,
            last: wire.last,
            clock_ms: None,
        })
    }

    fn seal(&self, frame: Frame<'_>) -> Result<(), FrameError> {
        // Since 0.2.
        frame.put_with(&self.to_wire(), self.clock_ms)
    }

    fn read(_code: u8, body: &mut &[u8], refused: &mut usize) -> Result<Self, FrameError> {
        let mut response = Self::from_wire(frame::decode(body)?, refused)?;
        response.clock_ms = later(body)?;
        Ok(response)
    }
}

impl Body for Snapshot {
    type Wire = WireSnapshot;

    fn to_wire(&self) -> WireSnapshot {
        WireSnapshot {
            entries: self.entries.to_wire(),
            load: self.load.as_ref().map(Body::to_wire),
            last: self.last,
        }
    }

    fn from_wire(wire: WireSnapshot, refused: &mut usize) -> Result<Self, FrameError> {
        let load = wire.load.map(|load| Body::from_wire(load, refused));
        let load = load.transpose()?;
        Ok(Self {
            entries: Body::from_wire(wire.entries, refused)?,
            load,
            last: wire.last,
            alone: None,
        })
    }

    fn seal(&self, frame: Frame<'_>) -> Result<(), FrameError> {
        // Since 0.2.
        frame.put_with(&self.to_wire(), self.alone.map(millis))
    }

    fn read(_code: u8, body: &mut &[u8], refused: &mut usize) -> Result<Self, FrameError> {
        let mut snapshot = Self::from_wire(frame::decode(body)?, refused)?;
        snapshot.alone = later(body)?.map(Duration::from_millis);
        Ok(snapshot)
    }
}

impl From<&Summary> for WireSummary {
    fn from(summary: &Summary) -> Self {
        let Digest { crc, count, stamp } = summary.digest;
        Self {
            crc,
            count,
            stamp: stamp.bits(),
            buckets: summary.buckets,
        }
    }
}

impl From<WireSummary> for Summary {
    fn from(wire: WireSummary) -> Self {
        let stamp = Stamp::from_bits(wire.stamp);
        let digest = Digest {
            crc: wire.crc,
            count: wire.count,
            stamp,
        };
        Self {
            digest,
            buckets: wire.buckets,
        }
    }
}
