//! Where a request goes: what placement is told of a pool's workers at that moment, and what its choice leaves behind.

use std::cell::RefCell;
use std::sync::Arc;

use grapevine_gossip::worker::WorkerId;
use grapevine_placement::load::{Picture, Seen};
use grapevine_placement::{
    Candidate, Decision, Explanation, Key, NoWorker, Policy, Reason, View, decide, explain,
};
use rand::Rng;
use tokio::time::Instant;

use super::load_at::LoadAt;
use super::standing::{is_at_cap, standing, without_a_place};
use super::{Cluster, Pool, RecordedPlacement};
use crate::upstream::Worker;

thread_local! {
    /// One per runtime thread, so that a decision allocates nothing.
    pub(super) static CANDIDATES: RefCell<Vec<Candidate>> = const { RefCell::new(Vec::new()) };
}

/// A choice, with the worker behind the index.
#[derive(Debug)]
pub struct Placed {
    /// The chosen worker.
    pub worker: Arc<Worker>,
    /// Why, and what is expected there.
    pub decision: Decision,
    /// What was recorded of it, if the policy looks at contents.
    pub recorded: Option<RecordedPlacement>,
}

impl Cluster {
    /// Chooses a worker for an attempt; `tried` are the indices of earlier ones, `strangers` those of workers that the
    /// request is not for. The first attempt counts for heat, whoever else may not have it.
    /// Errors: no worker is left that may take it.
    pub fn place(
        &self,
        pool: &Arc<Pool>,
        key: &Key,
        tried: &[usize],
        strangers: &[usize],
    ) -> Result<Placed, NoWorker> {
        let asks = Asks {
            is_first: tried.is_empty() && pool.is_first(),
            takes_turn: takes_turns(pool, key),
        };
        passing_over(pool, tried, strangers, |tried| {
            self.place_seen(pool, key, tried, asks, |_| {})
        })
    }

    /// The same but for all these; `see` may change what is seen of workers.
    fn place_seen(
        &self,
        pool: &Arc<Pool>,
        key: &Key,
        tried: &[usize],
        asks: Asks,
        see: impl FnOnce(&mut [Candidate]),
    ) -> Result<Placed, NoWorker> {
        let Asks {
            is_first,
            takes_turn,
        } = asks;
        let draw = match pool.policy.policy {
            Policy::Random | Policy::PowerOfTwo => rand::rng().random(),
            _ if takes_turn => pool.turns.take(),
            _ => 0,
        };
        let chosen = CANDIDATES.with_borrow_mut(|candidates| {
            self.candidates(pool, key, candidates, LoadAt::Now);
            see(candidates);
            let hot = self.cache_view.hot();
            let view = View {
                ring: &pool.ring,
                hot: &hot,
            };
            let decision = decide(&pool.policy, view, key, candidates, tried, draw)?;
            // A peer is asked about all workers.
            let is_of_all = tried.is_empty();
            let sample = is_of_all.then(|| self.sample(pool, view, key, candidates));
            Ok((decision, sample.flatten()))
        });
        let (decision, sample) = chosen.inspect_err(|_| {
            if takes_turn {
                pool.turns.give_back();
            }
        })?;
        if let Some(sample) = sample {
            self.samples.offer(sample);
        }
        Ok(Placed {
            worker: Arc::clone(&pool.members[decision.worker].worker),
            recorded: self.cache_view.record(pool, key, &decision, is_first),
            decision,
        })
    }

    /// What [`Cluster::place`] would choose now, without a trace of it; `with_load` false: in a quiet cluster.
    /// Errors: no worker is left that may take it.
    pub fn preview(
        &self,
        pool: &Pool,
        key: &Key,
        tried: &[usize],
        strangers: &[usize],
        with_load: bool,
    ) -> Result<Decision, NoWorker> {
        passing_over(pool, tried, strangers, |tried| {
            CANDIDATES.with_borrow_mut(|candidates| {
                self.candidates(pool, key, candidates, LoadAt::now(with_load));
                let hot = self.cache_view.hot();
                let view = View {
                    ring: &pool.ring,
                    hot: &hot,
                };
                let draw = pool.turns.next();
                decide(&pool.policy, view, key, candidates, tried, draw)
            })
        })
    }

    /// As [`Cluster::place`], on the one worker that has what the request is about. `computes`: it takes a place of the
    /// engine; one that does not is answered by a worker that is full or drained, too.
    /// Errors: it is not there, was tried, or may not take it.
    pub fn place_at(
        &self,
        pool: &Arc<Pool>,
        key: &Key,
        worker: &WorkerId,
        tried: &[usize],
        computes: bool,
    ) -> Result<Placed, NoWorker> {
        let at = pool
            .members
            .iter()
            .position(|member| member.worker.id == *worker);
        let at = at
            .filter(|at| !tried.contains(at))
            .ok_or(NoWorker::Unhealthy)?;
        let others: Vec<usize> = (0..pool.members.len())
            .filter(|index| *index != at)
            .collect();
        // Nobody else could have it: it shares its prefix with no other worker, and takes no turn from requests that may
        // go anywhere.
        let placed = self.place_seen(pool, key, &others, Asks::default(), |candidates| {
            if !computes {
                candidates[at] = without_a_place(&pool.members[at]);
            }
        });
        let mut placed = placed.map_err(|why| why_none_of(pool, [at].into_iter(), why))?;
        placed.decision.reason = Reason::Sticky;
        Ok(placed)
    }

    /// Where a request would go, and why, without sending it. `with_load` false: as in a quiet cluster; `but`: workers,
    /// by index, that it is not for.
    pub fn explain(&self, pool: &Pool, key: &Key, with_load: bool, but: &[usize]) -> Explanation {
        let draw = match pool.policy.policy {
            Policy::Random | Policy::PowerOfTwo => rand::rng().random(),
            _ => pool.turns.next(),
        };
        CANDIDATES.with_borrow_mut(|candidates| {
            self.candidates(pool, key, candidates, LoadAt::now(with_load));
            let hot = self.cache_view.hot();
            let view = View {
                ring: &pool.ring,
                hot: &hot,
            };
            explain(&pool.policy, view, key, candidates, but, draw)
        })
    }

    pub(super) fn candidates(
        &self,
        pool: &Pool,
        key: &Key,
        candidates: &mut Vec<Candidate>,
        load: LoadAt<'_>,
    ) {
        let now = Instant::now();
        self.agent.settle_load(now);
        let picture = self.picture(now);
        candidates.clear();
        candidates.extend(pool.members.iter().map(|member| {
            let seen = load.seen(picture, &member.worker, &member.load);
            let look = member.look();
            let is_quiet = matches!(load, LoadAt::Nothing);
            let requests = if is_quiet { 0.0 } else { seen.exact_requests };
            let at_cap = is_at_cap(member, requests);
            let of_health = || standing(&member.worker, look, at_cap);
            let standing = member.out_as().unwrap_or_else(of_health);
            if is_quiet {
                return Candidate {
                    standing,
                    ..Candidate::default()
                };
            }
            Candidate {
                load: seen.common + look.penalty,
                exact_requests: seen.exact_requests,
                surge_requests: seen.surge_requests,
                rate: member.glance.rate(),
                standing,
                at_cap,
                slow_start: look.slow_start,
                ..Candidate::default()
            }
        }));
        self.cache_view.fill(pool, key, candidates);
    }

    /// Whether a worker that was not tried would take a request now, by what is believed of its health.
    pub fn has_another(&self, pool: &Pool, tried: &[usize]) -> bool {
        let picture = self.picture(Instant::now());
        let mut members = pool.members.iter().enumerate();
        let another = members.any(|(index, member)| {
            !tried.contains(&index)
                && !member.is_out()
                && member.look().is_usable
                && !is_at_cap(
                    member,
                    LoadAt::Now
                        .seen(picture, &member.worker, &member.load)
                        .exact_requests,
                )
        });
        another && !pool.panics()
    }

    /// Cluster-wide load of a worker, as placement counts it: what all replicas know of, and exact requests.
    pub fn load_of(&self, worker: &Worker) -> Seen {
        LoadAt::Now.seen(self.picture(Instant::now()), worker, &worker.load)
    }

    /// How much of the cluster's load is known at this moment. A replica that was paused knows its own only, until it
    /// has summed up the others' again.
    fn picture(&self, now: Instant) -> Picture {
        let others_count = !self.board.is_stale(now.into_std());
        let heard = if others_count {
            self.board.reporting()
        } else {
            1
        };
        Picture::new(self.board.live(), heard)
    }
}

/// What a request does to those after it.
#[derive(Debug, Clone, Copy, Default)]
struct Asks {
    /// It counts for heat.
    is_first: bool,
    takes_turn: bool,
}

/// Chooses a worker that is neither one of `tried` nor of `strangers`, workers that the request is not for: those were not
/// asked, and no client is told that they were.
fn passing_over<T>(
    pool: &Pool,
    tried: &[usize],
    strangers: &[usize],
    choose: impl FnOnce(&[usize]) -> Result<T, NoWorker>,
) -> Result<T, NoWorker> {
    if strangers.is_empty() {
        return choose(tried);
    }
    let is_asked = |index: &usize| !strangers.contains(index);
    choose(&[tried, strangers].concat()).map_err(|why| match tried.is_empty() {
        true => why_none_of(pool, (0..pool.members.len()).filter(is_asked), why),
        false => why,
    })
}

/// Why none of these workers may take a request that was sent to nobody yet: others, which it is not for, were not tried.
fn why_none_of(pool: &Pool, these: impl Iterator<Item = usize> + Clone, why: NoWorker) -> NoWorker {
    match why {
        NoWorker::Tried if these.clone().all(|at| pool.members[at].draining) => NoWorker::Draining,
        NoWorker::Tried if these.clone().all(|at| pool.members[at].is_out()) => NoWorker::Asleep,
        NoWorker::Tried => NoWorker::Unhealthy,
        why => why,
    }
}

/// Whether a request takes its turn in a pool: one with a session goes where the session is.
fn takes_turns(pool: &Pool, key: &Key) -> bool {
    match pool.policy.policy {
        Policy::RoundRobin => true,
        Policy::Sticky => key.session().is_none(),
        _ => false,
    }
}
