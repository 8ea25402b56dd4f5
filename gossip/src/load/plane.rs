//! The agent's side of the load plane: own changes out, others' values in, sums to the board.
//!
//! What goes out is load that lasted ([`LoadCell::take_lasting`]); what was sent comes back as this
//! replica's own common knowledge (`sent.rs`), so that all replicas decide on the same numbers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::board::{LoadBoard, LoadCell};
use super::common::{Common, OthersLoad};
use super::frame::{Coverage, EARLIER_MAX, Earlier, Load, LoadFrame, Moment, SlotLoad};
use super::moment::hold;
use super::sender::{Sender, Share};
use super::sent::Sent;
use super::trust_cap::{Total, TrustCap, trust_caps};
use crate::registry::Worker;
use crate::replica::ReplicaId;
use crate::view::View;
use crate::worker::WorkerId;

/// A full frame is due this long after the last one: it repairs what was lost.
pub const FULL_INTERVAL: Duration = Duration::from_secs(1);
/// Without changes an empty frame is due this long after the last frame: it keeps what was sent
/// from growing old at the receivers.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);
/// The same while there is nothing in flight: zeros do not grow old, the others only have to know
/// that they still receive from this replica.
pub const IDLE_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// There is a look so often while anything is in flight, else once a batch ([`LoadPlane::next_look`]). Load that rose goes once
/// it lasted from one look to the next, whatever the interval of batches; falls wait for the batch.
pub const RISE_INTERVAL: Duration = Duration::from_millis(5);
/// A change is sent again with so many frames after its own: one of them may be lost, and a replica that missed it decides
/// on other numbers than all others.
pub(super) const REPEATS: u8 = 3;
/// The last so many of them wait for another frame, at the latest each batch; those before go at the next looks.
const PATIENT_REPEATS: u8 = 1;
/// Least time between two frames, for each live replica: what a frame costs grows with the number of
/// its receivers. 4 replicas send every 5 ms, 8 every 10 ms, 16 every 20 ms, 40
/// and more every 50 ms.
const PACE: Duration = Duration::from_micros(1250);
/// The pace never exceeds this: the age at which replicas still agree well.
const PACE_MAX: Duration = Duration::from_millis(50);
/// A frame that is due this soon goes at once; half of the shortest interval.
const PACE_SLACK: Duration = Duration::from_micros(2500);
/// A sender is forgotten after this long; no frame of it is under way any more.
pub const SENDER_FORGET_AFTER: Duration = Duration::from_secs(60);
/// Greatest number of senders remembered.
pub const SENDERS_MAX: usize = 256;

/// What became of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Taken over.
    Fresh,
    /// Older than, or the same as, one that was taken over; changed nothing.
    Stale,
    /// Its slots are positions in another list of workers than ours: its sender is heard, and its values were left alone.
    OtherWorkers,
    /// It lists a slot beyond the workers, or slots out of order; changed nothing.
    Malformed,
    /// There are [`SENDERS_MAX`] senders already; changed nothing.
    TooManySenders,
}

/// One worker of the list.
struct Slot {
    id: WorkerId,
    cell: Arc<LoadCell>,
    /// What was last sent to the others.
    sent: Load,
}

/// Changes that were sent, and will be again.
struct Recent {
    sent_us: u64,
    /// With so many further frames.
    repeats: u8,
    slots: Vec<SlotLoad>,
}

/// Owned by the agent. Frames are given to and taken from the caller; nothing is sent here.
pub struct LoadPlane {
    board: Arc<LoadBoard>,
    damping: fn(Duration) -> f64,
    batch: Duration,
    workers_digest: u32,
    slots: Vec<Slot>,
    sent: Sent,
    /// The changes of the latest frames, the oldest first; at most [`EARLIER_MAX`].
    recent: VecDeque<Recent>,
    /// How long frames are held, this replica's.
    hold: Duration,
    /// The shortest time of late to each connected peer.
    ways: BTreeMap<ReplicaId, Duration>,
    senders: BTreeMap<ReplicaId, Sender>,
    cut: u32,
    summed_at: Option<Instant>,
    sent_at: Option<Instant>,
    full_sent_at: Option<Instant>,
}

impl LoadPlane {
    /// A plane without workers yet. `damping` gives the weight, 0 to 1, of values of a given age;
    /// it is placement's rule, which this crate does not know. `batch`: how long a fall may wait.
    pub fn new(board: Arc<LoadBoard>, damping: fn(Duration) -> f64, batch: Duration) -> Self {
        Self {
            board,
            damping,
            batch,
            sent: Sent::default(),
            recent: VecDeque::new(),
            hold: Duration::ZERO,
            ways: BTreeMap::new(),
            workers_digest: 0,
            slots: Vec::new(),
            senders: BTreeMap::new(),
            cut: 0,
            summed_at: None,
            sent_at: None,
            full_sent_at: None,
        }
    }

    /// Takes over the workers of a new view. Values of others stay with their workers; a full frame
    /// is due at once. Cells that nobody holds any more are dropped.
    pub fn follow(&mut self, view: &View) {
        if view.workers_digest() == self.workers_digest && view.workers().len() == self.slots.len()
        {
            return;
        }
        // Slots of frames that are held are positions in the former list.
        for sender in self.senders.values_mut() {
            while sender.take_over().is_some() {}
        }
        let position = |id: &WorkerId| self.slots.binary_search_by(|old| old.id.cmp(id)).ok();
        let workers = || view.workers().iter();
        let old_position: Vec<_> = workers().map(|worker| position(&worker.id)).collect();
        let slot = |(worker, old): (&Worker, &Option<usize>)| {
            let sent = old.map_or(Load::default(), |at| self.slots[at].sent);
            let cell = self.board.cell(&worker.id);
            // What was on its way will be sent again, whole; a new worker was not sent yet.
            cell.set_known(sent);
            Slot {
                cell,
                id: worker.id.clone(),
                sent,
            }
        };
        let slots = workers().zip(&old_position).map(slot).collect();
        for sender in self.senders.values_mut() {
            let moved = old_position
                .iter()
                .map(|old| old.map_or(Load::default(), |at| sender.loads[at]));
            sender.follow(moved.collect());
        }
        self.workers_digest = view.workers_digest();
        self.slots = slots;
        self.sent.forget();
        self.recent.clear();
        self.full_sent_at = None;
        self.board.drop_unheld();
    }

    /// The board to which it writes.
    pub(crate) fn board(&self) -> &Arc<LoadBoard> {
        &self.board
    }

    /// How long ago each other replica's latest frame came, be it about another list of workers; one that is silent for long,
    /// or has left, is not among them.
    pub(crate) fn heard(&self, now: Instant) -> impl Iterator<Item = (&ReplicaId, Duration)> {
        let senders = self.senders.iter();
        let there = senders.filter(|(_, sender)| !sender.has_left());
        there.map(move |(id, sender)| (id, sender.silent_for(now)))
    }

    /// A replica announced that it leaves, or was cut off: its load ends at once, not when it has been silent for a while.
    pub fn left(&mut self, peer: &ReplicaId, now: Instant) {
        if let Some(sender) = self.senders.get_mut(peer) {
            sender.leave();
            self.aggregate(now);
        }
    }

    /// A replica is connected: what it sends counts, also if it was cut off before and did not start again. It may know
    /// nothing of this one, or no more, and would take what a frame of changes does not list for nothing: a full one is due.
    pub fn linked(&mut self, peer: &ReplicaId) {
        self.full_sent_at = None;
        if let Some(sender) = self.senders.get_mut(peer) {
            sender.come_back();
        }
    }

    /// Whether anything of this peer is remembered.
    #[cfg(test)]
    pub(crate) fn remembers(&self, peer: &ReplicaId) -> bool {
        let Self {
            board: _,
            damping: _,
            batch: _,
            workers_digest: _,
            slots: _,
            sent: _,
            recent: _,
            hold: _,
            ways,
            senders,
            cut: _,
            summed_at: _,
            sent_at: _,
            full_sent_at: _,
        } = self;
        senders.contains_key(peer) || ways.contains_key(peer)
    }

    /// How many frames of this peer do not count yet.
    #[cfg(test)]
    pub(super) fn held(&self, peer: &ReplicaId) -> usize {
        self.senders.get(peer).map_or(0, Sender::held)
    }

    /// Takes how many replicas are live, this one included.
    pub fn set_live(&self, replicas: u32) {
        self.board.set_live(replicas.max(1));
    }

    /// Takes how long a frame is under way, at its shortest, to each connected peer.
    pub fn set_ways(&mut self, ways: &[(ReplicaId, Duration)]) {
        self.ways = ways.iter().take(SENDERS_MAX).cloned().collect();
        self.hold = hold(ways.iter().map(|(_, way)| *way));
    }

    /// When to [collect](Self::collect) next: soon while anything is in flight or not yet sent, else
    /// once a batch.
    pub fn next_look(&self, now: Instant) -> Instant {
        let rests = |slot: &Slot| {
            let nothing = Load::default();
            slot.sent == nothing && slot.cell.own() == nothing
        };
        let wait = if self.recent.is_empty() && self.slots.iter().all(rests) {
            self.batch
        } else {
            RISE_INTERVAL
        };
        now + wait
    }

    /// Whether the sums are due again: a batch is over since the last ones. Frames are in them at
    /// once; but their senders grow older.
    pub fn must_sum(&self, now: Instant) -> bool {
        let last = self.summed_at;
        last.is_none_or(|last| now.saturating_duration_since(last) + PACE_SLACK >= self.batch)
    }

    /// What was sent and received, and counts by now, is taken over, as of the moment from which it counts: so it does
    /// not matter when, nor by whom, this is called. Returns when the next of it will count.
    pub fn settle(&mut self, now: Instant) -> Option<Instant> {
        loop {
            let senders = self.senders.values().filter_map(Sender::next);
            match senders.chain(self.sent.next()).min() {
                Some(next) if next <= now => self.settle_at(next),
                next => {
                    self.board.set_due(next, now);
                    return next;
                }
            }
        }
    }

    fn settle_at(&mut self, moment: Instant) {
        let known = self.sent.arrived(moment).map(|SlotLoad { slot, load }| {
            let Slot { id, cell, .. } = &self.slots[slot as usize];
            let others = cell.others();
            let common = Common {
                known: load,
                others,
            };
            (id, &**cell, common)
        });
        self.board.change(known, moment);
        let (mut is_whole, mut changed) = (false, Vec::new());
        for sender in self.senders.values_mut() {
            while sender.is_due(moment)
                && let Some(frame) = sender.take_over()
            {
                is_whole |= frame.is_whole;
                changed.extend(frame.slots.iter().map(|slot| slot.slot as usize));
            }
        }
        // At once, and not when the sums are made next: what replicas know at different times parts them.
        if is_whole {
            self.aggregate_at(moment);
        } else {
            self.sum(changed.into_iter(), moment);
        }
    }

    /// The frame that is due now, for all peers: changes since the last one, everything once a
    /// second (or when that is shorter), an empty frame after a pause; else `None`. Call it at
    /// [`next_look`](Self::next_look): rises go at once, falls within a batch, both again at the next two looks; above 4
    /// replicas all wait longer, up to 50 ms. Load that did not last since the call before is not sent.
    pub fn collect(&mut self, now: Instant) -> Option<LoadFrame> {
        let is_due = |last: Option<Instant>, interval| {
            last.is_none_or(|last| now.saturating_duration_since(last) >= interval)
        };
        let pace = (PACE * self.board.live()).min(PACE_MAX);
        if !is_due(self.sent_at, pace.saturating_sub(PACE_SLACK)) {
            return None;
        }
        let is_full_due = is_due(self.full_sent_at, FULL_INTERVAL);
        let mut changes = self.empty_frame(Coverage::Changes);
        let mut full = self.empty_frame(Coverage::Full);
        let mut has_risen = false;
        for (slot, position) in self.slots.iter().zip(0..) {
            let load = slot.cell.take_lasting();
            let update = SlotLoad {
                slot: position,
                load,
            };
            if load != slot.sent {
                has_risen |= load.is_above(slot.sent);
                changes.slots.push(update);
            }
            if load != Load::default() {
                full.slots.push(update);
            }
        }
        let mut recent = self.recent.iter();
        let is_repeat_due = recent.any(|recent| recent.repeats > PATIENT_REPEATS);
        let is_batch_due = is_due(self.sent_at, self.batch.saturating_sub(PACE_SLACK));
        if !has_risen && !is_repeat_due && !is_full_due && !is_batch_due {
            return None;
        }
        let is_idle = full.slots.is_empty();
        let changed = changes.slots.clone();
        let mut frame = if is_full_due || full.wire_len() < changes.wire_len() {
            full
        } else {
            changes
        };
        let is_empty = frame.slots.is_empty() && self.recent.is_empty();
        if frame.coverage == Coverage::Changes && is_empty {
            let heartbeat = if is_idle {
                IDLE_HEARTBEAT_INTERVAL
            } else {
                HEARTBEAT_INTERVAL
            };
            if !is_due(self.sent_at, heartbeat) {
                return None;
            }
        }
        self.sent_at = Some(now);
        if frame.coverage == Coverage::Full {
            self.full_sent_at = Some(now);
        }
        let sent_us = self.board.clock_us(now);
        frame.moment = Some(Moment {
            sent_us,
            hold_us: self.hold.as_micros() as u32, // at most that of the farthest peer that is waited for
        });
        frame.earlier = self.repeat(sent_us);
        for SlotLoad { slot, load } in &changed {
            self.slots[*slot as usize].sent = *load;
        }
        if !changed.is_empty() {
            self.recent.push_back(Recent {
                sent_us,
                repeats: REPEATS,
                slots: changed.clone(),
            });
        }
        self.sent.record(changed, now, self.hold);
        self.settle(now);
        Some(frame)
    }

    /// The changes of the latest frames, for one that is sent now.
    fn repeat(&mut self, now_us: u64) -> Vec<Earlier> {
        let too_many = (self.recent.len() + 1).saturating_sub(EARLIER_MAX);
        self.recent.drain(..too_many);
        let earlier = self.recent.iter_mut().map(|recent| {
            recent.repeats -= 1;
            let before_us = now_us.saturating_sub(recent.sent_us);
            Earlier {
                before_us: u32::try_from(before_us).unwrap_or(u32::MAX),
                slots: recent.slots.clone(),
            }
        });
        let earlier = earlier.collect();
        self.recent.retain(|recent| recent.repeats > 0);
        earlier
    }

    /// Takes a frame of the authenticated replica `from`; `generation` and `seq` are from its header.
    pub fn apply(
        &mut self,
        from: &ReplicaId,
        generation: u64,
        seq: u64,
        frame: &LoadFrame,
        now: Instant,
    ) -> Applied {
        let number = (generation, seq);
        if let Some(sender) = self.senders.get(from)
            && sender.knows(number, frame)
        {
            return Applied::Stale;
        }
        let is_readable = frame.workers_digest == self.workers_digest;
        if is_readable && !self.is_sound(frame) {
            return Applied::Malformed;
        }
        if !self.senders.contains_key(from) && self.senders.len() >= SENDERS_MAX {
            return Applied::TooManySenders;
        }
        let slots = self.slots.len();
        let sender = self.senders.entry(from.clone());
        let sender = sender.or_insert_with(|| Sender::new(slots, now));
        if !is_readable {
            // Lists may differ for long. What it said last counts as long as it would if it were silent.
            sender.hear(generation, now);
            return Applied::OtherWorkers;
        }
        let way = self.ways.get(from).copied().unwrap_or_default();
        let counts_at_once = sender.take(number, frame, way, now);
        // At once: a question about what this replica knew before it got the frame must not be read by a clock that says
        // it has long had it.
        if let Some(zero) = sender.zero(way) {
            self.board.set_zero(from, zero);
        }
        if counts_at_once {
            self.aggregate(now);
        }
        self.settle(now);
        Applied::Fresh
    }

    /// Whether its slots are those of the list of workers, each once.
    fn is_sound(&self, frame: &LoadFrame) -> bool {
        let earlier = || frame.earlier.iter().map(|earlier| &earlier.slots);
        let mut lists = earlier().chain([&frame.slots]);
        let is_sound = |slots: &Vec<SlotLoad>| {
            let is_rising = slots.is_sorted_by(|a, b| a.slot < b.slot);
            let last = slots.last().map(|last| last.slot as usize);
            is_rising && last.is_none_or(|last| last < self.slots.len())
        };
        frame.earlier.len() <= EARLIER_MAX && lists.all(is_sound)
    }

    /// Writes the sums of these slots, each sender weighed as the last time.
    fn sum(&self, slots: impl Iterator<Item = usize>, now: Instant) {
        let sums = slots.map(|slot| {
            let mut others = OthersLoad::default();
            for sender in self.senders.values() {
                sender.share.add(sender.loads[slot], &mut others);
            }
            let Slot { id, cell, .. } = &self.slots[slot];
            let known = cell.known();
            (id, &**cell, Common { known, others })
        });
        self.board.change(sums, now);
    }

    /// Writes to the board what all live senders have together, each weighed by its age and believed
    /// within its cap (`trust_cap.rs`). Call it after frames were applied, and at least every batch
    /// interval.
    pub fn aggregate(&mut self, now: Instant) {
        self.settle(now);
        self.aggregate_at(now);
    }

    fn aggregate_at(&mut self, now: Instant) {
        self.senders
            .retain(|_, sender| sender.silent_for(now) < SENDER_FORGET_AFTER);
        let heard = || {
            let senders = self.senders.values();
            senders.filter(|sender| sender.counts(now))
        };
        let own = Total::of(self.slots.iter().map(|slot| slot.cell.own()));
        let totals: Vec<_> = heard()
            .map(|sender| Total::of(sender.loads.iter().copied()))
            .collect();
        let mut trust_caps = trust_caps(own, &totals, self.slots.len()).into_iter();
        self.cut = 0;
        let mut heard = 1;
        for sender in self.senders.values_mut() {
            // As many as report.
            let cap = sender.counts(now).then(|| trust_caps.next()).flatten();
            sender.share = cap.map_or_else(Share::default, |cap| {
                heard += 1;
                self.cut += u32::from(cap != TrustCap::WHOLE);
                let weight = (self.damping)(sender.age(now)).clamp(0.0, 1.0);
                Share { weight, cap }
            });
        }
        self.sum(0..self.slots.len(), now);
        let senders = &self.senders;
        self.board
            .keep_zeros(|replica| senders.contains_key(replica));
        self.summed_at = Some(now);
        self.board.set_reporting(heard);
        self.board.summed(now);
    }

    /// Requests in flight at a worker by replica, as each reports them: not weighed, and without silent replicas.
    pub fn requests_at(&self, worker: &WorkerId, now: Instant) -> BTreeMap<ReplicaId, u32> {
        let Ok(slot) = self.slots.binary_search_by(|slot| slot.id.cmp(worker)) else {
            return BTreeMap::new();
        };
        let heard = self.senders.iter().filter(|(_, sender)| sender.counts(now));
        heard
            .map(|(replica, sender)| (replica.clone(), sender.loads[slot].requests))
            .collect()
    }

    /// Senders that were believed in part only, the last time.
    pub fn cut(&self) -> u32 {
        self.cut
    }

    /// This replica's whole load as it was sent to the others, for a replica that starts.
    pub fn snapshot(&self) -> LoadFrame {
        let mut frame = self.empty_frame(Coverage::Full);
        let loads = self.slots.iter().zip(0..).map(|(slot, position)| SlotLoad {
            slot: position,
            load: slot.sent,
        });
        frame.slots = loads.filter(|slot| slot.load != Load::default()).collect();
        frame
    }

    fn empty_frame(&self, coverage: Coverage) -> LoadFrame {
        LoadFrame {
            workers_digest: self.workers_digest,
            coverage,
            slots: Vec::new(),
            moment: None,
            earlier: Vec::new(),
        }
    }
}
