//! What the driver does by the clock: calls planes when their time has come, and looks round for all of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::{Driver, Hosted, Net};
use crate::config::{HEARD_WITHIN, ROUND};
use crate::facts::SeenReplica;
use crate::plane::{Plane, Seen};

/// How long a plane rests that panicked: a mistake that repeats must not take a core.
const REST: Duration = Duration::from_secs(1);

/// What a turn gives; none if it panicked, which is a mistake and in the log. A plane without any further turn would send
/// nothing for as long as the process lives, and the next one may go well.
fn guarded<T>(turn: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(turn)).ok()
}

impl Driver {
    /// Calls one plane whenever its time has come or it is woken. Never ends.
    pub(super) async fn run(self, plane: Arc<Hosted<dyn Plane>>) {
        loop {
            let around = self.surroundings();
            let turn = || self.with(&plane, |plane, cx| plane.on_tick(&around, cx));
            let Some(next) = guarded(turn) else {
                sleep(REST).await;
                continue;
            };
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
            guarded(|| self.look());
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
        let is_up = *net.membership.alive().borrow() && is_synced;
        let mut hearing = self.0.hearing.lock();
        let is_ready = hearing.judge(is_up, || self.hears_all(net), Instant::now());
        self.ready()
            .send_if_modified(|ready| std::mem::replace(ready, is_ready) != is_ready);
    }

    /// Whether the view has every connected peer as alive.
    fn hears_all(&self, net: &Net) -> bool {
        let view = Arc::clone(&self.view().borrow());
        let linked = net.transport.linked();
        linked.iter().all(|peer| view.is_live(peer))
    }
}

/// Keeps a replica that starts from being ready before the peers that it is connected to count as alive, for which the
/// failure detector takes some heartbeats: one that counts itself alone takes all of what is shared. Pure.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    began: Option<Instant>,
    is_over: bool,
}

impl Hearing {
    /// Whether the replica is ready; `is_up`: the gossip task runs, and there is a registry.
    fn judge(&mut self, is_up: bool, hears_all: impl FnOnce() -> bool, now: Instant) -> bool {
        if !is_up {
            return false;
        }
        let began = *self.began.get_or_insert(now);
        self.is_over = self.is_over || now - began >= HEARD_WITHIN || hears_all();
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connected_peers_are_heard_first_but_not_waited_for_long() {
        let began = Instant::now();
        let check = |hearing: &mut Hearing, is_up, hears_all, after: Duration, expected| {
            let is_ready = hearing.judge(is_up, || hears_all, began + after);
            assert_eq!(is_ready, expected, "after {after:?}");
        };
        let mut heard = Hearing::default();
        check(&mut heard, false, true, Duration::ZERO, false);
        check(&mut heard, true, false, ROUND, false);
        check(&mut heard, true, true, HEARD_WITHIN, true);
        // One that comes later is not waited for; the gossip task is.
        check(&mut heard, true, false, HEARD_WITHIN, true);
        check(&mut heard, false, true, HEARD_WITHIN, false);
        check(&mut heard, true, false, HEARD_WITHIN, true);

        let mut one_hangs = Hearing::default();
        check(&mut one_hangs, true, false, ROUND, false);
        check(&mut one_hangs, true, false, HEARD_WITHIN, false);
        check(&mut one_hangs, true, false, ROUND + HEARD_WITHIN, true);
    }
}
