//! What the queue promises, over random schedules.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::queue::{Claim, FlowId, Queue, Ticket};
use crate::api::Priority;

fn claim(class: Priority, flow: FlowId, weight: u32, cost: u32) -> Claim {
    Claim {
        class,
        flow,
        weight,
        cost,
    }
}

fn serve<T>(queue: &mut Queue<T>) -> Option<(Ticket, T)> {
    let (ticket, _) = queue.head()?;
    queue.serve(ticket).map(|item| (ticket, item))
}

#[derive(Debug, Clone)]
enum Step {
    Push(Claim),
    Serve,
    Charge(Claim),
    /// Cancels one of those that wait: the index is taken modulo their number.
    Cancel(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let class = prop::sample::select(Priority::ALL.to_vec());
    let push = (class, 0..5_u64, 1..100_001_u32, 1..5_000_u32)
        .prop_map(|(class, flow, weight, cost)| claim(class, flow, weight, cost));
    let step = prop_oneof![
        4 => push.clone().prop_map(Step::Push),
        1 => push.prop_map(Step::Charge),
        3 => Just(Step::Serve),
        1 => any::<usize>().prop_map(Step::Cancel),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    /// Each request that was taken in comes out exactly once: served, cancelled, displaced, or it still waits. One
    /// tenant's requests of one class are served in the order in which they came.
    #[test]
    fn nobody_is_lost_or_served_twice(steps in steps(), len_max in 0..20_usize) {
        let mut queue = Queue::new(len_max, 4);
        let mut waiting: BTreeMap<u32, Ticket> = BTreeMap::new();
        let mut orders: BTreeMap<(Priority, FlowId), VecDeque<u32>> = BTreeMap::new();
        let mut flows: BTreeMap<u32, (Priority, FlowId)> = BTreeMap::new();
        for (name, step) in (0_u32..).zip(steps) {
            match step {
                Step::Push(claim) => match queue.push(claim, name) {
                    Ok((ticket, displaced)) => {
                        if let Some((ticket, gone)) = displaced {
                            prop_assert_eq!(waiting.remove(&gone), Some(ticket));
                            prop_assert!(flows[&gone].0 <= claim.class);
                            let order = orders.get_mut(&flows[&gone]).expect("it waited");
                            prop_assert_eq!(order.pop_back(), Some(gone), "the newest yields");
                        }
                        waiting.insert(name, ticket);
                        flows.insert(name, (claim.class, claim.flow));
                        orders.entry((claim.class, claim.flow)).or_default().push_back(name);
                    }
                    Err(back) => {
                        prop_assert_eq!(back, name);
                        prop_assert_eq!(queue.len(), len_max, "refused only when full");
                    }
                },
                Step::Serve => {
                    let served = serve(&mut queue);
                    prop_assert_eq!(served.is_some(), !waiting.is_empty());
                    if let Some((ticket, served)) = served {
                        prop_assert_eq!(waiting.remove(&served), Some(ticket));
                        let order = orders.get_mut(&flows[&served]).expect("it waited");
                        prop_assert_eq!(order.pop_front(), Some(served), "first come, first served");
                    }
                }
                Step::Charge(more) => queue.charge(&more),
                Step::Cancel(index) if !waiting.is_empty() => {
                    let index = index % waiting.len();
                    let (&name, &ticket) = waiting.iter().nth(index).expect("in range");
                    prop_assert!(queue.contains(ticket));
                    prop_assert_eq!(queue.remove(ticket), Some(name));
                    prop_assert_eq!(queue.remove(ticket), None);
                    waiting.remove(&name);
                    orders.get_mut(&flows[&name]).expect("it waited").retain(|n| *n != name);
                }
                Step::Cancel(_) => {}
            }
            prop_assert_eq!(queue.len(), waiting.len());
            prop_assert!(queue.len() <= len_max);
        }
        let rest: BTreeSet<u32> = std::iter::from_fn(|| serve(&mut queue)).map(|s| s.1).collect();
        prop_assert_eq!(rest, waiting.into_keys().collect::<BTreeSet<_>>());
    }

    /// Of two tenants that always have something waiting, what one gets per weight is ahead of the other's by at most
    /// the two greatest costs per weight (SFQ, theorem 1), whatever the mix of costs, also with a third that comes and
    /// goes.
    #[test]
    fn shares_follow_weights(
        weights in (1..50_u32, 1..50_u32),
        costs in prop::collection::vec(1..2_000_u32, 40),
        visits in prop::collection::vec(any::<bool>(), 400),
    ) {
        let weights = [weights.0 * 1_000, weights.1 * 1_000];
        let mut queue = Queue::new(1_000, 8);
        let mut pushed = [0_usize; 2];
        let mut served = [0_f64; 2];
        let push = |queue: &mut Queue<(usize, u32)>, pushed: &mut [usize; 2], who: usize| {
            let cost = costs[(pushed[who] * 7 + who) % costs.len()];
            pushed[who] += 1;
            let claim = claim(Priority::Normal, who as u64, weights[who], cost);
            queue.push(claim, (who, cost)).expect("room");
        };
        for who in [0, 1, 0, 1] {
            push(&mut queue, &mut pushed, who);
        }
        for visit in visits {
            if visit {
                let visitor = claim(Priority::Normal, 2, 1_000, 500);
                queue.push(visitor, (2, 500)).expect("room");
            }
            let (_, (who, cost)) = serve(&mut queue).expect("both wait");
            if who < 2 {
                served[who] += f64::from(cost) / f64::from(weights[who]);
                push(&mut queue, &mut pushed, who);
            }
            let greatest = f64::from(costs.iter().copied().max().expect("some"));
            let bound = greatest / f64::from(weights[0]) + greatest / f64::from(weights[1]);
            let ahead = (served[0] - served[1]).abs();
            prop_assert!(ahead <= bound * 1.001 + 0.001, "{served:?}, bound {bound}");
        }
    }

    /// While a class has somebody waiting, it gets a place within `passed_over_max` + 2 turns, whatever comes above it;
    /// and nothing else ever goes before a more urgent class.
    #[test]
    fn nobody_starves_and_the_urgent_go_first(
        arrivals in prop::collection::vec((0..3_usize, 0..4_u64), 300),
        passed_over_max in 1..12_u32,
    ) {
        let mut queue = Queue::new(10_000, passed_over_max);
        let mut waiting = [0_usize; 3];
        let mut turns_without = [0_u32; 3];
        for (class, flow) in arrivals {
            // Always something urgent, so that only the reserve serves the others.
            for class in [2, class] {
                let claim = claim(Priority::ALL[class], flow, 1_000, 10);
                queue.push(claim, class).expect("room");
                waiting[class] += 1;
            }
            let (_, served) = serve(&mut queue).expect("somebody waits");
            let overdue = turns_without[served] >= passed_over_max;
            let urgent_waits = waiting[served + 1..].iter().any(|n| *n > 0);
            prop_assert!(!urgent_waits || overdue, "{served} went before its time");
            waiting[served] -= 1;
            for class in 0..3 {
                turns_without[class] = if class == served || waiting[class] == 0 {
                    0
                } else {
                    turns_without[class] + 1
                };
                prop_assert!(turns_without[class] <= passed_over_max + 2);
            }
        }
    }
}

#[test]
fn a_flood_yields_to_the_others() {
    let mut queue = Queue::new(4, 8);
    let normal = |flow| claim(Priority::Normal, flow, 1_000, 10);
    for item in ["a1", "a2", "a3", "a4"] {
        queue.push(normal(1), item).expect("room");
    }
    assert_eq!(queue.push(normal(1), "a5"), Err("a5"), "its own flood");
    let displaced = |pushed: Result<(Ticket, Option<(Ticket, &'static str)>), _>| {
        pushed.ok().and_then(|(_, gone)| gone).map(|(_, item)| item)
    };
    assert_eq!(displaced(queue.push(normal(2), "b1")), Some("a4"));
    assert_eq!(displaced(queue.push(normal(3), "c1")), Some("a3"));
    assert_eq!(
        queue.push(normal(2), "b2"),
        Err("b2"),
        "a has no more than it"
    );
    let low = claim(Priority::Low, 9, 1_000, 10);
    assert_eq!(
        queue.push(low, "low"),
        Err("low"),
        "not for the less urgent"
    );
    let high = claim(Priority::High, 2, 1_000, 10);
    assert_eq!(displaced(queue.push(high, "high")), Some("a2"));
    let order: Vec<_> = std::iter::from_fn(|| serve(&mut queue))
        .map(|s| s.1)
        .collect();
    assert_eq!(order, ["high", "a1", "b1", "c1"]);
}

#[test]
fn a_full_queue_counts_requests_whatever_they_cost() {
    let mut queue = Queue::new(4, 8);
    let costs = |flow, cost| claim(Priority::Normal, flow, 1_000, cost);
    queue.push(costs(1, 100_000), "large").expect("room");
    for item in ["a", "b", "c"] {
        queue.push(costs(2, 1), item).expect("room");
    }
    assert_eq!(queue.push(costs(2, 1), "d"), Err("d"), "its own flood");
    let (_, displaced) = queue.push(costs(3, 50_000), "e").expect("fewer wait");
    assert_eq!(displaced.map(|(_, item)| item), Some("c"));
    let heavy = claim(Priority::Normal, 2, 100_000, 1);
    assert_eq!(queue.push(heavy, "f"), Err("f"), "a weight is no claim");
}

#[test]
fn one_tenants_backlog_does_not_delay_anothers_first_request() {
    let mut queue = Queue::new(100, 8);
    for item in 0..50 {
        queue
            .push(claim(Priority::Normal, 1, 1_000, 10), item)
            .expect("room");
    }
    serve(&mut queue);
    serve(&mut queue);
    queue
        .push(claim(Priority::Normal, 2, 1_000, 10), 99)
        .expect("room");
    let next: Vec<i32> = (0..2)
        .filter_map(|_| serve(&mut queue))
        .map(|s| s.1)
        .collect();
    assert!(next.contains(&99), "{next:?}");
}

#[test]
fn coming_back_saves_nothing_up_and_forgets_nothing() {
    let mut queue = Queue::new(100, 8);
    let claim = |flow, cost| claim(Priority::Normal, flow, 1_000, cost);
    for item in 0..20 {
        queue.push(claim(1, 10), item).expect("room");
    }
    // It was served something large and comes straight back: others go first until they had as much.
    queue.push(claim(2, 100), 100).expect("room");
    while serve(&mut queue).is_some_and(|(_, item)| item != 100) {}
    queue.push(claim(2, 100), 101).expect("room");
    let mut before = 0;
    while serve(&mut queue).is_some_and(|(_, item)| item != 101) {
        before += 1;
    }
    assert!(
        (8..=11).contains(&before),
        "{before} of the other's went first"
    );
}

#[test]
fn what_turns_out_later_is_charged_later() {
    let mut queue = Queue::new(100, 8);
    let claim = |flow, cost| claim(Priority::Normal, flow, 1_000, cost);
    for item in 0..10 {
        queue.push(claim(1, 100), (1, item)).expect("room");
        queue.push(claim(2, 10), (2, item)).expect("room");
    }
    let mut served = [0; 2];
    for _ in 0..10 {
        let (_, (flow, _)) = serve(&mut queue).expect("they wait");
        served[flow as usize - 1] += 1;
        if flow == 2 {
            queue.charge(&claim(2, 90));
        }
    }
    assert_eq!(served, [5, 5]);
    // Also one of which nothing waits at that moment.
    queue.charge(&claim(3, 1_000));
    queue.push(claim(3, 10), (3, 0)).expect("room");
    let order: Vec<u64> = std::iter::from_fn(|| serve(&mut queue))
        .map(|(_, (flow, _))| flow)
        .collect();
    assert_eq!(order.last(), Some(&3), "{order:?}");
}
