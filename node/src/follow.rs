//! The one task that receives from gossip: every new view becomes a fleet, all evidence goes to the cache view.
//!
//! One task, so that a worker is known before evidence about it is learned. A fleet costs time in proportion to the
//! workers, so it is made beside the requests, and after one the task rests before the next: workers that come in a
//! row make a few fleets, not one each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use grapevine_gossip::Agent;
use grapevine_gossip::evidence::EvidenceEvent;
use grapevine_gossip::view::View;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::cluster::Cluster;
use crate::cluster::agreement::Views;
use crate::kv_events::KvFollower;
use crate::shutdown::Phase;
use crate::upstream::probe::Prober;

/// How often heat is reported and memory returned.
const TICK: Duration = Duration::from_secs(1);
/// Rest after a fleet, in times of what it took: fleets take at most a quarter of a processor.
const REST: u32 = 3;
/// Longest rest.
const REST_MAX: Duration = Duration::from_millis(300);
/// Most records that are taken from gossip at once.
const HEARD_AT_ONCE: usize = 64;

/// What the task keeps up to date.
pub struct Follower {
    /// Where views and evidence come from.
    pub agent: Arc<Agent>,
    /// What becomes of them.
    pub cluster: Arc<Cluster>,
    /// Probes the fleet's workers.
    pub prober: Prober,
    /// Hears what its workers say of their caches, unless that is off.
    pub kv_events: Option<KvFollower>,
    /// Compares what replicas say.
    pub views: Views,
    /// Whether the registry has the labels of configured workers, or does not take them. A request that is divided
    /// before would be divided in a way that the engines may refuse.
    pub is_labelled: watch::Receiver<bool>,
    /// Whether the view may be used.
    pub caught_up: Arc<AtomicBool>,
    /// Where this replica is between start and end.
    pub phase: Phase,
}

impl Follower {
    /// Follows until the replica ends.
    pub async fn run(mut self, mut heard: mpsc::Receiver<EvidenceEvent>) {
        let mut views = Unfollowed::new(self.agent.watch());
        let mut ready = self.agent.ready();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut batch = Vec::with_capacity(HEARD_AT_ONCE);
        let mut rests_until = Instant::now();
        loop {
            // Asked before the view is taken: a view that is complete later may not be followed yet.
            let is_labelled = *self.is_labelled.borrow_and_update();
            let holds_view = *ready.borrow_and_update() && is_labelled;
            let began = Instant::now();
            let waits = views.is_behind() && began < rests_until;
            if !waits && let Some((old, view)) = views.take() {
                if !self.follow(old.as_deref(), &view).await {
                    // The next one is compared with the last whose fleet there is.
                    views.followed = old;
                }
                let took = began.elapsed();
                rests_until = Instant::now() + (took * REST).min(REST_MAX);
            }
            if !waits {
                self.caught_up.store(holds_view, Ordering::Relaxed);
            }
            // Evidence about a new worker comes after the view that has it, so it waits until that is followed.
            tokio::select! {
                biased;
                () = self.phase.closed() => return,
                is_over = views.changed() => if is_over { return },
                changed = ready.changed() => if changed.is_err() { return },
                changed = self.is_labelled.changed(), if !is_labelled => if changed.is_err() { return },
                () = sleep_until(rests_until), if waits => {}
                _ = tick.tick() => self.cluster.tick(),
                _ = heard.recv_many(&mut batch, HEARD_AT_ONCE), if !waits && !heard.is_closed() => {
                    self.cluster.cache_view().receive(batch.drain(..));
                }
            }
        }
    }

    /// False where no fleet could be made of it.
    async fn follow(&mut self, old: Option<&View>, view: &Arc<View>) -> bool {
        // Most views differ in what replicas say of themselves; rings are built when workers change.
        if old.is_none_or(|old| old.workers() != view.workers()) {
            let (cluster, view) = (Arc::clone(&self.cluster), Arc::clone(view));
            let updated = spawn_blocking(move || cluster.update(&view)).await;
            if let Err(error) = updated {
                // A bug; this replica goes on with the workers that it had, and follows the next view.
                tracing::error!(%error, "no fleet can be made of the registry's workers; the former one stays");
                return false;
            }
            self.prober.follow(self.cluster.fleet().workers());
            if let Some(kv_events) = &mut self.kv_events {
                kv_events.follow(self.cluster.fleet().workers());
            }
        }
        self.cluster.has_followed(view);
        let digest = self.cluster.fleet().digest().to_string();
        self.agent.set_ring(&digest);
        // Of the latest view: this one was made before the ring.
        self.views.update(&self.agent.view(), &digest);
        true
    }
}

/// The views, and which of them was followed. A digest that is put into a view silently makes it no new one.
struct Unfollowed {
    latest: watch::Receiver<Arc<View>>,
    is_behind: bool,
    followed: Option<Arc<View>>,
}

impl Unfollowed {
    fn new(latest: watch::Receiver<Arc<View>>) -> Self {
        Self {
            latest,
            is_behind: true,
            followed: None,
        }
    }

    /// Waits for a view that was not followed; true once there are no more.
    async fn changed(&mut self) -> bool {
        let changed = self.latest.changed().await;
        // The wait has marked it as seen.
        self.is_behind |= changed.is_ok();
        changed.is_err()
    }

    /// Whether there is a view that was not followed. Looking at it makes `latest` wait for the next one.
    fn is_behind(&mut self) -> bool {
        self.is_behind |= self.latest.borrow_and_update().has_changed();
        self.is_behind
    }

    /// The view that is to be followed, and the one that was followed before; `None` if there is no new one.
    fn take(&mut self) -> Option<(Option<Arc<View>>, Arc<View>)> {
        if !self.is_behind() {
            return None;
        }
        let view = Arc::clone(&self.latest.borrow_and_update());
        self.is_behind = false;
        Some((self.followed.replace(Arc::clone(&view)), view))
    }
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::Metrics;
    use grapevine_gossip::config::Facts;
    use grapevine_gossip::worker::{RawWorker, WorkerSpec};

    use super::*;

    #[tokio::test]
    async fn what_was_waited_for_is_followed() {
        let agent = Agent::solo("c", "r1", &Facts::default(), Metrics::default()).expect("valid");
        let mut views = Unfollowed::new(agent.watch());
        assert!(views.take().is_some(), "the first one");
        let spec = WorkerSpec::new(RawWorker::at("http://w:8000")).expect("a worker");
        agent.configure(spec.default_id(), spec).expect("room");
        assert!(!views.changed().await);
        let (_, view) = views.take().expect("a view that is new");
        assert_eq!(view.workers().len(), 1);
        assert!(views.take().is_none());
    }

    #[test]
    fn each_change_of_the_workers_is_followed_once() {
        let agent = Agent::solo("c", "r1", &Facts::default(), Metrics::default()).expect("valid");
        let mut views = Unfollowed::new(agent.watch());
        let mut walks = |agent: &Agent| {
            let mut walks = 0;
            while let Some((_, view)) = views.take() {
                walks += 1;
                agent.set_ring(&format!("ring of {}", view.workers().len()));
            }
            walks
        };
        assert_eq!(walks(&agent), 1, "the first one");
        for number in 0..3 {
            let spec = WorkerSpec::new(RawWorker::at(format!("http://w{number}:8000")));
            let id = format!("w{number}").parse().expect("an id");
            agent.configure(id, spec.expect("a worker")).expect("room");
            assert_eq!(walks(&agent), 1);
            let ring = format!("ring of {}", number + 1);
            assert_eq!(agent.view().replicas()[0].ring, ring);
        }
        assert_eq!(walks(&agent), 0);
    }
}
