//! The agent's side of the load plane: own changes out, others' values in, sums to the board.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::board::{LoadBoard, LoadCell, OthersLoad};
use super::credit::{Credit, Total, credits};
use super::frame::{Coverage, Load, LoadFrame, SlotLoad};
use crate::replica::ReplicaId;
use crate::view::View;
use crate::worker::WorkerId;

/// A full frame is due this long after the last one: it repairs what was lost.
pub const FULL_INTERVAL: Duration = Duration::from_secs(1);
/// Without changes an empty frame is due this long after the last frame: it keeps what was said
/// from growing old at the receivers.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(100);
/// The same while there is nothing in flight: zeros do not grow old, the others only have to know
/// that they still hear this replica.
pub const IDLE_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// Least time between two frames, for each live replica: what a frame costs grows with the number of
/// its receivers. 16 replicas send every 20 ms, 40 and more every 50 ms.
const PACE: Duration = Duration::from_micros(1250);
/// The pace never exceeds this: the age at which replicas still agree well.
const PACE_MAX: Duration = Duration::from_millis(50);
/// A frame that is due this soon goes at once; half of the shortest batch.
const PACE_SLACK: Duration = Duration::from_millis(10);
/// The values of a replica that was silent for this long count no more.
pub const SENDER_SILENT_AFTER: Duration = Duration::from_secs(2);
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
    /// Its slots are positions in another roster than ours; its values were left alone.
    OtherRoster,
    /// It lists a slot beyond the roster, or slots out of order; changed nothing.
    Malformed,
    /// There are [`SENDERS_MAX`] senders already; changed nothing.
    TooManySenders,
}

/// One worker of the roster.
struct Slot {
    id: WorkerId,
    cell: Arc<LoadCell>,
    /// What the others were told last.
    sent: Load,
}

/// What is known of one other replica.
struct Sender {
    /// Generation and sequence number of the latest frame.
    latest: (u64, u64),
    heard_at: Instant,
    /// Values of this generation, by slot of our roster.
    loads: Vec<Load>,
}

/// Owned by the agent. Frames are given to and taken from the caller; nothing is sent here.
pub struct LoadPlane {
    board: Arc<LoadBoard>,
    damping: fn(Duration) -> f64,
    roster: u32,
    slots: Vec<Slot>,
    senders: BTreeMap<ReplicaId, Sender>,
    cut: u32,
    sent_at: Option<Instant>,
    full_sent_at: Option<Instant>,
}

impl LoadPlane {
    /// A plane without workers yet. `damping` gives the weight, 0 to 1, of values of a given age;
    /// it is placement's rule, which this crate does not know.
    pub fn new(board: Arc<LoadBoard>, damping: fn(Duration) -> f64) -> Self {
        Self {
            board,
            damping,
            roster: 0,
            slots: Vec::new(),
            senders: BTreeMap::new(),
            cut: 0,
            sent_at: None,
            full_sent_at: None,
        }
    }

    /// Takes over the workers of a new view. Values of others stay with their workers; a full frame
    /// is due at once. Cells that nobody holds any more are dropped.
    pub fn follow(&mut self, view: &View) {
        if view.roster() == self.roster && view.workers().len() == self.slots.len() {
            return;
        }
        let slots: Vec<Slot> = view
            .workers()
            .iter()
            .map(|worker| Slot {
                cell: self.board.cell(&worker.id),
                id: worker.id.clone(),
                sent: Load::default(),
            })
            .collect();
        let old_position: Vec<_> = slots
            .iter()
            .map(|slot| self.slots.binary_search_by(|old| old.id.cmp(&slot.id)).ok())
            .collect();
        for sender in self.senders.values_mut() {
            let moved = old_position
                .iter()
                .map(|old| old.map_or(Load::default(), |at| sender.loads[at]));
            sender.loads = moved.collect();
        }
        self.roster = view.roster();
        self.slots = slots;
        self.full_sent_at = None;
        self.board.drop_unheld();
    }

    /// Says how many replicas are live, this one included.
    pub fn set_live(&self, replicas: u32) {
        self.board.set_live(replicas.max(1));
    }

    /// The frame that is due now, for all peers: changes since the last one, everything once a
    /// second (or when that is shorter), an empty frame after a pause; else `None`. Call it once per
    /// batch interval, 20 to 50 ms; above 16 replicas changes wait up to 50 ms.
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
        for (slot, position) in self.slots.iter_mut().zip(0..) {
            let load = slot.cell.own();
            if load != slot.sent {
                slot.sent = load;
                changes.slots.push(SlotLoad {
                    slot: position,
                    load,
                });
            }
            if load != Load::default() {
                full.slots.push(SlotLoad {
                    slot: position,
                    load,
                });
            }
        }
        let is_idle = full.slots.is_empty();
        let frame = if is_full_due || full.wire_len() < changes.wire_len() {
            full
        } else {
            changes
        };
        if frame.coverage == Coverage::Changes && frame.slots.is_empty() {
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
        Some(frame)
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
        if let Some(sender) = self.senders.get(from)
            && (generation, seq) <= sender.latest
        {
            return Applied::Stale;
        }
        if frame.roster != self.roster {
            return Applied::OtherRoster;
        }
        let is_rising = frame.slots.is_sorted_by(|a, b| a.slot < b.slot);
        if !is_rising || frame.dense_slots() > self.slots.len() {
            return Applied::Malformed;
        }
        if !self.senders.contains_key(from) && self.senders.len() >= SENDERS_MAX {
            return Applied::TooManySenders;
        }
        let sender = self.senders.entry(from.clone()).or_insert_with(|| Sender {
            latest: (generation, seq),
            heard_at: now,
            loads: vec![Load::default(); self.slots.len()],
        });
        // Without a base of this generation, or after a silence, slots not listed are unknown: zero
        // until the next full frame.
        let has_base = sender.latest.0 == generation && sender.is_heard(now);
        if frame.coverage == Coverage::Full || !has_base {
            sender.loads.fill(Load::default());
        }
        for SlotLoad { slot, load } in &frame.slots {
            sender.loads[*slot as usize] = load.clamped();
        }
        sender.latest = (generation, seq);
        sender.heard_at = now;
        Applied::Fresh
    }

    /// Writes to the board what all heard senders have together, each weighed by its age and believed
    /// within its credit (`credit.rs`). Call it after frames were applied, and at least every batch
    /// interval.
    pub fn aggregate(&mut self, now: Instant) {
        self.senders
            .retain(|_, sender| sender.age(now) < SENDER_FORGET_AFTER);
        let heard: Vec<(f64, &[Load])> = self
            .senders
            .values()
            .filter(|sender| sender.is_heard(now))
            .map(|sender| {
                let weight = (self.damping)(sender.age(now)).clamp(0.0, 1.0);
                (weight, sender.loads.as_slice())
            })
            .collect();
        let own = Total::of(self.slots.iter().map(|slot| slot.cell.own()));
        let totals = heard
            .iter()
            .map(|(_, loads)| Total::of(loads.iter().copied()));
        let credits = credits(own, &totals.collect::<Vec<_>>(), self.slots.len());
        let mut sums = vec![OthersLoad::default(); self.slots.len()];
        let mut cut = 0;
        for ((weight, loads), credit) in heard.iter().zip(credits) {
            cut += u32::from(credit != Credit::WHOLE);
            for (sum, load) in sums.iter_mut().zip(*loads) {
                sum.requests += weight * credit.requests * f64::from(load.requests);
                sum.prefill_tokens += weight * credit.prefill_tokens * load.prefill_tokens as f64;
                sum.context_tokens += weight * credit.context_tokens * load.context_tokens as f64;
            }
        }
        let heard = 1 + heard.len() as u32;
        for (slot, sum) in self.slots.iter().zip(sums) {
            slot.cell.set_others(sum);
        }
        self.board.set_heard(heard);
        self.cut = cut;
        self.board.summed(now);
    }

    /// Requests in flight at a worker by replica, as each says them: not weighed, and none of those that are silent.
    pub fn requests_at(&self, worker: &WorkerId, now: Instant) -> BTreeMap<ReplicaId, u32> {
        let Ok(slot) = self.slots.binary_search_by(|slot| slot.id.cmp(worker)) else {
            return BTreeMap::new();
        };
        let heard = self
            .senders
            .iter()
            .filter(|(_, sender)| sender.is_heard(now));
        heard
            .map(|(replica, sender)| (replica.clone(), sender.loads[slot].requests))
            .collect()
    }

    /// Senders that were believed in part only, the last time.
    pub fn cut(&self) -> u32 {
        self.cut
    }

    /// This replica's whole load, for a replica that starts.
    pub fn snapshot(&self) -> LoadFrame {
        let mut frame = self.empty_frame(Coverage::Full);
        let loads = self.slots.iter().zip(0..).map(|(slot, position)| SlotLoad {
            slot: position,
            load: slot.cell.own(),
        });
        frame.slots = loads.filter(|slot| slot.load != Load::default()).collect();
        frame
    }

    fn empty_frame(&self, coverage: Coverage) -> LoadFrame {
        LoadFrame {
            roster: self.roster,
            coverage,
            slots: Vec::new(),
        }
    }
}

impl Sender {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard_at)
    }

    fn is_heard(&self, now: Instant) -> bool {
        self.age(now) < SENDER_SILENT_AFTER
    }
}
