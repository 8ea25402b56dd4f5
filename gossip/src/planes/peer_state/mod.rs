//! Peer states between replicas: this replica's own sent to the peers, theirs kept as long as they are renewed.

mod publisher;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::watch;

pub(crate) use publisher::Publisher;

use crate::evidence::KnownWorkers;
use crate::metrics::{Fate, Metrics};
use crate::peer_state::{PAUSE, PeerState, PeerStates, ReceivedStates, Taken};
use crate::peers::Reason;
use crate::plane::{Context, Origin, Plane, Surroundings};
use crate::replica::ReplicaId;
use crate::view::View;
use crate::wire::Message;

/// What is read of the others' peer states; readers take no lock. Clones show the same.
#[derive(Clone, Default)]
pub(crate) struct Shown {
    states: Arc<ArcSwap<PeerStates>>,
    changed: watch::Sender<()>,
}

impl Shown {
    /// The latest of each other replica.
    pub(crate) fn states(&self) -> Arc<PeerStates> {
        self.states.load_full()
    }

    /// Wakes whenever that has changed.
    pub(crate) fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

/// This replica's peer state and those of the others.
pub(crate) struct PeerStatePlane {
    publisher: Publisher,
    received: ReceivedStates,
    shown: Shown,
    /// Nothing is sent before.
    rests_until: Option<Instant>,
    metrics: Metrics,
}

impl PeerStatePlane {
    pub(crate) fn new(shown: Shown, metrics: Metrics) -> Self {
        Self {
            publisher: Publisher::default(),
            received: ReceivedStates::default(),
            shown,
            rests_until: None,
            metrics,
        }
    }

    /// Replaces this replica's peer state.
    pub(crate) fn publish(&mut self, state: PeerState, cx: &mut Context) {
        let cut = self.publisher.publish(state, cx.now);
        if self.publisher.has_news() {
            cx.wake();
        }
        for (part, entries) in cut {
            self.metrics.peer_state_cut(part, entries);
        }
    }

    /// Shows what is known now, if anything of it has changed.
    fn show(&self, has_changed: bool) {
        if has_changed {
            self.shown.states.store(Arc::new(self.received.states()));
            self.shown.changed.send_replace(());
        }
    }
}

impl Plane for PeerStatePlane {
    fn names(&self) -> &'static [&'static str] {
        &["bulletin"]
    }

    fn on_message(&mut self, from: Origin<'_>, message: Message, cx: &mut Context) {
        let order = (from.header.generation, from.header.seq);
        let (peer, now) = (from.peer, cx.now);
        let received = &mut self.received;
        let taken = match message {
            Message::Health(part) => received.part(peer, order, Arc::unwrap_or_clone(part), now),
            Message::Usage(part) => received.part(peer, order, Arc::unwrap_or_clone(part), now),
            Message::Quarantine(part) => {
                received.part(peer, order, Arc::unwrap_or_clone(part), now)
            }
            Message::Paces(part) => received.part(peer, order, Arc::unwrap_or_clone(part), now),
            Message::Sightings(part) => received.part(peer, order, Arc::unwrap_or_clone(part), now),
            Message::Heard(part) => received.part(peer, order, Arc::unwrap_or_clone(part), now),
            _ => return,
        };
        self.show(taken == Taken::Fresh);
        let fate = match taken {
            Taken::Fresh => "fresh",
            Taken::Stale => "stale",
            Taken::Gone => "gone",
            Taken::Flood => "flood",
            Taken::TooManySenders => "too_many_senders",
        };
        let parts = &self.metrics.peer_state_parts;
        parts.get_or_create(&Fate { fate }).inc();
        if taken == Taken::Flood {
            cx.strike(peer, Reason::TooMany);
        }
    }

    /// Sends what is due, and drops what is old.
    fn on_tick(&mut self, _: &Surroundings, cx: &mut Context) -> Option<Instant> {
        if let Some(until) = self.rests_until.filter(|until| cx.now < *until) {
            return Some(until);
        }
        let due = self.publisher.due(cx.now);
        self.rests_until = (!due.is_empty()).then_some(cx.now + PAUSE);
        due.into_iter().for_each(|message| cx.send_to_all(message));
        let is_over = self.received.expire(cx.now);
        self.show(is_over);
        let count = self.shown.states().peers().len();
        self.metrics.peer_states.set(count as i64);
        Some(self.rests_until.unwrap_or(cx.now + TICK))
    }

    /// It need not wait for the next renewal.
    fn on_link(&mut self, peer: &ReplicaId, cx: &mut Context) {
        self.received.linked(peer);
        self.publisher.send_again();
        if self.publisher.has_news() {
            cx.wake();
        }
    }

    fn on_left(&mut self, peer: &ReplicaId, _: &mut Context) {
        let was_shown = self.received.left(peer);
        self.show(was_shown);
    }

    /// What is claimed of former workers is not shown.
    fn on_view(&mut self, view: &View, _: &mut Context) {
        let has_changed = self.received.follow(KnownWorkers::new(view));
        self.show(has_changed);
    }
}

#[cfg(test)]
impl super::tests::Remembers for PeerStatePlane {
    fn remembers(&self, peer: &ReplicaId) -> Vec<&'static str> {
        let Self {
            publisher: _,
            received,
            shown,
            rests_until: _,
            metrics: _,
        } = self;
        let states = shown.states();
        let is_shown = states.peers().any(|state| state.replica == *peer);
        super::tests::named([("received", received.remembers(peer)), ("shown", is_shown)])
    }
}

/// How often it is looked what must be renewed and what has grown old.
const TICK: Duration = Duration::from_millis(200);
