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
    assert!(fourth.must_turn_away().is_none());
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
    assert!(spare.must_turn_away().is_some() && first.must_turn_away().is_none());
    drop((requests.0, other));
    assert!(spare.must_turn_away().is_none() && is_told(&first));
    drop((first, requests.1, request));
    let table = seats.table.lock();
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
        assert!(seat.must_turn_away().is_some());
        seat.turn_away(Short::Places);
        drop(request);
        assert!(is_told(&seat));
        refused.push(seat);
    }
    drop((first, held.0));
    for seat in &refused {
        // A request that crossed the word.
        let request = seat.progress().begin();
        assert!(seat.must_turn_away().is_some());
        seat.turn_away(Short::Places);
        drop(request);
    }
    let leaving = seats.table.lock().leaving;
    assert_eq!(leaving, refused.len(), "each is counted once");
    drop(refused.pop());
    let next = come(&seats, "192.0.2.4").await.expect("seated");
    assert!(
        next.must_turn_away().is_none(),
        "the others are not in its way"
    );
    drop((refused, next, held.1, second));
    assert_eq!(seats.table.lock().leaving, 0);
    assert!(seats.table.lock().held.is_empty());
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
    assert!(other.must_turn_away().is_some());
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
    assert!(!is_told(&late), "it is busy");
    let next = come(&seats, "192.0.2.3").await.expect("seated");
    drop(idle);
    assert!(seats.relieve() && is_told(&next));
    drop((next, request, late));
    assert!(seats.table.lock().held.is_empty());
}

/// Whatever keeps it: a lane that stands still, for one.
#[tokio::test(start_paused = true)]
async fn who_was_told_and_does_not_go_is_not_waited_for() {
    let seats = seats(1, None);
    let deaf = come(&seats, "192.0.2.1").await.expect("seated");
    let idle = come(&seats, "192.0.2.2").await.expect("seated");
    assert!(is_told(&deaf));
    seats.free_one();
    assert!(!is_told(&idle), "the first is about to go");
    tokio::time::advance(SECOND).await;
    seats.free_one();
    assert!(is_told(&idle), "but it did not");
    assert!(seats.relieve(), "this one is about to go");
    tokio::time::advance(SECOND).await;
    assert!(!seats.relieve(), "nobody is left");
    let next = come(&seats, "192.0.2.3").await.expect("seated");
    assert!(next.must_turn_away().is_none(), "neither is in its way");
}

/// A request that came although its connection was asked to leave, and before that connection could say so.
#[tokio::test(start_paused = true)]
async fn who_stays_for_a_request_counts_as_here() {
    let seats = seats(2, Some(2));
    let (one, other) = ("192.0.2.1", "192.0.2.2");
    let first = come(&seats, one).await.expect("seated");
    let second = come(&seats, one).await.expect("seated");
    let held = second.progress().begin();
    let third = come(&seats, other).await.expect("seated");
    assert!(is_told(&first));
    let requests = (first.progress().begin(), third.progress().begin());
    assert!(third.must_turn_away().is_none());
    let silent = pending::<Result<(), ()>>;
    assert_eq!(first.goodbye(silent()).await, Goodbye::Busy);
    // Three are busy, where two may be.
    for address in [other, "192.0.2.3"] {
        let next = come(&seats, address).await.expect("a spare place");
        let request = next.progress().begin();
        assert_eq!(next.must_turn_away(), Some(Short::Places), "{address}");
        drop((request, next));
    }
    assert!(come(&seats, one).await.is_none(), "it has its limit");
    // It can be asked again, and that is heard: it may have something else than a request to end.
    drop(requests.0);
    let next = come(&seats, one).await.expect("its own leaves for it");
    assert!(is_told(&first));
    drop((first, held, requests.1, second, third, next));
    let table = seats.table.lock();
    assert_eq!((table.seats.len(), table.leaving), (0, 0));
    assert!(table.held.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_crosses_the_word_takes_a_place_as_a_newcomer_does() {
    let seats = seats(2, None);
    let first = come(&seats, "192.0.2.1").await.expect("seated");
    let second = come(&seats, "192.0.2.2").await.expect("seated");
    let newcomer = come(&seats, "192.0.2.3").await.expect("seated");
    assert!(is_told(&first) && !is_told(&second));
    let request = first.progress().begin();
    assert!(first.must_turn_away().is_none());
    assert!(is_told(&second), "the longest idle leaves for it");
    assert!(!is_told(&newcomer), "who has just come does not");
    drop((request, first, second, newcomer));
    assert!(seats.table.lock().held.is_empty());
}

/// Else probes would find no place, once as many connections had been told as there are spare places.
#[tokio::test(start_paused = true)]
async fn requests_that_cross_the_word_take_half_of_the_spare_places_at_most() {
    const PLACES: u32 = 3;
    let seats = seats(PLACES, None);
    let mut told = Vec::new();
    for _ in 0..PLACES {
        told.push(come(&seats, "192.0.2.1").await.expect("seated"));
    }
    let mut busy = Vec::new();
    for _ in 0..PLACES {
        let seat = come(&seats, "192.0.2.2").await.expect("seated");
        let request = seat.progress().begin();
        assert!(seat.must_turn_away().is_none());
        busy.push((request, seat));
    }
    assert!(told.iter().all(is_told));
    let requests: Vec<_> = told.iter().map(|seat| seat.progress().begin()).collect();
    let short: Vec<_> = told.iter().map(Seat::must_turn_away).collect();
    assert_eq!(short, [None, None, Some(Short::Places)]);
    let prober = come(&seats, "192.0.2.3").await.expect("a spare place");
    let probe = prober.progress().begin();
    assert_eq!(prober.must_turn_away(), Some(Short::Places));
    drop((probe, prober, busy.pop()));
    assert_eq!(told[2].must_turn_away(), None, "there is one again");
    drop((requests, told, busy));
    assert!(seats.table.lock().held.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_crosses_the_word_is_one_of_its_address() {
    let seats = seats(100, Some(2));
    let first = come(&seats, "192.0.2.1").await.expect("seated");
    let second = come(&seats, "192.0.2.1").await.expect("seated");
    let third = come(&seats, "192.0.2.1").await.expect("seated");
    assert!(is_told(&first));
    let held = (second.progress().begin(), third.progress().begin());
    let request = first.progress().begin();
    assert_eq!(first.must_turn_away(), Some(Short::PlacesOfAddress));
    drop(held.0);
    assert_eq!(first.must_turn_away(), None);
    assert!(is_told(&second), "it was idle");
    assert!(come(&seats, "192.0.2.1").await.is_none());
    drop((request, held.1));
}

/// It came when there was no place, and has one since.
#[tokio::test(start_paused = true)]
async fn who_was_served_in_a_spare_place_is_not_turned_away_for_who_came_later() {
    let seats = seats(1, None);
    let busy = come(&seats, "192.0.2.1").await.expect("seated");
    let held = busy.progress().begin();
    let spare = come(&seats, "192.0.2.2").await.expect("seated");
    drop((held, busy));
    // Two streams of one connection.
    let first = spare.progress().begin();
    assert_eq!(spare.must_turn_away(), None);
    let later = come(&seats, "192.0.2.3").await.expect("seated");
    let second = spare.progress().begin();
    assert_eq!(spare.must_turn_away(), None);
    let request = later.progress().begin();
    assert_eq!(later.must_turn_away(), Some(Short::Places));
    drop((first, second, request));
}

/// Where it was turned away within the goodbye, too.
#[tokio::test(start_paused = true)]
async fn the_answer_of_who_is_turned_away_behind_the_word_has_its_time() {
    let seats = seats(4, None);
    let seat = come(&seats, "192.0.2.1").await.expect("seated");
    let began = Instant::now();
    let connection = async {
        tokio::time::sleep(LEAVE_WITHIN / 2).await;
        seat.turn_away(Short::Places);
        pending::<()>().await;
    };
    assert_eq!(seat.goodbye(connection).await, Goodbye::Idle);
    assert_eq!(began.elapsed(), TURNED_AWAY_WITHIN);
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
    assert!(seats.table.lock().held.is_empty());
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
    seat.turn_away(Short::Places);
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
