//! What the driver does by the clock: calls planes when their time has come, and looks round for all of them.

use std::sync::Arc;

use tokio::time::{MissedTickBehavior, interval, sleep_until};

use super::{Driver, Hosted};
use crate::config::ROUND;
use crate::facts::SeenReplica;
use crate::plane::{Plane, Seen};

impl Driver {
    /// Calls one plane whenever its time has come or it is woken. Never ends.
    pub(super) async fn run(self, plane: Arc<Hosted<dyn Plane>>) {
        loop {
            let around = self.surroundings();
            let next = self.with(&plane, |plane, cx| plane.on_tick(&around, cx));
            let due = async {
                match next {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = plane.wake.notified() => {}
            }
        }
    }

    /// Looks at membership and transport, each round and when either has news. Never ends.
    pub(super) async fn rounds(self) {
        let Some(net) = self.net() else {
            return;
        };
        let mut sightings = net.membership.sightings();
        let mut alive = net.membership.alive();
        let mut tick = interval(ROUND);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                Ok(()) = sightings.changed() => {}
                Ok(()) = alive.changed() => {}
            }
            sightings.mark_unchanged();
            alive.mark_unchanged();
            self.look();
        }
    }

    /// One look for all planes, which are woken to use it.
    pub(crate) fn look(&self) {
        let Some(net) = self.net() else {
            return;
        };
        let transport = &net.transport;
        let sightings = net.membership.sightings().borrow().clone();
        // Only the generation that a replica proved to us counts: former ones linger in chitchat.
        let proven =
            |seen: &SeenReplica| transport.generation_of(&seen.id) == Some(seen.generation);
        let others: Vec<_> = sightings.into_iter().filter(proven).collect();
        let live = others.iter().filter(|seen| seen.live).count();
        let metrics = self.metrics();
        metrics.peers_live.set(live as i64);
        metrics.peers_linked.set(transport.linked().len() as i64);
        metrics.isolated.set(i64::from(live == 0));
        let is_synced = *self.synced().borrow();
        self.0.seen.store(Arc::new(Seen {
            others,
            generation: transport.generation(),
            ways: transport.one_ways(),
            twins: transport.twins(),
            kept_instead: transport.kept_instead(),
            address: Some(transport.address()),
            is_synced,
            draw: rand::random(),
        }));
        for plane in &self.0.planes {
            plane.wake.notify_one();
        }
        let is_ready = *net.membership.alive().borrow() && is_synced;
        self.ready()
            .send_if_modified(|ready| std::mem::replace(ready, is_ready) != is_ready);
    }
}
