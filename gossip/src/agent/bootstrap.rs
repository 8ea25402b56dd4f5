//! How a replica starts: with the registry of a peer, then with the evidence of the peer that holds most of it.
//!
//! One that has just started itself has neither: what it gives of the registry is merged, and others are asked on
//! (`asked.rs`). Of evidence peers hold more or less, so a few are asked how much first, all at once and not for long.
//!
//! Nobody routes by the view meanwhile: a replica is not ready before it has both, or waited in vain.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::seq::SliceRandom;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use super::asked::{Asked, Ended};
use crate::config::{ALONE_AFTER, ROUND, SEEDS_WITHIN, SNAPSHOT_WITHIN};
use crate::driver::{Driver, Hosted, Net};
use crate::facts::fact;
use crate::metrics::Why;
use crate::plane::RequestError;
use crate::planes::{EvidencePlane, RegistryPlane};
use crate::replica::ReplicaId;
use crate::wire::Message;

/// What a starting replica works with. Clones share it.
#[derive(Clone)]
pub(super) struct Bootstrap {
    pub(super) driver: Driver,
    pub(super) registry: Arc<Hosted<RegistryPlane>>,
    pub(super) evidence: Arc<Hosted<EvidencePlane>>,
    /// Peers that are or were asked for everything.
    pub(super) asked: Arc<Mutex<Asked>>,
    /// Wakes who asks when one of them turned out to start as well.
    pub(super) is_newcomer: Arc<Notify>,
    /// Whether evidence was taken. Of several peers that give their registry at once one brings it.
    pub(super) has_evidence: Arc<tokio::sync::Mutex<bool>>,
}

impl Bootstrap {
    /// Asks a peer each round until one has given all, or nobody can.
    pub(super) async fn run(self) {
        let Some(net) = self.driver.net() else {
            return;
        };
        let mut tick = interval(ROUND);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut synced = self.driver.synced().subscribe();
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.is_newcomer.notified() => {}
                // Without its guard, which a branch would hold: `look` reads the same value, and with a writer
                // between the two reads both would wait for ever.
                _ = async { drop(synced.wait_for(|synced| *synced).await) } => return self.driver.look(),
            }
            let mut linked = net.transport.linked();
            let waited = self.driver.started().elapsed();
            // Without a single worker nothing can be served: a replica that has seeds to ask had better be late.
            let waits_on = net.has_seeds && self.registry.lock().registry().digest().count == 0;
            let has_asked_seeds = net.transport.has_asked_seeds();
            // One of several addresses may be that of somebody who shuts this replica out, which is not to be alone.
            let is_asked = has_asked_seeds || waited >= SEEDS_WITHIN;
            let is_alone = linked.is_empty() && waited >= ALONE_AFTER && is_asked && !waits_on;
            if is_alone || waited >= SNAPSHOT_WITHIN {
                self.driver.synced().send_replace(true);
                continue;
            }
            let is_everybody = has_asked_seeds && linked.len() >= net.transport.dialled();
            if self
                .asked
                .lock()
                .are_newcomers_all(&linked, is_everybody, waited)
            {
                let deadline = self.driver.started() + SNAPSHOT_WITHIN;
                if let Ok(Ok(())) = timeout_at(deadline, self.take_evidence(&linked[0])).await {
                    self.driver.synced().send_replace(true);
                }
                continue;
            }
            linked.shuffle(&mut rand::rng());
            let next = self.asked.lock().next(&linked, |id| is_ready(net, id));
            if let Some(peer) = next {
                net.transport.spawn(self.clone().take_all(peer));
            }
        }
    }

    async fn take_all(self, peer: ReplicaId) {
        let (how, reason) = match self.try_take_all(&peer).await {
            Ok(true) => (Ended::Taken, "snapshot"),
            Ok(false) => (Ended::Newcomer, "snapshot"),
            Err(error) => {
                tracing::debug!(replica = %peer, %error, "registry not taken");
                (Ended::Failed, "failed")
            }
        };
        let syncs = &self.driver.metrics().syncs;
        syncs.get_or_create(&Why { reason }).inc();
        self.asked.lock().ended(&peer, how);
        // Who failed is not asked before the next round.
        if how == Ended::Newcomer {
            self.is_newcomer.notify_one();
        }
    }

    /// Whether that was all. A peer that has met nobody gave what it has: that of the cluster is to come.
    async fn try_take_all(&self, peer: &ReplicaId) -> Result<bool, RequestError> {
        let answer = self.driver.request(peer, &Message::SnapshotRequest).await?;
        let is_of_cluster = self.driver.with(&self.registry, |registry, cx| {
            registry.adopt(peer, answer, cx)
        })?;
        if is_of_cluster {
            // After the view: evidence about workers that are not known is of no use.
            self.take_evidence(peer).await?;
            self.driver.synced().send_replace(true);
        }
        Ok(is_of_cluster)
    }

    /// Takes the evidence of the peer that holds most, once; `registry_from` is asked in any case.
    async fn take_evidence(&self, registry_from: &ReplicaId) -> Result<(), RequestError> {
        let mut is_taken = self.has_evidence.lock().await;
        let mut result = Ok(());
        if *is_taken {
            return result;
        }
        for peer in self.survey(registry_from).await.iter().take(TRIED_MAX) {
            result = self.take_evidence_of(peer).await;
            if result.is_ok() {
                *is_taken = true;
                break;
            }
        }
        result
    }

    /// The peers to take from, best first. Ends as soon as enough is known, at the latest after [`SURVEY`].
    async fn survey(&self, registry_from: &ReplicaId) -> Vec<ReplicaId> {
        let mut found: Vec<(Option<u64>, ReplicaId)> = Vec::new();
        let mut asked: Vec<ReplicaId> = Vec::new();
        if let Some(net) = self.driver.net() {
            let deadline = Instant::now() + SURVEY;
            let (tell, mut told) = mpsc::channel(ASKED_MAX);
            let mut tick = interval(SURVEY_STEP);
            loop {
                for peer in self.candidates(net, registry_from) {
                    if asked.len() < ASKED_MAX && !asked.contains(&peer) {
                        asked.push(peer.clone());
                        net.transport
                            .spawn(self.clone().ask_size(peer, tell.clone()));
                    }
                }
                let holding = found.iter().filter(|(size, _)| *size > Some(0)).count();
                let is_everybody =
                    asked.len() == ASKED_MAX || asked.len() >= net.transport.dialled();
                if holding >= HOLDING_ENOUGH || (is_everybody && found.len() == asked.len()) {
                    break;
                }
                let next = async {
                    tokio::select! {
                        answer = told.recv() => answer,
                        _ = tick.tick() => None,
                    }
                };
                match timeout_at(deadline, next).await {
                    Ok(answer) => found.extend(answer),
                    Err(_) => break,
                }
            }
        }
        order(found, registry_from)
    }

    /// Connected peers: first the one that the registry came from, then those that take requests, as far as is known.
    fn candidates(&self, net: &Net, registry_from: &ReplicaId) -> Vec<ReplicaId> {
        let mut linked = net.transport.linked();
        linked.shuffle(&mut rand::rng());
        linked.sort_by_key(|id| (id != registry_from, !is_ready(net, id)));
        linked
    }

    /// Asks one peer how much it holds; `None` if it does not answer: perhaps an earlier release.
    async fn ask_size(self, peer: ReplicaId, tell: mpsc::Sender<(Option<u64>, ReplicaId)>) {
        let question = Message::EvidenceSizeRequest;
        let answer = self.driver.request(&peer, &question).await;
        let first = answer.ok().and_then(|frames| frames.into_iter().next());
        let size = match first.and_then(|received| received.message) {
            Some(Message::EvidenceSize(links)) => Some(links),
            _ => None,
        };
        // Nobody waits for it any more once enough is known.
        let _ = tell.try_send((size, peer));
    }

    /// Takes what one peer believes.
    async fn take_evidence_of(&self, peer: &ReplicaId) -> Result<(), RequestError> {
        let question = Message::EvidenceSnapshotRequest;
        let answer = self.driver.request(peer, &question).await?;
        let (records, listener) = self
            .driver
            .with(&self.evidence, |plane, cx| plane.adopt(answer, cx.now))?;
        let total = records.len();
        // More than the channel holds: the listener works it off meanwhile.
        let deadline = Instant::now() + LISTENER_PATIENCE;
        for (at, record) in records.into_iter().enumerate() {
            let event = record.received_from(peer.clone());
            if !matches!(timeout_at(deadline, listener.send(event)).await, Ok(Ok(()))) {
                let left = total - at;
                self.driver
                    .with(&self.evidence, |plane, _| plane.overrun(peer, left));
                break;
            }
        }
        Ok(())
    }
}

/// Whether a peer takes requests, as far as is known.
fn is_ready(net: &Net, id: &ReplicaId) -> bool {
    let sightings = net.membership.sightings();
    let sightings = sightings.borrow();
    let mut seen = sightings.iter().filter(|seen| seen.id == *id);
    seen.any(|seen| seen.fact(fact::READY) == "1")
}

/// Peers that hold something, by how much; then those that did not answer; then those that hold nothing.
fn order(found: Vec<(Option<u64>, ReplicaId)>, registry_from: &ReplicaId) -> Vec<ReplicaId> {
    let mut found = found;
    if found.iter().all(|(_, peer)| peer != registry_from) {
        found.push((None, registry_from.clone()));
    }
    found.sort_by_key(|(size, _)| match size {
        Some(0) => (2, Reverse(0)),
        Some(links) => (0, Reverse(*links)),
        None => (1, Reverse(0)),
    });
    found.into_iter().map(|(_, peer)| peer).collect()
}

/// How long peers are asked how much they hold, from the first question.
const SURVEY: Duration = Duration::from_millis(300);
/// How often new connections are looked for meanwhile.
const SURVEY_STEP: Duration = Duration::from_millis(20);
/// Peers that are asked.
const ASKED_MAX: usize = 8;
/// Peers that hold something: the best of them will do.
const HOLDING_ENOUGH: usize = 3;
/// Peers that a snapshot is asked from, one after the other.
const TRIED_MAX: usize = 3;
/// How long a starting replica waits for its listener to take the snapshot.
const LISTENER_PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_comes_first() {
        let id = |name: &str| name.parse::<ReplicaId>().expect("valid");
        let check = |found: &[(Option<u64>, &str)], expected: &[&str]| {
            let found = found.iter().map(|(size, name)| (*size, id(name)));
            let order = order(found.collect(), &id("r"));
            assert_eq!(
                order,
                expected.iter().map(|name| id(name)).collect::<Vec<_>>()
            );
        };
        check(&[], &["r"]);
        check(
            &[(Some(0), "r"), (Some(5), "a"), (Some(9), "b")],
            &["b", "a", "r"],
        );
        check(
            &[(Some(0), "a"), (None, "b"), (Some(1), "c")],
            &["c", "b", "r", "a"],
        );
        check(&[(Some(0), "r"), (None, "old")], &["old", "r"]);
    }
}
