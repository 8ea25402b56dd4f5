//! Places for requests in progress: one atomic to take, one to give back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::line::Line;
use super::room::Rooms;
use crate::tenants::Seat;

/// A number of places, and who waits for one.
#[derive(Debug)]
pub(super) struct Slots {
    free: AtomicU32,
    /// Requests that wait for a place.
    pub(super) line: Line,
    /// Requests that have one and wait for a worker.
    pub(super) rooms: Rooms,
}

/// A place among the requests in progress; given back on drop.
#[derive(Debug)]
pub struct Permit {
    slots: Arc<Slots>,
    /// The request's place among those of its tenant.
    _seat: Option<Seat>,
}

impl Slots {
    pub(super) fn new(places: u32, line: Line, rooms: Rooms) -> Self {
        Self {
            free: AtomicU32::new(places),
            line,
            rooms,
        }
    }

    /// Takes a place, whoever may be waiting for it. The caller owes it a [`Permit`].
    pub(super) fn take(&self) -> Option<()> {
        let taken = self
            .free
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| {
                free.checked_sub(1)
            });
        taken.ok().map(|_| ())
    }

    /// The permit of a place that was taken.
    pub(super) fn permit(self: &Arc<Self>, seat: Option<Seat>) -> Permit {
        Permit {
            slots: Arc::clone(self),
            _seat: seat,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.slots.free.fetch_add(1, Ordering::SeqCst);
        self.slots.line.wake();
        self.slots.rooms.wake();
    }
}
