//! A plane in the hands of the driver.

use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::plane::Plane;
use crate::wire::Kind;

/// A plane behind its lock. The lock is held for one call of the plane, and for what the call asks for; never across an
/// await.
pub struct Hosted<P: ?Sized> {
    pub(super) wake: Notify,
    pub(super) names: &'static [&'static str],
    kinds: &'static [Kind],
    plane: Mutex<P>,
}

impl<P: Plane> Hosted<P> {
    /// Takes a plane in.
    pub fn new(plane: P) -> Arc<Self> {
        Arc::new(Self {
            wake: Notify::new(),
            names: plane.names(),
            kinds: plane.kinds(),
            plane: Mutex::new(plane),
        })
    }
}

impl<P: Plane + ?Sized> Hosted<P> {
    /// The plane, to look at. What changes it goes through [`Agent::with`](crate::Agent::with).
    pub fn lock(&self) -> MutexGuard<'_, P> {
        // A plane that panicked has changed its state by whole calls into pure parts until then.
        self.plane.lock()
    }

    /// The same, unless somebody has it already.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, P>> {
        self.plane.try_lock()
    }
}

impl<P: ?Sized> Hosted<P> {
    /// Its kinds that are not of this crate.
    pub(crate) fn kinds(&self) -> &'static [Kind] {
        self.kinds
    }
}

impl<P: ?Sized> fmt::Debug for Hosted<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted").finish_non_exhaustive()
    }
}
