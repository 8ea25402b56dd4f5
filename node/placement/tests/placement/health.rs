//! Standings that are less than usable, and what load does around workers that fail, start, or are slow: in virtual
//! time, one replica that knows everything.

use std::collections::BTreeMap;
use std::time::Duration;

use grapevine_placement::*;

use crate::common::*;

fn settings(policy: Policy) -> PolicySettings {
    PolicySettings {
        policy,
        ..PolicySettings::default()
    }
}

/// Decides for a prompt whose order is known, with candidates given by their place in it.
fn place(policy: Policy, by_place: [Candidate; 4]) -> Result<(usize, Reason), NoWorker> {
    place_with(&settings(policy), by_place)
}

fn place_with(
    settings: &PolicySettings,
    by_place: [Candidate; 4],
) -> Result<(usize, Reason), NoWorker> {
    place_but(settings, by_place, &[])
}

/// `tried`: by place.
fn place_but(
    settings: &PolicySettings,
    by_place: [Candidate; 4],
    tried: &[usize],
) -> Result<(usize, Reason), NoWorker> {
    let (ring, key) = (equal_ring(4), chat(&[("user", "somebody's question")]));
    let order = ring.order(key.home()).expect("members").to_vec();
    let mut candidates = idle(4);
    for (place, candidate) in by_place.into_iter().enumerate() {
        candidates[order[place]] = candidate;
    }
    let tried: Vec<usize> = tried.iter().map(|&place| order[place]).collect();
    let decision = decide(settings, &ring, &key, &candidates, &tried, 0)?;
    let place = order.iter().position(|&index| index == decision.worker);
    Ok((place.expect("a member"), decision.reason))
}

fn of(standing: Standing) -> Candidate {
    Candidate {
        standing,
        ..Candidate::default()
    }
}

#[test]
fn a_doubted_worker_is_the_last_resort() {
    use Standing::{Doubted, Draining, Full, Unhealthy, Usable};
    let hash = Policy::ConsistentHash;
    let at = |standings: [Standing; 4]| place(hash, standings.map(of));
    assert_eq!(
        at([Doubted, Usable, Usable, Usable]),
        Ok((1, Reason::Failover))
    );
    // Nobody else may take it: a word of others never removes a worker.
    assert_eq!(
        at([Unhealthy, Doubted, Full, Draining]),
        Ok((1, Reason::Failover))
    );
    // More than half: the doubts of several replicas together are not believed.
    assert_eq!(
        at([Doubted, Doubted, Doubted, Usable]),
        Ok((0, Reason::Home))
    );
    assert_eq!(
        at([Doubted, Doubted, Usable, Usable]),
        Ok((2, Reason::Failover))
    );
    // Also above the bound before anybody is doubted less.
    let crowded = busy(100.0);
    let doubted = of(Doubted);
    let (place, _) = place(Policy::Prefix, [doubted, crowded, crowded, crowded]).expect("usable");
    assert_ne!(place, 0);
}

#[test]
fn with_more_than_half_unhealthy_all_are_used_within_their_caps() {
    use Standing::{Unhealthy, Usable};
    let unhealthy = of(Unhealthy);
    let at_cap = Candidate {
        at_cap: true,
        ..unhealthy
    };
    let usable = of(Usable);
    let hash = Policy::ConsistentHash;
    let two = [unhealthy, unhealthy, usable, usable];
    assert_eq!(
        place(hash, two),
        Ok((2, Reason::Failover)),
        "half is not more than half"
    );
    let three = [unhealthy, unhealthy, unhealthy, usable];
    assert_eq!(place(hash, three), Ok((0, Reason::Home)));
    let capped = [at_cap, unhealthy, unhealthy, usable];
    assert_eq!(place(hash, capped), Ok((1, Reason::SpillFull)));
    assert_eq!(place(hash, [at_cap; 4]), Err(NoWorker::Full));
    let off = PolicySettings {
        panic: false,
        ..settings(hash)
    };
    assert_eq!(
        place_with(&off, three),
        Ok((3, Reason::Failover)),
        "switched off"
    );
    assert!(decide_panics(three) && !decide_panics(two));
}

#[test]
fn drained_workers_have_no_part_in_panic() {
    use Standing::{Doubted, Draining, Unhealthy, Unreachable, Usable};
    let at = |standings: [Standing; 4]| place(Policy::ConsistentHash, standings.map(of));
    let home = Ok((0, Reason::Home));
    // As they would be placed if the drained ones had left already.
    assert_eq!(at([Unhealthy, Unhealthy, Draining, Draining]), home);
    assert_eq!(at([Unhealthy, Draining, Draining, Draining]), home);
    assert_eq!(at([Unhealthy, Unhealthy, Usable, Draining]), home);
    assert_eq!(at([Unreachable, Draining, Draining, Draining]), home);
    assert_eq!(at([Unreachable, Unreachable, Draining, Draining]), home);
    assert_eq!(at([Doubted, Doubted, Usable, Draining]), home);
    let other = Ok((1, Reason::Failover));
    assert_eq!(at([Unhealthy, Usable, Draining, Draining]), other);
    assert_eq!(at([Doubted, Usable, Draining, Draining]), other);
    assert_eq!(at([Draining; 4]), Err(NoWorker::Draining));
}

#[test]
fn what_refuses_connections_is_asked_last() {
    use Standing::{Draining, Full, Unhealthy, Unreachable, Usable};
    let hash = Policy::ConsistentHash;
    let at = |standings: [Standing; 4]| place(hash, standings.map(of));
    for policy in Policy::ALL {
        let standings = [Unreachable, Unreachable, Unreachable, Usable].map(of);
        let (chosen, _) = place(policy, standings).expect("one is idle and well");
        assert_eq!(chosen, 3, "{policy}: panic raised the dead");
    }
    assert_eq!(
        at([Unreachable, Unreachable, Unhealthy, Draining]),
        Ok((2, Reason::Failover)),
        "it accepts connections at least"
    );
    assert_eq!(
        at([Unreachable, Unreachable, Unreachable, Full]),
        Err(NoWorker::Full),
        "room comes sooner than the dead come back"
    );
    let one_is_full = [Unreachable, Unreachable, Unreachable, Full].map(of);
    assert_eq!(
        place_but(&settings(hash), one_is_full, &[3]),
        Ok((0, Reason::Home)),
        "no room that comes is for a request that was there"
    );
    let all = [Unreachable; 4];
    assert_eq!(at(all), Ok((0, Reason::Home)), "nobody else is left");
    let off = PolicySettings {
        panic: false,
        ..settings(hash)
    };
    assert_eq!(place_with(&off, all.map(of)), Err(NoWorker::Unhealthy));
    // The dead share no load: the bound of those that are left is the same as without them.
    let well = busy(20.0);
    let dead = of(Unreachable);
    let (chosen, _) = place(Policy::Prefix, [dead, dead, dead, well]).expect("one is well");
    assert_eq!(chosen, 3);
}

#[test]
fn an_open_breaker_is_overruled_to_spare_others_only() {
    use Standing::{Doubted, Draining, Full, Resting, Unhealthy, Unreachable, Usable};
    let hash = Policy::ConsistentHash;
    let at = |standings: [Standing; 4]| place(hash, standings.map(of));
    assert_eq!(
        at([Resting, Resting, Resting, Usable]),
        Ok((0, Reason::Home))
    );
    assert_eq!(at([Resting, Resting, Resting, Full]), Ok((0, Reason::Home)));
    assert_eq!(
        at([Resting, Resting, Resting, Doubted]),
        Ok((0, Reason::Home))
    );
    for nobody_is_well in [
        [Resting; 4],
        [Resting, Resting, Resting, Draining],
        [Resting, Resting, Resting, Unreachable],
    ] {
        let placed = at(nobody_is_well);
        let dead = nobody_is_well.contains(&Unreachable);
        let expected = match dead {
            true => Ok((3, Reason::Failover)),
            false => Err(NoWorker::Unhealthy),
        };
        assert_eq!(placed, expected, "{nobody_is_well:?}");
    }
    assert_eq!(
        at([Resting, Unhealthy, Resting, Resting]),
        Ok((1, Reason::Failover)),
        "what probes say may be wrong"
    );
}

/// Whether the chosen worker is one that counts as unhealthy.
fn decide_panics(candidates: [Candidate; 4]) -> bool {
    let (ring, key) = (equal_ring(4), prompt(b"a prompt"));
    let least = settings(Policy::RoundRobin);
    let draws = 0..4;
    let mut decisions = draws.map(|draw| decide(&least, &ring, &key, &candidates, &[], draw));
    decisions.any(|decision| decision.expect("somebody is usable").panic)
}

#[test]
fn a_slow_starter_has_its_share_and_always_one() {
    let ramp = |requests, share| Candidate {
        slow_start: Some(share),
        ..busy(requests)
    };
    for policy in [Policy::ConsistentHash, Policy::Prefix, Policy::CacheAware] {
        // Mean: (9 + 9 + 9 + n + 1) / 4.
        let at = |requests, share| {
            place(
                policy,
                [ramp(requests, share), busy(9.0), busy(9.0), busy(9.0)],
            )
            .expect("somebody is usable")
        };
        assert_eq!(at(0.0, 0.0).0, 0, "{policy:?}: one at a time");
        assert_ne!(at(1.0, 0.0).0, 0, "{policy:?}");
        assert_eq!(at(1.0, 0.5).0, 0, "{policy:?}: half the mean");
        assert_ne!(at(4.0, 0.5).0, 0, "{policy:?}");
    }
    // What only this replica knows of counts from twice the share on.
    let unheard = |exact_requests| {
        let starter = Candidate {
            exact_requests,
            ..ramp(0.0, 0.0)
        };
        place(
            Policy::ConsistentHash,
            [starter, busy(9.0), busy(9.0), busy(9.0)],
        )
    };
    assert_eq!(unheard(1.0), Ok((0, Reason::Home)));
    assert_eq!(unheard(2.0), Ok((1, Reason::SlowStart)));
    let hash = Policy::ConsistentHash;
    let alone = [
        ramp(5.0, 0.0),
        of(Standing::Unhealthy),
        of(Standing::Draining),
        of(Standing::Full),
    ];
    assert_eq!(
        place(hash, alone),
        Ok((0, Reason::Home)),
        "nobody else is left"
    );
    let spared = [ramp(5.0, 0.0), busy(9.0), busy(9.0), busy(9.0)];
    assert_eq!(place(hash, spared), Ok((1, Reason::SlowStart)));
}

/// A worker of the simulation.
#[derive(Clone, Copy)]
struct Model {
    /// How long a request lasts there.
    takes: Duration,
    /// Requests fail, after this time.
    fails_after: Option<Duration>,
    candidate: Candidate,
}

/// Four workers under requests that never repeat, in steps of a millisecond.
struct Sim {
    policy: PolicySettings,
    ring: Ring,
    models: [Model; 4],
    penalties: [Penalty; 4],
    half_life: Duration,
    /// Millisecond of the end → worker, and whether it fails.
    ends: BTreeMap<u64, Vec<(usize, bool)>>,
    in_flight: [u32; 4],
    started: [u64; 4],
    now_ms: u64,
    asked: u64,
}

const TOKENS: u32 = 200;

impl Sim {
    fn new(policy: Policy) -> Self {
        let model = Model {
            takes: Duration::from_secs(1),
            fails_after: None,
            candidate: Candidate::default(),
        };
        Self {
            policy: settings(policy),
            ring: equal_ring(4),
            models: [model; 4],
            penalties: [Penalty::default(); 4],
            half_life: Duration::from_secs(2),
            ends: BTreeMap::new(),
            in_flight: [0; 4],
            started: [0; 4],
            now_ms: 0,
            asked: 0,
        }
    }

    /// Runs for so many milliseconds, a request each 5 of them: 50 in flight on each worker while all is well.
    /// `see` looks after each.
    fn run(&mut self, ms: u64, mut see: impl FnMut(&mut Self)) {
        for _ in 0..ms {
            self.now_ms += 1;
            for (worker, fails) in self.ends.remove(&self.now_ms).unwrap_or_default() {
                self.in_flight[worker] -= 1;
                if fails {
                    let load = Self::load(1);
                    self.penalties[worker].add(load, self.now(), self.half_life);
                }
            }
            if self.now_ms.is_multiple_of(5) {
                self.ask();
            }
            see(self);
        }
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms)
    }

    fn load(requests: u32) -> Load {
        Load {
            requests: requests.into(),
            prefill_tokens: f64::from(requests * TOKENS / 10),
            context_tokens: f64::from(requests * TOKENS),
        }
    }

    fn ask(&mut self) {
        self.asked += 1;
        let text = format!(
            "question {} {}",
            self.asked,
            "?".repeat(TOKENS as usize * 4)
        );
        let key = chat(&[("user", &text)]);
        let candidates: Vec<Candidate> = (0..4)
            .map(|worker| Candidate {
                load: Self::load(self.in_flight[worker])
                    + self.penalties[worker].load(self.now(), self.half_life),
                exact_requests: self.in_flight[worker].into(),
                surge_requests: self.in_flight[worker].into(),
                ..self.models[worker].candidate
            })
            .collect();
        let decision = decide(
            &self.policy,
            &self.ring,
            &key,
            &candidates,
            &[],
            self.draw(),
        );
        let worker = decision.expect("somebody is usable").worker;
        let model = self.models[worker];
        let takes = model.fails_after.unwrap_or(model.takes).as_millis();
        let end = self.now_ms + u64::try_from(takes).expect("short").max(1);
        let ends = self.ends.entry(end).or_default();
        ends.push((worker, model.fails_after.is_some()));
        self.in_flight[worker] += 1;
        self.started[worker] += 1;
    }

    fn draw(&self) -> u64 {
        HashAlgorithm::Xxh3.hash(0, &self.asked.to_le_bytes())
    }

    /// Requests that went to each worker meanwhile.
    fn shares(&mut self, ms: u64) -> [f64; 4] {
        let before = self.started;
        self.run(ms, |_| ());
        std::array::from_fn(|worker| (self.started[worker] - before[worker]) as f64)
    }
}

/// Policies that compare all workers' load.
const POLICIES: [Policy; 3] = [Policy::Prefix, Policy::LeastRequest, Policy::LeastKv];

#[test]
fn a_restarted_worker_starts_slowly_and_keeps_its_keys() {
    for policy in [
        Policy::Prefix,
        Policy::ConsistentHash,
        Policy::LeastRequest,
        Policy::LeastKv,
        Policy::Random,
    ] {
        let mut sim = Sim::new(policy);
        sim.run(5_000, |_| ());
        let begun = sim.now();
        let mut worst: f64 = 0.0;
        let over = Duration::from_secs(20);
        // Its requests went down with it.
        for ends in sim.ends.values_mut() {
            ends.retain(|&(worker, _)| worker != 0);
        }
        sim.in_flight[0] = 0;
        sim.run(10_000, |sim| {
            sim.models[0].candidate.slow_start = slow_start(sim.now() - begun, over);
            let mean = f64::from(sim.in_flight.iter().sum::<u32>()) / 4.0;
            worst = worst.max(f64::from(sim.in_flight[0]) / mean);
        });
        assert!(
            worst <= 0.26,
            "{policy:?}: {worst} of the mean within the first 10 s"
        );
        sim.run(10_000, |sim| {
            sim.models[0].candidate.slow_start = slow_start(sim.now() - begun, over);
        });
        let [restarted, ..] = sim.shares(5_000);
        assert!(
            restarted > 200.0,
            "{policy:?}: back with {restarted} of 1,000 requests"
        );
    }
}

#[test]
fn load_leaves_a_slow_worker() {
    // Ten times as slow as the others.
    for policy in POLICIES {
        let mut sim = Sim::new(policy);
        sim.models[0].takes = Duration::from_secs(10);
        sim.run(10_000, |_| ());
        let [slow, ..] = sim.shares(5_000);
        let share = slow / 250.0;
        println!("{policy:?}: ten times as slow: {share:.2} of the mean after 10 s");
        assert!(share <= 1.0 / 3.0, "{policy:?}: {share} of the mean");
    }
}

#[test]
fn a_worker_that_fails_at_once_is_no_magnet() {
    for policy in POLICIES {
        let failed = |half_life| {
            let mut sim = Sim::new(policy);
            sim.half_life = half_life;
            sim.run(5_000, |_| ());
            sim.models[0].fails_after = Some(Duration::from_millis(1));
            let [at_first, ..] = sim.shares(1_000);
            let [later, ..] = sim.shares(5_000);
            (at_first, later)
        };
        let (at_first, later) = failed(Duration::from_secs(2));
        let (_, magnet) = failed(Duration::ZERO);
        println!(
            "{policy:?}, no breaker: {at_first} of 200 requests failed in the first second, {later} of 1,000 then; \
             {magnet} without a penalty"
        );
        // Its fair share is 50 and 250. Without a penalty nothing in flight makes it the one to choose.
        assert!(at_first <= 65.0, "{policy:?}: {at_first} of 200");
        assert!(later <= 250.0, "{policy:?}: {later} of 1,000");
        assert!(
            magnet > 1.2 * later,
            "{policy:?}: {magnet} of 1,000 without"
        );
    }
}

#[test]
fn the_load_of_a_dead_worker_is_shared() {
    let mut sim = Sim::new(Policy::Prefix);
    sim.run(10_000, |_| ());
    let before = sim.in_flight;
    let keys: Vec<Key> = (0..500)
        .map(|number| prompt(format!("prompt {number}").as_bytes()))
        .collect();
    let homes = |sim: &Sim| -> Vec<usize> {
        let mut candidates = idle(4);
        candidates[0].standing = sim.models[0].candidate.standing;
        keys.iter()
            .map(|key| {
                decide(&sim.policy, &sim.ring, key, &candidates, &[], 0)
                    .expect("usable")
                    .worker
            })
            .collect()
    };
    let alive = homes(&sim);
    sim.models[0].candidate.standing = Standing::Unhealthy;
    for (before, after) in alive.iter().zip(homes(&sim)) {
        assert!(
            *before == 0 || *before == after,
            "keys of others do not move"
        );
    }
    let mut worst: f64 = 0.0;
    sim.run(10_000, |sim| {
        for (worker, before) in before.iter().enumerate().skip(1) {
            worst = worst.max(f64::from(sim.in_flight[worker]) / f64::from((*before).max(50)));
        }
    });
    println!("a survivor's load at most {worst:.2} of what it was");
    assert!(worst <= 1.34 * 1.1, "{worst}");
}
