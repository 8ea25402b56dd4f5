//! Strikes, bans and rates of one peer: how often it broke a rule, and how much it sends in a second.
//!
//! Pure. Kept by id when a replica leaves, restarts or moves: none of that washes the record clean.

use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::wire::Rate;

/// What is counted apart. The rates are several times what an honest replica sends (see [`LIMITS`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Bytes of everything that arrives without being asked for.
    Bytes,
    /// Messages for chitchat.
    Gossip,
    /// Frames of load.
    Load,
    /// Frames of evidence and heat; their bytes have a share of their own.
    Evidence,
    /// HELLOs.
    Hello,
    /// Questions and pushes of the registry.
    Registry,
    /// The questions among them: a few bytes, for which all entries may be looked at.
    Questions,
    /// Bytes of our answers to them.
    Answers,
    /// Bytes of its answers to our questions.
    Asked,
}

impl Lane {
    /// The one of a kind of message; `None` for those whose plane has a limit of its own.
    pub(crate) fn of(rate: Rate) -> Option<Self> {
        match rate {
            Rate::Own => None,
            Rate::Load => Some(Self::Load),
            Rate::Evidence => Some(Self::Evidence),
            Rate::Registry => Some(Self::Registry),
        }
    }
}

/// Whether something may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allowed {
    /// It fits.
    Yes,
    /// Too much; an offence was counted for it already.
    No,
    /// Too much, for the first time in a while.
    Offence,
}

/// The record of one replica.
#[derive(Debug)]
pub(crate) struct PeerLimits {
    strikes: u32,
    struck: Option<Instant>,
    banned_until: Option<Instant>,
    flooded: Option<Instant>,
    /// When it last reported that it saw a later generation of us, and which.
    outran: Option<(Instant, u64)>,
    lanes: [Budget; LIMITS.len()],
}

impl PeerLimits {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            strikes: 0,
            struck: None,
            banned_until: None,
            flooded: None,
            outran: None,
            lanes: LIMITS.map(|(per_s, burst)| Budget::new(per_s, burst, now)),
        }
    }

    pub(super) fn is_banned(&self, now: Instant) -> bool {
        self.banned_until.is_some_and(|until| now < until)
    }

    /// Nothing would be lost by forgetting it.
    pub(super) fn is_clean(&self, now: Instant) -> bool {
        let is_old =
            |at: Option<Instant>, age| at.is_none_or(|at| now.saturating_duration_since(at) >= age);
        !self.is_banned(now)
            && is_old(self.struck, FORGIVEN_AFTER * STRIKES_MAX)
            && is_old(self.outran.map(|(at, _)| at), OUTRUN_PAUSE)
    }

    /// Counts an offence; true if it is one too many, and a ban begins.
    pub(super) fn strike(&mut self, now: Instant) -> bool {
        let mut since = now;
        if let Some(last) = self.struck {
            let forgiven = now.saturating_duration_since(last).as_secs() / FORGIVEN_AFTER.as_secs();
            let forgiven = u32::try_from(forgiven).unwrap_or(u32::MAX);
            self.strikes = self.strikes.saturating_sub(forgiven);
            if self.strikes > 0 {
                // The minute that has begun goes on.
                since = last + FORGIVEN_AFTER * forgiven;
            }
        }
        self.struck = Some(since);
        self.strikes += 1;
        let is_cut = self.strikes >= STRIKES_MAX;
        if is_cut {
            self.strikes = 0;
            self.banned_until = Some(now + BAN);
        }
        is_cut
    }

    /// Takes `cost` out of a lane, if there is anything left in it.
    ///
    /// A flood is an offence four times a second: an honest replica that was stopped for a while sends much
    /// at once when it goes on, and only loses what is too much.
    pub(super) fn spend(&mut self, lane: Lane, cost: usize, now: Instant) -> Allowed {
        if self.take(lane, cost, now) {
            return Allowed::Yes;
        }
        let is_new = |last: Instant| now.saturating_duration_since(last) >= FLOOD_PAUSE;
        if self.flooded.is_none_or(is_new) {
            self.flooded = Some(now);
            Allowed::Offence
        } else {
            Allowed::No
        }
    }

    /// The same where too much is no offence; true if there was anything left.
    pub(super) fn take(&mut self, lane: Lane, cost: usize, now: Instant) -> bool {
        let is_open = self.is_open(lane, now);
        if is_open {
            self.lanes[lane as usize].spend(cost);
        }
        is_open
    }

    /// Whether there is anything left in a lane.
    pub(super) fn is_open(&mut self, lane: Lane, now: Instant) -> bool {
        self.lanes[lane as usize].is_open(now)
    }

    /// Whether this replica's report that it saw a later generation of us is to be followed: once in a
    /// while, and the same again. Each time costs us our connections, and a liar could go on for ever.
    pub(super) fn may_outrun(&mut self, seen: u64, now: Instant) -> bool {
        match self.outran {
            Some((at, before)) if now.saturating_duration_since(at) < OUTRUN_PAUSE => {
                seen <= before
            }
            _ => {
                self.outran = Some((now, seen));
                true
            }
        }
    }
}

/// What each [`Lane`] lets through a second, and at once. An honest replica of 16 sends some 20 chitchat
/// messages a second, 50 frames of load and as many of
/// evidence (each 20 ms; more when it goes on after a pause), dials once in 100 ms at worst, and asks for
/// the registry once a round, which is five times a second; a push is one for each change that somebody makes, up to
/// [`PUSH_PACE`]. One of up to four sends 200 frames of
/// load while requests come without a pause ([`crate::load::RISE_INTERVAL`]). What a replica that starts
/// asks of one peer may be the greatest registry, of 128 MiB, and as much of what workers' caches hold.
const LIMITS: [(u32, u32); 9] = [
    (8 << 20, 64 << 20),
    (100, 400),
    (400, 2000),
    (300, 3000),
    (20, 100),
    (500, 5000),
    (20, 200),
    (2 << 20, 16 << 20),
    (8 << 20, 256 << 20),
];
/// The same of what this replica pushes of its own changes, a second and at once: what comes faster goes together. Far below
/// what peers let through, who get what a sync found, too.
pub(crate) const PUSH_PACE: (u32, u32) = (250, 1000);
/// Refused messages until the sender is cut off.
pub(crate) const STRIKES_MAX: u32 = 10;
/// One strike is forgiven for each such time without another.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);
/// How long a cut-off sender stays out.
pub(crate) const BAN: Duration = Duration::from_secs(60);
/// A flood is one offence in so long: one that goes on is cut off after two and a half seconds.
const FLOOD_PAUSE: Duration = Duration::from_millis(250);
/// Between two times that one replica is believed to have seen a later generation of us.
const OUTRUN_PAUSE: Duration = Duration::from_secs(10 * 60);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::load::{Load, LoadBoard, LoadPlane};
    use crate::made::start;
    use crate::registry::Registry;
    use crate::view::View;
    use crate::worker::{RawWorker, Source, WorkerId, WorkerSpec};

    #[test]
    fn strikes_are_forgiven_one_a_minute() {
        let (mut now, mut limits) = (start(), PeerLimits::new(start()));
        for _ in 0..100 {
            assert!(!limits.strike(now));
            now += FORGIVEN_AFTER;
        }
        let cut = (0..STRIKES_MAX).position(|_| limits.strike(now));
        assert_eq!(cut, Some(STRIKES_MAX as usize - 1));
        assert!(limits.is_banned(now) && !limits.is_banned(now + BAN));
        assert!(limits.is_clean(now + FORGIVEN_AFTER * STRIKES_MAX));
    }

    #[test]
    fn minutes_count_whatever_happens_in_them() {
        let (mut now, mut limits) = (start(), PeerLimits::new(start()));
        for _ in 0..100 {
            assert!(!limits.strike(now));
            now += FORGIVEN_AFTER - Duration::from_secs(1);
        }
    }

    #[test]
    fn a_flood_is_an_offence_now_and_then_and_a_burst_none() {
        let (mut now, mut limits) = (start(), PeerLimits::new(start()));
        let (_, burst) = LIMITS[Lane::Gossip as usize];
        for _ in 0..burst {
            assert_eq!(limits.spend(Lane::Gossip, 1, now), Allowed::Yes);
        }
        assert_eq!(limits.spend(Lane::Gossip, 1, now), Allowed::Offence);
        assert_eq!(limits.spend(Lane::Gossip, 1, now), Allowed::No);
        assert_eq!(limits.spend(Lane::Load, 1, now), Allowed::Yes, "apart");
        let mut offences = 0;
        for _ in 0..10_000 {
            now += Duration::from_millis(1);
            offences += u32::from(limits.spend(Lane::Gossip, 1, now) == Allowed::Offence);
        }
        assert!((36..=40).contains(&offences), "{offences} in 10 s");
    }

    /// A replica that starts takes the greatest registry from one peer, and as much of caches; and goes on being asked.
    #[test]
    fn the_greatest_registry_fits_the_share_of_answers() {
        let (now, mut limits) = (start(), PeerLimits::new(start()));
        let frame = 129 << 10;
        let takes = |limits: &mut PeerLimits, now| {
            (0..)
                .take_while(|_| limits.take(Lane::Asked, frame, now))
                .count()
        };
        let greatest = crate::wire::REGISTRY_ANSWER_FRAMES;
        let at_once = takes(&mut limits, now);
        assert!(
            (2 * greatest - 20..=2 * greatest).contains(&at_once),
            "{at_once}"
        );
        assert_eq!(limits.spend(Lane::Bytes, 1, now), Allowed::Yes, "apart");
        let second = takes(&mut limits, now + Duration::from_secs(1));
        assert!((60..=66).contains(&second), "{second}");
        assert!(limits.is_clean(now), "no offence");
    }

    /// A replica that places requests without a pause sends as often as it may; for that nobody is cut off.
    #[test]
    fn load_under_full_traffic_is_no_flood() {
        let board = Arc::<LoadBoard>::default();
        let mut plane = LoadPlane::new(Arc::clone(&board), |_| 1.0, Duration::from_millis(20));
        let mut registry = Registry::new("r".parse().expect("an id"));
        let spec = WorkerSpec::new(RawWorker::at("http://w:8000")).expect("a URL");
        let worker: WorkerId = "w".parse().expect("an id");
        let put = registry.put(worker.clone(), Source::Admin, spec, 1);
        put.expect("room");
        plane.follow(&View::new(&registry, Vec::new()));
        plane.set_live(3);
        let (mut now, mut limits, mut frames) = (start(), PeerLimits::new(start()), 0);
        for _ in 0..12_000 {
            board.cell(&worker).add(Load {
                requests: 1,
                ..Load::default()
            });
            if plane.collect(now).is_some() {
                frames += 1;
                assert_eq!(limits.spend(Lane::Load, 1, now), Allowed::Yes, "{frames}");
            }
            now = plane.next_look(now);
        }
        assert!(frames > 11_000, "in a minute: {frames}");
    }

    #[test]
    fn one_replica_outruns_us_once_in_a_while() {
        let (now, mut limits) = (start(), PeerLimits::new(start()));
        assert!(limits.may_outrun(5, now));
        assert!(limits.may_outrun(5, now), "we have not started again yet");
        assert!(!limits.may_outrun(6, now + OUTRUN_PAUSE / 2));
        assert!(!limits.is_clean(now + OUTRUN_PAUSE / 2));
        assert!(limits.may_outrun(6, now + OUTRUN_PAUSE));
    }
}
