//! The peers that proved themselves to this replica: their identities, what each of them reported of itself, how often it
//! broke a rule, and how much it sends. The one table of what the transport knows of a peer; it leaves with the peer, but
//! for its offences, and for a minute its generation.
//!
//! Pure; instants are arguments.
//!
//! - `heartbeat_claim.rs`: how far other replicas' claims about a peer's heartbeat count.
//! - `keys.rs`: which keys of a peer are known, and how many there may be.
//! - `limits.rs`: strikes, bans and rates of one peer.
//! - `reason.rs`: why a message is refused.

mod heartbeat_claim;
mod keys;
mod limits;
mod reason;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::replica::ReplicaId;

pub(crate) use heartbeat_claim::{
    AHEAD_MAX, HeartbeatPace, NUMBER_MAX, OwnHeartbeat, SPEAKS_FOR_ITSELF,
};
pub(crate) use keys::KEYS_MAX;
use keys::Keys;
use limits::{Allowed, PeerLimits};
#[cfg(test)]
pub(crate) use limits::{BAN, STRIKES_MAX};
pub(crate) use limits::{Lane, PUSH_PACE};
pub(crate) use reason::Reason;

/// A replica in one generation, as it named itself under its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) id: ReplicaId,
    /// Unix milliseconds of its start, or a little later; rises with every restart.
    pub(crate) generation: u64,
    /// Where it is dialled.
    pub(crate) address: SocketAddr,
}

/// A refused message, and whether its sender has now used up its patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: Reason,
    pub(crate) cut: bool,
}

/// What is known about the replicas that proved themselves.
pub(crate) struct PeerTable {
    pub(crate) cluster: String,
    pub(crate) own: Member,
    pub(crate) own_version: u64,
    /// Times that replicas are asked for news of themselves.
    pub(crate) asking: Option<Budget>,
    pub(crate) admitted: HashMap<String, Admitted>,
    /// Of all replicas that proved a certificate, also of those that left.
    pub(crate) limits: HashMap<String, PeerLimits>,
    /// The generations of replicas that were forgotten, and when.
    left: HashMap<String, (u64, Instant)>,
}

/// What is known of a peer as long as it is there.
pub(crate) struct Admitted {
    pub(crate) generation: u64,
    pub(crate) address: SocketAddr,
    /// When it last proved itself, or sent something.
    pub(crate) heard: Instant,
    /// When it was last asked for news of itself that others had.
    pub(crate) asked: Option<Instant>,
    /// Such questions since it last answered one of ours.
    pub(crate) unanswered: u32,
    /// The last heartbeat that the replica itself reported.
    pub(crate) own_heartbeat: Option<OwnHeartbeat>,
    /// The highest heartbeat of it that each other replica reported since.
    pub(crate) claims: HashMap<ReplicaId, u64>,
    pub(crate) pace: HeartbeatPace,
    /// The highest heartbeat that passed, and when it rose.
    pub(crate) believed: u64,
    pub(crate) rose: Option<Instant>,
    pub(crate) keys: Keys,
}

impl PeerTable {
    pub(crate) fn new(cluster: &str, own: Member) -> Self {
        Self {
            cluster: cluster.to_owned(),
            own,
            own_version: 0,
            asking: None,
            admitted: HashMap::new(),
            limits: HashMap::new(),
            left: HashMap::new(),
        }
    }

    /// The gossip task was restarted under a higher generation.
    pub(crate) fn renew(&mut self, generation: u64) {
        self.own.generation = generation;
        self.own_version = 0;
    }

    /// Takes how far our own keys have come, before any peer can have seen it.
    pub(crate) fn own_version(&mut self, version: u64) {
        self.own_version = version;
    }

    /// Counts a HELLO of a replica whose certificate was checked against its id.
    /// Errors: `Banned`; `Flood` if it sends HELLO all the time; `TooMany` if the table is full of offenders.
    pub(crate) fn greeted(&mut self, id: &ReplicaId, now: Instant) -> Result<(), Reason> {
        let limits = self.limits_of(id, now).ok_or(Reason::TooMany)?;
        if limits.is_banned(now) {
            return Err(Reason::Banned);
        }
        match limits.spend(Lane::Hello, 1, now) {
            Allowed::Yes => Ok(()),
            Allowed::No => Err(Reason::Flood),
            Allowed::Offence => {
                limits.strike(now);
                Err(Reason::Flood)
            }
        }
    }

    /// Whether a replica is in the table, or would find a place there.
    pub(crate) fn has_place(&self, id: &ReplicaId) -> bool {
        self.admitted.len() < REPLICAS_MAX || self.admitted.contains_key(id.as_str())
    }

    /// Where the table is full, forgets the replica that was silent for longest, for one that comes, and returns which: replicas
    /// that were killed and come again under other names would fill it. None that is connected, or of which anything came
    /// within [`SILENT_AFTER`], be it by another replica. Its offences and its ban stay, for those are kept apart from places:
    /// no number of names washes them out.
    pub(crate) fn make_place(
        &mut self,
        is_connected: impl Fn(&ReplicaId) -> bool,
        now: Instant,
    ) -> Option<ReplicaId> {
        if self.admitted.len() < REPLICAS_MAX {
            return None;
        }
        let silent = self.admitted.iter().filter_map(|(id, known)| {
            let heard = known.heard.max(known.rose.unwrap_or(known.heard));
            let is_silent = now.saturating_duration_since(heard) >= SILENT_AFTER;
            let id: ReplicaId = id.parse().expect("it was admitted under an id");
            (is_silent && !is_connected(&id)).then_some((heard, id))
        });
        let (_, longest) = silent.min()?;
        self.forget(&longest, now);
        Some(longest)
    }

    /// Takes in a replica whose certificate was checked against its id.
    ///
    /// An older generation than the one seen, a full table or a running ban are refused.
    pub(crate) fn admit(&mut self, member: &Member, now: Instant) -> Result<(), Reason> {
        let seen = self.generation_seen(&member.id, now);
        let limits = self.limits_of(&member.id, now).ok_or(Reason::TooMany)?;
        if limits.is_banned(now) {
            return Err(Reason::Banned);
        }
        let room = self.has_place(&member.id);
        match self.admitted.get_mut(member.id.as_str()) {
            None if !room => return Err(Reason::TooMany),
            None if seen.is_some_and(|seen| member.generation < seen) => {
                return Err(Reason::Implausible);
            }
            None => {
                self.left.remove(member.id.as_str());
                self.admitted
                    .insert(member.id.to_string(), Admitted::new(member, now));
            }
            Some(known) if member.generation < known.generation => {
                return Err(Reason::Implausible);
            }
            Some(known) => {
                if member.generation > known.generation || member.address != known.address {
                    *known = Admitted::new(member, now);
                }
                known.heard = now;
            }
        }
        Ok(())
    }

    /// Forgets a replica that left or was silent for long.
    pub(crate) fn forget(&mut self, id: &ReplicaId, now: Instant) {
        if let Some(known) = self.admitted.remove(id.as_str()) {
            self.left.retain(|_, (_, at)| is_remembered(*at, now));
            if self.left.len() < REPLICAS_MAX {
                self.left.insert(id.to_string(), (known.generation, now));
            }
        }
        for known in self.admitted.values_mut() {
            known.claims.remove(id);
        }
    }

    /// The generation in which a replica proved itself.
    pub(crate) fn generation(&self, id: &ReplicaId) -> Option<u64> {
        self.admitted.get(id.as_str()).map(|known| known.generation)
    }

    /// The highest generation of a replica that was seen, also of one that left a moment ago: what it sends in a lower one
    /// would be taken for late by the planes, which remember it as long.
    pub(crate) fn generation_seen(&self, id: &ReplicaId, now: Instant) -> Option<u64> {
        let left = self.left.get(id.as_str());
        let left = left.filter(|(_, at)| is_remembered(*at, now));
        self.generation(id)
            .or(left.map(|(generation, _)| *generation))
    }

    /// Forgets a generation that no clock near ours has seen, for the sake of a replica that comes in one that ours may have:
    /// it ran with a clock that was far ahead, ended without a goodbye, and would follow no such generation. Only while
    /// nothing is open with that process.
    pub(crate) fn disown(&mut self, member: &Member, now_ms: u64, now: Instant) {
        let seen = self.generation_seen(&member.id, now);
        let is_absurd = |generation| !is_plausible_generation(generation, now_ms);
        if seen.is_some_and(is_absurd) && !is_absurd(member.generation) {
            self.forget(&member.id, now);
            self.left.remove(member.id.as_str());
        }
    }

    /// Whether an admitted replica may send this now, before anything of it is read.
    /// Errors: refused as `Unknown`, `Banned` or `Flood`.
    pub(crate) fn allow(
        &mut self,
        from: &ReplicaId,
        lane: Lane,
        cost: usize,
        now: Instant,
    ) -> Result<(), Refused> {
        let refused = |reason, cut| Err(Refused { reason, cut });
        let Some(known) = self.admitted.get_mut(from.as_str()) else {
            return refused(Reason::Unknown, false);
        };
        known.heard = now;
        let Some(limits) = self.limits.get_mut(from.as_str()) else {
            return refused(Reason::Unknown, false);
        };
        if limits.is_banned(now) {
            return refused(Reason::Banned, true);
        }
        match limits.spend(lane, cost, now) {
            Allowed::Yes => Ok(()),
            Allowed::No => refused(Reason::Flood, false),
            Allowed::Offence => Err(self.strike(from, Reason::Flood, now)),
        }
    }

    /// Whether the answers that a replica asked for are within its share; what they come to is reported by
    /// [`PeerTable::answered`]. Asking for more is no offence: registries that differ ask again and again.
    pub(crate) fn may_answer(&mut self, from: &ReplicaId, now: Instant) -> bool {
        let limits = self.limits.get_mut(from.as_str());
        limits.is_some_and(|limits| limits.is_open(Lane::Answers, now))
    }

    /// See [`PeerTable::may_answer`].
    pub(crate) fn answered(&mut self, from: &ReplicaId, bytes: usize, now: Instant) {
        if let Some(limits) = self.limits.get_mut(from.as_str()) {
            limits.spend(Lane::Answers, bytes, now);
        }
    }

    /// Whether so many bytes of a replica's answer to a question of ours are within its share, from which they are taken.
    /// More is no offence: it was asked, and its registry may be as great.
    pub(crate) fn may_bring(&mut self, from: &ReplicaId, bytes: usize, now: Instant) -> bool {
        let limits = self.limits_of(from, now);
        limits.is_some_and(|limits| limits.take(Lane::Asked, bytes, now))
    }

    /// Whether to believe that a replica saw this generation of us; see [`PeerLimits::may_outrun`].
    pub(crate) fn may_outrun(&mut self, id: &ReplicaId, seen: u64, now: Instant) -> bool {
        let limits = self.limits_of(id, now);
        limits.is_some_and(|limits| limits.may_outrun(seen, now))
    }

    /// Scores an offence that was found elsewhere in the transport.
    pub(crate) fn strike(&mut self, from: &ReplicaId, reason: Reason, now: Instant) -> Refused {
        if !self.admitted.contains_key(from.as_str()) {
            return Refused { reason, cut: true };
        }
        let cut = self
            .limits_of(from, now)
            .is_none_or(|limits| limits.strike(now));
        Refused { reason, cut }
    }

    /// The record of a replica; `None` if there is no room for a new one.
    fn limits_of(&mut self, id: &ReplicaId, now: Instant) -> Option<&mut PeerLimits> {
        if !self.limits.contains_key(id.as_str()) && self.limits.len() >= LIMITS_MAX {
            let admitted = &self.admitted;
            self.limits
                .retain(|id, limits| admitted.contains_key(id) || !limits.is_clean(now));
            if self.limits.len() >= LIMITS_MAX {
                return None;
            }
        }
        let record = self.limits.entry(id.to_string());
        Some(record.or_insert_with(|| PeerLimits::new(now)))
    }
}

impl Admitted {
    fn new(member: &Member, now: Instant) -> Self {
        Self {
            generation: member.generation,
            address: member.address,
            heard: now,
            asked: None,
            unanswered: 0,
            own_heartbeat: None,
            claims: HashMap::new(),
            pace: HeartbeatPace::new(),
            believed: 0,
            rose: None,
            keys: Keys::default(),
        }
    }
}

/// A generation from the far future is a lie or a broken clock: following it would leave a replica nowhere to go.
pub(crate) fn is_plausible_generation(generation: u64, now_ms: u64) -> bool {
    generation < now_ms.saturating_add(GENERATION_AHEAD_MS)
}

const GENERATION_AHEAD_MS: u64 = 24 * 60 * 60 * 1000;

fn is_remembered(left_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(left_at) < LEFT_FOR
}

/// How long the generation of a replica that left is remembered: not shorter than planes remember its latest frames
/// ([`SENDER_FORGET_AFTER`](crate::load::SENDER_FORGET_AFTER)).
const LEFT_FOR: Duration = Duration::from_secs(60);
/// How long nothing may have come of a replica that gives way to another one, where there is no place: as long as others
/// still report the dead.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(60);
/// Most replicas of a cluster.
pub(crate) const REPLICAS_MAX: usize = 256;
/// Records of offences: of all admitted replicas, and of as many that left with offences.
pub(crate) const LIMITS_MAX: usize = 2 * REPLICAS_MAX;
