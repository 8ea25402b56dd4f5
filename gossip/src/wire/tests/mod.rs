//! Every message there and back, and nothing else in.

mod releases;
pub(crate) mod samples;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::config::HELLO_TEXT_BYTES_MAX;
use crate::dry_run::{self, DryRun, DryRunAnswer, Refusal, Reply};
use crate::evidence::{
    BATCH_RECORDS_MAX, Batch, Gap, HEAT_COUNTS_MAX, LINKS_MAX, Mark, PULL_BATCHES_MAX, Record,
};
use crate::frame::{BODY_BYTES_MAX, FRAME_BYTES_MAX};
use crate::hlc::Stamp;
use crate::load::{Coverage, LoadFrame};
use crate::peer_state::{
    AGE_MAX, Claim, HEARD_MAX, HealthClaim, Heard, PACES_MAX, Pace, QUARANTINE_MAX, Quarantined,
    SIGHTINGS_MAX, Sighting, TENANTS_MAX, TenantUse,
};
use crate::registry::{ENTRIES_MAX, Entry};
use crate::worker::{MODELS_BYTES_MAX, Source};

use samples::*;

#[test]
fn every_message_arrives_as_it_was_sent() {
    for message in messages() {
        let received = decode(&sealed(&message)).expect("whole");
        assert_eq!((received.header.generation, received.header.seq), (3, 4));
        assert_eq!(received.refused, 0);
        // Entries have no equality of their own: ages are no part of their contents.
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
            process: None,
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
        let chunks = chunks(all);
        assert!(chunks.len() <= REGISTRY_ANSWER_FRAMES, "{}", chunks.len());
        for chunk in chunks {
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
    // One busy worker at the end of a long list.
    assert!(len(load(Coverage::Full, &[(4095, 1)])) < 64);
    assert!(dense < BODY_BYTES_MAX);
}

#[test]
fn slots_beyond_any_list_of_workers_are_refused() {
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
    let batch = |number, records| Message::Evidence(Arc::new(Batch { number, records }));
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
        kinds::read(header.kind, body, &[]).map(|read| read.message)
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
fn peer_states_that_break_a_limit_are_refused() {
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
    refused(health(long), "length of a body");
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
    let mut twice = paces();
    twice.push(twice[2]);
    refused(Message::Paces(Arc::new(twice)), "list of paces");
    let many = (0..=PACES_MAX as u64).map(|worker| Pace {
        worker,
        ..paces()[0]
    });
    // More than a frame of any part may hold, or more than there may be.
    assert!(decode(&sealed(&Message::Paces(Arc::new(many.collect())))).is_err());
    let mut endless = paces();
    endless[1].sums[3] = f32::INFINITY;
    refused(Message::Paces(Arc::new(endless)), "list of paces");
    let mut twice = sightings();
    twice.push(twice[2]);
    refused(Message::Sightings(Arc::new(twice)), "list of sightings");
    let many = (0..=SIGHTINGS_MAX as u64).map(|worker| Sighting {
        worker,
        ..sightings()[0]
    });
    refused(
        Message::Sightings(Arc::new(many.collect())),
        "list of sightings",
    );
    let mut twice = heard();
    twice.push(twice[1].clone());
    refused(Message::Heard(Arc::new(twice)), "list of replicas");
    let many = (0..=HEARD_MAX).map(|n| Heard {
        replica: format!("r{n:03}").parse().expect("valid"),
        age: Duration::ZERO,
    });
    refused(Message::Heard(Arc::new(many.collect())), "list of replicas");
    let mut bytes = Vec::new();
    frame::seal(&mut bytes, 31, 3, 4, &vec![("R 1", 7_u64)]).expect("fits");
    assert!(matches!(
        decode(&bytes),
        Err(FrameError::Value("replica id"))
    ));
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
fn peer_states_are_small() {
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
    assert_eq!(len(0), 28 + 6 + 8 + 10 + 8 + 9 + 9 + 1 + 5 + 1 + 9);
    assert!(len(dry_run::MARKS_MAX as u32) < 3_500);
}

#[test]
fn evidence_is_small() {
    let len = |records: Vec<Record>| {
        sealed(&Message::Evidence(Arc::new(Batch {
            number: 70_000,
            records,
        })))
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

/// The number of any kind that there is.
fn any_kind() -> impl Strategy<Value = u8> {
    let codes: Vec<u8> = KINDS.iter().flat_map(|kind| kind.codes).copied().collect();
    prop::sample::select(codes)
}

proptest! {
    /// A valid envelope around random bytes, as a broken or hostile peer could send it.
    #[test]
    fn random_bodies_do_not_panic(kind in any_kind(), body in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = kinds::read(kind, &body, &[]);
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
        let read = kinds::read(header.kind, &body, &[]).map(|read| read.message);
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
