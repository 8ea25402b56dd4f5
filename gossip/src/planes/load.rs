//! The load plane's messages: frames out when they are due, frames of others in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::load::{Applied, LoadBoard, LoadFrame, LoadPlane};
use crate::metrics::{Metrics, Why};
use crate::plane::{Context, Origin, Plane, Seen, Surroundings};
use crate::replica::ReplicaId;
use crate::view::View;
use crate::wire::Message;

/// [`LoadPlane`] among the planes of an agent.
pub(crate) struct LoadMessages {
    pub(crate) plane: LoadPlane,
    metrics: Metrics,
    /// When it is next looked whether a frame is due.
    look: Instant,
    /// The time that was asked for last: a frame that counts before it wakes the plane.
    called: Instant,
    /// The look at the other replicas that was used last.
    seen: Arc<Seen>,
}

impl LoadMessages {
    /// As [`LoadPlane::new`].
    pub(crate) fn new(
        board: Arc<LoadBoard>,
        damping: fn(Duration) -> f64,
        batch: Duration,
        metrics: Metrics,
        now: Instant,
    ) -> Self {
        Self {
            plane: LoadPlane::new(board, damping, batch),
            metrics,
            look: now,
            called: now,
            seen: Arc::default(),
        }
    }

    /// The frame that is due now, and the others' sums to the board.
    fn look(&mut self, now: Instant) -> Option<LoadFrame> {
        if now < self.look {
            return None;
        }
        if self.plane.must_sum(now) {
            self.plane.aggregate(now);
            self.metrics.load_cut.set(i64::from(self.plane.cut()));
        }
        let frame = self.plane.collect(now);
        self.look = self.plane.next_look(now);
        frame
    }
}

impl Plane for LoadMessages {
    fn names(&self) -> &'static [&'static str] {
        &["load"]
    }

    fn on_message(&mut self, from: Origin<'_>, message: Message, cx: &mut Context) {
        let Message::Load(frame) = message else {
            return;
        };
        let header = from.header;
        let applied = self
            .plane
            .apply(from.peer, header.generation, header.seq, &frame, cx.now);
        let reason = match applied {
            Applied::Fresh => "fresh",
            Applied::Stale => "stale",
            Applied::OtherWorkers => "other_roster",
            Applied::Malformed => "malformed",
            Applied::TooManySenders => "too_many_senders",
        };
        let frames = &self.metrics.load_frames;
        frames.get_or_create(&Why { reason }).inc();
        if applied == Applied::Malformed {
            cx.refuse(from.peer);
        }
        let settles = self.plane.settle(cx.now);
        if settles.is_some_and(|settles| settles < self.called) {
            cx.wake();
        }
    }

    fn on_tick(&mut self, around: &Surroundings, cx: &mut Context) -> Option<Instant> {
        let live = around.seen.others.iter().filter(|seen| seen.live).count();
        self.plane.set_live(1 + live as u32);
        if !Arc::ptr_eq(&self.seen, &around.seen) {
            self.plane.set_ways(&around.seen.ways);
            self.seen = Arc::clone(&around.seen);
        }
        // Before the sums are made: what is due counts from before.
        self.plane.settle(cx.now);
        if let Some(frame) = self.look(cx.now) {
            cx.send_to_all(Message::Load(frame));
        }
        let settles = self.plane.settle(cx.now);
        self.called = settles.map_or(self.look, |settles| settles.min(self.look));
        Some(self.called)
    }

    fn on_link(&mut self, peer: &ReplicaId, _: &mut Context) {
        self.plane.linked(peer);
    }

    fn on_left(&mut self, peer: &ReplicaId, cx: &mut Context) {
        self.plane.left(peer, cx.now);
    }

    fn on_view(&mut self, view: &View, _: &mut Context) {
        self.plane.follow(view);
    }
}

#[cfg(test)]
impl super::tests::Remembers for LoadMessages {
    fn remembers(&self, peer: &ReplicaId) -> Vec<&'static str> {
        let Self {
            plane,
            metrics: _,
            look: _,
            called: _,
            seen: _,
        } = self;
        super::tests::named([("senders", plane.remembers(peer))])
    }
}
