//! Permits: the places of this replica, and the queues for them.
//!
//! A request waits twice at most for a place: at the door, before its body is read, and in its model's queue once the
//! model is known. While it waits in the second it has no place: nothing of one model stands in the way of another.
//! `places` decides whose turn it is. A request that gives something back wakes the first of that queue, and a new
//! request takes nothing for which another waits that goes first.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::model_queues::{ModelQueues, Wait};
use super::places::{Holder, Places, Turn};
use super::queue::Claim;
use super::wait_queue::{TurnedAway, WaitQueue};
use crate::cluster::ServedModels;
use crate::tenants::Seat;

/// A number of places, and the requests that wait for one.
#[derive(Debug)]
pub(super) struct Permits {
    places: Mutex<Places>,
    /// Models that are served, to be compared without the lock.
    models: ArcSwap<ServedModels>,
    /// Requests that wait for a place, unread.
    pub(super) door: WaitQueue,
    /// Requests that wait for a place of their model.
    pub(super) at_models: ModelQueues,
    /// Requests that have one and wait for a worker, by what workers they may have.
    pub(super) at_workers: ModelQueues,
    /// Beside the places: requests that have nothing computed.
    beside: Arc<Semaphore>,
}

/// Requests at once that need no place. More of them wait for one as others do.
const BESIDE_MAX: usize = 64;

/// A place among the requests in progress; given back on drop.
#[derive(Debug)]
pub struct Permit {
    permits: Arc<Permits>,
    /// None while it waits for a place of its model, and for a request that goes on without one.
    holder: Option<Holder>,
    /// What bounds those that never waited for a place.
    beside: Option<OwnedSemaphorePermit>,
    /// The request's place among those of its tenant.
    _seat: Option<Seat>,
}

/// Lets the next one look, whatever became of a wait.
struct WakeNext<'a>(&'a Permits);

impl Drop for WakeNext<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl Permits {
    pub(super) fn new(
        places: Places,
        door: WaitQueue,
        at_models: ModelQueues,
        at_workers: ModelQueues,
    ) -> Self {
        Self {
            places: Mutex::new(places),
            models: ArcSwap::default(),
            door,
            at_models,
            at_workers,
            beside: Arc::new(Semaphore::new(BESIDE_MAX)),
        }
    }

    /// Room for a request that needs no place.
    pub(super) fn beside(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.beside).try_acquire_owned().ok()
    }

    /// So many places from now on.
    pub(super) fn resize(&self, all: u32) {
        self.places.lock().resize(all);
        self.wake();
    }

    /// These models are served.
    pub(super) fn serve(&self, models: &Arc<ServedModels>) {
        if Arc::ptr_eq(&self.models.load(), models) {
            return;
        }
        {
            // Both under the lock: of two tasks with different models one is the last with both.
            let mut places = self.places.lock();
            if Arc::ptr_eq(&self.models.swap(Arc::clone(models)), models) {
                return;
            }
            places.serve(models);
        }
        self.wake();
    }

    /// Takes a place for a request that has just come, if no request waits that goes first. The caller owes it a
    /// [`Permit`].
    pub(super) fn take_unread(&self) -> Option<()> {
        let none_waits = self.door.is_empty();
        none_waits.then(|| self.take(&Holder::Reading, false))?
    }

    /// Waits at the door for a place. The caller owes it a [`Permit`].
    pub(super) async fn wait_unread(&self, wait: Wait) -> Result<(), TurnedAway> {
        let _next = WakeNext(self);
        let take = || self.take(&Holder::Reading, true);
        let queue = &self.door;
        queue.wait(wait.claim, wait.by, wait.again, take).await
    }

    /// Charges a tenant at the door for what its head did not say.
    pub(super) fn charge_at_door(&self, hidden: Claim) {
        if hidden.cost > 0 {
            self.door.charge(&hidden);
        }
    }

    /// The permit of a place that was taken, or of a request that needs none.
    pub(super) fn permit(
        self: &Arc<Self>,
        seat: Option<Seat>,
        beside: Option<OwnedSemaphorePermit>,
    ) -> Permit {
        Permit {
            permits: Arc::clone(self),
            holder: beside.is_none().then_some(Holder::Reading),
            beside,
            _seat: seat,
        }
    }

    /// Makes the place of a request that was read one of its model; false: it has none any more, and has to wait.
    pub(super) fn change(&self, permit: &mut Permit, model: &Arc<str>) -> bool {
        let to = Holder::Model(Arc::clone(model));
        let others_wait = self.at_models.is_waited_for(model);
        let changed = {
            let mut places = self.places.lock();
            if let Some(from) = permit.holder.take() {
                places.give_back(&from);
            }
            !others_wait && self.take_of(&mut places, &to, false).is_some()
        };
        permit.holder = changed.then_some(to);
        self.wake();
        changed
    }

    /// Waits in the model's queue for a place.
    pub(super) async fn wait(
        &self,
        permit: &mut Permit,
        model: &Arc<str>,
        wait: Wait,
    ) -> Result<(), TurnedAway> {
        let _next = WakeNext(self);
        let to = Holder::Model(Arc::clone(model));
        let take = || self.take(&to, true);
        self.at_models.wait(model, wait, take).await?;
        permit.holder = Some(to);
        Ok(())
    }

    /// Requests of each model that have a place.
    pub(super) fn held(&self) -> Vec<(Arc<str>, u32)> {
        self.places.lock().held()
    }

    fn take(&self, holder: &Holder, waits: bool) -> Option<()> {
        self.take_of(&mut self.places.lock(), holder, waits)
    }

    /// `waits`: it is the first of its queue, so of those with equal turns it is not behind.
    fn take_of(&self, places: &mut Places, holder: &Holder, waits: bool) -> Option<()> {
        let turn = places.turn(holder)?;
        let is_behind = |other: Turn| other < turn || (other == turn && !waits);
        let mut others = self.waiting(places).into_iter();
        if others.any(|(other, turn, _)| other != *holder && is_behind(turn)) {
            return None;
        }
        places.take(holder);
        Some(())
    }

    /// Queues whose first may have a place now.
    fn waiting(&self, places: &Places) -> Vec<(Holder, Turn, Option<Arc<WaitQueue>>)> {
        let door = (!self.door.is_empty()).then_some((Holder::Reading, None));
        let models = self.at_models.waited_for().into_iter();
        let models = models.map(|(model, queue)| (Holder::Model(model), Some(queue)));
        let may = |(holder, queue): (Holder, _)| {
            let turn = places.turn(&holder)?;
            Some((holder, turn, queue))
        };
        door.into_iter().chain(models).filter_map(may).collect()
    }

    /// A place may be free: the next request should look.
    fn wake(&self) {
        // Sequentially consistent with a waiting request, which counts itself before it looks: one of both sees the
        // other.
        if self.door.is_empty() && self.at_models.are_empty() {
            return;
        }
        let waiting = self.waiting(&self.places.lock());
        match waiting.into_iter().min_by_key(|(_, turn, _)| *turn) {
            Some((_, _, Some(queue))) => queue.wake(),
            Some((_, _, None)) => self.door.wake(),
            None => {}
        }
    }
}

impl Permit {
    /// It was let in beside those that wait for places.
    pub(super) fn is_beside(&self) -> bool {
        self.beside.is_some()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(holder) = self.holder.take() {
            self.permits.places.lock().give_back(&holder);
            self.permits.wake();
        }
        self.permits.at_workers.wake_all();
    }
}
