//! Counters of load per worker, shared by the data path and the agent.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::common::{Common, OthersLoad};
use super::frame::Load;
use super::past::{Changes, Past};
use crate::replica::ReplicaId;
use crate::worker::WorkerId;

/// A [`Load`] that many threads change.
#[derive(Debug, Default)]
#[repr(C)] // requests first: see `LoadCell`
struct Counts {
    requests: AtomicU32,
    prefill_tokens: AtomicU64,
    context_tokens: AtomicU64,
}

impl Counts {
    fn load(&self) -> Load {
        Load {
            requests: self.requests.load(Relaxed),
            prefill_tokens: self.prefill_tokens.load(Relaxed),
            context_tokens: self.context_tokens.load(Relaxed),
        }
    }

    fn store(&self, load: Load) {
        self.requests.store(load.requests, Relaxed);
        self.prefill_tokens.store(load.prefill_tokens, Relaxed);
        self.context_tokens.store(load.context_tokens, Relaxed);
    }
}

/// Load on one worker. Every access is one relaxed atomic per number: readers may see the three
/// numbers of slightly different instants, which is younger than any other replica's view.
///
/// A decision over a thousand workers mostly waits for memory: what it reads, [`common`](Self::common) and
/// [`own_requests`](Self::own_requests), is one line of the processor's cache.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct LoadCell {
    /// What of `own` the other replicas know by now.
    known: Counts,
    // Bits of `f64`.
    others_requests: AtomicU64,
    others_reported_requests: AtomicU64,
    others_prefill_tokens: AtomicU64,
    others_context_tokens: AtomicU64,
    own: Counts,
    /// The least that `own` was since the plane looked last.
    low: Counts,
}

const _: () = assert!(
    std::mem::offset_of!(LoadCell, own) + std::mem::offset_of!(Counts, requests) < 64,
    "one line"
);

impl LoadCell {
    /// What this replica has on the worker: exact.
    pub fn own(&self) -> Load {
        self.own.load()
    }

    /// The requests of [`own`](Self::own), and nothing else of it.
    pub fn own_requests(&self) -> Load {
        Load {
            requests: self.own.requests.load(Relaxed),
            ..Load::default()
        }
    }

    /// What this replica has on the worker as the other replicas know it by now: what lasted, was
    /// sent, and has had the time to arrive. A decision by these numbers is the same as on the other replicas.
    pub fn known(&self) -> Load {
        self.known.load()
    }

    /// Adds to this replica's load, for example when a request is placed.
    pub fn add(&self, load: Load) {
        let Counts {
            requests,
            prefill_tokens,
            context_tokens,
        } = &self.own;
        requests.fetch_add(load.requests, Relaxed);
        prefill_tokens.fetch_add(load.prefill_tokens, Relaxed);
        context_tokens.fetch_add(load.context_tokens, Relaxed);
    }

    /// Takes back what was [added](Self::add): prefill tokens at the first token, all the rest at
    /// the end of the request. Never more than was added.
    pub fn subtract(&self, load: Load) {
        // What is not taken back has no new low: most calls are for one or two of the numbers.
        if load.requests > 0 {
            let before = self.own.requests.fetch_sub(load.requests, Relaxed);
            debug_assert!(before >= load.requests, "a request ended twice");
            let left = before.wrapping_sub(load.requests);
            self.low.requests.fetch_min(left, Relaxed);
        }
        let tokens = [
            (
                load.prefill_tokens,
                &self.own.prefill_tokens,
                &self.low.prefill_tokens,
            ),
            (
                load.context_tokens,
                &self.own.context_tokens,
                &self.low.context_tokens,
            ),
        ];
        for (taken, own, low) in tokens {
            if taken > 0 {
                low.fetch_min(own.fetch_sub(taken, Relaxed).wrapping_sub(taken), Relaxed);
            }
        }
    }

    /// The part of this replica's load that was there all the time since the last call.
    ///
    /// What came and went within that time never shows: it ends before the others could receive it.
    pub(super) fn take_lasting(&self) -> Load {
        let own = self.own();
        // Looked at hundreds of times a second, of thousands of workers: what rests is left alone.
        if self.low.load() == own {
            return own;
        }
        let low = Load {
            requests: self.low.requests.swap(own.requests, Relaxed),
            prefill_tokens: self.low.prefill_tokens.swap(own.prefill_tokens, Relaxed),
            context_tokens: self.low.context_tokens.swap(own.context_tokens, Relaxed),
        };
        // A request may have ended between the two: the next call sees it.
        low.least(own)
    }

    /// Without a trace of what it was: the list of workers is another one, and so are decisions.
    pub(super) fn set_known(&self, load: Load) {
        self.known.store(load);
    }

    /// What the other replicas have on the worker, damped by the age of their reports.
    pub fn others(&self) -> OthersLoad {
        OthersLoad {
            requests: f64::from_bits(self.others_requests.load(Relaxed)),
            prefill_tokens: f64::from_bits(self.others_prefill_tokens.load(Relaxed)),
            context_tokens: f64::from_bits(self.others_context_tokens.load(Relaxed)),
            reported_requests: f64::from_bits(self.others_reported_requests.load(Relaxed)),
        }
    }

    /// What a decision is the same by as on the other replicas.
    pub fn common(&self) -> Common {
        Common {
            known: self.known(),
            others: self.others(),
        }
    }

    fn set_others(&self, load: OthersLoad) {
        self.others_requests.store(load.requests.to_bits(), Relaxed);
        self.others_prefill_tokens
            .store(load.prefill_tokens.to_bits(), Relaxed);
        self.others_context_tokens
            .store(load.context_tokens.to_bits(), Relaxed);
        self.others_reported_requests
            .store(load.reported_requests.to_bits(), Relaxed);
    }
}

/// One cell per worker, and how complete the picture is.
///
/// A cell is looked up once, when a snapshot of workers is built; requests then go through the
/// snapshot, so the lock here is on no request's path.
#[derive(Debug)]
pub struct LoadBoard {
    cells: Mutex<BTreeMap<WorkerId, Arc<LoadCell>>>,
    reporting: AtomicU32,
    live: AtomicU32,
    /// When others' sums were written first; none before that.
    since: OnceLock<Instant>,
    /// Milliseconds after that, of the last time.
    summed: AtomicU64,
    /// Zero of this replica's clock of load.
    zero: OnceLock<Instant>,
    /// Zero of the others' clocks of load, by ours.
    zeros: Mutex<BTreeMap<ReplicaId, Instant>>,
    changes: Mutex<Changes>,
    /// When the common load changes next, by this replica's clock of load.
    due_us: AtomicU64,
}

impl Default for LoadBoard {
    fn default() -> Self {
        Self {
            cells: Mutex::default(),
            reporting: AtomicU32::new(1),
            live: AtomicU32::new(1),
            since: OnceLock::new(),
            summed: AtomicU64::new(0),
            zero: OnceLock::new(),
            zeros: Mutex::default(),
            changes: Mutex::default(),
            due_us: AtomicU64::new(u64::MAX),
        }
    }
}

impl LoadBoard {
    /// The cell of a worker, made on first use. One worker keeps its cell as long as anybody holds
    /// it, also when it is removed and added again.
    pub fn cell(&self, id: &WorkerId) -> Arc<LoadCell> {
        let mut cells = self.cells();
        if let Some(cell) = cells.get(id) {
            return Arc::clone(cell);
        }
        let cell = Arc::<LoadCell>::default();
        cells.insert(id.clone(), Arc::clone(&cell));
        cell
    }

    /// Number of replicas whose load is in the cells, this one included: at least 1.
    pub fn reporting(&self) -> u32 {
        self.reporting.load(Relaxed)
    }

    /// Number of live replicas, this one included: at least 1. Above [`reporting`](Self::reporting) while
    /// somebody's load is missing from the picture.
    pub fn live(&self) -> u32 {
        self.live.load(Relaxed)
    }

    /// Whether others' sums were written so long ago that nothing may be decided by them: this process was paused, and
    /// has not looked since. They are written each few tens of milliseconds otherwise.
    pub fn is_stale(&self, now: Instant) -> bool {
        let Some(since) = self.since.get() else {
            return false;
        };
        let summed = *since + Duration::from_millis(self.summed.load(Relaxed));
        now.saturating_duration_since(summed) > SENDER_SILENT_AFTER
    }

    /// A moment by this replica's clock of load: microseconds since it first needed one. Others know it by the frames of
    /// load that they get from here.
    pub fn clock_us(&self, moment: Instant) -> u64 {
        let zero = *self.zero.get_or_init(|| moment);
        let since = moment.saturating_duration_since(zero);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    /// A moment by another replica's clock of load, by ours; `None` for one whose clock is not known.
    pub fn moment_of(&self, replica: &ReplicaId, clock_us: u64) -> Option<Instant> {
        let zero = *self.zeros.lock().get(replica)?;
        zero.checked_add(Duration::from_micros(clock_us))
    }

    /// The common load as it was at a moment up to a quarter of a second ago; `None` if that is forgotten.
    pub fn past(&self, moment: Instant) -> Option<Past> {
        self.changes.lock().since(moment)
    }

    /// Whether the common load is to change by now, and has not yet: timers end late, by a millisecond or more.
    pub fn is_due(&self, now: Instant) -> bool {
        let due_us = self.due_us.load(Relaxed);
        due_us != u64::MAX && due_us <= self.clock_us(now)
    }

    pub(super) fn set_due(&self, next: Option<Instant>, now: Instant) {
        self.zero.get_or_init(|| now);
        let due_us = next.map_or(u64::MAX, |next| self.clock_us(next));
        self.due_us.store(due_us, Relaxed);
    }

    /// Takes another's clock as it shows by its latest frame.
    pub(super) fn set_zero(&self, replica: &ReplicaId, zero: Instant) {
        let mut zeros = self.zeros.lock();
        match zeros.get_mut(replica) {
            Some(known) => *known = zero,
            None => drop(zeros.insert(replica.clone(), zero)),
        }
    }

    /// Forgets the clocks of all others but these.
    pub(super) fn keep_zeros(&self, is_known: impl Fn(&ReplicaId) -> bool) {
        self.zeros.lock().retain(|replica, _| is_known(replica));
    }

    /// Changes the common load of workers; what it was is remembered for a while.
    pub(super) fn change<'a>(
        &self,
        cells: impl Iterator<Item = (&'a WorkerId, &'a LoadCell, Common)>,
        now: Instant,
    ) {
        let mut changes = self.changes.lock();
        for (worker, cell, common) in cells {
            let before = cell.common();
            if common != before {
                changes.add(worker, before, now);
                cell.set_known(common.known);
                cell.set_others(common.others);
            }
        }
    }

    pub(super) fn summed(&self, now: Instant) {
        let since = *self.since.get_or_init(|| now);
        let after = now.saturating_duration_since(since).as_millis();
        let after = u64::try_from(after).unwrap_or(u64::MAX);
        self.summed.store(after, Relaxed);
    }

    pub(super) fn set_reporting(&self, replicas: u32) {
        self.reporting.store(replicas, Relaxed);
    }

    pub(super) fn set_live(&self, replicas: u32) {
        self.live.store(replicas, Relaxed);
    }

    /// Drops the cells that only the board itself holds.
    pub(super) fn drop_unheld(&self) {
        self.cells().retain(|_, cell| Arc::strong_count(cell) > 1);
    }

    fn cells(&self) -> MutexGuard<'_, BTreeMap<WorkerId, Arc<LoadCell>>> {
        self.cells.lock()
    }
}

/// The values of a replica that was silent for this long count no more.
pub const SENDER_SILENT_AFTER: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_taken_back() {
        let cell = LoadCell::default();
        let load = Load {
            requests: 1,
            prefill_tokens: 100,
            context_tokens: 900,
        };
        cell.add(load);
        cell.add(load);
        cell.subtract(Load {
            prefill_tokens: 100,
            ..Load::default()
        });
        assert_eq!(
            cell.own(),
            Load {
                requests: 2,
                prefill_tokens: 100,
                context_tokens: 1800
            }
        );
        cell.subtract(load);
        cell.subtract(Load {
            requests: 1,
            prefill_tokens: 0,
            context_tokens: 900,
        });
        assert_eq!(cell.own(), Load::default());
    }

    #[test]
    fn a_held_cell_outlives_its_worker() {
        let board = LoadBoard::default();
        let id: WorkerId = "w".parse().expect("valid");
        let cell = board.cell(&id);
        cell.add(Load {
            requests: 1,
            ..Load::default()
        });
        board.drop_unheld();
        assert!(Arc::ptr_eq(&cell, &board.cell(&id)));
        drop(cell);
        board.drop_unheld();
        assert_eq!(board.cell(&id).own(), Load::default());
    }
}
