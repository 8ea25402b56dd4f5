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

/// A full table, in which `x0` has been silent for longest.
fn full(now: Instant) -> PeerTable {
    let mut table = PeerTable::new("demo", member("me", 1));
    for n in 0..REPLICAS_MAX {
        let since = now + Duration::from_millis(n as u64);
        let visitor = member(&format!("x{n}"), 7);
        table.admit(&visitor, since).expect("room");
    }
    table
}

#[test]
fn where_there_is_no_place_the_one_that_was_silent_for_longest_gives_way() {
    let start = tokio::time::Instant::now().into_std();
    let later = start + SILENT_AFTER + Duration::from_secs(1);
    let x = |n: usize| member(&format!("x{n}"), 7).id;
    let nobody = |_: &ReplicaId| false;
    type Case<'a> = (
        &'a str,
        &'a dyn Fn(&mut PeerTable),
        &'a dyn Fn(&ReplicaId) -> bool,
        Instant,
        Option<usize>,
    );
    let cases: [Case<'_>; 6] = [
        ("all silent", &|_| {}, &nobody, later, Some(0)),
        (
            "not for long",
            &|_| {},
            &nobody,
            start + SILENT_AFTER / 2,
            None,
        ),
        ("connected", &|_| {}, &|id| *id == x(0), later, Some(1)),
        (
            "it sends",
            &|table| table.allow(&x(0), Lane::Bytes, 1, later).expect("little"),
            &nobody,
            later,
            Some(1),
        ),
        (
            "it proves itself",
            &|table| table.admit(&member("x0", 7), later).expect("known"),
            &nobody,
            later,
            Some(1),
        ),
        (
            "others hear it",
            &|table| table.admitted.get_mut("x0").expect("known").rose = Some(later),
            &nobody,
            later,
            Some(1),
        ),
    ];
    for (what, before, is_connected, now, gone) in cases {
        let mut table = full(start);
        before(&mut table);
        let stranger = member("new", 1);
        assert!(
            !table.has_place(&stranger.id) && table.has_place(&x(5)),
            "{what}"
        );
        assert_eq!(table.admit(&stranger, now), Err(Reason::TooMany), "{what}");
        assert_eq!(table.make_place(is_connected, now), gone.map(x), "{what}");
        let expected = gone.map(drop).ok_or(Reason::TooMany);
        assert_eq!(table.admit(&stranger, now), expected, "{what}");
    }
}

#[test]
fn a_churn_of_names_washes_no_ban_out() {
    let mut now = tokio::time::Instant::now().into_std();
    let mut table = full(now);
    let banned = member("x0", 7);
    now += SILENT_AFTER + Duration::from_secs(1);
    while !table.strike(&banned.id, Reason::Malformed, now).cut {}
    for n in 0..4 * LIMITS_MAX {
        let visitor = member(&format!("y{n}"), 7);
        if table.make_place(|_| false, now).is_some() {
            table.admit(&visitor, now).expect("a place");
        }
    }
    assert_eq!(table.generation(&banned.id), None, "it gave way");
    assert_eq!(table.greeted(&banned.id, now), Err(Reason::Banned));
    assert_eq!(table.admit(&banned, now), Err(Reason::Banned));
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
