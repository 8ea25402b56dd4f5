//! What is sent to each peer, and when.

use super::*;

/// Sends everything that is due at `now`; returns it with its receivers.
fn sent(
    outbox: &mut Outbox,
    linked: &[(ReplicaId, u64)],
    heat: Option<&Arc<HeatReport>>,
    now: Instant,
) -> Vec<(ReplicaId, Message)> {
    let mut sent = Vec::new();
    outbox.send(linked, heat, now, |peer, message| {
        sent.push((peer.clone(), message.clone()));
        true
    });
    sent
}

fn numbers(sent: &[(ReplicaId, Message)]) -> Vec<u64> {
    let number = |(_, message): &(ReplicaId, Message)| match message {
        Message::Evidence(batch) => Some(batch.number),
        _ => None,
    };
    sent.iter().filter_map(number).collect()
}

#[test]
fn a_slow_peer_waits_alone_and_goes_on_where_it_stopped() {
    let (start, b, c) = (start(), replica("b"), replica("c"));
    let linked = [(b.clone(), 1), (c.clone(), 1)];
    let mut outbox = Outbox::new(&EvidenceConfig::default());
    sent(&mut outbox, &linked, None, start);
    for link in 0..3 {
        outbox.log().append(vec![record(link)]);
    }
    let mut got: BTreeMap<ReplicaId, Vec<u64>> = BTreeMap::new();
    let mut send = |outbox: &mut Outbox, slow: &ReplicaId, now| {
        outbox.send(&linked, None, now, |peer, message| {
            if let Message::Evidence(batch) = message
                && peer != slow
            {
                got.entry(peer.clone()).or_default().push(batch.number);
                return true;
            }
            false
        });
    };
    send(&mut outbox, &c, start + TICK);
    send(&mut outbox, &b, start + 2 * TICK);
    assert_eq!(got[&b], [0, 1, 2]);
    assert_eq!(got[&c], [0, 1, 2]);
    // A short absence changes nothing; a new life begins with a snapshot.
    outbox.log().append(vec![record(3)]);
    assert_eq!(
        numbers(&sent(&mut outbox, &linked[..1], None, start + 3 * TICK)),
        [3]
    );
    assert_eq!(
        numbers(&sent(&mut outbox, &linked[1..], None, start + 4 * TICK)),
        [3]
    );
    outbox.log().append(vec![record(4)]);
    assert_eq!(
        numbers(&sent(&mut outbox, &[(b, 2)], None, start + 5 * TICK)),
        []
    );
}

#[test]
fn the_bytes_of_a_peer_are_bounded_and_the_oldest_are_skipped() {
    let start = start();
    let linked = [(replica("b"), 1)];
    let mut outbox = Outbox::new(&EvidenceConfig::default());
    sent(&mut outbox, &linked, None, start);
    let long = |link| {
        Record::Evidence(Evidence {
            worker: "w".parse().expect("valid"),
            epoch: 1,
            links: vec![link; LINKS_MAX],
        })
    };
    let (mut bytes, mut skipped, mut throttled) = (0, 0, 0);
    const SECONDS: u64 = 20;
    for at in 0..SECONDS * 50 {
        outbox.log().append((0..20).map(long).collect());
        let withheld = outbox.send(&linked, None, start + TICK * at as u32, |_, message| {
            if let Message::Evidence(batch) = message {
                bytes += batch.records.iter().map(Record::wire_len).sum::<usize>();
            }
            true
        });
        skipped += withheld.skipped;
        throttled += withheld.throttled;
    }
    let rate = 256 * 1024;
    let allowed = rate * (SECONDS as usize + 1) + BATCH_BYTES_MAX;
    assert!(
        (rate * SECONDS as usize..allowed).contains(&bytes),
        "{bytes}"
    );
    assert!(skipped > 0 && throttled > 0, "{skipped}, {throttled}");
}

#[test]
fn a_peer_that_asks_for_a_lost_batch_is_told_of_nothing_that_waits_for_its_budget() {
    let start = start();
    let linked = [(replica("b"), 1)];
    let mut outbox = Outbox::new(&EvidenceConfig {
        peer_bytes_per_s: 1_000,
        ..EvidenceConfig::default()
    });
    sent(&mut outbox, &linked, None, start);
    for number in 0..100 {
        outbox.log().append(vec![record(number)]);
    }
    let numbers = numbers(&sent(&mut outbox, &linked, None, start + TICK));
    let last = *numbers.last().expect("some went");
    assert!((1..99).contains(&last), "{last}: the rest waits");
    let gap = Gap { start: 1, end: 2 };
    let answer = outbox.pulled(&linked[0].0, 1, &[gap], start + 2 * TICK);
    let Some(Message::EvidenceMark(mark)) = answer.first() else {
        panic!("no mark: {answer:?}");
    };
    let expected = Mark {
        first: 0,
        next: last + 1,
    };
    assert_eq!(*mark, expected);
}

#[test]
fn heat_is_sent_when_new_not_too_often_and_again_after_a_while() {
    let start = start();
    let linked = [(replica("b"), 1)];
    let mut outbox = Outbox::new(&EvidenceConfig::default());
    let mut sent_at = Vec::new();
    for at in 0..600 {
        // A new report with each of the first hundred ticks, then no more.
        let report = Arc::new(heat(at.min(100)));
        for (_, message) in sent(
            &mut outbox,
            &linked,
            Some(&report),
            start + TICK * at as u32,
        ) {
            if let Message::Heat(report) = message {
                sent_at.push((at, report.version));
            }
        }
    }
    assert_eq!(sent_at[..3], [(0, 0), (20, 20), (40, 40)]);
    assert_eq!(
        sent_at[5..],
        [(100, 100), (250, 100), (400, 100), (550, 100)]
    );
}

#[test]
fn all_peers_are_sent_the_same_copy_of_a_batch() {
    let start = start();
    let linked = ["b", "c", "d"].map(|name| (replica(name), 1));
    let mut outbox = Outbox::new(&EvidenceConfig::default());
    sent(&mut outbox, &linked, None, start);
    outbox.log().append(vec![record(1)]);
    let sent = sent(&mut outbox, &linked, None, start + TICK);
    let batches: Vec<_> = sent
        .iter()
        .filter_map(|(_, message)| match message {
            Message::Evidence(batch) => Some(batch),
            _ => None,
        })
        .collect();
    assert_eq!(batches.len(), linked.len());
    assert!(batches.iter().all(|batch| Arc::ptr_eq(batch, batches[0])));
}
