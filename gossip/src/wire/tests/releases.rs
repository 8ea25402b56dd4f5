//! What is sent to other releases, and by them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::*;
use crate::frame;
use crate::registry::{Entry, Registry};
use crate::worker::{Role as WorkerRole, Source, State};

use super::samples::*;

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
    let every_kind: BTreeSet<u8> = KINDS.iter().flat_map(|kind| kind.codes).copied().collect();
    let code_of = |bytes: &[u8]| decode(bytes).map(|received| received.header.kind);
    let sampled: BTreeSet<_> = now.iter().flat_map(|(_, bytes)| code_of(bytes)).collect();
    assert_eq!(sampled, every_kind, "each kind has a sample");
    for kept in crate::releases::kept("frames", &now) {
        let has: BTreeSet<_> = kept
            .lines
            .iter()
            .flat_map(|(_, bytes)| code_of(bytes))
            .collect();
        let is_own = kept.release == env!("CARGO_PKG_VERSION");
        assert!(
            !is_own || has == every_kind,
            "kept of this release: {has:?}"
        );
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
    let odd = entry("odd", Source::Admin, |raw| {
        raw.role = WorkerRole::Later(200)
    });
    let spec = odd.spec.as_ref().map(|spec| (**spec).clone());
    let odd = Entry {
        spec: spec.map(|spec| Arc::new(spec.in_later_state(3, 1 << 41))),
        ..odd
    };
    let batch = vec![
        entry("named", Source::later(7, "k8s").expect("valid"), |_| {}),
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
    assert!(Source::later(7, &long).is_err());
}

/// Labels and drains, as releases before 0.2 see them: sources that they do not know, which they carry and sum as they
/// came.
#[test]
fn earlier_releases_carry_labels_and_drains() {
    let labels = entry("labelled", Source::Labels, |raw| {
        raw.models = vec!["kv.connector=nixl".into(), "kv.port=5600".into()];
    });
    let removed = Entry {
        spec: None,
        ..entry("unlabelled", Source::Labels, |_| {})
    };
    let drain = entry("drained", Source::Drain, |raw| raw.state = State::Draining);
    let batch = vec![labels, removed, drain];
    let earlier: Vec<Entry> = batch.iter().map(as_earlier_releases_hold).collect();
    let bytes = sealed(&Message::RegistryPush(batch.clone()));
    assert_eq!(sealed(&Message::RegistryPush(earlier.clone())), bytes);
    let received = decode(&bytes).expect("whole");
    assert_eq!(received.refused, 0);
    let Some(Message::RegistryPush(entries)) = received.message else {
        panic!("a push")
    };
    assert_eq!(format!("{entries:?}"), format!("{batch:?}"));
    let sum = |entries: Vec<Entry>| {
        let mut registry = Registry::new(replica("r1"));
        registry.merge(entries, 1).expect("no drift");
        registry.summary()
    };
    assert_eq!(sum(batch), sum(earlier));
}

/// An entry of labels, or a drain, in a registry of a release whose first unknown source is 5.
fn as_earlier_releases_hold(entry: &Entry) -> Entry {
    Entry {
        source: Source::unknown(match entry.source {
            Source::Drain => 6,
            _ => 5,
        }),
        ..entry.clone()
    }
}
