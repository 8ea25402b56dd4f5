//! Whether a worker is to be passed over: probes, refused connections, the ends of requests, tokens that do not
//! come, and what other replicas report. Only decides which workers to skip; the ring does not depend on it.
//!
//! | found out by | verdict | ends with |
//! |---|---|---|
//! | a connection that was refused, dropped, or not accepted in time | unreachable | a good probe |
//! | failed probes in a row | unhealthy | good probes in a row |
//! | a request that waited its whole limit while no request got a token, or several that clients gave up | stalled | a delivered token, or a new process |
//! | failed requests | ejected, for longer each time | successful trials |
//! | another replica | doubted: the last resort | its claim, or a token delivered here since |
//!
//! Besides, failed requests count on as load for a while, and a worker that restarted, or was ejected, starts slowly.
//! A verdict also frees the requests that wait there and have nothing to show, unless the worker shows life (`signs`).

mod opinion;
mod signs;
mod story;
#[cfg(test)]
mod tests;
mod unanswered;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grapevine_placement::{
    AttemptOutcome, BreakerState, Claim, Health as Probed, Load, Penalty, Permit, slow_start,
};
use rand::Rng;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use self::opinion::{Doubt, Doubts, Failing, Opinion, Stalled};
use self::signs::Signs;
use self::unanswered::{Follows, Unanswered, Wait};
use crate::config::{BreakerConfig, HealthConfig};
use crate::live::Live;
use crate::upstream::glance::Glance;

/// Opinion of one worker, formed by this replica.
#[derive(Debug)]
pub struct Health {
    /// The worker's name, for the log.
    label: Arc<str>,
    /// Start of the time that all of it counts in.
    born: Instant,
    breaker: Live<BreakerConfig>,
    config: Live<HealthConfig>,
    opinion: Mutex<Opinion>,
    /// Where it says that nothing is wrong: lets a decision over hundreds of workers skip as many locks.
    glance: Arc<Glance>,
    signs: Signs,
    /// A request wants to know whether it lives.
    wanted: Notify,
    /// It was found stalled.
    stall: Notify,
    /// What waits there has no reason to wait on.
    given_up: Notify,
    /// Times that the verdict became each of [`Claim::ALL`].
    changes: [AtomicU64; Claim::ALL.len()],
}

/// A worker's health as a decision sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Look {
    /// A request may be sent to it.
    pub is_usable: bool,
    /// Its breaker lets no request pass.
    pub is_resting: bool,
    /// It refused or dropped a connection, or leaves all probes without an answer; no probe has passed since.
    pub is_unreachable: bool,
    /// Others speak against it, and nothing here speaks for it.
    pub is_doubted: bool,
    /// Share of the mean requests in flight that it may have, while it starts slowly.
    pub slow_start: Option<f64>,
    /// Load of failed requests, to be added to its own.
    pub penalty: Load,
}

impl Look {
    /// Nothing is wrong.
    pub const CLEAR: Self = Self {
        is_usable: true,
        is_resting: false,
        is_unreachable: false,
        is_doubted: false,
        slow_start: None,
        penalty: Load {
            requests: 0.0,
            prefill_tokens: 0.0,
            context_tokens: 0.0,
        },
    };
}

/// How a probe ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// Answered with a 2xx.
    Good,
    /// Answered with anything else.
    Bad,
    /// Nothing listens there, or it refuses connections.
    Refused,
    /// Its name has no address.
    NoAddress,
    /// There was no connection, for another reason: TLS, the network, a rule of ours.
    NoConnection,
    /// Not answered in time. A frozen process is found so: its kernel accepts connections, and nothing answers.
    Unanswered,
}

impl Probe {
    /// Its name in the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad_answer",
            Self::Refused => "refused",
            Self::NoAddress => "no_address",
            Self::NoConnection => "no_connection",
            Self::Unanswered => "no_answer",
        }
    }
}

/// A worker's health for people.
#[derive(Debug, Clone)]
pub struct Report {
    /// What this replica found out by itself.
    pub verdict: Claim,
    /// For how long it has been so.
    pub since: Duration,
    /// What probes and connections show.
    pub probes: Probed,
    /// How the latest probe failed, and why; none after a good one.
    pub failed: Option<(Probe, Box<str>)>,
    /// What the ends of requests say.
    pub breaker: BreakerState,
    /// Times that the breaker opened, as far as it remembers.
    pub ejections: u32,
    /// For how long the breaker still lets no request pass.
    pub shut_for: Duration,
    /// What others say, where that counts.
    pub doubt: Option<Claim>,
    /// Share of the mean requests in flight that it may have, while it starts slowly.
    pub slow_start: Option<f64>,
}

/// Whether a worker would answer a request, as far as can be known without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// It showed a sign of life, here or to another replica, and nothing since speaks against it.
    Yes,
    /// It has shown none yet.
    Unknown,
    /// Probes, connections or a token that does not come say no. A breaker does not count: requests alone close it.
    No,
}

impl Health {
    /// Nothing known yet: used like a healthy worker.
    pub fn new(label: Arc<str>, breaker: Live<BreakerConfig>, health: Live<HealthConfig>) -> Self {
        Self {
            label,
            born: Instant::now(),
            opinion: Mutex::new(Opinion::new(breaker.now(), health.now())),
            breaker,
            config: health,
            glance: Arc::default(),
            signs: Signs::default(),
            wanted: Notify::new(),
            stall: Notify::new(),
            given_up: Notify::new(),
            changes: Default::default(),
        }
    }

    /// What decisions read of the worker.
    pub(super) fn glance(&self) -> Arc<Glance> {
        Arc::clone(&self.glance)
    }

    fn now(&self) -> Duration {
        self.born.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Opinion> {
        // Each change below is complete before anything could panic.
        let mut opinion = self.opinion.lock().unwrap_or_else(PoisonError::into_inner);
        opinion.follow(&self.breaker.look(), &self.config.look(), self.now());
        opinion
    }

    /// After every change: the one place that notices what it means.
    fn settle(&self, opinion: &mut Opinion, now: Duration) {
        let verdict = opinion.verdict(now);
        if verdict != opinion.settled {
            story::tell(&story::Change {
                worker: &self.label,
                before: opinion.settled,
                now: verdict,
                lasted: now.saturating_sub(opinion.settled_at),
                why: opinion.failed.as_ref().map_or("", |(_, why)| why),
            });
            (opinion.settled, opinion.settled_at) = (verdict, now);
            self.changes[verdict as usize].fetch_add(1, Ordering::Relaxed);
        }
        let given_up = opinion.given_up(self.signs.last());
        let before = std::mem::replace(&mut opinion.gave_up, given_up);
        let look = self.look_at(opinion, now);
        // A verdict that a token is to end needs to be seen by it, also where requests may come.
        let clear = look == Look::CLEAR && verdict == Claim::Good && opinion.doubts.is_empty();
        self.glance.set_clear(clear);
        if given_up.is_some() && given_up != before {
            self.given_up.notify_waiters();
        }
    }

    /// May a request be sent to it, and what else is there to consider?
    pub fn look(&self) -> Look {
        if self.glance.is_clear() {
            return Look::CLEAR;
        }
        let mut opinion = self.lock();
        let now = self.now();
        let look = self.look_at(&opinion, now);
        if look == Look::CLEAR {
            // Time alone ends penalties and slow starts.
            self.settle(&mut opinion, now);
        }
        look
    }

    /// Whether it would answer a request, as far as probes and tokens show.
    pub fn answers(&self) -> Answers {
        let opinion = self.lock();
        let seen = opinion.good_probe.max(self.signs.last_token());
        if opinion.probes() == Probed::Unhealthy || opinion.is_silent() {
            Answers::No
        } else if seen.max(opinion.good_elsewhere).is_some() {
            Answers::Yes
        } else {
            Answers::Unknown
        }
    }

    /// May a request be sent to it?
    pub fn is_usable(&self) -> bool {
        self.look().is_usable
    }

    fn look_at(&self, opinion: &Opinion, now: Duration) -> Look {
        Look {
            is_usable: opinion.is_usable(now),
            is_resting: opinion.breaker.state(now) == BreakerState::Open,
            is_unreachable: opinion.unreachable || opinion.is_mute(self.signs.last()),
            is_doubted: self.doubt_in(opinion).is_some(),
            slow_start: self.slow_start_in(opinion, now),
            penalty: opinion
                .penalty
                .load(now, self.config.look().failure_half_life),
        }
    }

    /// Asks to send one request; `None` when it may not have one, or a half-open breaker has its trial already.
    /// `anyway`: health is not believed.
    pub fn begin(&self, anyway: bool) -> Option<Permit> {
        let mut opinion = self.lock();
        let now = self.now();
        if anyway {
            return Some(opinion.breaker.begin_anyway(now));
        }
        if opinion.is_silent() {
            return None;
        }
        opinion.breaker.begin(now)
    }

    /// The same for a request whose end shows nothing of the engine: it is no trial, and takes none from another.
    pub fn begin_unjudged(&self, anyway: bool) -> Option<Permit> {
        let opinion = self.lock();
        let is_shut = opinion.breaker.state(self.now()) == BreakerState::Open;
        let may_pass = anyway || !(opinion.is_silent() || is_shut);
        may_pass.then(|| opinion.breaker.pass())
    }

    /// A permitted request ended, which weighed `load` until then.
    pub fn end(&self, permit: Permit, outcome: AttemptOutcome, load: Load) {
        let mut opinion = self.lock();
        let now = self.now();
        let failed = outcome == AttemptOutcome::Failure && opinion.counts_failure();
        if failed {
            opinion
                .penalty
                .add(load, now, self.config.look().failure_half_life);
        }
        let outcome = match outcome {
            AttemptOutcome::Failure if !failed || !self.breaker.look().enabled => {
                AttemptOutcome::Neutral
            }
            outcome => outcome,
        };
        let was = opinion.breaker.state(now);
        let draw = if failed { draw() } else { 0.0 };
        opinion.breaker.record(permit, outcome, now, draw);
        if was != BreakerState::Closed && opinion.breaker.state(now) == BreakerState::Closed {
            opinion.started = Some(now);
        }
        self.settle(&mut opinion, now);
    }

    /// One request has shown that it cannot do its work, whatever its probes say: its breaker opens, and trials find out
    /// when it can again.
    pub fn eject(&self) {
        if !self.breaker.look().enabled {
            return;
        }
        let mut opinion = self.lock();
        let now = self.now();
        if opinion.breaker.state(now) != BreakerState::Open {
            opinion.breaker.open(now, draw());
        }
        self.settle(&mut opinion, now);
    }

    /// It refused or dropped a connection: passed over until a probe passes.
    pub fn unreachable(&self) {
        let mut opinion = self.lock();
        opinion.unreachable = true;
        self.settle(&mut opinion, self.now());
    }

    /// A probe ended; `why` it failed, as a person should know it. True when what probes and connections say changed by it.
    pub fn probed(&self, probed: Probe, why: &str) -> bool {
        let mut opinion = self.lock();
        let now = self.now();
        let good = probed == Probe::Good;
        let before = (opinion.probes.health(), opinion.unreachable);
        opinion.probes.record(good);
        opinion.unreachable &= !good;
        if good {
            opinion.good_probe = Some(now);
            opinion.failing = None;
            opinion.failed = None;
        } else {
            opinion.failed = Some((probed, why.into()));
            let is_bad = opinion.probes() == Probed::Unhealthy;
            let failing = opinion.failing.get_or_insert_with(|| Failing::since(now));
            failing.unanswered &= probed == Probe::Unanswered;
            if is_bad {
                failing.verdict.get_or_insert(now);
            }
        }
        self.settle(&mut opinion, now);
        before != (opinion.probes.health(), opinion.unreachable)
    }

    /// A token came: of a client's request, or of a probe that asked for one.
    pub fn delivered(&self) {
        self.delivered_at(self.now());
    }

    /// A further token came on a stream; cheap where the one before it came just before.
    pub fn goes_on(&self, now: Instant) {
        let now = now.saturating_duration_since(self.born);
        if !self.signs.is_fresh(now) {
            self.delivered_at(now);
        }
    }

    fn delivered_at(&self, now: Duration) {
        self.signs.token(now);
        if self.glance.is_clear() {
            return;
        }
        let mut opinion = self.lock();
        if opinion.stalled.take().is_some_and(|stalled| stalled.trials) {
            opinion.breaker.close(now);
        }
        self.settle(&mut opinion, now);
    }

    /// Its engine has worked after `since`, as its counters show. This restores no worker: only a token does.
    pub fn moved(&self, since: Instant) {
        self.signs.moved(since.saturating_duration_since(self.born));
    }

    /// The latest sign of life of its engine: a token, or counters that moved.
    pub fn last_sign(&self) -> Option<Instant> {
        self.signs.last().map(|at| self.born + at)
    }

    /// A request waits there in silence: has it looked at whether the worker lives, unless that was done within
    /// `every`.
    pub fn want_sign(&self, every: Duration) {
        if self.signs.want(self.now(), every) {
            self.wanted.notify_one();
        }
    }

    /// Waits until a request wants a sign of life.
    pub async fn sign_wanted(&self) {
        self.wanted.notified().await;
    }

    /// Since when nothing that waited there before has a reason to wait on; `None` while it shows life.
    pub fn given_up_since(&self) -> Option<Instant> {
        if self.glance.is_clear() {
            return None;
        }
        let at = self.lock().given_up(self.signs.last())?;
        Some(self.born + at)
    }

    /// Ready once [`Self::given_up_since`] gives another time than when this was called.
    pub fn gives_up(&self) -> Notified<'_> {
        self.given_up.notified()
    }

    /// A request has waited as long as it may, without a sign of life since `since`. False if it alone did: there were
    /// signs meanwhile. Else the worker is stalled: passed over, whatever probes say, until it delivers a token.
    pub fn stalled(&self, since: Instant) -> bool {
        let since = since.saturating_duration_since(self.born);
        if self.signs.last().is_some_and(|at| at > since) {
            return false;
        }
        let mut opinion = self.lock();
        let now = self.now();
        match opinion.stalled {
            None => {
                let trials = !self.config.look().token_probe;
                opinion.stalled = Some(Stalled {
                    found: now,
                    counted: false,
                    trials,
                });
                if trials {
                    opinion.breaker.open(now, draw());
                }
                self.stall.notify_one();
            }
            // A trial that found it as it was.
            Some(stalled) if stalled.trials && since >= stalled.found => {
                opinion.breaker.open(now, draw());
            }
            Some(_) => {}
        }
        self.settle(&mut opinion, now);
        true
    }

    /// A request was given up that had waited since `since` for its first token, for which `silence` is the longest wait: its
    /// client left. Where such waits, one after the other, were as long as that and nothing showed that the engine works, the
    /// worker is stalled; before that, it is looked at every `look_every` whether it does.
    pub fn left(&self, since: Instant, silence: Duration, look_every: Duration) {
        let began = since.saturating_duration_since(self.born);
        let sign = self.signs.last();
        if sign.is_some_and(|sign| sign > began) {
            return;
        }
        let follows = {
            let mut opinion = self.lock();
            let wait = Wait {
                since: began,
                until: self.now(),
                limit: silence,
                look_every,
            };
            opinion.unanswered.add(wait, sign)
        };
        match follows {
            Follows::Nothing => {}
            Follows::Look => self.want_sign(look_every),
            Follows::Stalled => {
                self.stalled(since);
            }
        }
    }

    /// A probe for a token proves nothing, as with a worker that answers no completions: clients' requests try instead,
    /// one at a time, at growing intervals.
    pub fn try_with_clients(&self) {
        let mut opinion = self.lock();
        let now = self.now();
        if let Some(stalled) = &mut opinion.stalled
            && !std::mem::replace(&mut stalled.trials, true)
        {
            opinion.breaker.open(now, draw());
        }
        self.settle(&mut opinion, now);
    }

    /// Whether it is stalled, and a probe for a token may show the end of that.
    pub fn awaits_token(&self) -> bool {
        self.lock().is_silent()
    }

    /// Waits until it is found stalled.
    pub async fn stall_found(&self) {
        self.stall.notified().await;
    }

    /// Its process started again: its cache is empty, and what failed with the former process is past.
    ///
    /// All replicas learn of it at the same moment. Their breakers, opened by the streams that broke, would let it
    /// return seconds apart, each with a slow start of its own. One that has ended before, not long ago, stays ejected.
    pub fn restarted(&self) {
        let mut opinion = self.lock();
        let now = self.now();
        opinion.started = Some(now);
        opinion.penalty = Penalty::default();
        opinion.stalled = None;
        opinion.unanswered = Unanswered::default();
        if opinion.breaker.ejections(now) <= 1 {
            opinion.breaker.close(now);
        }
        self.settle(&mut opinion, now);
    }

    /// What this replica found out by itself, and how long ago it last did: the age of a good sign, or of the change
    /// to a bad verdict. `None` before the first sign, and while a client's request may try whether a bad verdict still
    /// holds: then it may elsewhere too, or the claim would outlive all traffic that could disprove it.
    pub fn claim(&self) -> Option<(Claim, Duration)> {
        let opinion = self.lock();
        let now = self.now();
        let verdict = opinion.verdict(now);
        if verdict.is_bad() && opinion.is_on_trial(now) {
            return None;
        }
        if verdict.is_bad() {
            return Some((verdict, now.saturating_sub(opinion.settled_at)));
        }
        let good = opinion.good_probe.max(self.signs.last_token());
        good.map(|at| (Claim::Good, now.saturating_sub(at)))
    }

    /// Takes over what the other replicas claim now, each with its age; those that are not believed left out. Replaces
    /// what was received before.
    pub fn heard(&self, claims: impl IntoIterator<Item = (Claim, Duration)>) {
        let mut opinion = self.lock();
        let now = self.now();
        let newest = opinion.newest_doubt;
        opinion.doubts = Doubts::default();
        opinion.good_elsewhere = None;
        for (claim, age) in claims {
            let since = now.saturating_sub(age);
            if claim.is_bad() {
                opinion.doubts.add(Doubt::heard(claim, since, now, newest));
            } else {
                opinion.good_elsewhere = opinion.good_elsewhere.max(Some(since));
            }
        }
        let heard = newest.into_iter().chain(opinion.doubts.iter());
        opinion.newest_doubt = heard.max_by_key(|doubt| doubt.since);
        self.settle(&mut opinion, now);
    }

    /// Age of the youngest sign that it is well, seen here or reported; for [`grapevine_placement::duty`].
    pub fn good_sign_age(&self) -> Option<Duration> {
        let opinion = self.lock();
        let seen = opinion.good_probe.max(self.signs.last_token());
        let at = seen.max(opinion.good_elsewhere)?;
        Some(self.now().saturating_sub(at))
    }

    /// What probes and connections show.
    pub fn probes(&self) -> Probed {
        self.lock().probes()
    }

    /// For how long its breaker still lets no request pass; zero when it lets one.
    pub fn shut_for(&self) -> Duration {
        self.lock().breaker.shut_for(self.now())
    }

    /// Everything, for people.
    pub fn report(&self) -> Report {
        let opinion = self.lock();
        let now = self.now();
        Report {
            verdict: opinion.verdict(now),
            since: now.saturating_sub(opinion.settled_at),
            probes: opinion.probes(),
            failed: opinion.failed.clone(),
            breaker: opinion.breaker.state(now),
            ejections: opinion.breaker.ejections(now),
            shut_for: opinion.breaker.shut_for(now),
            doubt: self.doubt_in(&opinion),
            slow_start: self.slow_start_in(&opinion, now),
        }
    }

    /// Times that the verdict became each of [`Claim::ALL`].
    pub fn changes(&self) -> impl Iterator<Item = (Claim, u64)> {
        let counts = self
            .changes
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        Claim::ALL.into_iter().zip(counts)
    }

    /// What others say, unless this replica has seen better since.
    fn doubt_in(&self, opinion: &Opinion) -> Option<Claim> {
        let delivered = self.signs.last_token();
        let stands = |doubt: &Doubt| {
            let better = match doubt.claim {
                Claim::Unreachable | Claim::Unhealthy => delivered.max(opinion.good_probe),
                // A probe that passes says nothing about tokens.
                Claim::Stalled | Claim::Ejected | Claim::Good => delivered,
            };
            better.is_none_or(|at| at < doubt.since)
        };
        let standing = opinion.doubts.iter().filter(stands);
        let youngest = standing.max_by_key(|doubt| doubt.since);
        youngest.map(|doubt| doubt.claim)
    }

    fn slow_start_in(&self, opinion: &Opinion, now: Duration) -> Option<f64> {
        let age = now.saturating_sub(opinion.started?);
        slow_start(age, self.config.look().slow_start)
    }
}

fn draw() -> f64 {
    rand::rng().random()
}
