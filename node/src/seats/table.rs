//! Who holds the places of one port, and who of them was asked to leave.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::http::progress::Progress;

/// Time for a new connection to send a request, before it counts as idle where none left for it.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// Twice what a goodbye takes. A connection that was asked to leave, and is idle and still there after this, goes for some
/// reason of its own, or never: nobody waits for it.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// The address whose connections are counted together; none: a proxy's.
pub(super) type Holder = Option<IpAddr>;

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) seats: HashMap<u64, TakenSeat>,
    next: u64,
    /// Of the seats, those that were asked to leave.
    pub(super) leaving: usize,
    /// The others, by holder.
    pub(super) held: HashMap<Holder, u32>,
}

#[derive(Debug)]
pub(super) struct TakenSeat {
    pub(super) progress: Progress,
    pub(super) holder: Holder,
    is_spare: bool,
    /// When it was asked to leave; none: it stays.
    told: Option<Instant>,
}

impl TakenSeat {
    pub(super) fn is_leaving(&self) -> bool {
        self.told.is_some()
    }

    /// Whether it has just come, and had no answer so far.
    pub(super) fn is_new(&self) -> bool {
        !self.progress.has_answered() && self.progress.ended().elapsed() < HEARD_WITHIN
    }

    /// The same, and no other has left for it.
    pub(super) fn is_unheard(&self) -> bool {
        self.is_spare && self.is_new()
    }
}

impl Table {
    /// Seats one more, and gives it a number.
    pub(super) fn seat(&mut self, progress: Progress, holder: Holder, is_spare: bool) -> u64 {
        let id = self.next;
        self.next += 1;
        let taken = TakenSeat {
            progress,
            holder,
            is_spare,
            told: None,
        };
        self.seats.insert(id, taken);
        self.hold(holder);
        id
    }

    /// Seats whose connections were not asked to leave.
    pub(super) fn staying(&self) -> usize {
        self.seats.len() - self.leaving
    }

    /// Those of this holder.
    pub(super) fn held_by(&self, holder: Holder) -> u32 {
        self.held.get(&holder).copied().unwrap_or_default()
    }

    /// Of the seats that were asked to leave, those that are free in a moment. One that got a request before it heard the
    /// word stays to the end of that answer, which may be hours away: nobody may wait for it.
    pub(super) fn about_to_go(&self) -> usize {
        if self.leaving == 0 {
            return 0;
        }
        let seats = self.seats.values();
        let is_going = |taken: &&TakenSeat| {
            taken.told.is_some_and(|told| told.elapsed() < GONE_WITHIN)
                && taken.progress.idle_since().is_some()
        };
        seats.filter(is_going).count()
    }

    pub(super) fn tell_to_leave(&mut self, id: u64) {
        let Some(taken) = self.seats.get_mut(&id).filter(|taken| !taken.is_leaving()) else {
            return;
        };
        taken.told = Some(Instant::now());
        taken.progress.tell_to_leave();
        let holder = taken.holder;
        self.leaving += 1;
        self.release(holder);
    }

    /// Whose seat it is, if it was asked to leave.
    pub(super) fn leaver(&self, id: u64) -> Option<Holder> {
        let taken = self.seats.get(&id).filter(|taken| taken.is_leaving());
        taken.map(|taken| taken.holder)
    }

    /// One that was asked to leave stays: it counts again, and may be asked again.
    pub(super) fn keep(&mut self, id: u64) {
        let Some(taken) = self.seats.get_mut(&id).filter(|taken| taken.is_leaving()) else {
            return;
        };
        taken.told = None;
        let holder = taken.holder;
        self.leaving -= 1;
        self.hold(holder);
    }

    pub(super) fn hand_over(&mut self, id: u64, to: Holder) {
        let Some(taken) = self.seats.get_mut(&id) else {
            return;
        };
        let from = std::mem::replace(&mut taken.holder, to);
        if !taken.is_leaving() {
            self.release(from);
            self.hold(to);
        }
    }

    pub(super) fn free(&mut self, id: u64) {
        match self.seats.remove(&id) {
            None => {}
            Some(taken) if taken.is_leaving() => self.leaving -= 1,
            Some(taken) => self.release(taken.holder),
        }
    }

    fn hold(&mut self, holder: Holder) {
        *self.held.entry(holder).or_default() += 1;
    }

    fn release(&mut self, holder: Holder) {
        if let Some(held) = self.held.get_mut(&holder) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&holder);
            }
        }
    }
}
