//! A message of each kind, with all that it may hold.

use std::sync::Arc;
use std::time::Duration;

use super::super::*;
use crate::dry_run::{self, DryRun, DryRunAnswer, KeyParts, Refusal, Reply};
use crate::evidence::{
    Batch, Evidence, EvidenceSnapshot, Gap, Head, HeatReport, LINKS_MAX, Lack, Mark, Record,
    Retraction,
};
use crate::hlc::Stamp;
use crate::load::{Coverage, Earlier, Load, LoadFrame, Moment, SlotLoad};
pub(super) use crate::made::replica;
use crate::peer_state::{
    AGE_MAX, Claim, HealthClaim, Heard, Pace, Quarantined, Sighting, TenantUse,
};
use crate::registry::{Entry, Registry, Summary};
use crate::worker::{RawWorker, Role as WorkerRole, Source, State, WorkerSpec};

pub(super) fn entry(name: &str, source: Source, change: impl FnOnce(&mut RawWorker)) -> Entry {
    let mut raw = RawWorker::at("http://w:8000@1");
    change(&mut raw);
    Entry {
        id: name.parse().expect("valid"),
        source,
        stamp: Stamp::from_bits(77),
        writer: Some(replica("r1")),
        spec: Some(Arc::new(WorkerSpec::new(raw).expect("valid"))),
        unused_ms: 5,
    }
}

/// Entries that use every field, choice and absence.
pub(super) fn entries() -> Vec<Entry> {
    let provider = Source::provider("dns").expect("valid");
    vec![
        entry("plain", Source::Admin, |_| {}),
        entry("full", provider, |raw| {
            raw.models = vec!["a".into(), "b".into()];
            raw.weight_milli = 2500;
            raw.role = WorkerRole::Prefill;
            raw.dp_size = Some(4);
            raw.zone = Some("z1".into());
            raw.max_in_flight = Some(9);
            raw.state = State::Warming { until_ms: 1 << 41 };
            raw.epoch = 3;
        }),
        entry("draining", Source::Learned, |raw| {
            raw.role = WorkerRole::Decode;
            raw.state = State::Draining;
        }),
        Entry {
            spec: None,
            ..entry("removed", Source::Config, |_| {})
        },
        entry("restarted", Source::Restart, |raw| raw.epoch = 77),
        Entry {
            stamp: Stamp::ZERO,
            writer: None,
            ..entry("file", Source::Config, |_| {})
        },
    ]
}

pub(super) fn load(coverage: Coverage, slots: &[(u32, u32)]) -> LoadFrame {
    let slot = |&(slot, requests): &(u32, u32)| SlotLoad {
        slot,
        load: Load {
            requests,
            prefill_tokens: 1000,
            context_tokens: 70_000,
        },
    };
    LoadFrame {
        workers_digest: 0xabcd,
        coverage,
        slots: slots.iter().map(slot).collect(),
        moment: None,
        earlier: Vec::new(),
    }
}

/// The same as a replica sends it by itself: with its moment, and what was sent before.
pub(super) fn sent(frame: LoadFrame) -> Message {
    let earlier = |before_us, slots: &[(u32, u32)]| Earlier {
        before_us,
        slots: load(Coverage::Changes, slots).slots,
    };
    Message::Load(LoadFrame {
        moment: Some(Moment {
            sent_us: 1 << 33,
            hold_us: 12_000,
        }),
        earlier: vec![earlier(70_000, &[]), earlier(5_000, &[(3, 1), (70_000, 2)])],
        ..frame
    })
}

pub(super) fn summary() -> Summary {
    let mut registry = Registry::new(replica("r1"));
    registry.merge(entries(), 1).expect("no drift");
    registry.summary()
}

pub(crate) fn messages() -> Vec<Message> {
    let gossip_addr = "[::1]:30002".parse().expect("address");
    vec![
        Message::Hello(Hello {
            replica: replica("r1"),
            cluster: "c".into(),
            gossip_addr,
            version: "0.1.0".into(),
            process: Some(1 << 63),
        }),
        Message::HelloAck(HelloAck {
            replica: replica("r2"),
            generation_seen: u64::MAX,
            hints: vec![PeerHint {
                replica: replica("r3"),
                gossip_addr,
            }],
        }),
        Message::RegistryPush(entries()),
        Message::PushAck(12),
        Message::SyncRequest(SyncRequest {
            summary: summary(),
            alone: Duration::from_millis(3),
        }),
        Message::SyncResponse(SyncResponse {
            summary: summary(),
            alone: Duration::from_secs(1 << 20),
            entries: entries(),
            last: true,
            clock_ms: Some(1 << 48),
        }),
        sent(load(Coverage::Changes, &[(0, 1), (7, 0), (4095, 300)])),
        sent(load(Coverage::Full, &[(2000, 1)])),
        sent(load(Coverage::Full, &[(0, 1), (1, 2), (2, 3)])),
        sent(load(Coverage::Full, &[])),
        Message::SnapshotRequest,
        Message::Snapshot(Snapshot {
            entries: entries(),
            load: Some(load(Coverage::Full, &[(1, 1)])),
            last: false,
            alone: Some(Duration::from_secs(1 << 20)),
        }),
        Message::Leave,
        Message::Evidence(Arc::new(Batch {
            number: 1 << 48,
            records: records(),
        })),
        Message::Evidence(Arc::new(Batch {
            number: 0,
            records: Vec::new(),
        })),
        Message::EvidenceMark(Mark { first: 3, next: 9 }),
        Message::EvidencePull(vec![Gap { start: 3, end: 5 }, Gap { start: 9, end: 10 }]),
        Message::EvidenceSnapshotRequest,
        Message::EvidenceSnapshot(EvidenceSnapshot {
            evidence: vec![evidence("w1", 16)],
            heads: vec![Head {
                replica: replica("r3"),
                generation: u64::MAX,
                next: 5,
            }],
            last: true,
        }),
        Message::EvidenceSizeRequest,
        Message::EvidenceSize(u64::MAX),
        Message::Heat(Arc::new(heat(2))),
        Message::DryRunRequest(Arc::new(DryRun {
            at_us: Some(0),
            ..DryRun::default()
        })),
        Message::DryRunRequest(Arc::new(question(dry_run::MARKS_MAX as u32))),
        Message::DryRunAnswer(Box::new(Reply::Decided(DryRunAnswer::default()))),
        Message::DryRunAnswer(Box::new(Reply::Decided(decision()))),
        Message::DryRunAnswer(Box::new(Reply::Refused(Refusal::Declined))),
        Message::DryRunAnswer(Box::new(Reply::Refused(Refusal::NotServed))),
        Message::DryRunAnswer(Box::new(Reply::Refused(Refusal::TooMany))),
        Message::Health(Arc::new(claims())),
        Message::Health(Arc::default()),
        Message::Usage(Arc::new(usage())),
        Message::Usage(Arc::default()),
        Message::Quarantine(Arc::new(quarantine())),
        Message::Quarantine(Arc::default()),
        Message::Paces(Arc::new(paces())),
        Message::Paces(Arc::default()),
        Message::Sightings(Arc::new(sightings())),
        Message::Sightings(Arc::default()),
        Message::Heard(Arc::new(heard())),
        Message::Heard(Arc::default()),
    ]
}

/// One claim of each kind.
pub(super) fn claims() -> Vec<HealthClaim> {
    let claim = |(n, claim): (usize, Claim)| HealthClaim {
        worker: format!("w{n}").parse().expect("valid"),
        epoch: u64::MAX - n as u64,
        claim,
        age: AGE_MAX / (1 + n as u32),
    };
    Claim::ALL.into_iter().enumerate().map(claim).collect()
}

pub(super) fn usage() -> Vec<TenantUse> {
    let used = |tenant| TenantUse {
        tenant,
        in_flight: 3,
        queued: u32::MAX,
    };
    [0, 7, u64::MAX].map(used).to_vec()
}

pub(super) fn quarantine() -> Vec<Quarantined> {
    let entry = |length: u64| Quarantined {
        length,
        hash: [length as u8; 16],
        age: Duration::from_millis(length),
    };
    [1, 300, 70_000].map(entry).to_vec()
}

pub(super) fn paces() -> Vec<Pace> {
    let pace = |worker: u64| Pace {
        worker,
        sums: [512.0, 1e8, 0.5, f32::MAX, -1.5, 0.0],
    };
    [0, 7, u64::MAX].map(pace).to_vec()
}

pub(super) fn sightings() -> Vec<Sighting> {
    let sighting = |(source, worker)| Sighting {
        source,
        worker,
        what: 2,
        seen: 7,
    };
    [(1, 0), (1, u64::MAX), (2, 3)].map(sighting).to_vec()
}

pub(super) fn heard() -> Vec<Heard> {
    let heard = |(name, age): (&str, Duration)| Heard {
        replica: name.parse().expect("valid"),
        age,
    };
    [("r1", Duration::ZERO), ("r2", AGE_MAX)]
        .map(heard)
        .to_vec()
}

pub(super) fn evidence(worker: &str, links: u64) -> Evidence {
    Evidence {
        worker: worker.parse().expect("valid"),
        epoch: 3,
        links: (0..links).map(|link| u64::MAX - link).collect(),
    }
}

/// About two workers, of both kinds.
pub(super) fn records() -> Vec<Record> {
    let Evidence {
        worker,
        epoch,
        links,
    } = evidence("w2", 2);
    vec![
        Record::Evidence(evidence("w1", LINKS_MAX as u64)),
        Record::Retraction(Retraction {
            worker: worker.clone(),
            epoch,
            links: links.clone(),
            lack: Lack::Forgotten,
        }),
        Record::Retraction(Retraction {
            worker,
            epoch,
            links,
            lack: Lack::NotComputed,
        }),
        Record::Evidence(evidence("w1", 1)),
    ]
}

pub(super) fn heat(counts: u64) -> HeatReport {
    HeatReport {
        version: 7,
        counts: (0..counts).map(|n| (n << 54, 200)).collect(),
        total: 100_000,
    }
}

/// A question that uses every field.
pub(super) fn question(marks: u32) -> DryRun {
    DryRun {
        pool: "llama".into(),
        key: KeyParts {
            model: u64::MAX,
            group: Some((1, 2)),
            home: 3,
            session: Some(u64::MAX - 1),
            user: Some(0),
            stable_tokens: 7,
            prompt_tokens: u32::MAX,
            marks: (0..marks)
                .map(|n| (u64::MAX - u64::from(n), n * 128))
                .collect(),
        },
        at_us: Some(u64::MAX),
    }
}

pub(super) fn decision() -> DryRunAnswer {
    DryRunAnswer {
        worker: Some("w1".parse().expect("valid")),
        reason: "spill_bound".into(),
        ring: 1,
        settings: u32::MAX,
        heat: 3,
        home: Some("w2".parse().expect("valid")),
        expected_tokens: 4_096,
    }
}

pub(crate) fn sealed(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out, 3, 4, message).expect("fits");
    out
}
