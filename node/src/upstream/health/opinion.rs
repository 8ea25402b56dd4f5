//! All that this replica holds of one worker, and the verdict that follows. Pure: `now` is an argument.

use std::sync::Arc;
use std::time::Duration;

use grapevine_placement::{
    Breaker, BreakerState, Claim, Health as Probed, Penalty, ProbeSettings, ProbeState,
};

use super::Probe;
use super::unanswered::Unanswered;
use crate::config::{BreakerConfig, HealthConfig};

/// All that is held of one worker.
#[derive(Debug)]
pub(super) struct Opinion {
    pub(super) breaker: Breaker,
    pub(super) probes: ProbeState,
    /// The latest good probe.
    pub(super) good_probe: Option<Duration>,
    /// Its probes fail.
    pub(super) failing: Option<Failing>,
    /// How the latest one failed, and why; none after a good one.
    pub(super) failed: Option<(Probe, Box<str>)>,
    /// It refused a connection, and no probe has passed since.
    pub(super) unreachable: bool,
    /// Waits of requests that were given up.
    pub(super) unanswered: Unanswered,
    /// It takes requests and delivers no token.
    pub(super) stalled: Option<Stalled>,
    /// It began anew: its process, or its share of the load.
    pub(super) started: Option<Duration>,
    pub(super) penalty: Penalty,
    /// The bad claims of others.
    pub(super) doubts: Doubts,
    /// The youngest bad claim that was ever heard, also if it was withdrawn since.
    pub(super) newest_doubt: Option<Doubt>,
    /// The youngest good sign that others claim.
    pub(super) good_elsewhere: Option<Duration>,
    /// The verdict after the latest change.
    pub(super) settled: Claim,
    /// When it became that.
    pub(super) settled_at: Duration,
    /// [`Opinion::given_up`] after the latest change.
    pub(super) gave_up: Option<Duration>,
    /// The settings that it was told of last.
    followed: (Arc<BreakerConfig>, Arc<HealthConfig>),
}

/// Probes that fail, with no good one between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failing {
    /// The end of the first of them.
    pub(super) since: Duration,
    /// When they became a verdict.
    pub(super) verdict: Option<Duration>,
    /// None of them got any answer, not even an error.
    pub(super) unanswered: bool,
}

impl Failing {
    pub(super) fn since(since: Duration) -> Self {
        Self {
            since,
            verdict: None,
            unanswered: true,
        }
    }
}

/// A worker without tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stalled {
    pub(super) found: Duration,
    /// It has counted as a failure, once for all requests that die of it.
    pub(super) counted: bool,
    /// Clients' requests try whether it is back, as its breaker lets them.
    pub(super) trials: bool,
}

/// Another replica's claim against it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    pub(super) claim: Claim,
    pub(super) since: Duration,
    /// When it became known here that something is bad since then.
    pub(super) heard: Duration,
}

impl Doubt {
    /// Received `now`, or again. It is news only if it was found out later than the newest that was heard before, whatever that
    /// said, and also if it was withdrawn: claims that change, come and go free what waits once. The age that comes with a claim
    /// is not exact.
    pub(super) fn heard(
        claim: Claim,
        since: Duration,
        now: Duration,
        newest: Option<Self>,
    ) -> Self {
        const EXACT: Duration = Duration::from_secs(1);
        let known = newest.filter(|newest| since < newest.since + EXACT);
        let heard = known.map_or(now, |newest| newest.heard);
        Self {
            claim,
            since,
            heard,
        }
    }
}

/// The youngest of each claim that others make against it: a younger claim of another kind, which may be refuted or free
/// nobody, takes nothing away from it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubts([Option<Doubt>; Claim::ALL.len()]);

impl Doubts {
    pub(super) fn add(&mut self, doubt: Doubt) {
        let known = &mut self.0[doubt.claim as usize];
        if known.is_none_or(|known| known.since < doubt.since) {
            *known = Some(doubt);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Doubt> {
        self.0.into_iter().flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

impl Opinion {
    pub(super) fn new(breaker: Arc<BreakerConfig>, health: Arc<HealthConfig>) -> Self {
        Self {
            breaker: Breaker::new(breaker.settings()),
            probes: ProbeState::new(probe_settings(&health)),
            followed: (breaker, health),
            good_probe: None,
            failing: None,
            failed: None,
            unreachable: false,
            unanswered: Unanswered::default(),
            stalled: None,
            started: None,
            penalty: Penalty::default(),
            doubts: Doubts::default(),
            newest_doubt: None,
            good_elsewhere: None,
            settled: Claim::Good,
            settled_at: Duration::ZERO,
            gave_up: None,
        }
    }

    /// Takes settings over that were read again; what was counted until now counts on.
    pub(super) fn follow(
        &mut self,
        breaker: &Arc<BreakerConfig>,
        health: &Arc<HealthConfig>,
        now: Duration,
    ) {
        let (known_breaker, known_health) = &self.followed;
        if !Arc::ptr_eq(known_breaker, breaker) {
            self.breaker.change(breaker.settings());
            // What opened it is not to count any more; that a worker stalls does, whatever is configured.
            let is_off_now = known_breaker.enabled && !breaker.enabled;
            if is_off_now
                && self.stalled.is_none()
                && self.breaker.state(now) != BreakerState::Closed
            {
                self.breaker.close(now);
            }
        }
        if !Arc::ptr_eq(known_health, health) {
            self.probes.change(probe_settings(health));
        }
        if !Arc::ptr_eq(known_breaker, breaker) || !Arc::ptr_eq(known_health, health) {
            self.followed = (Arc::clone(breaker), Arc::clone(health));
        }
    }

    /// Since when nothing that waited there before has a reason to wait on. `sign`: the latest sign of life; what it
    /// refutes does not count, so that a worker whose health checks alone fail keeps its requests.
    ///
    /// A claim of others counts where probes fail here, too; that it is stalled counts by itself: the replica that
    /// claims so has waited a whole limit and asked in vain. Failed requests and a single broken connection say nothing
    /// about those that wait.
    pub(super) fn given_up(&self, sign: Option<Duration>) -> Option<Duration> {
        let stands = |since: &Duration| sign.is_none_or(|sign| sign <= *since);
        let failing = self.failing.filter(|failing| stands(&failing.since));
        let stalled = self.stalled.map(|stalled| stalled.found).filter(stands);
        let heard = self.doubts.iter().filter(|doubt| stands(&doubt.since));
        let heard = heard.filter_map(|doubt| match doubt.claim {
            Claim::Stalled => Some(doubt.heard),
            Claim::Unreachable | Claim::Unhealthy => Some(failing?.since.max(doubt.heard)),
            Claim::Ejected | Claim::Good => None,
        });
        failing
            .and_then(|failing| failing.verdict)
            .max(stalled)
            .max(heard.max())
    }

    /// Whether nothing comes from it at all: no probe got an answer, and its engine has shown no sign of life since,
    /// so it is as good as unreachable. `sign`: the latest sign of life.
    pub(super) fn is_mute(&self, sign: Option<Duration>) -> bool {
        self.failing.is_some_and(|failing| {
            let is_quiet = sign.is_none_or(|sign| sign <= failing.since);
            failing.verdict.is_some() && failing.unanswered && is_quiet
        })
    }

    /// What it comes to; the surest first.
    pub(super) fn verdict(&self, now: Duration) -> Claim {
        if self.unreachable {
            Claim::Unreachable
        } else if self.probes.health() == Probed::Unhealthy {
            Claim::Unhealthy
        } else if self.stalled.is_some() {
            Claim::Stalled
        } else if self.breaker.state(now) != BreakerState::Closed {
            Claim::Ejected
        } else {
            Claim::Good
        }
    }

    /// Whether a failure shows more than that the worker is stalled, which is known. A stall counts once, whatever
    /// number of requests die of it: the first token ends it, and the breaker would only keep the worker longer. But
    /// one that stalls again and again, with a token between, does get ejected.
    pub(super) fn counts_failure(&mut self) -> bool {
        match &mut self.stalled {
            Some(stalled) => !std::mem::replace(&mut stalled.counted, true),
            None => true,
        }
    }

    /// Whether a request may be sent to it, as far as this replica knows.
    pub(super) fn is_usable(&self, now: Duration) -> bool {
        self.probes() != Probed::Unhealthy && !self.is_silent() && self.breaker.allows(now)
    }

    /// Its breaker, and nothing else, stands between it and a client's request that may find out how it is.
    pub(super) fn is_on_trial(&self, now: Duration) -> bool {
        self.probes() != Probed::Unhealthy
            && !self.is_silent()
            && self.breaker.state(now) == BreakerState::HalfOpen
    }

    /// Stalled, and clients are not to find out when it is no more.
    pub(super) fn is_silent(&self) -> bool {
        self.stalled.is_some_and(|stalled| !stalled.trials)
    }

    /// What probes and connections say.
    pub(super) fn probes(&self) -> Probed {
        if self.unreachable {
            Probed::Unhealthy
        } else {
            self.probes.health()
        }
    }
}

fn probe_settings(health: &HealthConfig) -> ProbeSettings {
    ProbeSettings {
        failure_threshold: health.failure_threshold,
        success_threshold: health.success_threshold,
    }
}
