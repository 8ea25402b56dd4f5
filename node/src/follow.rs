//! The one task that listens to gossip: every new view becomes a fleet, every word of evidence knowledge.
//!
//! One task, so that a worker is known before evidence about it is learned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use grapevine_gossip::Agent;
use grapevine_gossip::evidence::Heard;
use grapevine_gossip::view::View;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::agreement::Views;
use crate::cluster::Cluster;
use crate::shutdown::Phase;
use crate::upstream::probe::Prober;

/// How often heat is reported and memory returned.
const TICK: Duration = Duration::from_secs(1);
/// Most records that are learned under one lock.
const HEARD_AT_ONCE: usize = 64;

/// What the task keeps up to date.
pub struct Follower {
    /// Where views and evidence come from.
    pub agent: Arc<Agent>,
    /// What becomes of them.
    pub cluster: Arc<Cluster>,
    /// Probes the fleet's workers.
    pub prober: Prober,
    /// Compares what replicas say.
    pub views: Views,
    /// Whether the view may be used.
    pub caught_up: Arc<AtomicBool>,
    /// Where this replica is between start and end.
    pub phase: Phase,
}

impl Follower {
    /// Follows until the replica ends.
    pub async fn run(mut self, mut heard: mpsc::Receiver<Heard>) {
        let mut views = self.agent.watch();
        let mut ready = self.agent.ready();
        let mut followed: Option<Arc<View>> = None;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said_ready = None;
        let mut batch = Vec::with_capacity(HEARD_AT_ONCE);
        loop {
            let view = Arc::clone(&views.borrow_and_update());
            if followed.as_ref().is_none_or(|old| !Arc::ptr_eq(old, &view)) {
                self.follow(followed.as_deref(), &view);
                followed = Some(view);
            }
            let holds_view = *ready.borrow_and_update();
            self.caught_up.store(holds_view, Ordering::Relaxed);
            let is_ready = self.phase.is_ready();
            if said_ready.replace(is_ready) != Some(is_ready) {
                self.agent.set_ready(is_ready);
            }
            // Evidence about a new worker comes after the view that has it.
            tokio::select! {
                biased;
                () = self.phase.closed() => return,
                changed = views.changed() => if changed.is_err() { return },
                changed = ready.changed() => if changed.is_err() { return },
                _ = tick.tick() => self.cluster.tick(),
                _ = heard.recv_many(&mut batch, HEARD_AT_ONCE), if !heard.is_closed() => {
                    self.cluster.knowledge().hear(batch.drain(..));
                }
            }
        }
    }

    fn follow(&mut self, old: Option<&View>, view: &View) {
        // Most views differ in what replicas say of themselves; rings are built when workers change.
        if old.is_none_or(|old| old.workers() != view.workers()) {
            self.cluster.update(view);
            self.prober.follow(&self.cluster.fleet());
        }
        let digest = self.cluster.fleet().digest().to_string();
        self.agent.set_ring(&digest);
        self.views.update(view, &digest);
    }
}
