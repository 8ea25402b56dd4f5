//! Quarantined requests, as replicas tell each other.

use super::*;

fn quarantined(length: u64, age: Duration) -> Quarantined {
    Quarantined {
        length,
        hash: [7; 16],
        age,
    }
}

#[test]
fn quarantined_requests_are_told_while_there_are_any_and_grow_older() {
    let (mut publisher, mut now) = (Publisher::default(), start());
    let publish = |publisher: &mut Publisher, quarantine, now| {
        let state = PeerState {
            quarantine,
            ..PeerState::default()
        };
        publisher.publish(state, now)
    };
    let told = |due: &[Message]| {
        due.iter().find_map(|message| match message {
            Message::Quarantine(entries) => Some(entries.to_vec()),
            _ => None,
        })
    };
    publish(&mut publisher, vec![], now);
    assert_eq!(told(&publisher.due(now)), None, "nothing to say");
    let both = vec![quarantined(9, MS), quarantined(3, MS)];
    publish(&mut publisher, both.clone(), now);
    assert!(publisher.has_news());
    let sent = told(&publisher.due(now)).expect("news");
    assert_eq!(sent, [quarantined(3, MS), quarantined(9, MS)]);
    now += PAUSE;
    publish(&mut publisher, both.clone(), now);
    assert_eq!(told(&publisher.due(now)), None, "the same");
    now += RENEW_AFTER;
    let sent = told(&publisher.due(now)).expect("renewed");
    assert_eq!(sent[0].age, MS + RENEW_AFTER, "since it was published");

    let (mut received, from) = (received(), replica("x"));
    let taken = received.part(&from, (1, 1), sent.clone(), now);
    assert_eq!(taken, Taken::Fresh);
    let shown = |received: &ReceivedStates| {
        let states = received.states();
        let mut peers = states.peers().map(|peer| peer.quarantine.len());
        peers.next()
    };
    assert_eq!(shown(&received), Some(2));
    assert!(received.expire(now + SILENT_AFTER));
    assert_eq!(shown(&received), None);

    let many = (0..QUARANTINE_MAX as u64 + 5).map(|n| quarantined(n, n as u32 * MS));
    let cut = publish(&mut publisher, many.collect(), now);
    assert_eq!(cut[2], ("quarantine", 5));
    let sent = told(&publisher.due(now)).expect("news");
    assert!(
        sent.iter()
            .all(|entry| entry.length < QUARANTINE_MAX as u64)
    );
}

/// A request that ended workers is quarantined for a time, so it must not get younger because another part came later.
#[test]
fn quarantined_requests_grow_older_since_their_own_part_came() {
    let (mut received, from, begun) = (received(), replica("x"), start());
    let second = Duration::from_secs(1);
    received.part(&from, (1, 1), vec![quarantined(3, 10 * second)], begun);
    let later = begun + second;
    assert_eq!(
        received.part(&from, (1, 2), Vec::<HealthClaim>::new(), later),
        Taken::Fresh
    );
    let ages = |received: &ReceivedStates, now| -> Vec<Duration> {
        let states = received.states();
        let all = states.peers().flat_map(|peer| peer.quarantined(now));
        all.map(|entry| entry.age).collect()
    };
    assert_eq!(ages(&received, later), [11 * second]);
    assert_eq!(ages(&received, later + second), [12 * second]);
    assert_eq!(ages(&received, begun + 2 * AGE_MAX), [AGE_MAX]);
    // Renewed: what it sends now counts.
    received.part(
        &from,
        (1, 3),
        vec![quarantined(3, 12 * second)],
        later + second,
    );
    assert_eq!(ages(&received, later + second), [12 * second]);
}
