//! Who has a place among the peers, and what is remembered of those that left.

use super::*;

fn member(name: &str, generation: u64) -> Member {
    Member {
        id: name.parse().expect("valid"),
        generation,
        address: "127.0.0.1:2".parse().expect("valid"),
    }
}

#[test]
fn the_generation_of_who_left_is_known_as_long_as_its_frames_are() {
    let now = tokio::time::Instant::now().into_std();
    let mut table = PeerTable::new("demo", member("me", 1));
    table.admit(&member("x", 9), now).expect("room");
    let id = member("x", 9).id;
    table.forget(&id, now);
    assert_eq!(table.generation(&id), None, "it is not there");
    assert_eq!(table.generation_seen(&id, now), Some(9));
    assert_eq!(table.admit(&member("x", 8), now), Err(Reason::Implausible));
    assert_eq!(table.admit(&member("x", 9), now), Ok(()), "it was cut off");
    table.forget(&id, now);
    assert!(LEFT_FOR >= crate::load::SENDER_FORGET_AFTER);
    let later = now + LEFT_FOR;
    assert_eq!(table.generation_seen(&id, later), None);
    assert_eq!(table.admit(&member("x", 8), later), Ok(()));
}

#[test]
fn a_generation_of_a_clock_far_ahead_gives_way_to_one_of_now() {
    let now = tokio::time::Instant::now().into_std();
    let now_ms = 1_700_000_000_000;
    let [soon, far] = [1, 48].map(|hours| now_ms + hours * 3_600_000);
    for (known, comes, gives_way) in [
        (far, now_ms, true),
        (far, far - 1, false),
        (soon, now_ms, false),
    ] {
        let mut table = PeerTable::new("demo", member("me", 1));
        table.admit(&member("x", known), now).expect("room");
        let again = member("x", comes);
        for has_left in [false, true] {
            if has_left {
                table.forget(&again.id, now);
            }
            table.disown(&again, now_ms, now);
            let seen = table.generation_seen(&again.id, now);
            assert_eq!(seen.is_none(), gives_way, "{known} {comes} {has_left}");
        }
    }
}

#[test]
fn those_who_left_are_bounded() {
    let now = tokio::time::Instant::now().into_std();
    let mut table = PeerTable::new("demo", member("me", 1));
    for n in 0..2 * REPLICAS_MAX {
        let visitor = member(&format!("x{n}"), 7);
        table.admit(&visitor, now).expect("room");
        table.forget(&visitor.id, now);
    }
    assert_eq!(table.left.len(), REPLICAS_MAX);
    let last = member("y", 7);
    table.admit(&last, now + LEFT_FOR).expect("room");
    table.forget(&last.id, now + LEFT_FOR);
    assert_eq!(table.left.len(), 1);
}
