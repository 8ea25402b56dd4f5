//! Which connections leave, which stay and which are refused, in virtual time.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;

/// Polls once what must not have to wait.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn seats(capacity: u32, per_address: Option<u32>) -> Arc<Seats> {
    let limits = SeatLimits {
        capacity,
        share_percent: 50,
        per_address,
        proxies: vec!["10.9.0.0/16".parse().expect("a network")],
    };
    Seats::new(limits, Counts::default())
}

/// One that comes from this address, a second after the one before.
async fn come(seats: &Arc<Seats>, address: &str) -> Option<Seat> {
    tokio::time::advance(SECOND).await;
    let place = now(seats.place()).expect("a place is free");
    seats.take(place, address.parse().expect("an address"))
}

fn is_told(seat: &Seat) -> bool {
    now(seat.progress.told_to_leave()).is_some()
}

#[tokio::test(start_paused = true)]
async fn the_longest_idle_leaves_for_a_newcomer_and_the_busy_stay() {
    let seats = seats(3, None);
    let first = come(&seats, "192.0.2.1").await.expect("seated");
    let request = first.progress().begin();
    let second = come(&seats, "192.0.2.2").await.expect("seated");
    let third = come(&seats, "192.0.2.3").await.expect("seated");
    assert!(!is_told(&first) && !is_told(&second) && !is_told(&third));
    let fourth = come(&seats, "192.0.2.4").await.expect("seated");
    assert!(is_told(&second) && !is_told(&third) && !is_told(&fourth));
    assert!(!fourth.must_turn_away());
    // The request's end makes it idle, and later than the others.
    tokio::time::advance(SECOND).await;
    drop(request);
    drop(come(&seats, "192.0.2.5").await.expect("seated"));
    assert!(is_told(&third) && !is_told(&first));
    assert_eq!((seats.counts.full.get(), seats.counts.shed.get()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn where_all_are_busy_a_newcomer_is_heard_and_turned_away_until_one_is_free() {
    let seats = seats(2, None);
    let busy = [
        come(&seats, "192.0.2.1").await,
        come(&seats, "192.0.2.2").await,
    ];
    let [first, second] = busy.map(|seat| seat.expect("seated"));
    let requests = (first.progress().begin(), second.progress().begin());
    let spare = come(&seats, "192.0.2.3").await.expect("seated");
    let other = now(seats.place()).expect("a place is free");
    let other = seats.take(other, "192.0.2.4".parse().expect("an address"));
    let other = other.expect("seated");
    assert!(!is_told(&spare), "it had no time to say anything");
    let request = spare.progress().begin();
    assert!(spare.must_turn_away() && !first.must_turn_away());
    drop((requests.0, other));
    assert!(!spare.must_turn_away() && is_told(&first));
    drop((first, requests.1, request));
    let table = seats.table();
    assert_eq!((table.seats.len(), table.leaving), (2, 0));
    assert_eq!(table.held.values().sum::<u32>(), 2);
}

/// Over HTTP/2, where a client would otherwise keep its connection and ask again.
#[tokio::test(start_paused = true)]
async fn who_is_turned_away_leaves_and_keeps_nobody_else_out() {
    let seats = seats(2, None);
    let busy = [
        come(&seats, "192.0.2.1").await,
        come(&seats, "192.0.2.2").await,
    ];
    let [first, second] = busy.map(|seat| seat.expect("seated"));
    let held = (first.progress().begin(), second.progress().begin());
    let mut refused = Vec::new();
    for _ in 0..spare(2) {
        let place = now(seats.place()).expect("a place is free");
        let seat = seats.take(place, "192.0.2.3".parse().expect("an address"));
        let seat = seat.expect("seated");
        let request = seat.progress().begin();
        assert!(seat.must_turn_away());
        seat.turn_away();
        drop(request);
        assert!(is_told(&seat));
        refused.push(seat);
    }
    drop((first, held.0));
    for seat in &refused {
        // A request that crossed the word.
        let request = seat.progress().begin();
        assert!(seat.must_turn_away());
        seat.turn_away();
        drop(request);
    }
    let leaving = seats.table().leaving;
    assert_eq!(leaving, refused.len(), "each is counted once");
    drop(refused.pop());
    let next = come(&seats, "192.0.2.4").await.expect("seated");
    assert!(!next.must_turn_away(), "the others are not in its way");
    drop((refused, next, held.1, second));
    assert_eq!(seats.table().leaving, 0);
    assert!(seats.table().held.is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_was_answered_in_a_spare_place_is_idle_from_then_on() {
    let seats = seats(1, None);
    let busy = come(&seats, "192.0.2.1").await.expect("seated");
    let held = busy.progress().begin();
    let prober = come(&seats, "192.0.2.2").await.expect("seated");
    let other = now(seats.place()).expect("a place is free");
    let other = seats.take(other, "192.0.2.3".parse().expect("an address"));
    let other = other.expect("seated");
    drop(prober.progress().begin());
    let request = other.progress().begin();
    assert!(other.must_turn_away());
    assert!(is_told(&prober), "it was heard");
    drop((held, request));
}

#[tokio::test(start_paused = true)]
async fn spare_places_are_freed_once_they_are_all_taken() {
    let seats = seats(1, None);
    let busy = come(&seats, "192.0.2.1").await.expect("seated");
    let request = busy.progress().begin();
    let mut silent = Vec::new();
    for _ in 0..spare(1) {
        let place = now(seats.place()).expect("a place is free");
        let seat = seats.take(place, "192.0.2.2".parse().expect("an address"));
        silent.push(seat.expect("seated"));
    }
    assert!(seats.is_full() && !silent.iter().any(is_told));
    seats.free_one();
    seats.free_one();
    assert!(is_told(&silent[0]) && !silent[1..].iter().any(is_told));
    drop(silent.remove(0));
    assert!(!seats.is_full());
    drop(request);
}

/// A request that crossed the word keeps its connection for as long as its answer takes.
#[tokio::test(start_paused = true)]
async fn who_leaves_only_after_a_long_answer_keeps_no_place_from_being_freed() {
    let seats = seats(1, None);
    let late = come(&seats, "192.0.2.1").await.expect("seated");
    let idle = come(&seats, "192.0.2.2").await.expect("seated");
    assert!(is_told(&late) && !is_told(&idle));
    // It goes in a moment, so nobody else has to.
    seats.free_one();
    assert!(seats.relieve() && !is_told(&idle));
    let request = late.progress().begin();
    let silent = pending::<Result<(), ()>>;
    assert_eq!(late.goodbye(silent()).await, Goodbye::Busy);
    seats.free_one();
    assert!(is_told(&idle), "an idle one leaves in its place");
    let next = come(&seats, "192.0.2.3").await.expect("seated");
    drop(idle);
    assert!(seats.relieve() && is_told(&next));
    drop((next, request, late));
    assert!(seats.table().held.is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_holds_more_than_its_share_goes_first_but_for_proxies() {
    let seats = seats(4, None);
    let other = come(&seats, "2001:db8::1").await.expect("seated");
    let mut crowd = Vec::new();
    for address in ["2001:db8:1::1", "2001:db8:1::2", "2001:db8:1::3"] {
        crowd.push(come(&seats, address).await.expect("seated"));
    }
    // The other has been idle for longer, but is one of few.
    let newcomer = come(&seats, "192.0.2.1").await.expect("seated");
    assert!(is_told(&crowd[0]) && !is_told(&other) && !is_told(&newcomer));
    drop(crowd);
    let mut crowd = Vec::new();
    for address in ["10.9.0.1", "10.9.0.1", "10.9.0.1"] {
        crowd.push(come(&seats, address).await.expect("seated"));
    }
    assert!(is_told(&other) && !crowd.iter().any(is_told));
}

#[tokio::test(start_paused = true)]
async fn an_address_at_its_limit_loses_its_own_or_is_refused() {
    let seats = seats(100, Some(2));
    let first = come(&seats, "192.0.2.1").await.expect("seated");
    let second = come(&seats, "::ffff:192.0.2.1").await.expect("seated");
    let third = come(&seats, "192.0.2.1").await.expect("seated");
    assert!(is_told(&first) && !is_told(&second));
    drop(first);
    let requests = (second.progress().begin(), third.progress().begin());
    assert!(come(&seats, "192.0.2.1").await.is_none());
    assert!(come(&seats, "192.0.2.2").await.is_some());
    drop(requests);
    let proxied = [
        come(&seats, "10.9.0.1").await,
        come(&seats, "10.9.0.1").await,
    ];
    assert!(come(&seats, "10.9.0.1").await.is_some() && proxied.iter().all(Option::is_some));
}

#[tokio::test(start_paused = true)]
async fn a_balancer_s_connections_are_its_clients_once_it_names_them() {
    let seats = seats(100, Some(1));
    let mut named = Vec::new();
    for client in ["192.0.2.1", "192.0.2.2"] {
        let seat = come(&seats, "10.9.0.1").await.expect("seated");
        assert!(seat.belongs_to(client.parse().expect("an address")));
        named.push(seat);
    }
    let request = named[0].progress().begin();
    for (client, is_taken) in [
        ("192.0.2.1", false),
        ("192.0.2.2", true),
        ("10.9.0.1", true),
    ] {
        let seat = come(&seats, "10.9.0.1").await.expect("seated");
        assert_eq!(
            seat.belongs_to(client.parse().expect("an address")),
            is_taken
        );
    }
    assert!(is_told(&named[1]) && !is_told(&named[0]));
    drop((request, named));
    assert!(seats.table().held.is_empty());
}

#[tokio::test(start_paused = true)]
async fn relief_takes_some_and_never_twice_before_they_are_gone() {
    let seats = seats(100, None);
    let mut idle = Vec::new();
    for _ in 0..32 {
        idle.push(come(&seats, "192.0.2.1").await.expect("seated"));
    }
    seats.relieve();
    seats.relieve();
    let told = |seats: &[Seat]| seats.iter().filter(|seat| is_told(seat)).count();
    assert_eq!((told(&idle[..2]), told(&idle[2..])), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn goodbye_waits_for_a_request_and_for_nothing_else() {
    let seats = seats(4, None);
    let seat = come(&seats, "192.0.2.1").await.expect("seated");
    let silent = pending::<Result<(), ()>>;
    assert_eq!(seat.goodbye(silent()).await, Goodbye::Idle);
    // What it says is handed on as it is.
    let ended = ready("another protocol");
    assert_eq!(
        seat.goodbye(ended).await,
        Goodbye::Ended("another protocol")
    );
    let request = seat.progress().begin();
    assert_eq!(seat.goodbye(silent()).await, Goodbye::Busy);
    drop(request);
    // The body of what is turned away is read for a moment.
    seat.turn_away();
    let began = Instant::now();
    assert_eq!(seat.goodbye(silent()).await, Goodbye::Idle);
    assert_eq!(began.elapsed(), TURNED_AWAY_WITHIN);
}

/// What the system has not told yet counts, and the connection that goes on for it leaves behind it.
#[tokio::test(start_paused = true)]
async fn what_has_come_is_taken_and_the_word_stays() {
    let seats = seats(4, None);
    let seat = come(&seats, "192.0.2.1").await.expect("seated");
    seat.progress().tell_to_leave();
    let mut looks = 0;
    let comes = poll_fn(|_| {
        looks += 1;
        match looks {
            1 => Poll::Pending,
            _ => Poll::Ready("a request"),
        }
    });
    assert_eq!(seat.unless_told(comes).await, Some("a request"));
    assert_eq!(seat.unless_told(pending::<()>()).await, None);
}

#[test]
fn a_few_places_are_spare() {
    assert_eq!([1, 480, 65_536].map(spare), [4, 30, 256]);
}
