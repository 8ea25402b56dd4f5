//! Every message there and back, and nothing else in.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::bulletin::{AGE_MAX, Claim, QUARANTINE_MAX, TENANTS_MAX};
use crate::dry_run::{self, DryRunAnswer, KeyParts, Refusal};
use crate::evidence::{
    BATCH_RECORDS_MAX, Evidence, HEAT_COUNTS_MAX, Head, LINKS_MAX, PULL_BATCHES_MAX, Record,
    Retraction,
};
use crate::frame::{BODY_BYTES_MAX, FRAME_BYTES_MAX};
use crate::hlc::Stamp;
use crate::load::{Coverage, Load, SlotLoad};
use crate::registry::{ENTRIES_MAX, Registry};
use crate::worker::{MODELS_BYTES_MAX, RawWorker, Role, Source, State, WorkerSpec};

fn replica(name: &str) -> ReplicaId {
    name.parse().expect("valid")
}

fn entry(name: &str, source: Source, change: impl FnOnce(&mut RawWorker)) -> Entry {
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
fn entries() -> Vec<Entry> {
    let provider = Source::provider("dns").expect("valid");
    vec![
        entry("plain", Source::Admin, |_| {}),
        entry("full", provider, |raw| {
            raw.models = vec!["a".into(), "b".into()];
            raw.weight_milli = 2500;
            raw.role = Role::Prefill;
            raw.dp_size = Some(4);
            raw.zone = Some("z1".into());
            raw.max_in_flight = Some(9);
            raw.state = State::Warming { until_ms: 1 << 41 };
            raw.epoch = 3;
        }),
        entry("draining", Source::Learned, |raw| {
            raw.role = Role::Decode;
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

fn load(coverage: Coverage, slots: &[(u32, u32)]) -> LoadFrame {
    let slot = |&(slot, requests): &(u32, u32)| SlotLoad {
        slot,
        load: Load {
            requests,
            prefill_tokens: 1000,
            context_tokens: 70_000,
        },
    };
    LoadFrame {
        roster: 0xabcd,
        coverage,
        slots: slots.iter().map(slot).collect(),
    }
}

fn summary() -> Summary {
    let mut registry = Registry::new(replica("r1"));
    registry.merge(entries(), 1).expect("no drift");
    registry.summary()
}

fn messages() -> Vec<Message> {
    let gossip_addr = "[::1]:30002".parse().expect("address");
    vec![
        Message::Hello(Hello {
            replica: replica("r1"),
            cluster: "c".into(),
            gossip_addr,
            version: "0.1.0".into(),
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
        Message::PushAck { seq: 12 },
        Message::SyncRequest(SyncRequest {
            summary: summary(),
            alone: Duration::from_millis(3),
        }),
        Message::SyncResponse(SyncResponse {
            summary: summary(),
            alone: Duration::from_secs(1 << 20),
            entries: entries(),
            last: true,
        }),
        Message::Load(load(Coverage::Changes, &[(0, 1), (7, 0), (4095, 300)])),
        Message::Load(load(Coverage::Full, &[(2000, 1)])),
        Message::Load(load(Coverage::Full, &[(0, 1), (1, 2), (2, 3)])),
        Message::Load(load(Coverage::Full, &[])),
        Message::SnapshotRequest,
        Message::Snapshot(Snapshot {
            entries: entries(),
            load: Some(load(Coverage::Full, &[(1, 1)])),
            last: false,
        }),
        Message::Leave,
        Message::Evidence(Batch {
            number: 1 << 48,
            records: records(),
        }),
        Message::Evidence(Batch {
            number: 0,
            records: Vec::new(),
        }),
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
        Message::DryRunRequest(Arc::new(DryRun::default())),
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
    ]
}

/// One claim of each kind.
fn claims() -> Vec<HealthClaim> {
    let claim = |(n, claim): (usize, Claim)| HealthClaim {
        worker: format!("w{n}").parse().expect("valid"),
        epoch: u64::MAX - n as u64,
        claim,
        age: AGE_MAX / (1 + n as u32),
    };
    Claim::ALL.into_iter().enumerate().map(claim).collect()
}

fn usage() -> Vec<TenantUse> {
    let used = |tenant| TenantUse {
        tenant,
        in_flight: 3,
        queued: u32::MAX,
    };
    [0, 7, u64::MAX].map(used).to_vec()
}

fn quarantine() -> Vec<Quarantined> {
    let entry = |length: u64| Quarantined {
        length,
        hash: [length as u8; 16],
        age: Duration::from_millis(length),
    };
    [1, 300, 70_000].map(entry).to_vec()
}

fn evidence(worker: &str, links: u64) -> Evidence {
    Evidence {
        worker: worker.parse().expect("valid"),
        epoch: 3,
        links: (0..links).map(|link| u64::MAX - link).collect(),
    }
}

/// About two workers, of both kinds.
fn records() -> Vec<Record> {
    let Evidence {
        worker,
        epoch,
        links,
    } = evidence("w2", 2);
    vec![
        Record::Evidence(evidence("w1", LINKS_MAX as u64)),
        Record::Retraction(Retraction {
            worker,
            epoch,
            links,
        }),
        Record::Evidence(evidence("w1", 1)),
    ]
}

fn heat(counts: u64) -> HeatReport {
    HeatReport {
        version: 7,
        counts: (0..counts).map(|n| (n << 54, 200)).collect(),
        total: 100_000,
    }
}

/// A question that uses every field.
fn question(marks: u32) -> DryRun {
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
    }
}

fn decision() -> DryRunAnswer {
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

fn sealed(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out, 3, 4, message).expect("fits");
    out
}

#[test]
fn every_message_arrives_as_it_was_sent() {
    for message in messages() {
        let received = decode(&sealed(&message)).expect("whole");
        assert_eq!((received.header.generation, received.header.seq), (3, 4));
        assert_eq!(received.refused, 0);
        // Entries have no equality of their own: ages are no part of what they say.
        assert_eq!(
            format!("{:?}", received.message),
            format!("{:?}", Some(message))
        );
    }
}

#[test]
fn unknown_kinds_are_skipped() {
    let mut bytes = Vec::new();
    frame::seal(&mut bytes, 200, 3, 4, &"from a later release").expect("fits");
    let received = decode(&bytes).expect("whole");
    assert!(received.message.is_none());
    assert_eq!((received.header.kind, received.header.seq), (200, 4));
}

#[test]
fn entries_that_break_a_rule_are_left_out() {
    let mut batch = entries();
    // Unsigned, but not from a file; and signed, but without a time.
    batch.push(Entry {
        writer: None,
        ..entry("unsigned", Source::Admin, |_| {})
    });
    batch.push(Entry {
        stamp: Stamp::ZERO,
        ..entry("timeless", Source::Admin, |_| {})
    });
    let initial = Entry {
        stamp: Stamp::ZERO,
        writer: None,
        ..batch[0].clone()
    };
    batch.push(initial);
    // The stamp of a restart is its epoch, and it is never taken back.
    batch.push(entry("early", Source::Restart, |raw| raw.epoch = 78));
    batch.push(Entry {
        spec: None,
        ..entry("unsaid", Source::Restart, |_| {})
    });
    let received = decode(&sealed(&Message::RegistryPush(batch))).expect("whole");
    assert_eq!(received.refused, 5);
    let Some(Message::RegistryPush(kept)) = received.message else {
        panic!("a push")
    };
    assert_eq!(kept.len(), entries().len());
}

#[test]
fn bad_names_are_refused() {
    let hello = |change: fn(&mut Hello)| {
        let mut hello = Hello {
            replica: replica("r1"),
            cluster: "c".into(),
            gossip_addr: "127.0.0.1:1".parse().expect("address"),
            version: "1".into(),
        };
        change(&mut hello);
        decode(&sealed(&Message::Hello(hello)))
    };
    assert!(hello(|_| {}).is_ok());
    let long = |hello: &mut Hello| hello.cluster = "c".repeat(HELLO_TEXT_BYTES_MAX + 1);
    assert!(matches!(hello(long), Err(FrameError::Value("cluster"))));
    let escape = |hello: &mut Hello| hello.version = "1\u{1b}[31m".into();
    assert!(matches!(hello(escape), Err(FrameError::Value("release"))));
}

#[test]
fn a_full_registry_fits_in_chunks() {
    let long = |n: usize| {
        entry(&format!("w{n}"), Source::Admin, |raw| {
            raw.models = (0..16)
                .map(|m| format!("{m:0>width$}", width = MODELS_BYTES_MAX / 16))
                .collect();
        })
    };
    let tiny = |n: usize| Entry {
        spec: None,
        ..entry(&format!("t{n}"), Source::Admin, |_| {})
    };
    for make in [&long as &dyn Fn(usize) -> Entry, &tiny] {
        let all: Vec<Entry> = (0..ENTRIES_MAX).map(make).collect();
        let mut received = 0;
        for chunk in chunks(all) {
            let bytes = sealed(&Message::RegistryPush(chunk));
            assert!(bytes.len() <= FRAME_BYTES_MAX);
            let Some(Message::RegistryPush(entries)) = decode(&bytes).expect("decodes").message
            else {
                panic!("a push")
            };
            received += entries.len();
        }
        assert_eq!(received, ENTRIES_MAX);
    }
    assert_eq!(chunks(Vec::new()).len(), 1);
}

#[test]
fn the_shorter_form_of_a_load_frame_is_sent() {
    let len = |frame: LoadFrame| sealed(&Message::Load(frame)).len();
    let all: Vec<(u32, u32)> = (0..512).map(|slot| (slot, 1)).collect();
    let dense = len(load(Coverage::Full, &all));
    assert_eq!(
        len(load(Coverage::Changes, &all)),
        dense + 512,
        "a gap for each slot"
    );
    // One busy worker at the end of a long roster.
    assert!(len(load(Coverage::Full, &[(4095, 1)])) < 64);
    assert!(dense < BODY_BYTES_MAX);
}

#[test]
fn slots_beyond_any_roster_are_refused() {
    let mut bytes = Vec::new();
    // Two gaps whose sum leaves the range of slots.
    let slots = vec![(u32::MAX - 1, (1u32, 1u64, 1u64)), (u32::MAX, (1, 1, 1))];
    frame::seal(&mut bytes, 7, 3, 4, &(0xabcdu32, slots)).expect("fits");
    assert!(matches!(decode(&bytes), Err(FrameError::Value("slot"))));
}

#[test]
fn evidence_that_breaks_a_limit_is_refused() {
    let refused = |message: &Message, what: &str| match decode(&sealed(message)) {
        Err(FrameError::Value(found)) => assert_eq!(found, what),
        other => panic!("{what}: {other:?}"),
    };
    let batch = |number, records| Message::Evidence(Batch { number, records });
    let said = |links| vec![Record::Evidence(evidence("w", links))];
    refused(&batch((1 << 48) + 1, said(1)), "batch number");
    refused(&batch(0, said(0)), "number of links");
    refused(&batch(0, said(LINKS_MAX as u64 + 1)), "number of links");
    let many = vec![said(1); BATCH_RECORDS_MAX + 1].concat();
    refused(&batch(0, many), "number of evidence records");
    refused(&Message::EvidenceMark(Mark { first: 2, next: 1 }), "mark");
    let end = PULL_BATCHES_MAX as u64 + 1;
    let pull = Message::EvidencePull(vec![Gap { start: 0, end }]);
    refused(&pull, "number of batches asked for");
    let over = HEAT_COUNTS_MAX as u64 + 1;
    refused(&Message::Heat(Arc::new(heat(over))), "heat report");
    let mut twice = heat(2);
    twice.counts[1].0 = 0;
    refused(&Message::Heat(Arc::new(twice)), "heat report");
    // A record that names a worker beyond the table of its frame.
    let mut bytes = Vec::new();
    let body = (0u64, vec![("w", 1u64)], vec![(1u32, 0u8, vec![[0u8; 8]])]);
    frame::seal(&mut bytes, 16, 3, 4, &body).expect("fits");
    assert!(matches!(
        decode(&bytes),
        Err(FrameError::Value("position of a worker"))
    ));
}

#[test]
fn dry_runs_that_break_a_limit_are_refused() {
    let refused = |message: Message, what: &str| match decode(&sealed(&message)) {
        Err(FrameError::Value(found)) => assert_eq!(found, what),
        other => panic!("{what}: {other:?}"),
    };
    let ask = |change: fn(&mut DryRun)| {
        let mut question = question(3);
        change(&mut question);
        Message::DryRunRequest(Arc::new(question))
    };
    refused(
        ask(|q| q.pool = "m".repeat(dry_run::POOL_BYTES_MAX + 1)),
        "dry run",
    );
    refused(ask(|q| q.pool = "\u{1b}[31m".into()), "dry run");
    refused(ask(|q| q.key.marks.reverse()), "dry run");
    refused(
        ask(|q| q.key = question(dry_run::MARKS_MAX as u32 + 1).key),
        "dry run",
    );
    let answer = |reason: &str| {
        let reason = reason.to_owned();
        Message::DryRunAnswer(Box::new(Reply::Decided(DryRunAnswer {
            reason,
            ..decision()
        })))
    };
    refused(
        answer(&"r".repeat(dry_run::REASON_BYTES_MAX + 1)),
        "dry run answer",
    );
    refused(answer("a\nb"), "dry run answer");
    // A decision without one, and a name that no worker can have.
    let raw = |body: &[u8]| {
        let mut bytes = Vec::new();
        frame::seal(&mut bytes, 23, 3, 4, &()).expect("fits");
        let (header, _) = frame::open(&bytes).expect("whole");
        body::read(header.kind, body).map(|read| read.message)
    };
    assert!(matches!(
        raw(&[0, 0]),
        Err(FrameError::Value("dry run answer"))
    ));
    assert!(matches!(
        raw(&[0, 1, 1, 1, b' ', 0, 0, 0, 0, 0, 0]),
        Err(FrameError::Value("worker id"))
    ));
    // An outcome of a later release is a refusal.
    let later = raw(&[77, 0]).expect("reads");
    assert!(matches!(
        later,
        Some(Message::DryRunAnswer(reply)) if *reply == Reply::Refused(Refusal::Other)
    ));
}

#[test]
fn bulletins_that_break_a_limit_are_refused() {
    let refused = |message: Message, what: &str| match decode(&sealed(&message)) {
        Err(FrameError::Value(found)) => assert_eq!(found, what),
        other => panic!("{what}: {other:?}"),
    };
    let health = |change: fn(&mut Vec<HealthClaim>)| {
        let mut claims = claims();
        change(&mut claims);
        Message::Health(Arc::new(claims))
    };
    refused(health(|claims| claims.reverse()), "list of claims");
    refused(
        health(|claims| claims.push(claims[4].clone())),
        "list of claims",
    );
    let long = |claims: &mut Vec<HealthClaim>| {
        for n in 0..200 {
            let mut claim = claims[0].clone();
            claim.worker = format!("x{n:0>400}").parse().expect("valid");
            claims.push(claim);
        }
    };
    refused(health(long), "length of a bulletin");
    let mut twice = usage();
    twice.push(twice[2]);
    refused(Message::Usage(Arc::new(twice)), "list of tenants");
    let many = (0..=TENANTS_MAX as u64).map(|tenant| TenantUse {
        tenant,
        ..TenantUse::default()
    });
    refused(Message::Usage(Arc::new(many.collect())), "list of tenants");
    let mut twice = quarantine();
    twice.insert(0, twice[0]);
    let list = "list of quarantined requests";
    refused(Message::Quarantine(Arc::new(twice)), list);
    let many = (0..=QUARANTINE_MAX as u64).map(|length| Quarantined {
        length,
        ..quarantine()[0]
    });
    refused(Message::Quarantine(Arc::new(many.collect())), list);
    // A name that no worker can have, an age beyond any, and a claim of a later release.
    let raw = |claims: Vec<(&str, u64, u8, u64)>| {
        let mut bytes = Vec::new();
        frame::seal(&mut bytes, 26, 3, 4, &claims).expect("fits");
        decode(&bytes)
    };
    assert!(matches!(
        raw(vec![("a b", 0, 0, 0)]),
        Err(FrameError::Value("worker id"))
    ));
    let received = raw(vec![("a", 1, 3, u64::MAX), ("b", 1, 77, 0)]).expect("whole");
    assert_eq!(received.refused, 1);
    let Some(Message::Health(kept)) = received.message else {
        panic!("claims")
    };
    let [kept] = kept.as_slice() else {
        panic!("{kept:?}")
    };
    assert_eq!((kept.claim, kept.age), (Claim::Stalled, AGE_MAX));
}

#[test]
fn bulletins_are_small() {
    let claim = |n: u32| HealthClaim {
        worker: format!("http://10.0.0.{n:03}:8000").parse().expect("valid"),
        epoch: 1_790_000_000,
        claim: Claim::Good,
        age: Duration::from_millis(900),
    };
    let len = |n| sealed(&Message::Health(Arc::new((0..n).map(claim).collect()))).len();
    // A frame alone; then a name of 22 bytes, its length, five for the epoch, one for the claim and
    // three for the age.
    assert_eq!(len(0), 29);
    assert_eq!(len(100), 29 + 100 * (22 + 1 + 5 + 1 + 3));
    assert_eq!(
        sealed(&Message::Usage(Arc::new(usage()))).len(),
        29 + 3 * 14
    );
}

#[test]
fn dry_runs_are_small() {
    let len = |marks| sealed(&Message::DryRunRequest(Arc::new(question(marks)))).len();
    assert_eq!(len(0), 28 + 6 + 8 + 10 + 8 + 9 + 9 + 1 + 5 + 1);
    assert!(len(dry_run::MARKS_MAX as u32) < 3_500);
}

#[test]
fn a_claim_of_a_later_release_costs_its_record_only() {
    let mut bytes = Vec::new();
    let record = |claim: u8| (0u32, claim, vec![[7u8; 8]]);
    let body = (0u64, vec![("w", 1u64)], vec![record(0), record(9)]);
    frame::seal(&mut bytes, 16, 3, 4, &body).expect("fits");
    let received = decode(&bytes).expect("whole");
    assert_eq!(received.refused, 1);
    let Some(Message::Evidence(batch)) = received.message else {
        panic!("a batch")
    };
    assert_eq!(batch.records.len(), 1);
}

#[test]
fn evidence_is_small() {
    let len = |records: Vec<Record>| {
        sealed(&Message::Evidence(Batch {
            number: 70_000,
            records,
        }))
        .len()
    };
    let one = |links| Record::Evidence(evidence("http://10.0.0.1:8000", links));
    // A frame alone, its worker named once, then 8 bytes for each link and 3 for each record.
    assert_eq!(len(vec![]), 35);
    assert_eq!(len(vec![one(16)]), 35 + 22 + 131);
    assert_eq!(len(vec![one(16); 10]), 35 + 22 + 1310);
    assert_eq!(sealed(&Message::Heat(Arc::new(heat(512)))).len(), 4645);
    let full = vec![one(LINKS_MAX as u64); 31];
    assert!(len(full) < BODY_BYTES_MAX);
}

proptest! {
    /// A valid envelope around random bytes, as a broken or hostile peer could send it.
    #[test]
    fn random_bodies_do_not_panic(kind in 0..29u8, body in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = body::read(kind, &body);
    }

    /// A valid body with one byte changed: decoded to something within limits, or refused.
    #[test]
    fn changed_bodies_do_not_panic(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let messages = messages();
        let bytes = sealed(&messages[which.index(messages.len())]);
        let (header, whole) = frame::open(&bytes).expect("whole");
        let mut body = whole.to_vec();
        if !body.is_empty() {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let read = body::read(header.kind, &body).map(|read| read.message);
        if let Ok(Some(Message::RegistryPush(entries))) = read {
            prop_assert!(entries.len() <= 6);
        }
    }

    #[test]
    fn any_bit_flip_in_any_message_is_refused(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
    ) {
        let messages = messages();
        let mut bytes = sealed(&messages[which.index(messages.len())]);
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(decode(&bytes).is_err());
    }
}

/// What earlier releases sent is read, and what has not changed since is written as they did.
#[test]
fn releases_are_read_and_written_alike() {
    let name = |(number, message): (usize, &Message)| {
        let debug = format!("{message:?}");
        let kind = debug.split(|c: char| !c.is_alphanumeric()).next();
        format!("{number:02}-{}", kind.unwrap_or_default())
    };
    let now = messages();
    let now: Vec<_> = now
        .iter()
        .enumerate()
        .map(|(number, message)| (name((number, message)), sealed(message)))
        .collect();
    for kept in crate::releases::kept("frames", &now) {
        for (name, bytes) in &kept.lines {
            let received = decode(bytes)
                .unwrap_or_else(|error| panic!("{name} of release {}: {error}", kept.release));
            assert_eq!(received.refused, 0, "{name} of release {}", kept.release);
            let message = received.message.expect("its kind is known for ever");
            let mut again = Vec::new();
            let Header {
                generation, seq, ..
            } = received.header;
            encode(&mut again, generation, seq, &message).expect("fits");
            assert_eq!(&again, bytes, "{name} of release {}", kept.release);
        }
    }
}

/// The sums by which registries are compared: another sum of the same entries would set replicas of two releases
/// exchanging for ever.
#[test]
fn releases_sum_registries_alike() {
    let summary = summary();
    let buckets = summary.buckets.iter().flat_map(|sum| sum.to_le_bytes());
    let now = [
        ("digest".to_owned(), summary.digest.to_string().into_bytes()),
        ("buckets".to_owned(), buckets.collect()),
    ];
    for kept in crate::releases::kept("registry", &now) {
        assert_eq!(kept.lines, now, "release {}", kept.release);
    }
}

/// A frame of a release that knows more: what this one knows is read, the rest is left and counted.
#[test]
fn fields_of_a_later_release_are_left() {
    for message in messages() {
        let now = sealed(&message);
        let (header, body) = frame::open(&now).expect("whole");
        let mut later = Vec::new();
        let body = Longer(body.to_vec());
        frame::seal(&mut later, header.kind, 3, 4, &body).expect("fits");
        let received = decode(&later).expect("what is known of it is read");
        assert_eq!((received.refused, received.unread), (0, Longer::MORE.len()));
        assert_eq!(
            format!("{:?}", received.message),
            format!("{:?}", Some(message))
        );
    }
}

/// A body with fields behind those that this release knows.
struct Longer(Vec<u8>);

impl Longer {
    const MORE: &[u8] = b"what this release does not know";
}

impl frame::Encode for Longer {
    fn encode<E: bincode::enc::Encoder>(
        &self,
        encoder: &mut E,
    ) -> Result<(), bincode::error::EncodeError> {
        use bincode::enc::write::Writer;
        encoder.writer().write(&self.0)?;
        encoder.writer().write(Self::MORE)
    }
}

/// Entries of a release that knows more sources, roles and states arrive, and go on as they came.
#[test]
fn entries_of_a_later_release_are_carried() {
    let odd = entry("odd", Source::Admin, |raw| raw.role = Role::Later(200));
    let spec = odd.spec.as_ref().map(|spec| (**spec).clone());
    let odd = Entry {
        spec: spec.map(|spec| Arc::new(spec.in_later_state(3, 1 << 41))),
        ..odd
    };
    let batch = vec![
        entry("named", Source::later(5, "k8s").expect("valid"), |_| {}),
        Entry {
            spec: None,
            ..entry("removed", Source::later(255, "").expect("valid"), |_| {})
        },
        odd,
    ];
    let bytes = sealed(&Message::RegistryPush(batch.clone()));
    let received = decode(&bytes).expect("whole");
    assert_eq!(received.refused, 0);
    let Some(Message::RegistryPush(entries)) = received.message else {
        panic!("a push")
    };
    assert!(entries.iter().all(|entry| !entry.is_read()));
    assert_eq!(format!("{entries:?}"), format!("{batch:?}"));
    assert_eq!(sealed(&Message::RegistryPush(entries)), bytes);
    // What breaks a limit of ours is left out all the same.
    let long = "p".repeat(65);
    assert!(Source::later(5, &long).is_err());
}
