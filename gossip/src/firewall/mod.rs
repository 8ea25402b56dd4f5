//! Stands before chitchat: reads every message of a peer, refuses the harmful, trims the hearsay.
//!
//! Pure; instants are arguments. chitchat 0.11.1 trusts what it is sent. One odd message of a peer
//! with a valid certificate ends its task, overwrites the receiver's own keys, makes a healthy
//! replica look dead everywhere, inflates 65 kB to 195 MB, or fills every digest with invented
//! replicas (each measured, each a test here).
//!
//! The rules:
//! - Only replicas that proved their certificate to **this** replica exist here ([`Firewall::admit`]),
//!   in the generation and at the address that they gave then. Entries about others are trimmed:
//!   honest peers know more replicas than we have met, so it is no offence. They name whom to dial.
//! - A replica speaks for itself. What others say about it may be ahead of its own last word by what
//!   it can have done since ([`PACE_PER_S`]), not more.
//! - Nobody tells us about ourselves.
//! - Lengths, counts, versions, keys and values are bounded (`parse.rs`).
//! - The tenth refused message cuts the sender off for [`BAN`].

mod parse;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::replica::ReplicaId;

pub(crate) use parse::MESSAGE_BYTES_MAX;
use parse::{Change, KEYS_MAX, Message, Node, Standing};

/// A replica in one generation, as it named itself under its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) id: ReplicaId,
    /// Unix milliseconds of its start, or a little later; rises with every restart.
    pub(crate) generation: u64,
    /// Where it is dialled.
    pub(crate) address: SocketAddr,
}

/// Why a message did not reach chitchat; also the label of the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// Longer than chitchat ever writes.
    TooLong,
    /// Not a chitchat 0.11.1 message.
    Malformed,
    /// The compressed part grows beyond the limit.
    Inflated,
    /// More nodes or keys than a cluster can have.
    TooMany,
    /// A key or value that chitchat could not handle.
    BadValue,
    /// Heartbeat or version out of order, or further than the replica can have come.
    Implausible,
    /// It claims to know more of our own state than we have written.
    OwnState,
    /// It comes from, or answers, another cluster.
    OtherCluster,
    /// The sender was cut off before.
    Banned,
    /// The sender never shook hands, or has left: messages on other streams may come after its goodbye.
    Unknown,
}

impl Reason {
    /// Label of the counter.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
            Self::Inflated => "inflated",
            Self::TooMany => "too_many",
            Self::BadValue => "bad_value",
            Self::Implausible => "implausible",
            Self::OwnState => "own_state",
            Self::OtherCluster => "other_cluster",
            Self::Banned => "banned",
            Self::Unknown => "unknown",
        }
    }
}

/// A refused message, and whether its sender has now used up its patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: Reason,
    pub(crate) cut: bool,
}

/// A message for chitchat, written by us.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) bytes: Vec<u8>,
    /// Entries left out because this replica has not met their subject.
    pub(crate) trimmed: usize,
    /// Some of those subjects, if they were never met in any generation: whom to dial.
    pub(crate) strangers: Vec<(ReplicaId, SocketAddr)>,
}

/// What is known about the replicas that proved themselves.
pub(crate) struct Firewall {
    cluster: String,
    own: Member,
    own_version: u64,
    admitted: HashMap<String, Admitted>,
}

struct Admitted {
    generation: u64,
    address: SocketAddr,
    /// The replica's own last word about itself.
    word: Option<Word>,
    keys: BTreeSet<Box<str>>,
    strikes: u32,
    banned_until: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Word {
    heartbeat: u64,
    version: u64,
    at: Instant,
}

impl Firewall {
    pub(crate) fn new(cluster: &str, own: Member) -> Self {
        Self {
            cluster: cluster.to_owned(),
            own,
            own_version: 0,
            admitted: HashMap::new(),
        }
    }

    /// The gossip task was restarted under a higher generation.
    pub(crate) fn renew(&mut self, generation: u64) {
        self.own.generation = generation;
        self.own_version = 0;
    }

    /// Tells how far our own keys have come, before any peer can have seen it.
    pub(crate) fn own_version(&mut self, version: u64) {
        self.own_version = version;
    }

    /// Takes in a replica whose certificate was checked against its id.
    ///
    /// An older generation than the one admitted, a full table or a running ban are refused.
    pub(crate) fn admit(&mut self, member: &Member, now: Instant) -> Result<(), Reason> {
        let room = self.admitted.len() < REPLICAS_MAX;
        let Some(known) = self.admitted.get_mut(member.id.as_str()) else {
            if !room {
                return Err(Reason::TooMany);
            }
            self.admitted
                .insert(member.id.to_string(), Admitted::new(member));
            return Ok(());
        };
        if known.is_banned(now) {
            return Err(Reason::Banned);
        }
        if member.generation < known.generation {
            return Err(Reason::Implausible);
        }
        if member.generation > known.generation || member.address != known.address {
            let strikes = known.strikes;
            *known = Admitted::new(member);
            // A restart does not wash the record clean.
            known.strikes = strikes;
        }
        Ok(())
    }

    /// Forgets a replica that left or was not heard of for long.
    pub(crate) fn forget(&mut self, id: &ReplicaId) {
        self.admitted.remove(id.as_str());
    }

    /// The generation in which a replica proved itself.
    pub(crate) fn generation(&self, id: &ReplicaId) -> Option<u64> {
        self.admitted.get(id.as_str()).map(|known| known.generation)
    }

    /// Judges one message of `from`, whose certificate the transport checked.
    pub(crate) fn inspect(
        &mut self,
        from: &ReplicaId,
        bytes: &[u8],
        now: Instant,
    ) -> Result<Passed, Refused> {
        let refused = |reason, cut| Err(Refused { reason, cut });
        match self.admitted.get(from.as_str()) {
            Some(known) if known.is_banned(now) => return refused(Reason::Banned, true),
            Some(_) => {}
            None => return refused(Reason::Unknown, false),
        }
        self.judge(from, bytes, now)
            .map_err(|reason| self.strike(from, reason, now))
    }

    /// Scores an offence that was found elsewhere in the transport.
    pub(crate) fn strike(&mut self, from: &ReplicaId, reason: Reason, now: Instant) -> Refused {
        let Some(known) = self.admitted.get_mut(from.as_str()) else {
            return Refused { reason, cut: true };
        };
        known.strikes += 1;
        let cut = known.strikes >= STRIKES_MAX;
        if cut {
            known.strikes = 0;
            known.banned_until = Some(now + BAN);
        }
        Refused { reason, cut }
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
                })
            }
            Message::SynAck { mut digest, delta } => {
                let mut changes = parse::delta(&delta)?;
                let strangers = self.strangers(&digest);
                let trimmed =
                    self.digest(from, &mut digest, now)? + self.delta(from, &mut changes, now)?;
                Ok(Passed {
                    bytes: parse::write_syn_ack(&digest, &changes),
                    trimmed,
                    strangers,
                })
            }
            Message::Ack { delta } => {
                let mut changes = parse::delta(&delta)?;
                let trimmed = self.delta(from, &mut changes, now)?;
                Ok(Passed {
                    bytes: parse::write_ack(&changes),
                    trimmed,
                    strangers: Vec::new(),
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

    /// Checks a digest, takes the sender's word about itself, and drops entries about strangers.
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
                self.hear(from, standing, now);
            }
        }
        let mut verdict = Ok(());
        digest.retain(|standing| {
            if self.is_own(&standing.node) {
                return true; // how much the sender knows of us: decides only what we tell it
            }
            let Some(known) = self.known(&standing.node) else {
                return false;
            };
            let Some(word) = known.word else {
                return false;
            };
            if !word.allows(
                standing.heartbeat,
                standing.version.max(standing.collected),
                now,
            ) {
                verdict = Err(Reason::Implausible);
            }
            true
        });
        verdict.map(|()| before - digest.len())
    }

    fn delta(
        &mut self,
        from: &ReplicaId,
        changes: &mut Vec<Change<'_>>,
        now: Instant,
    ) -> Result<usize, Reason> {
        let before = changes.len();
        let mut verdict = Ok(());
        changes.retain(|change| {
            let greatest = change.greatest().max(change.collected);
            if self.is_own(&change.node) {
                // Our own words may come back when messages overtake each other; more is forged.
                if greatest > self.own_version {
                    verdict = Err(Reason::OwnState);
                }
                return false;
            }
            let Some(known) = self.known(&change.node) else {
                return false;
            };
            let is_own_word = change.node.id == from.as_str();
            let plausible = match known.word {
                _ if greatest.max(change.from) > NUMBER_MAX => false,
                _ if is_own_word => true,
                Some(word) => word.allows(0, greatest, now),
                None => return false,
            };
            if !plausible {
                verdict = Err(Reason::Implausible);
            }
            true
        });
        verdict?;
        for change in changes.iter() {
            self.count_keys(change)?;
        }
        Ok(before - changes.len())
    }

    fn hear(&mut self, from: &ReplicaId, standing: &Standing<'_>, now: Instant) {
        let Some(known) = self.admitted.get_mut(from.as_str()) else {
            return;
        };
        if known.is(&standing.node) {
            let last = known
                .word
                .map_or((0, 0), |word| (word.heartbeat, word.version));
            known.word = Some(Word {
                heartbeat: last.0.max(standing.heartbeat),
                version: last.1.max(standing.version),
                at: now,
            });
        }
    }

    /// Bounds the keys of one node over all messages, not only within one.
    fn count_keys(&mut self, change: &Change<'_>) -> Result<(), Reason> {
        let Some(known) = self.admitted.get_mut(change.node.id) else {
            return Ok(());
        };
        for value in &change.values {
            if !known.keys.contains(value.key) {
                if known.keys.len() == KEYS_MAX {
                    return Err(Reason::TooMany);
                }
                known.keys.insert(value.key.into());
            }
        }
        Ok(())
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
    fn new(member: &Member) -> Self {
        Self {
            generation: member.generation,
            address: member.address,
            word: None,
            keys: BTreeSet::new(),
            strikes: 0,
            banned_until: None,
        }
    }

    fn is(&self, node: &Node<'_>) -> bool {
        self.generation == node.generation && self.address == node.address
    }

    fn is_banned(&self, now: Instant) -> bool {
        self.banned_until.is_some_and(|until| now < until)
    }
}

impl Word {
    fn allows(&self, heartbeat: u64, version: u64, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at).as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        let ahead = since.saturating_mul(PACE_PER_S) / 1000 + PACE_PER_S;
        heartbeat <= self.heartbeat.saturating_add(ahead)
            && version <= self.version.saturating_add(ahead)
    }
}

/// Most replicas of a cluster.
pub(crate) const REPLICAS_MAX: usize = 256;
/// Heartbeats (and key versions) that a replica can make in a second: 5 rounds and the messages of
/// about 20 exchanges, times 3. Hearsay may be ahead of its subject's own word by so many a second,
/// and by one second's worth for messages that overtake each other.
const PACE_PER_S: u64 = 250;
/// No counter of an honest replica gets here in a century at [`PACE_PER_S`].
const NUMBER_MAX: u64 = 1 << 48;
/// Strangers named from one message.
const STRANGERS_MAX: usize = 8;
/// Refused messages until the sender is cut off.
const STRIKES_MAX: u32 = 10;
/// How long a cut-off sender stays out.
const BAN: Duration = Duration::from_secs(60);
