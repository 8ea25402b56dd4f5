//! Bytes that bodies take together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of all bodies held at once.
#[derive(Debug)]
pub struct ByteBudget {
    max: AtomicU64,
    used: AtomicU64,
}

/// A part of the budget, given back on drop.
#[derive(Debug)]
pub struct Reserved {
    budget: Arc<ByteBudget>,
    bytes: u64,
}

impl ByteBudget {
    /// A budget of `max` bytes.
    pub fn new(max: u64) -> Self {
        Self {
            max: AtomicU64::new(max),
            used: AtomicU64::new(0),
        }
    }

    /// Another size from now on; what is taken stays so.
    pub fn resize(&self, max: u64) {
        self.max.store(max, Ordering::Relaxed);
    }

    fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// Bytes that may still be taken.
    pub fn free(&self) -> u64 {
        self.max().saturating_sub(self.used.load(Ordering::Relaxed))
    }

    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        used.checked_add(bytes).is_some_and(|sum| sum <= self.max())
    }

    /// A part of it that is empty yet.
    pub(crate) fn reserve(self: &Arc<Self>) -> Reserved {
        Reserved {
            budget: Arc::clone(self),
            bytes: 0,
        }
    }
}

impl Reserved {
    /// Takes `more` bytes; false when the budget has no room.
    pub(crate) fn grow(&mut self, more: u64) -> bool {
        let max = self.budget.max();
        let grown = self
            .budget
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(more).filter(|total| *total <= max)
            })
            .is_ok();
        if grown {
            self.bytes += more;
        }
        grown
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl ByteBudget {
    /// No body holds any of it.
    pub(crate) fn is_unused(&self) -> bool {
        self.used.load(Ordering::Relaxed) == 0
    }
}
