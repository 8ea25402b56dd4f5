//! Stands before chitchat: reads every message of a peer, refuses the harmful, trims the hearsay.
//!
//! Pure; instants are arguments. chitchat 0.11.1 trusts what it is sent. One odd message of a peer
//! with a valid certificate ends its task, overwrites the receiver's own keys, makes a healthy
//! replica look dead everywhere, inflates 65 kB to 195 MB, or fills every digest with invented
//! replicas (each measured, each a test here).
//!
//! The rules:
//! - Only replicas that proved their certificate to **this** replica exist here ([`PeerTable::admit`]),
//!   in the generation and at the address that they gave then. Entries about others are trimmed:
//!   honest peers know more replicas than we have met, so it is no offence. They name replicas to dial.
//! - A replica speaks for itself. While anything of it comes, others' claims about its keys are trimmed, and it is asked
//!   itself if they may be news. Their claims about its heartbeat are cut down to its own last value and the rounds since
//!   (`peers/heartbeat_claim.rs`). So are keys that would be too many with those known here.
//! - No peer may report about this replica itself. What it claims beyond that is trimmed, and outdone (see `mod.rs`).
//! - None of that is an offence: an honest peer may carry what a liar sent it, and only it.
//! - Lengths, counts, versions, keys and values are bounded (`parse.rs`).
//! - So is how much one replica sends (`peers/limits.rs`).
//! - The tenth refused message cuts the sender off for a minute.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::parse::{self, Change, Message, Node, Standing};
use crate::budget::Budget;
use crate::config::ROUND;
use crate::peers::{
    AHEAD_MAX, Admitted, Lane, NUMBER_MAX, OwnHeartbeat, PeerTable, Reason, Refused,
    SPEAKS_FOR_ITSELF,
};
use crate::replica::ReplicaId;

/// A message for chitchat, written by us.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) bytes: Vec<u8>,
    /// Entries left out: this replica has not met their subject, or that one speaks for itself.
    pub(crate) trimmed: usize,
    /// Some of those subjects, if they were never met in any generation: these are dialled.
    pub(crate) strangers: Vec<(ReplicaId, SocketAddr)>,
    /// Replicas of which the sender may have news, where they are to be had from themselves.
    pub(crate) ask: Vec<SocketAddr>,
    /// The greatest version of our own keys that the sender claims to hold, if we have not come so far.
    pub(crate) outdone: Option<u64>,
}

/// What was found in a delta, and is not passed on.
#[derive(Default)]
struct Found {
    trimmed: usize,
    ask: Vec<SocketAddr>,
    outdone: Option<u64>,
}

impl PeerTable {
    /// Judges one message of `from`, whose certificate the transport checked.
    pub(crate) fn inspect(
        &mut self,
        from: &ReplicaId,
        bytes: &[u8],
        now: Instant,
    ) -> Result<Passed, Refused> {
        self.allow(from, Lane::Gossip, 1, now)?;
        self.judge(from, bytes, now)
            .map_err(|reason| self.strike(from, reason, now))
    }

    fn judge(&mut self, from: &ReplicaId, bytes: &[u8], now: Instant) -> Result<Passed, Reason> {
        match parse::message(bytes)? {
            Message::Syn { cluster, .. } if cluster != self.cluster => Err(Reason::OtherCluster),
            // We send our own cluster id only: an honest peer has no reason to answer this.
            Message::BadCluster => Err(Reason::OtherCluster),
            Message::Syn {
                mut digest,
                cluster,
            } => {
                let strangers = self.strangers(&digest);
                let trimmed = self.digest(from, &mut digest, now)?;
                Ok(Passed {
                    bytes: parse::write_syn(&digest, cluster),
                    trimmed,
                    strangers,
                    ask: Vec::new(),
                    outdone: None,
                })
            }
            Message::SynAck { mut digest, delta } => {
                self.replied(from);
                let mut changes = parse::delta(&delta)?;
                let strangers = self.strangers(&digest);
                let trimmed = self.digest(from, &mut digest, now)?;
                let found = self.delta(from, &mut changes, now)?;
                Ok(Passed {
                    bytes: parse::write_syn_ack(&digest, &changes),
                    trimmed: trimmed + found.trimmed,
                    strangers,
                    ask: found.ask,
                    outdone: found.outdone,
                })
            }
            Message::Ack { delta } => {
                self.replied(from);
                let mut changes = parse::delta(&delta)?;
                let found = self.delta(from, &mut changes, now)?;
                Ok(Passed {
                    bytes: parse::write_ack(&changes),
                    trimmed: found.trimmed,
                    strangers: Vec::new(),
                    ask: found.ask,
                    outdone: found.outdone,
                })
            }
        }
    }

    /// Replicas in a digest that were never met in any generation.
    fn strangers(&self, digest: &[Standing<'_>]) -> Vec<(ReplicaId, SocketAddr)> {
        let is_stranger = |standing: &&Standing<'_>| {
            standing.node.id != self.own.id.as_str()
                && !self.admitted.contains_key(standing.node.id)
        };
        let hint =
            |standing: &Standing<'_>| Some((standing.node.id.parse().ok()?, standing.node.address));
        digest
            .iter()
            .filter(is_stranger)
            .filter_map(hint)
            .take(STRANGERS_MAX)
            .collect()
    }

    /// Checks a digest, takes what the sender reports about itself, and drops entries about strangers.
    fn digest(
        &mut self,
        from: &ReplicaId,
        digest: &mut Vec<Standing<'_>>,
        now: Instant,
    ) -> Result<usize, Reason> {
        let before = digest.len();
        for standing in digest.iter() {
            if [standing.heartbeat, standing.collected, standing.version]
                .iter()
                .any(|&number| number > NUMBER_MAX)
            {
                return Err(Reason::Implausible);
            }
            if standing.node.id == from.as_str() {
                self.take_own(from, standing, now);
            }
        }
        digest.retain_mut(|standing| {
            if self.is_own(&standing.node) {
                return true; // how much the sender knows of us: it decides only what we send it
            }
            let known = self.admitted.get_mut(standing.node.id);
            let Some(known) = known.filter(|known| known.is(&standing.node)) else {
                return false;
            };
            known.cut(from, standing, now)
        });
        Ok(before - digest.len())
    }

    fn delta(
        &mut self,
        from: &ReplicaId,
        changes: &mut Vec<Change<'_>>,
        now: Instant,
    ) -> Result<Found, Reason> {
        let before = changes.len();
        let (mut outdone, mut news) = (None, Vec::new());
        let mut verdict = Ok(());
        changes.retain(|change| {
            let greatest = change.greatest().max(change.collected);
            if self.is_own(&change.node) {
                // What we reported may come back when messages overtake each other. More than that somebody forged, and
                // its carrier may have believed it while it did not hear us; but not so much.
                if greatest > self.own_version + AHEAD_MAX {
                    verdict = Err(Reason::OwnState);
                } else if greatest > self.own_version {
                    outdone = outdone.max(Some(greatest));
                }
                return false;
            }
            let Some(known) = self.known(&change.node) else {
                return false;
            };
            if greatest.max(change.from) > NUMBER_MAX {
                verdict = Err(Reason::Implausible);
            }
            if change.node.id == from.as_str() {
                return true;
            }
            let own = known.own_heartbeat;
            if !own.is_some_and(|own| own.leaves_room(greatest, now)) {
                return false;
            }
            // Its own word may be some seconds old in a large cluster, although it is connected.
            // One that is heard and does not answer hears nothing from here: its word comes by others alone.
            let is_silent = now.saturating_duration_since(known.heard) >= SPEAKS_FOR_ITSELF
                || known.unanswered >= UNANSWERED_MAX;
            if !is_silent && own.is_some_and(|own| greatest > own.version) {
                news.push(change.node.id);
            }
            is_silent
        });
        verdict?;
        let mut verdict = Ok(());
        changes.retain(|change| {
            let Some(known) = self.admitted.get_mut(change.node.id) else {
                return false;
            };
            let keys = change.values.iter().map(|value| value.key);
            if change.node.id != from.as_str() {
                // No offence: what its carrier took may be too much only beside what was told here.
                return known.keys.tell(keys);
            }
            let fits = known.keys.claim(keys);
            if !fits {
                verdict = Err(Reason::TooMany);
            }
            fits
        });
        verdict?;
        news.retain(|id| self.may_ask(id, now));
        let address = |id| self.admitted.get(id).map(|known| known.address);
        Ok(Found {
            trimmed: before - changes.len(),
            ask: news.into_iter().filter_map(address).collect(),
            outdone,
        })
    }

    /// Whether a replica is asked now for news of itself that another one reports. Bounded: a liar has news all the time.
    fn may_ask(&mut self, id: &str, now: Instant) -> bool {
        let (per_s, burst) = ASKED;
        let asking = self
            .asking
            .get_or_insert_with(|| Budget::new(per_s, burst, now));
        let is_old = |at: Instant| now.saturating_duration_since(at) >= ASKED_EACH;
        let known = self.admitted.get_mut(id);
        let Some(known) = known.filter(|known| known.asked.is_none_or(is_old)) else {
            return false;
        };
        let may_ask = asking.is_open(now);
        if may_ask {
            asking.spend(1);
            known.asked = Some(now);
            known.unanswered = known.unanswered.saturating_add(1);
        }
        may_ask
    }

    /// It sent what only comes behind a message of ours.
    fn replied(&mut self, from: &ReplicaId) {
        if let Some(known) = self.admitted.get_mut(from.as_str()) {
            known.unanswered = 0;
        }
    }

    fn take_own(&mut self, from: &ReplicaId, standing: &Standing<'_>, now: Instant) {
        let Some(known) = self.admitted.get_mut(from.as_str()) else {
            return;
        };
        if known.is(&standing.node) {
            let last = known
                .own_heartbeat
                .map_or((0, 0), |own| (own.heartbeat, own.version));
            let heartbeat = last.0.max(standing.heartbeat);
            known.own_heartbeat = Some(OwnHeartbeat {
                heartbeat,
                version: last.1.max(standing.version),
                at: now,
                pace: known.pace.measure(heartbeat, now),
            });
            known.claims.clear();
            known.believe(heartbeat, now);
        }
    }

    fn is_own(&self, node: &Node<'_>) -> bool {
        node.id == self.own.id.as_str()
            && node.generation == self.own.generation
            && node.address == self.own.address
    }

    fn known(&self, node: &Node<'_>) -> Option<&Admitted> {
        self.admitted.get(node.id).filter(|known| known.is(node))
    }
}

impl Admitted {
    fn is(&self, node: &Node<'_>) -> bool {
        self.generation == node.generation && self.address == node.address
    }

    /// Cuts another's claim down to what the replica has reported itself and, at its pace, done since; false if it never
    /// reported anything.
    ///
    /// Nobody can put it far ahead of itself: its own next heartbeat is news again. One that is silent still
    /// lives by hearsay, which rises with time, but only as long as somebody has news of it: the others
    /// know a dead replica's last heartbeat all along, and must not keep it alive by repeating that.
    fn cut(&mut self, from: &ReplicaId, standing: &mut Standing<'_>, now: Instant) -> bool {
        let Some(own) = self.own_heartbeat else {
            return false;
        };
        let claimed = self.claims.get(from).copied().unwrap_or(0);
        if standing.heartbeat > claimed && self.may_rise(now) {
            self.claims.insert(from.clone(), standing.heartbeat);
            self.believe(standing.heartbeat.min(own.surely(now)), now);
        }
        standing.heartbeat = standing.heartbeat.min(self.believed);
        standing.version = standing.version.min(own.version + own.ahead(now));
        standing.collected = standing.collected.min(standing.version);
        true
    }

    /// Once a round: chitchat reckons how long a silence may last from how often a heartbeat rises, which
    /// would be the more often, and the silence the shorter, the more replicas report it.
    fn believe(&mut self, heartbeat: u64, now: Instant) {
        if heartbeat > self.believed && self.may_rise(now) {
            self.believed = heartbeat;
            self.rose = Some(now);
        }
    }

    fn may_rise(&self, now: Instant) -> bool {
        self.rose
            .is_none_or(|rose| now.saturating_duration_since(rose) >= RISES_EACH)
    }
}

/// A little less than a round, so that one that comes each round is not left out each other time.
const RISES_EACH: Duration = Duration::from_millis(ROUND.as_millis() as u64 * 3 / 4);
/// How often one replica is asked for news of itself: an answer takes some milliseconds, and may be lost.
const ASKED_EACH: Duration = Duration::from_secs(1);
/// Questions in a row without an answer, some seconds, behind which a replica is taken for one that does not hear us.
const UNANSWERED_MAX: u32 = 5;
/// Such questions to all of them a second, and at once: fewer than chitchat's own.
const ASKED: (u32, u32) = (10, 20);
/// Strangers named from one message.
pub(super) const STRANGERS_MAX: usize = 8;
