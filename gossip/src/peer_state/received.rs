//! The other replicas' peer states: the latest of each, as long as it is renewed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::part::PartEntry;
use super::{
    FORGET_AFTER, HealthClaim, Heard, Pace, PeerStates, Quarantined, ReceivedState, SILENT_AFTER,
    Sighting, TenantUse,
};
use crate::budget::Budget;
use crate::evidence::KnownWorkers;
use crate::replica::ReplicaId;

/// Everything received, by sender.
#[derive(Debug, Default)]
pub(crate) struct ReceivedStates {
    known_workers: KnownWorkers,
    senders: BTreeMap<ReplicaId, Sender>,
}

/// One other replica, in one generation.
#[derive(Debug)]
pub(crate) struct Sender {
    generation: u64,
    received_at: Instant,
    /// It has left: what was under way then does not count.
    has_left: bool,
    allowance: Budget,
    health: Part<HealthClaim>,
    usage: Part<TenantUse>,
    quarantine: Part<Quarantined>,
    paces: Part<Pace>,
    sightings: Part<Sighting>,
    heard: Part<Heard>,
    /// What is shown of it; `None` while it has nothing to show.
    shown: Option<Arc<ReceivedState>>,
}

/// The latest frame of one part.
#[derive(Debug)]
pub(crate) struct Part<T: PartEntry> {
    seq: Option<u64>,
    /// `None` once it was not renewed in time.
    latest: Option<(Instant, Vec<T>)>,
    memory: T::Memory,
}

/// What became of a received part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is the latest one.
    Fresh,
    /// Older than, or the same as, one that came before; changed nothing.
    Stale,
    /// From a replica that left.
    Gone,
    /// More than an honest replica sends; changed nothing.
    Flood,
    /// There are [`SENDERS_MAX`] senders already; changed nothing.
    TooManySenders,
}

/// An entry of a part that a sender has.
pub(crate) trait PartOfSender: PartEntry {
    #[doc(hidden)]
    fn of(sender: &mut Sender) -> &mut Part<Self>;
}

macro_rules! kept {
    ($($part:ident: $entry:ty)*) => {$(
        impl PartOfSender for $entry {
            fn of(sender: &mut Sender) -> &mut Part<Self> {
                &mut sender.$part
            }
        }
    )*};
}

kept!(health: HealthClaim usage: TenantUse quarantine: Quarantined paces: Pace sightings: Sighting heard: Heard);

impl ReceivedStates {
    /// Takes a part in the order of the wire, sent by `from` in a generation and under a number.
    pub(crate) fn part<T: PartOfSender>(
        &mut self,
        from: &ReplicaId,
        (generation, seq): (u64, u64),
        entries: Vec<T>,
        now: Instant,
    ) -> Taken {
        self.take(from, generation, now, |sender, known_workers| {
            T::of(sender).take(seq, entries, known_workers, now)
        })
    }

    fn take(
        &mut self,
        from: &ReplicaId,
        generation: u64,
        now: Instant,
        part: impl FnOnce(&mut Sender, &KnownWorkers) -> bool,
    ) -> Taken {
        if !self.senders.contains_key(from) && self.senders.len() >= SENDERS_MAX {
            return Taken::TooManySenders;
        }
        let sender = self
            .senders
            .entry(from.clone())
            .or_insert_with(|| Sender::new(generation, now));
        if !sender.allowance.is_open(now) {
            return Taken::Flood;
        }
        sender.allowance.spend(1);
        if generation > sender.generation {
            sender.start_again(generation);
        }
        if generation < sender.generation {
            return Taken::Stale;
        }
        if sender.has_left {
            return Taken::Gone;
        }
        if !part(sender, &self.known_workers) {
            return Taken::Stale;
        }
        sender.received_at = now;
        sender.show(from, &self.known_workers);
        Taken::Fresh
    }

    /// A replica announced that it leaves. True if something of it was shown.
    pub(crate) fn left(&mut self, id: &ReplicaId) -> bool {
        let Some(sender) = self.senders.get_mut(id) else {
            return false;
        };
        sender.has_left = true;
        for part in sender.parts() {
            part.end();
        }
        sender.shown.take().is_some()
    }

    /// A replica is connected. One that was cut off, and did not start again, goes on where it was.
    pub(crate) fn linked(&mut self, id: &ReplicaId) {
        if let Some(sender) = self.senders.get_mut(id) {
            sender.has_left = false;
        }
    }

    /// Drops what was not renewed. True if something of it was shown.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let mut has_changed = false;
        self.senders.retain(|id, sender| {
            // Each of them, not only the first that is over.
            let over = sender.parts().map(|part| part.expire(now));
            if over.contains(&true) {
                sender.show(id, &self.known_workers);
                has_changed = true;
            }
            now.saturating_duration_since(sender.received_at) < FORGET_AFTER
        });
        has_changed
    }

    /// Takes over the workers of a new view: what is claimed of others is not shown. False if they
    /// are the same.
    pub(crate) fn follow(&mut self, known_workers: KnownWorkers) -> bool {
        if self.known_workers == known_workers {
            return false;
        }
        self.known_workers = known_workers;
        for (id, sender) in &mut self.senders {
            sender.show(id, &self.known_workers);
        }
        true
    }

    /// Whether anything of this peer is remembered.
    #[cfg(test)]
    pub(crate) fn remembers(&self, peer: &ReplicaId) -> bool {
        let Self {
            senders,
            known_workers: _,
        } = self;
        senders.contains_key(peer)
    }

    /// All of it, to read.
    pub(crate) fn states(&self) -> PeerStates {
        let shown = self
            .senders
            .values()
            .filter_map(|sender| sender.shown.clone());
        PeerStates {
            peers: shown.collect(),
        }
    }
}

impl Sender {
    fn new(generation: u64, now: Instant) -> Self {
        Self {
            generation,
            received_at: now,
            has_left: false,
            allowance: Budget::new(FRAMES_PER_S, FRAMES_BURST, now),
            health: Part::default(),
            usage: Part::default(),
            quarantine: Part::default(),
            paces: Part::default(),
            sightings: Part::default(),
            heard: Part::default(),
            shown: None,
        }
    }

    /// A restarted replica has nothing of what it had, and may count from anywhere. What it may send, and what is remembered
    /// of its claims, stays as it is.
    fn start_again(&mut self, generation: u64) {
        self.generation = generation;
        self.has_left = false;
        self.shown = None;
        for part in self.parts() {
            part.start_again();
        }
    }

    fn parts(&mut self) -> [&mut dyn Ends; 6] {
        let Self {
            health,
            usage,
            quarantine,
            paces,
            sightings,
            heard,
            ..
        } = self;
        [health, usage, quarantine, paces, sightings, heard]
    }

    fn show(&mut self, id: &ReplicaId, known_workers: &KnownWorkers) {
        let Self {
            health,
            usage,
            quarantine,
            paces,
            sightings,
            heard,
            ..
        } = &*self;
        // Ages are those of claims; without claims any time will do.
        let received = health.received().or(usage.received());
        let received = received.or(quarantine.received()).or(paces.received());
        let received = received.or(sightings.received()).or(heard.received());
        let quarantine_received = quarantine.received();
        self.shown = received.map(|received| {
            let is_current =
                |claim: &&HealthClaim| known_workers.is_current(&claim.worker, claim.epoch);
            Arc::new(ReceivedState {
                replica: id.clone(),
                received,
                health: health
                    .entries()
                    .iter()
                    .filter(is_current)
                    .cloned()
                    .collect(),
                usage: usage.entries().to_vec(),
                quarantine: quarantine.entries().to_vec(),
                paces: paces.entries().to_vec(),
                sightings: sightings.entries().to_vec(),
                heard: heard.latest.clone(),
                quarantine_received: quarantine_received.unwrap_or(received),
            })
        });
    }
}

impl<T: PartEntry> Default for Part<T> {
    fn default() -> Self {
        Self {
            seq: None,
            latest: None,
            memory: T::Memory::default(),
        }
    }
}

impl<T: PartEntry> Part<T> {
    fn received(&self) -> Option<Instant> {
        self.latest.as_ref().map(|(at, _)| *at)
    }

    fn entries(&self) -> &[T] {
        self.latest.as_ref().map_or(&[], |(_, entries)| entries)
    }

    /// False if one that is as late came before.
    fn take(
        &mut self,
        seq: u64,
        entries: Vec<T>,
        known_workers: &KnownWorkers,
        now: Instant,
    ) -> bool {
        let is_later = self.seq.is_none_or(|latest| latest < seq);
        if is_later {
            let entries = T::believed(entries, &mut self.memory, known_workers, now);
            self.seq = Some(seq);
            self.latest = Some((now, entries));
        }
        is_later
    }
}

/// What is done with each part alike.
trait Ends {
    fn end(&mut self);

    /// The sender begins anew, and its numbers with it.
    fn start_again(&mut self);

    /// True if it was there and is too old now.
    fn expire(&mut self, now: Instant) -> bool;
}

impl<T: PartEntry> Ends for Part<T> {
    fn end(&mut self) {
        self.latest = None;
    }

    fn start_again(&mut self) {
        self.seq = None;
        self.end();
    }

    fn expire(&mut self, now: Instant) -> bool {
        let is_old = |at| now.saturating_duration_since(at) >= SILENT_AFTER;
        let is_over = self.received().is_some_and(is_old);
        if is_over {
            self.end();
        }
        is_over
    }
}

/// Greatest number of senders remembered.
pub(crate) const SENDERS_MAX: usize = 256;
/// Frames a second taken from one sender: an honest one sends its six parts 20 times at most.
const FRAMES_PER_S: u32 = 120;
/// What may come late and all at once: as much as an honest sender sends while its path is dead and
/// the connection lives, 5 s.
const FRAMES_BURST: u32 = 600;
