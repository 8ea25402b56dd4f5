//! The types that travel, and their conversion to and from core types.
//!
//! Numbers stand for choices (`u8` codes) where a later release may add one: an unknown code then
//! costs one entry, not the frame.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{
    HELLO_TEXT_BYTES_MAX, HINTS_MAX, Hello, HelloAck, Message, PeerHint, Snapshot, SyncRequest,
    SyncResponse,
};
use crate::frame::{self, Decode, Encode, FrameError};
use crate::hlc::Stamp;
use crate::load::{Coverage, Load, LoadFrame, SlotLoad};
use crate::registry::{BUCKETS, Digest, Entry, Summary};
use crate::replica::ReplicaId;
use crate::worker::{RawWorker, Role, Source, State, WorkerSpec};

/// Kind codes. Never reuse one. 16 and up are for planes to come.
mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const HELLO_ACK: u8 = 2;
    pub(super) const REGISTRY_PUSH: u8 = 3;
    pub(super) const PUSH_ACK: u8 = 4;
    pub(super) const SYNC_REQUEST: u8 = 5;
    pub(super) const SYNC_RESPONSE: u8 = 6;
    pub(super) const LOAD_CHANGES: u8 = 7;
    pub(super) const LOAD_FULL_SPARSE: u8 = 8;
    pub(super) const LOAD_FULL_DENSE: u8 = 9;
    pub(super) const SNAPSHOT_REQUEST: u8 = 10;
    pub(super) const SNAPSHOT: u8 = 11;
    pub(super) const LEAVE: u8 = 12;
}

#[derive(Encode, Decode)]
struct WireHello {
    replica: String,
    cluster: String,
    gossip_addr: SocketAddr,
    version: String,
}

#[derive(Encode, Decode)]
struct WireHelloAck {
    replica: String,
    generation_seen: u64,
    hints: Vec<(String, SocketAddr)>,
}

#[derive(Encode, Decode)]
struct WireEntry {
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

#[derive(Encode, Decode)]
struct WireSummary {
    crc: u32,
    count: u32,
    stamp: u64,
    buckets: [u32; BUCKETS],
}

#[derive(Encode, Decode)]
struct WireSyncRequest {
    summary: WireSummary,
    alone_ms: u64,
}

#[derive(Encode, Decode)]
struct WireSyncResponse {
    summary: WireSummary,
    alone_ms: u64,
    entries: Vec<WireEntry>,
    last: bool,
}

#[derive(Encode, Decode)]
struct WireSparse {
    roster: u32,
    /// Gap to the slot after the one before, and load.
    slots: Vec<(u32, WireLoad)>,
}

#[derive(Encode, Decode)]
struct WireDense {
    roster: u32,
    /// Loads of all slots up to the last one that is not zero.
    loads: Vec<WireLoad>,
}

/// Requests, prefill tokens, context tokens.
type WireLoad = (u32, u64, u64);

#[derive(Encode, Decode)]
struct WireSnapshot {
    entries: Vec<WireEntry>,
    load: Option<WireSparse>,
    last: bool,
}

pub(super) fn seal(
    out: &mut Vec<u8>,
    generation: u64,
    seq: u64,
    message: &Message,
) -> Result<(), FrameError> {
    let mut seal = Sealer {
        out,
        generation,
        seq,
    };
    match message {
        Message::Hello(hello) => seal.put(
            kind::HELLO,
            &WireHello {
                replica: hello.replica.to_string(),
                cluster: hello.cluster.clone(),
                gossip_addr: hello.gossip_addr,
                version: hello.version.clone(),
            },
        ),
        Message::HelloAck(ack) => seal.put(
            kind::HELLO_ACK,
            &WireHelloAck {
                replica: ack.replica.to_string(),
                generation_seen: ack.generation_seen,
                hints: ack
                    .hints
                    .iter()
                    .take(HINTS_MAX)
                    .map(|hint| (hint.replica.to_string(), hint.gossip_addr))
                    .collect(),
            },
        ),
        Message::RegistryPush(entries) => seal.put(kind::REGISTRY_PUSH, &wire_entries(entries)),
        Message::PushAck { seq: pushed } => seal.put(kind::PUSH_ACK, pushed),
        Message::SyncRequest(request) => seal.put(
            kind::SYNC_REQUEST,
            &WireSyncRequest {
                summary: WireSummary::from(&request.summary),
                alone_ms: wire_ms(request.alone),
            },
        ),
        Message::SyncResponse(response) => seal.put(
            kind::SYNC_RESPONSE,
            &WireSyncResponse {
                summary: WireSummary::from(&response.summary),
                alone_ms: wire_ms(response.alone),
                entries: wire_entries(&response.entries),
                last: response.last,
            },
        ),
        Message::Load(frame) if frame.is_dense_shorter() => {
            seal.put(kind::LOAD_FULL_DENSE, &WireDense::from(frame))
        }
        Message::Load(frame) => {
            let kind = match frame.coverage {
                Coverage::Changes => kind::LOAD_CHANGES,
                Coverage::Full => kind::LOAD_FULL_SPARSE,
            };
            seal.put(kind, &WireSparse::from(frame))
        }
        Message::SnapshotRequest => seal.put(kind::SNAPSHOT_REQUEST, &()),
        Message::Snapshot(snapshot) => seal.put(
            kind::SNAPSHOT,
            &WireSnapshot {
                entries: wire_entries(&snapshot.entries),
                load: snapshot.load.as_ref().map(WireSparse::from),
                last: snapshot.last,
            },
        ),
        Message::Leave => seal.put(kind::LEAVE, &()),
    }
}

struct Sealer<'a> {
    out: &'a mut Vec<u8>,
    generation: u64,
    seq: u64,
}

impl Sealer<'_> {
    fn put(&mut self, kind: u8, body: &impl Encode) -> Result<(), FrameError> {
        frame::seal(self.out, kind, self.generation, self.seq, body)
    }
}

/// The message of a body, and how many registry entries were left out.
pub(super) fn read(kind: u8, body: &[u8]) -> Result<(Option<Message>, usize), FrameError> {
    let mut refused = 0;
    let message = match kind {
        kind::HELLO => Message::Hello(frame::decode::<WireHello>(body)?.checked()?),
        kind::HELLO_ACK => Message::HelloAck(frame::decode::<WireHelloAck>(body)?.checked()?),
        kind::REGISTRY_PUSH => {
            Message::RegistryPush(core_entries(frame::decode(body)?, &mut refused))
        }
        kind::PUSH_ACK => Message::PushAck {
            seq: frame::decode(body)?,
        },
        kind::SYNC_REQUEST => {
            let request: WireSyncRequest = frame::decode(body)?;
            Message::SyncRequest(SyncRequest {
                summary: request.summary.into(),
                alone: Duration::from_millis(request.alone_ms),
            })
        }
        kind::SYNC_RESPONSE => {
            let response: WireSyncResponse = frame::decode(body)?;
            Message::SyncResponse(SyncResponse {
                summary: response.summary.into(),
                alone: Duration::from_millis(response.alone_ms),
                entries: core_entries(response.entries, &mut refused),
                last: response.last,
            })
        }
        kind::LOAD_CHANGES => {
            Message::Load(frame::decode::<WireSparse>(body)?.checked(Coverage::Changes)?)
        }
        kind::LOAD_FULL_SPARSE => {
            Message::Load(frame::decode::<WireSparse>(body)?.checked(Coverage::Full)?)
        }
        kind::LOAD_FULL_DENSE => Message::Load(frame::decode::<WireDense>(body)?.into()),
        kind::SNAPSHOT_REQUEST => {
            frame::decode::<()>(body)?;
            Message::SnapshotRequest
        }
        kind::SNAPSHOT => {
            let snapshot: WireSnapshot = frame::decode(body)?;
            Message::Snapshot(Snapshot {
                entries: core_entries(snapshot.entries, &mut refused),
                load: snapshot
                    .load
                    .map(|load| load.checked(Coverage::Full))
                    .transpose()?,
                last: snapshot.last,
            })
        }
        kind::LEAVE => {
            frame::decode::<()>(body)?;
            Message::Leave
        }
        _ => return Ok((None, 0)),
    };
    Ok((Some(message), refused))
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

impl WireHello {
    fn checked(self) -> Result<Hello, FrameError> {
        Ok(Hello {
            replica: replica(&self.replica)?,
            cluster: hello_text(self.cluster, "cluster")?,
            gossip_addr: self.gossip_addr,
            version: hello_text(self.version, "release")?,
        })
    }
}

impl WireHelloAck {
    fn checked(self) -> Result<HelloAck, FrameError> {
        if self.hints.len() > HINTS_MAX {
            return Err(FrameError::Value("number of dial hints"));
        }
        let hint = |(id, gossip_addr): (String, SocketAddr)| {
            Ok(PeerHint {
                replica: replica(&id)?,
                gossip_addr,
            })
        };
        Ok(HelloAck {
            replica: replica(&self.replica)?,
            generation_seen: self.generation_seen,
            hints: self
                .hints
                .into_iter()
                .map(hint)
                .collect::<Result<_, FrameError>>()?,
        })
    }
}

fn replica(text: &str) -> Result<ReplicaId, FrameError> {
    text.parse().map_err(|_| FrameError::Value("replica id"))
}

fn hello_text(text: String, what: &'static str) -> Result<String, FrameError> {
    let is_valid = text.len() <= HELLO_TEXT_BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic());
    if is_valid {
        Ok(text)
    } else {
        Err(FrameError::Value(what))
    }
}

fn wire_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn wire_entries(entries: &[Entry]) -> Vec<WireEntry> {
    entries.iter().map(WireEntry::from).collect()
}

fn core_entries(entries: Vec<WireEntry>, refused: &mut usize) -> Vec<Entry> {
    let count = entries.len();
    let valid: Vec<Entry> = entries.into_iter().filter_map(WireEntry::checked).collect();
    *refused = count - valid.len();
    valid
}

impl From<&Entry> for WireEntry {
    fn from(entry: &Entry) -> Self {
        let (source, provider) = match &entry.source {
            Source::Admin => (0, ""),
            Source::Config => (1, ""),
            Source::Provider(name) => (2, name.as_str()),
            Source::Learned => (3, ""),
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
            _ => return None,
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
        let (state, until_ms) = match raw.state {
            State::Active => (0, 0),
            State::Warming { until_ms } => (1, until_ms),
            State::Draining => (2, 0),
        };
        Self {
            url: raw.url,
            models: raw.models,
            weight_milli: raw.weight_milli,
            role: match raw.role {
                Role::Any => 0,
                Role::Prefill => 1,
                Role::Decode => 2,
            },
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
        let raw = RawWorker {
            url: self.url,
            models: self.models,
            weight_milli: self.weight_milli,
            role: match self.role {
                0 => Role::Any,
                1 => Role::Prefill,
                2 => Role::Decode,
                _ => return None,
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
                _ => return None,
            },
            epoch: self.epoch,
        };
        WorkerSpec::new(raw).ok()
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

impl From<&LoadFrame> for WireSparse {
    fn from(frame: &LoadFrame) -> Self {
        let mut next = 0;
        let gap_and_load = |slot: &SlotLoad| {
            let gap = slot.slot - next;
            next = slot.slot + 1;
            (gap, wire_load(slot.load))
        };
        Self {
            roster: frame.roster,
            slots: frame.slots.iter().map(gap_and_load).collect(),
        }
    }
}

impl WireSparse {
    fn checked(self, coverage: Coverage) -> Result<LoadFrame, FrameError> {
        let mut next = 0u32;
        let mut slots = Vec::with_capacity(self.slots.len());
        for (gap, load) in self.slots {
            // One below the end, so that the next slot is a number too.
            let slot = next.checked_add(gap).filter(|slot| *slot < u32::MAX);
            let slot = slot.ok_or(FrameError::Value("slot"))?;
            next = slot + 1;
            slots.push(SlotLoad {
                slot,
                load: core_load(load),
            });
        }
        Ok(LoadFrame {
            roster: self.roster,
            coverage,
            slots,
        })
    }
}

impl From<&LoadFrame> for WireDense {
    fn from(frame: &LoadFrame) -> Self {
        let mut loads = vec![wire_load(Load::default()); frame.dense_slots()];
        for slot in &frame.slots {
            loads[slot.slot as usize] = wire_load(slot.load);
        }
        Self {
            roster: frame.roster,
            loads,
        }
    }
}

impl From<WireDense> for LoadFrame {
    fn from(wire: WireDense) -> Self {
        let loads = (0..).zip(wire.loads.into_iter().map(core_load));
        let slots = loads.map(|(slot, load)| SlotLoad { slot, load });
        Self {
            roster: wire.roster,
            coverage: Coverage::Full,
            slots: slots.filter(|slot| slot.load != Load::default()).collect(),
        }
    }
}

fn wire_load(load: Load) -> WireLoad {
    (load.requests, load.prefill_tokens, load.context_tokens)
}

fn core_load((requests, prefill_tokens, context_tokens): WireLoad) -> Load {
    Load {
        requests,
        prefill_tokens,
        context_tokens,
    }
}
