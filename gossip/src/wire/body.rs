//! One body per kind of message, and its conversion to and from core types.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::bulletin::{WireHealth, WireQuarantine, WireUsage, bounded};
use super::dry_run::{WireQuestion, WireReply};
use super::entry::{WireEntry, core_entries, wire_entries};
use super::evidence::{
    WireBatch, WireHeat, WireMark, WirePull, WireSnapshot as WireEvidenceSnapshot,
};
use super::load::{WireDense, WireSparse};
use super::{
    HELLO_TEXT_BYTES_MAX, HINTS_MAX, Hello, HelloAck, Message, PeerHint, Snapshot, SyncRequest,
    SyncResponse,
};
use crate::frame::{self, Decode, Encode, FrameError};
use crate::hlc::Stamp;
use crate::load::Coverage;
use crate::registry::{BUCKETS, Digest, Summary};
use crate::replica::ReplicaId;

/// Kind codes. Never reuse one. Replicas that know only those below 16 skip the others.
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
    pub(super) const EVIDENCE: u8 = 16;
    pub(super) const EVIDENCE_MARK: u8 = 17;
    pub(super) const EVIDENCE_PULL: u8 = 18;
    pub(super) const EVIDENCE_SNAPSHOT_REQUEST: u8 = 19;
    pub(super) const EVIDENCE_SNAPSHOT: u8 = 20;
    pub(super) const HEAT: u8 = 21;
    pub(super) const DRY_RUN_REQUEST: u8 = 22;
    pub(super) const DRY_RUN_ANSWER: u8 = 23;
    pub(super) const EVIDENCE_SIZE_REQUEST: u8 = 24;
    pub(super) const EVIDENCE_SIZE: u8 = 25;
    pub(super) const HEALTH: u8 = 26;
    pub(super) const USAGE: u8 = 27;
    pub(super) const QUARANTINE: u8 = 28;
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
        Message::Evidence(batch) => seal.put(kind::EVIDENCE, &WireBatch::from(batch)),
        Message::EvidenceMark(mark) => seal.put(kind::EVIDENCE_MARK, &WireMark::from(mark)),
        Message::EvidencePull(gaps) => {
            seal.put(kind::EVIDENCE_PULL, &WirePull::from(gaps.as_slice()))
        }
        Message::EvidenceSnapshotRequest => seal.put(kind::EVIDENCE_SNAPSHOT_REQUEST, &()),
        Message::EvidenceSnapshot(snapshot) => seal.put(
            kind::EVIDENCE_SNAPSHOT,
            &WireEvidenceSnapshot::from(snapshot),
        ),
        Message::EvidenceSizeRequest => seal.put(kind::EVIDENCE_SIZE_REQUEST, &()),
        Message::EvidenceSize(links) => seal.put(kind::EVIDENCE_SIZE, links),
        Message::Heat(report) => seal.put(kind::HEAT, &WireHeat::from(&**report)),
        Message::DryRunRequest(question) => {
            seal.put(kind::DRY_RUN_REQUEST, &WireQuestion::from(&**question))
        }
        Message::DryRunAnswer(reply) => seal.put(kind::DRY_RUN_ANSWER, &WireReply::from(&**reply)),
        Message::Health(claims) => seal.put(kind::HEALTH, &WireHealth::from(claims.as_slice())),
        Message::Usage(usage) => seal.put(kind::USAGE, &WireUsage::from(usage.as_slice())),
        Message::Quarantine(entries) => {
            seal.put(kind::QUARANTINE, &WireQuarantine::from(entries.as_slice()))
        }
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

/// What a body says.
pub(super) struct Read {
    pub(super) message: Option<Message>,
    /// Entries left out.
    pub(super) refused: usize,
    /// Bytes behind what this release knows of the kind.
    pub(super) unread: usize,
}

/// The message of a body; none of a kind that is not known.
pub(super) fn read(kind: u8, body: &[u8]) -> Result<Read, FrameError> {
    let mut body = body;
    let mut refused = 0;
    let message = match kind {
        kind::HELLO => Message::Hello(frame::decode::<WireHello>(&mut body)?.checked()?),
        kind::HELLO_ACK => Message::HelloAck(frame::decode::<WireHelloAck>(&mut body)?.checked()?),
        kind::REGISTRY_PUSH => {
            Message::RegistryPush(core_entries(frame::decode(&mut body)?, &mut refused)?)
        }
        kind::PUSH_ACK => Message::PushAck {
            seq: frame::decode(&mut body)?,
        },
        kind::SYNC_REQUEST => {
            let request: WireSyncRequest = frame::decode(&mut body)?;
            Message::SyncRequest(SyncRequest {
                summary: request.summary.into(),
                alone: Duration::from_millis(request.alone_ms),
            })
        }
        kind::SYNC_RESPONSE => {
            let response: WireSyncResponse = frame::decode(&mut body)?;
            Message::SyncResponse(SyncResponse {
                summary: response.summary.into(),
                alone: Duration::from_millis(response.alone_ms),
                entries: core_entries(response.entries, &mut refused)?,
                last: response.last,
            })
        }
        kind::LOAD_CHANGES => {
            Message::Load(frame::decode::<WireSparse>(&mut body)?.checked(Coverage::Changes)?)
        }
        kind::LOAD_FULL_SPARSE => {
            Message::Load(frame::decode::<WireSparse>(&mut body)?.checked(Coverage::Full)?)
        }
        kind::LOAD_FULL_DENSE => Message::Load(frame::decode::<WireDense>(&mut body)?.into()),
        kind::SNAPSHOT_REQUEST => {
            frame::decode::<()>(&mut body)?;
            Message::SnapshotRequest
        }
        kind::SNAPSHOT => {
            let snapshot: WireSnapshot = frame::decode(&mut body)?;
            Message::Snapshot(Snapshot {
                entries: core_entries(snapshot.entries, &mut refused)?,
                load: snapshot
                    .load
                    .map(|load| load.checked(Coverage::Full))
                    .transpose()?,
                last: snapshot.last,
            })
        }
        kind::LEAVE => {
            frame::decode::<()>(&mut body)?;
            Message::Leave
        }
        kind::EVIDENCE => {
            Message::Evidence(frame::decode::<WireBatch>(&mut body)?.checked(&mut refused)?)
        }
        kind::EVIDENCE_MARK => {
            Message::EvidenceMark(frame::decode::<WireMark>(&mut body)?.checked()?)
        }
        kind::EVIDENCE_PULL => {
            Message::EvidencePull(frame::decode::<WirePull>(&mut body)?.checked()?)
        }
        kind::EVIDENCE_SNAPSHOT_REQUEST => {
            frame::decode::<()>(&mut body)?;
            Message::EvidenceSnapshotRequest
        }
        kind::EVIDENCE_SNAPSHOT => Message::EvidenceSnapshot(
            frame::decode::<WireEvidenceSnapshot>(&mut body)?.checked(&mut refused)?,
        ),
        kind::HEAT => Message::Heat(Arc::new(frame::decode::<WireHeat>(&mut body)?.checked()?)),
        kind::DRY_RUN_REQUEST => Message::DryRunRequest(Arc::new(
            frame::decode::<WireQuestion>(&mut body)?.checked()?,
        )),
        kind::DRY_RUN_ANSWER => {
            Message::DryRunAnswer(Box::new(frame::decode::<WireReply>(&mut body)?.checked()?))
        }
        kind::EVIDENCE_SIZE_REQUEST => {
            frame::decode::<()>(&mut body)?;
            Message::EvidenceSizeRequest
        }
        kind::EVIDENCE_SIZE => Message::EvidenceSize(frame::decode(&mut body)?),
        kind::HEALTH => {
            bounded(body)?;
            let claims: WireHealth = frame::decode(&mut body)?;
            Message::Health(Arc::new(claims.checked(&mut refused)?))
        }
        kind::USAGE => {
            bounded(body)?;
            let usage: WireUsage = frame::decode(&mut body)?;
            Message::Usage(Arc::new(usage.checked()?))
        }
        kind::QUARANTINE => {
            bounded(body)?;
            let entries: WireQuarantine = frame::decode(&mut body)?;
            Message::Quarantine(Arc::new(entries.checked()?))
        }
        _ => {
            return Ok(Read {
                message: None,
                refused: 0,
                unread: 0,
            });
        }
    };
    Ok(Read {
        message: Some(message),
        refused,
        unread: body.len(),
    })
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

pub(super) fn replica(text: &str) -> Result<ReplicaId, FrameError> {
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

pub(super) fn wire_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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
