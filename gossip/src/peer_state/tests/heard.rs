//! Whom a replica hears, as it tells the others.

use super::*;

fn heard(name: &str, age: Duration) -> Heard {
    Heard {
        replica: replica(name),
        age,
    }
}

#[test]
fn whom_a_replica_hears_is_news_when_silence_begins_and_to_hear_nobody_is_told() {
    let (mut publisher, mut now) = (Publisher::default(), start());
    let mut told = |list: Vec<Heard>, now| {
        let state = PeerState {
            heard: list,
            ..PeerState::default()
        };
        publisher.publish(state, now);
        let due = publisher.due(now).into_iter();
        let mut due = due.filter_map(|message| match message {
            Message::Heard(heard) => Some(heard.to_vec()),
            _ => None,
        });
        due.next()
    };
    let young = vec![heard("r2", MS)];
    assert_eq!(told(young.clone(), now), Some(young));
    now += PAUSE;
    assert_eq!(told(vec![heard("r2", 60 * MS)], now), None, "ages alone");
    now += PAUSE;
    let silent = vec![heard("r2", UNHEARD_AFTER)];
    assert_eq!(told(silent.clone(), now), Some(silent));
    now += PAUSE;
    assert_eq!(told(Vec::new(), now), Some(Vec::new()));
}

#[test]
fn whom_a_replica_hears_is_read_as_long_as_it_tells() {
    let (mut received, now) = (received(), start());
    let from = replica("r2");
    let [own, other] = [replica("r1"), replica("r3")];
    let list = vec![heard("r1", 200 * MS), heard("r3", UNHEARD_AFTER)];
    assert_eq!(received.part(&from, (1, 1), list, now), Taken::Fresh);
    let states = received.states();
    let peer = states.peers().next().expect("it tells");
    assert_eq!(peer.hears(&own, now + 300 * MS), Some(Some(500 * MS)));
    assert_eq!(peer.hears(&other, now), Some(None));
    assert_eq!(peer.hears(&replica("r4"), now), Some(None), "not named");
    // Another part is renewed, this one is not.
    let later = now + SILENT_AFTER;
    let usage = vec![used(1, 1, 0)];
    assert_eq!(received.part(&from, (1, 2), usage, later), Taken::Fresh);
    assert!(received.expire(later));
    let states = received.states();
    let peer = states.peers().next().expect("it tells of tenants");
    assert_eq!(peer.hears(&own, later), None);
}

#[test]
fn more_replicas_than_a_cluster_may_have_are_cut() {
    let mut publisher = Publisher::default();
    let list = (0..HEARD_MAX + 3).map(|n| heard(&format!("r{n:03}"), MS));
    let state = PeerState {
        heard: list.rev().collect(),
        ..PeerState::default()
    };
    let cut = publisher.publish(state, start());
    assert!(cut.contains(&("heard", 3)), "{cut:?}");
}
