//! What the rule remembers between steps: since when things are as they are, and which of two descriptions is newer.

use std::collections::BTreeMap;
use std::sync::Arc;

use grapevine_gossip::worker::{Labels, WorkerId, WorkerSpec};
use tokio::time::Instant;

use super::Entries;
use crate::picture::Picture;

/// How a picture differs from the registry in one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Situation {
    /// Seen, and never registered.
    New,
    /// Seen, and removed.
    Removed,
    /// Seen with this description, and registered with another one.
    Differs(u32),
    /// Seen as it is registered, without all labels that it is seen with.
    Unlabelled,
    /// Registered, and not seen.
    Missing,
}

#[derive(Debug)]
struct Wait {
    situation: Situation,
    since: Instant,
    /// Since when no other replica sees it either.
    agreed: Option<Agreed>,
}

#[derive(Clone, Copy, Debug)]
struct Agreed {
    since: Instant,
    /// This replica sees no worker at all.
    is_emptied: bool,
}

/// The last change of one side, counted in steps.
#[derive(Debug, Default)]
struct Change<T> {
    last: T,
    at: u64,
}

#[derive(Debug, Default)]
struct Sides {
    picture: Change<Option<WorkerSpec>>,
    registry: Change<Option<Option<Arc<WorkerSpec>>>>,
    /// The labels that it was last seen with; `None` before it was seen.
    labels: Option<Labels>,
    /// They changed since the registry had all of them.
    has_new_labels: bool,
}

/// Bounded by the picture and the registry: what is in neither is forgotten.
#[derive(Debug, Default)]
pub(super) struct Memory {
    step: u64,
    sides: BTreeMap<WorkerId, Sides>,
    waits: BTreeMap<WorkerId, Wait>,
    next_look: Option<Instant>,
}

impl Memory {
    /// Notes what changed since the last step, on either side.
    pub(super) fn look(&mut self, picture: &Picture, entries: &Entries) {
        self.step += 1;
        self.next_look = None;
        let seen = picture.iter().map(|(id, _)| id);
        for id in seen.chain(entries.keys()) {
            if !self.sides.contains_key(id) {
                self.sides.insert(id.clone(), Sides::default());
            }
        }
        let step = self.step;
        let removed = None;
        self.sides.retain(|id, sides| {
            let found = picture.get(id);
            if let Some(found) = found
                && sides.labels.as_ref() != Some(found.labels())
            {
                sides.has_new_labels |= sides.labels.is_some();
                sides.labels = Some(found.labels().clone());
            }
            let seen = found.map(crate::Found::spec);
            if sides.picture.last.as_ref() != seen {
                sides.picture = Change {
                    last: seen.cloned(),
                    at: step,
                };
            }
            // The registry forgets a removal after a day, and sooner where there are many. A worker that is seen all that
            // time is none that appears.
            let is_forgotten = seen.is_some() && sides.registry.last.is_some();
            let entry = entries.get(id).or(is_forgotten.then_some(&removed));
            if sides.registry.last.as_ref() != entry {
                sides.registry = Change {
                    last: entry.cloned(),
                    at: step,
                };
            }
            seen.is_some() || entry.is_some()
        });
        let sides = &self.sides;
        self.waits.retain(|id, _| sides.contains_key(id));
    }

    /// Whether this worker was removed, for all that is remembered here. The registry may know nothing of it any more.
    pub(super) fn is_removed(&self, id: &WorkerId) -> bool {
        let sides = self.sides.get(id);
        sides.is_some_and(|sides| matches!(sides.registry.last, Some(None)))
    }

    /// Whether the picture of this worker changed after the registry did.
    pub(super) fn is_news(&self, id: &WorkerId) -> bool {
        self.sides
            .get(id)
            .is_some_and(|sides| sides.picture.at > sides.registry.at)
    }

    /// Whether the source declares other labels of this worker than before.
    pub(super) fn has_new_labels(&self, id: &WorkerId) -> bool {
        self.sides.get(id).is_some_and(|sides| sides.has_new_labels)
    }

    /// The registry has them.
    pub(super) fn settle_labels(&mut self, id: &WorkerId) {
        if let Some(sides) = self.sides.get_mut(id) {
            sides.has_new_labels = false;
        }
    }

    /// Since when the worker has been in this situation.
    pub(super) fn waits_since(
        &mut self,
        id: &WorkerId,
        situation: Situation,
        now: Instant,
    ) -> Instant {
        let wait = self.waits.get(id);
        if let Some(wait) = wait.filter(|wait| wait.situation == situation) {
            return wait.since;
        }
        let wait = Wait {
            situation,
            since: now,
            agreed: None,
        };
        self.waits.insert(id.clone(), wait);
        now
    }

    /// Since when nobody sees it, from now on if somebody did until now; and while others are back where all were gone:
    /// what was waited for then was another thing.
    pub(super) fn agreed_since(
        &mut self,
        id: &WorkerId,
        is_emptied: bool,
        now: Instant,
    ) -> Instant {
        let Some(wait) = self.waits.get_mut(id) else {
            return now;
        };
        let goes_on = |before: &Agreed| is_emptied || !before.is_emptied;
        let before = wait.agreed.filter(goes_on);
        let since = before.map_or(now, |before| before.since);
        wait.agreed = Some(Agreed { since, is_emptied });
        since
    }

    /// Another replica sees it.
    pub(super) fn contest(&mut self, id: &WorkerId) {
        if let Some(wait) = self.waits.get_mut(id) {
            wait.agreed = None;
        }
    }

    /// The picture and the registry agree on the worker.
    pub(super) fn settle(&mut self, id: &WorkerId) {
        self.waits.remove(id);
    }

    /// The source cannot be seen: every wait begins anew when it can.
    pub(super) fn forget_waits(&mut self) {
        self.waits.clear();
        self.next_look = None;
    }

    /// There may be something to do at `at`.
    pub(super) fn look_again(&mut self, at: Instant) {
        self.next_look = Some(self.next_look.map_or(at, |next| next.min(at)));
    }

    /// When there may be something to do, without any change.
    pub(super) fn take_next_look(&mut self) -> Option<Instant> {
        self.next_look.take()
    }
}
