//! What a choice in one pool leaves to the next one: turns, and heat.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use grapevine_gossip::worker::{Role, State};
use grapevine_placement::{Claim, ClusterSettings, Key, KeyBuilder, NoWorker, Policy};
use tokio::time::advance;

use super::{Halves, Pool};
use crate::alone::{Alone, worker, worker_with};
use crate::config::KvEventsConfig;
use crate::upstream::InFlight;

const MODEL: &str = "m";

/// Two prefill and two decode workers, chosen by this policy.
fn halves(policy: Policy) -> (Alone, Arc<Halves>) {
    let mut settings = ClusterSettings::default();
    settings.roles.prefill = Some(policy);
    settings.roles.decode = Some(policy);
    let member = |id, role| worker_with(id, MODEL, |raw| raw.role = role);
    let workers = [
        member("d0", Role::Decode),
        member("d1", Role::Decode),
        member("p0", Role::Prefill),
        member("p1", Role::Prefill),
    ];
    let house = Alone::of(settings, "r1", workers, &KvEventsConfig::default(), 4);
    let pool = house.cluster.fleet().pool(MODEL).expect("it is served");
    let halves = Arc::clone(pool.halves().expect("both are there"));
    (house, halves)
}

/// Workers without halves, chosen by this policy.
fn whole(policy: Policy) -> Alone {
    let mut settings = ClusterSettings::default();
    settings.policy.policy = policy;
    let workers = [worker(0, MODEL), worker(1, MODEL)];
    Alone::of(settings, "r1", workers, &KvEventsConfig::default(), 2)
}

fn key(session: Option<&str>) -> Key {
    let mut builder = KeyBuilder::new(&ClusterSettings::default().key, MODEL, b"");
    if let Some(session) = session {
        builder.session(session);
    }
    builder.begin_message("user");
    builder.text("word ".repeat(800));
    builder.end_message();
    builder.finish()
}

/// The place of the worker that gets a request.
fn place(house: &Alone, pool: &Arc<Pool>, key: &Key, strangers: &[usize]) -> Option<usize> {
    let placed = house.cluster.place(pool, key, &[], strangers);
    placed.ok().map(|placed| placed.decision.worker)
}

#[test]
fn each_pool_takes_its_own_turns() {
    let (house, halves) = halves(Policy::RoundRobin);
    let key = key(None);
    let pair = || {
        let prefill = place(&house, &halves.prefill, &key, &[]);
        (prefill, place(&house, &halves.decode, &key, &[]))
    };
    let (first, second) = ((Some(0), Some(0)), (Some(1), Some(1)));
    assert_eq!([pair(), pair(), pair()], [first, second, first]);
}

/// As a request looks for a decode worker: first in its prefill worker's zone, then in the others.
#[test]
fn far_workers_take_turns_where_none_is_near() {
    let (house, halves) = halves(Policy::RoundRobin);
    let key = key(None);
    let far = || {
        assert_eq!(place(&house, &halves.decode, &key, &[0, 1]), None);
        place(&house, &halves.decode, &key, &[])
    };
    assert_eq!([far(), far(), far()], [Some(0), Some(1), Some(0)]);
}

#[test]
fn a_preview_is_of_the_next_turn() {
    let (house, halves) = halves(Policy::RoundRobin);
    let key = key(None);
    for turn in [0, 1, 0] {
        let next = house.cluster.preview(&halves.prefill, &key, &[], &[], true);
        assert_eq!(next.map(|next| next.worker), Ok(turn));
        assert_eq!(place(&house, &halves.prefill, &key, &[]), Some(turn));
    }
}

/// Of a preview clients are told, too: nobody asked those that a request is not for.
#[test]
fn workers_that_a_request_is_not_for_are_not_said_to_be_tried() {
    let (house, halves) = halves(Policy::Prefix);
    let (pool, key) = (&halves.decode, key(None));
    pool.members()[1].worker.health.unreachable();
    for (tried, strangers, expected) in [
        (&[][..], &[0][..], NoWorker::Unhealthy),
        (&[0][..], &[][..], NoWorker::Tried),
    ] {
        let placed = house.cluster.place(pool, &key, tried, strangers);
        assert_eq!(placed.map(|placed| placed.decision.worker), Err(expected));
        let seen = house.cluster.preview(pool, &key, tried, strangers, true);
        assert_eq!(seen.map(|seen| seen.worker), Err(expected));
    }
}

/// Nor is anybody at its limit where nothing is loaded.
#[tokio::test(start_paused = true)]
async fn in_a_quiet_cluster_nobody_is_full() {
    let one = worker_with("w0", MODEL, |raw| raw.max_in_flight = Some(1));
    let house = Alone::new("r1", [one], &KvEventsConfig::default(), 1);
    let (cluster, key) = (&house.cluster, key(None));
    let pool = cluster.fleet().pool(MODEL).expect("it is served");
    let placed = cluster.place(&pool, &key, &[], &[]).expect("it has room");
    let _busy = InFlight::begin(&placed.worker, &placed.decision).expect("it is usable");
    for (with_load, expected) in [(true, Err(NoWorker::Full)), (false, Ok(0))] {
        let explained = cluster.explain(&pool, &key, with_load, &[]).decision;
        assert_eq!(explained.map(|decision| decision.worker), expected);
        let seen = cluster.preview(&pool, &key, &[], &[], with_load);
        assert_eq!(seen.map(|decision| decision.worker), expected);
    }
}

#[test]
fn turns_go_on_when_workers_change() {
    let house = whole(Policy::RoundRobin);
    let turn = || {
        let pool = house.cluster.fleet().pool(MODEL).expect("it is served");
        place(&house, &pool, &key(None), &[])
    };
    assert_eq!(turn(), Some(0));
    let (id, spec) = worker(2, MODEL);
    house.agent.configure(id, spec).expect("there is room");
    house.cluster.update(&house.agent.view());
    assert_eq!([turn(), turn(), turn()], [Some(1), Some(2), Some(0)]);
}

#[test]
fn who_has_a_session_takes_no_turn() {
    let house = whole(Policy::Sticky);
    let pool = house.cluster.fleet().pool(MODEL).expect("it is served");
    let turn = || {
        place(&house, &pool, &key(Some("s")), &[]).expect("all are usable");
        place(&house, &pool, &key(None), &[])
    };
    assert_eq!([turn(), turn(), turn()], [Some(0), Some(1), Some(0)]);
}

/// Workers that a request may not have (of other ranks, without a partner) make its prompt no rarer.
#[test]
fn a_prompt_counts_for_heat_whoever_may_not_have_it() {
    let (house, halves) = halves(Policy::Prefix);
    let cache_view = house.cluster.cache_view();
    let cool = cache_view.heat_digest();
    let key = key(None);
    for _ in 0..200 {
        // Another attempt counts for nothing, nor does its other half.
        for (pool, tried) in [(&halves.prefill, &[0][..]), (&halves.decode, &[])] {
            let placed = house.cluster.place(pool, &key, tried, &[]);
            placed.expect("all are usable");
        }
    }
    house.cluster.tick();
    assert_eq!(cache_view.heat_digest(), cool);
    for _ in 0..200 {
        place(&house, &halves.prefill, &key, &[1]).expect("one is left");
    }
    house.cluster.tick();
    assert_ne!(cache_view.heat_digest(), cool);
}

/// As after their leases ran out: they are drained until they are removed.
#[test]
fn drained_workers_that_ended_make_no_panic() {
    let drained = |number: usize| {
        worker_with(&format!("w{number}"), MODEL, |raw| {
            raw.state = State::Draining;
        })
    };
    let workers = (0..3).map(|number| worker(number, MODEL));
    let workers = workers.chain((3..8).map(drained));
    let house = Alone::new("r1", workers, &KvEventsConfig::default(), 8);
    let pool = house.cluster.fleet().pool(MODEL).expect("it is served");
    let ends = |number: usize| pool.members()[number].worker.health.unreachable();
    let panics = || {
        let explained = house.cluster.explain(&pool, &key(None), true, &[]);
        assert_eq!(explained.panic, pool.panics(), "placement sees the same");
        pool.panics()
    };
    (3..8).for_each(ends);
    assert!(!panics());
    ends(0);
    assert!(!panics());
    assert!(
        house.cluster.has_another(&pool, &[0]),
        "what waits there may move"
    );
    ends(1);
    assert!(panics(), "two of the three that are left");
    assert!(!house.cluster.has_another(&pool, &[0]));
}

/// What an HTTP server gives by itself is no token, and no silence either.
#[tokio::test(start_paused = true)]
async fn a_request_that_got_a_piece_has_not_waited_in_vain() {
    const LIMIT: Duration = Duration::from_secs(60);
    let house = Alone::new("r1", [worker(0, MODEL)], &KvEventsConfig::default(), 1);
    let pool = house.cluster.fleet().pool(MODEL).expect("it is served");
    let worker = &pool.members()[0].worker;
    for (gets_a_piece, expected) in [(true, Claim::Good), (false, Claim::Stalled)] {
        let placed = house.cluster.place(&pool, &key(None), &[], &[]);
        let decision = placed.expect("it is well").decision;
        let mut begun = InFlight::begin(worker, &decision).expect("it may have it");
        assert_eq!(worker.open.load(Ordering::Relaxed), 1);
        // The second one is given up when a look had its time, and found nothing.
        let mut next = InFlight::begin(worker, &decision).expect("it may have it, too");
        for waiting in [&mut begun, &mut next] {
            waiting.waits(LIMIT);
            if gets_a_piece {
                waiting.prefilled();
            }
        }
        advance(LIMIT).await;
        drop(begun);
        assert_eq!(worker.health.report().verdict, Claim::Good);
        advance(LIMIT).await;
        drop(next);
        assert_eq!(worker.health.report().verdict, expected);
        assert_eq!(worker.open.load(Ordering::Relaxed), 0);
    }
}

/// What peers are asked about is a pool by its name.
#[tokio::test]
async fn every_pool_that_requests_are_placed_in_is_found_by_its_name() {
    let member = |id, role| worker_with(id, MODEL, |raw| raw.role = role);
    for (roles, expected) in [
        (&[Role::Any][..], 1),
        (&[Role::Any, Role::Decode], 2),
        (&[Role::Prefill, Role::Decode], 3),
        (&[Role::Any, Role::Prefill, Role::Decode], 3),
    ] {
        let workers = roles.iter().zip(["a", "b", "c"]);
        let workers = workers.map(|(role, id)| member(id, *role));
        let house = Alone::new("r1", workers, &KvEventsConfig::default(), 1);
        let fleet = house.cluster.fleet();
        let all: Vec<_> = fleet.all_pools().cloned().collect();
        assert_eq!(all.len(), expected, "{roles:?}");
        for pool in all {
            let found = fleet.pool_named(pool.name()).expect("it is there");
            assert_eq!(found.name(), pool.name());
        }
    }
}
