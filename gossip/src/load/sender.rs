//! One other replica: what of its load counts now, and which of its frames are held until they do.
//!
//! Pure.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::board::SENDER_SILENT_AFTER;
use super::common::OthersLoad;
use super::frame::{Coverage, Load, LoadFrame, SlotLoad};
use super::moment::PeerClock;
use super::trust_cap::TrustCap;

/// Frames of one sender that are held at most; the oldest of more count at once.
const HELD_MAX: usize = 64;

/// What is known of one other replica.
pub(super) struct Sender {
    /// How much of its values counted when the sums were made last.
    pub(super) share: Share,
    /// Generation and sequence number of the latest frame.
    latest: (u64, u64),
    /// When the latest that counts was sent, by its clock; `None` before the first that says so.
    counted_us: Option<u64>,
    /// When its latest frame came, whether its values could be read or not.
    heard_at: Instant,
    /// When the latest came whose values are here; `None` before the first of this generation.
    loaded_at: Option<Instant>,
    /// It has left, or was cut off: what comes of this generation is late.
    has_left: bool,
    /// The slots that frames of a new process listed before a full one came; `None` after that.
    partial: Option<BTreeSet<u32>>,
    /// As its frames show it.
    clock: Option<PeerClock>,
    /// Frames that do not count yet, in the order in which they were sent.
    held: VecDeque<Held>,
    /// Values of this generation, by slot of our list of workers.
    pub(super) loads: Vec<Load>,
}

/// A frame until it counts.
pub(super) struct Held {
    sent_us: u64,
    counts_from: Instant,
    /// What it does not list is zero: it is full, or nothing is known that it could change.
    pub(super) is_whole: bool,
    pub(super) slots: Vec<SlotLoad>,
}

impl Sender {
    /// How long nothing of it came.
    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard_at)
    }

    /// Age of its values; the greatest there is before the first.
    pub(super) fn age(&self, now: Instant) -> Duration {
        let loaded_at = self.loaded_at;
        loaded_at.map_or(Duration::MAX, |at| now.saturating_duration_since(at))
    }

    /// Whether its values count.
    pub(super) fn counts(&self, now: Instant) -> bool {
        !self.has_left && self.age(now) < SENDER_SILENT_AFTER
    }

    /// Zero of its clock by ours, if the shortest way from it takes `way`; `None` before its first frame that tells it.
    pub(super) fn zero(&self, way: Duration) -> Option<Instant> {
        self.clock.as_ref()?.zero(way)
    }

    /// Nothing is known of it yet; its values have this many slots.
    pub(super) fn new(slots: usize, now: Instant) -> Self {
        Self {
            share: Share::default(),
            latest: (0, 0),
            counted_us: None,
            heard_at: now,
            loaded_at: None,
            has_left: false,
            partial: None,
            clock: None,
            held: VecDeque::new(),
            loads: vec![Load::default(); slots],
        }
    }

    /// It has left: nothing of it counts any more. What tells its late frames from those of its next life stays.
    pub(super) fn leave(&mut self) {
        self.has_left = true;
        self.share = Share::default();
        self.held.clear();
        self.partial = None;
        self.loads.fill(Load::default());
    }

    /// It is connected again. Nothing of before counts, and what comes now does, also in the generation that has left.
    pub(super) fn come_back(&mut self) {
        self.has_left = false;
    }

    /// Whether it is there, as far as it said itself.
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Whether this frame, or a later one, counts already, or it is held.
    pub(super) fn knows(&self, number: (u64, u64), frame: &LoadFrame) -> bool {
        if self.has_left && number.0 <= self.latest.0 {
            return true;
        }
        match frame.moment {
            Some(moment) if number.0 == self.latest.0 => self.knows_sent(moment.sent_us),
            None if self.is_overtaken_base(number, frame) => false,
            // Of a former process, or without a place among those that are held.
            _ => number <= self.latest,
        }
    }

    /// Whether it is a snapshot that frames of changes overtook: what they do not list is still to be had from it. Its number
    /// tells little: it is given when the snapshot is written, and what is in it was read before.
    fn is_overtaken_base(&self, number: (u64, u64), frame: &LoadFrame) -> bool {
        let is_full = frame.coverage == Coverage::Full && frame.moment.is_none();
        // A release that knows no moments sends all of its full frames so.
        let is_snapshot = is_full && self.counted_us.is_some();
        let is_behind = |listed: &BTreeSet<u32>| {
            is_full && number.1 < self.latest.1 || is_snapshot && !listed.is_empty()
        };
        number.0 == self.latest.0 && self.partial.as_ref().is_some_and(is_behind)
    }

    /// A frame of it came whose slots are positions in another list of workers: it is there, and what it has cannot be read.
    pub(super) fn hear(&mut self, generation: u64, now: Instant) {
        if self.latest.0 != generation {
            self.begin(generation);
        }
        self.heard_at = now;
    }

    /// A new process: it has nothing of what the former one had.
    fn begin(&mut self, generation: u64) {
        self.leave();
        self.latest = (generation, 0);
        self.has_left = false;
        self.loaded_at = None;
        self.clock = None;
        self.counted_us = None;
        self.partial = Some(BTreeSet::new());
    }

    /// Slots have other positions now, and these loads.
    pub(super) fn follow(&mut self, loads: Vec<Load>) {
        self.loads = loads;
        if let Some(listed) = &mut self.partial {
            listed.clear();
        }
    }

    fn knows_sent(&self, sent_us: u64) -> bool {
        let counts = self.counted_us.is_some_and(|counted| sent_us <= counted);
        counts || self.held.iter().any(|held| held.sent_us == sent_us)
    }

    /// Takes a frame that is sound and not known yet, and the earlier ones in it that were lost. `way`: the shortest
    /// from the sender. Returns whether it counts at once.
    pub(super) fn take(
        &mut self,
        number: (u64, u64),
        frame: &LoadFrame,
        way: Duration,
        now: Instant,
    ) -> bool {
        if self.is_overtaken_base(number, frame) {
            let listed = self.partial.take().unwrap_or_default();
            let mut rest = frame.slots.clone();
            rest.retain(|at| !listed.contains(&at.slot));
            self.count(&rest, false);
            self.latest = self.latest.max(number);
            return true;
        }
        // Without a base of this generation, or after a silence, slots not listed are unknown: zero
        // until the next full frame.
        if self.latest.0 != number.0 {
            self.begin(number.0);
        }
        let has_base = self.counts(now);
        let is_whole = frame.coverage == Coverage::Full || !has_base;
        if frame.coverage == Coverage::Full {
            self.partial = None;
        }
        let earlier = || frame.earlier.iter().flat_map(|earlier| &earlier.slots);
        if let Some(listed) = &mut self.partial {
            listed.extend(earlier().chain(&frame.slots).map(|at| at.slot));
        }
        self.latest = self.latest.max(number);
        self.heard_at = now;
        self.loaded_at = Some(now);
        let moment = frame.moment.map(|moment| {
            let clock = self
                .clock
                .get_or_insert_with(|| PeerClock::new(moment, now));
            (moment, clock.wait(moment, way, now))
        });
        let Some((moment, wait)) = moment.filter(|_| has_base) else {
            // There is no moment at which it would have to count, and what was held is older.
            while self.take_over().is_some() {}
            self.count(&[], is_whole);
            earlier().for_each(|at| self.count(std::slice::from_ref(at), false));
            self.count(&frame.slots, false);
            self.counted_us = frame
                .moment
                .map(|moment| moment.sent_us)
                .or(self.counted_us);
            return true;
        };
        let earlier = frame.earlier.iter().map(|earlier| {
            let before = Duration::from_micros(earlier.before_us.into());
            Held {
                sent_us: moment.sent_us.saturating_sub(earlier.before_us.into()),
                counts_from: now + wait.saturating_sub(before),
                is_whole: false,
                slots: earlier.slots.clone(),
            }
        });
        let last = Held {
            sent_us: moment.sent_us,
            counts_from: now + wait,
            is_whole,
            slots: frame.slots.clone(),
        };
        for held in earlier.chain([last]) {
            if !self.knows_sent(held.sent_us) {
                self.hold(held);
            }
        }
        false
    }

    /// Keeps a frame until it counts. It stands where it was sent, although it may come after later ones.
    fn hold(&mut self, frame: Held) {
        let place = self
            .held
            .partition_point(|held| held.sent_us < frame.sent_us);
        self.held.insert(place, frame);
        while self.held.len() > HELD_MAX {
            self.take_over();
        }
    }

    /// Whether the oldest frame that is held counts by now; none overtakes it.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let oldest = self.held.front();
        oldest.is_some_and(|held| held.counts_from <= now)
    }

    /// When the oldest frame that is held will count.
    pub(super) fn next(&self) -> Option<Instant> {
        self.held.front().map(|held| held.counts_from)
    }

    /// How many frames are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// The oldest frame that is held counts from now on.
    pub(super) fn take_over(&mut self) -> Option<Held> {
        let frame = self.held.pop_front()?;
        self.count(&frame.slots, frame.is_whole);
        self.counted_us = Some(frame.sent_us);
        Some(frame)
    }

    fn count(&mut self, slots: &[SlotLoad], is_whole: bool) {
        if is_whole {
            self.loads.fill(Load::default());
        }
        for SlotLoad { slot, load } in slots {
            self.loads[*slot as usize] = load.clamped();
        }
    }
}

/// How much of its values counts: by their age, and by how far it is believed.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) weight: f64,
    pub(super) cap: TrustCap,
}

impl Default for Share {
    /// Nothing.
    fn default() -> Self {
        Self {
            weight: 0.0,
            cap: TrustCap::WHOLE,
        }
    }
}

impl Share {
    pub(super) fn add(self, load: Load, sum: &mut OthersLoad) {
        let Self { weight, cap } = self;
        let requests = cap.requests * f64::from(load.requests);
        sum.requests += weight * requests;
        if weight > 0.0 {
            sum.reported_requests += requests;
        }
        sum.prefill_tokens += weight * cap.prefill_tokens * load.prefill_tokens as f64;
        sum.context_tokens += weight * cap.context_tokens * load.context_tokens as f64;
    }
}
