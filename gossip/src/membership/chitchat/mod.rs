//! Which replicas are alive: chitchat 0.11.1 over our transport, supervised.
//!
//! chitchat is used for liveness and for a handful of tiny facts, nothing else. Its task can end
//! while the process lives, with membership frozen, and only its termination watcher shows it. So one
//! task here owns it: when it ends, readiness goes, and it starts again under a higher generation.
//!
//! - `again.rs`: when own facts are written again.
//! - `judge.rs`: stands before chitchat and judges every byte of a peer (`parse.rs`, `peers/heartbeat_claim.rs`).
//! - `known_attacks.rs`: every message that is known to break chitchat.
//!
//! Own facts are written again each minute, under higher versions, and sooner above those that a peer holds of them: a liar
//! may have forged some where this replica was not heard for a while, and chitchat keeps whatever is higher.
//!
//! A generation never repeats: with the same one twice, two replicas' copies of a third diverge for
//! ever. It is the start time, or one above the highest that anybody has seen of our id.

mod again;
mod judge;
#[cfg(test)]
mod judge_tests;
#[cfg(test)]
mod known_attacks;
mod parse;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport as GossipTransport};
use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, ChitchatMessage, Deserializable,
    FailureDetectorConfig, NodeState, Serializable, spawn_chitchat,
};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::again::Again;
use crate::config::ROUND;
use crate::facts::{FactMap, SeenReplica, fact};
use crate::metrics::Metrics;
use crate::peers::is_plausible_generation;
use crate::replica::ReplicaId;
use crate::transport::Transport;

/// Handle of the supervised gossip task. Clones share it.
#[derive(Clone)]
pub(crate) struct Membership {
    /// Messages that the judge passed, for chitchat.
    inbox: mpsc::Sender<(SocketAddr, Vec<u8>)>,
    /// Addresses that chitchat should greet.
    greetings: mpsc::Sender<SocketAddr>,
    facts: Arc<watch::Sender<FactMap>>,
    outrun: Arc<watch::Sender<u64>>,
    /// A generation of ours, and the greatest version of its keys that a peer holds.
    outdone: Arc<watch::Sender<(u64, u64)>>,
    sightings: watch::Receiver<Vec<SeenReplica>>,
    alive: watch::Receiver<bool>,
    transport: Transport,
    metrics: Metrics,
    /// Makes the gossip task panic in its next turn; for tests.
    #[cfg(debug_assertions)]
    tripped: Arc<AtomicBool>,
}

impl Membership {
    /// Starts the supervised task; it ends when `stop` is cancelled.
    pub(crate) fn start(
        cluster: &str,
        replica: &ReplicaId,
        generation: u64,
        facts: FactMap,
        transport: &Transport,
        metrics: &Metrics,
        stop: &CancellationToken,
    ) -> Self {
        let (inbox, waiting) = mpsc::channel(INBOX);
        let (greetings, to_greet) = mpsc::channel(GREETINGS);
        let (facts, new_facts) = watch::channel(facts);
        let (outrun, seen) = watch::channel(0);
        let (outdone, held) = watch::channel((0, 0));
        let (sightings_out, sightings) = watch::channel(Vec::new());
        let (alive_out, alive) = watch::channel(false);
        #[cfg(debug_assertions)]
        let tripped = Arc::<AtomicBool>::default();
        let task = Supervisor {
            cluster: cluster.to_owned(),
            replica: replica.clone(),
            transport: transport.clone(),
            waiting: Arc::new(Mutex::new(waiting)),
            to_greet,
            facts: new_facts,
            seen,
            held,
            sightings: sightings_out,
            alive: alive_out,
            metrics: metrics.clone(),
            stop: stop.clone(),
            #[cfg(debug_assertions)]
            tripped: tripped.clone(),
            stillness: Stillness::default(),
        };
        transport.spawn(task.run(generation));
        Self {
            inbox,
            greetings,
            facts: Arc::new(facts),
            outrun: Arc::new(outrun),
            outdone: Arc::new(outdone),
            sightings,
            alive,
            transport: transport.clone(),
            metrics: metrics.clone(),
            #[cfg(debug_assertions)]
            tripped,
        }
    }

    /// Makes the gossip task panic within a round.
    #[cfg(debug_assertions)]
    pub(crate) fn trip(&self) {
        self.tripped.store(true, Ordering::Relaxed);
    }

    /// Hands a message to chitchat; dropped and counted if it does not keep up.
    pub(crate) fn deliver(&self, from: SocketAddr, bytes: Vec<u8>) {
        if self.inbox.try_send((from, bytes)).is_err() {
            self.metrics.dropped("gossip_inbox_full");
        }
    }

    /// Begins an exchange with a replica that chitchat may not know yet.
    pub(crate) fn greet(&self, address: SocketAddr) {
        if self.greetings.try_send(address).is_err() {
            self.metrics.dropped("greetings_full");
        }
    }

    /// Sends the others a new value of a fact.
    pub(crate) fn tell(&self, name: &'static str, value: &str) {
        self.facts.send_if_modified(|facts| {
            facts.insert(name, value.to_owned()).as_deref() != Some(value)
        });
    }

    /// Someone has seen this generation of our id: start again above it.
    pub(crate) fn outrun(&self, seen: u64) {
        if !is_plausible_generation(seen, self.transport.unix_ms()) {
            if self.transport.may_log("absurd_generation") {
                tracing::error!(
                    seen,
                    "ignored an absurd generation of this replica that a peer claims to have seen"
                );
            }
            return;
        }
        self.outrun.send_if_modified(|highest| {
            let is_news = seen > *highest;
            *highest = seen.max(*highest);
            is_news
        });
    }

    /// A peer holds this version of our own keys, of this generation: write them above it.
    pub(crate) fn outdone(&self, version: u64) {
        let held = (self.transport.generation(), version);
        self.outdone.send_if_modified(|highest| {
            let is_news = held > *highest;
            *highest = held.max(*highest);
            is_news
        });
    }

    /// All replicas that chitchat knows, this one left out; updated each round.
    pub(crate) fn sightings(&self) -> watch::Receiver<Vec<SeenReplica>> {
        self.sightings.clone()
    }

    /// Whether the gossip task runs.
    pub(crate) fn alive(&self) -> watch::Receiver<bool> {
        self.alive.clone()
    }
}

/// A generation for `now_ms` in Unix milliseconds, above everything seen.
pub(crate) fn next_generation(seen: u64, now_ms: u64) -> u64 {
    now_ms.max(seen.saturating_add(1))
}

struct Supervisor {
    cluster: String,
    replica: ReplicaId,
    transport: Transport,
    waiting: Inbox,
    to_greet: mpsc::Receiver<SocketAddr>,
    facts: watch::Receiver<FactMap>,
    seen: watch::Receiver<u64>,
    held: watch::Receiver<(u64, u64)>,
    sightings: watch::Sender<Vec<SeenReplica>>,
    alive: watch::Sender<bool>,
    metrics: Metrics,
    stop: CancellationToken,
    #[cfg(debug_assertions)]
    tripped: Arc<AtomicBool>,
    stillness: Stillness,
}

type Inbox = Arc<Mutex<mpsc::Receiver<(SocketAddr, Vec<u8>)>>>;

/// Why one life of the gossip task ended.
enum Ended {
    Stopped,
    Failed(String),
    Outrun(u64),
}

impl Supervisor {
    async fn run(mut self, mut generation: u64) {
        loop {
            let ended = self.live(generation).await;
            self.alive.send_replace(false);
            let seen = match ended {
                Ended::Stopped => return,
                Ended::Failed(problem) => {
                    tracing::error!(
                        problem,
                        "the gossip task ended; starting it again under a higher generation"
                    );
                    sleep(RESTART_PAUSE).await;
                    generation
                }
                Ended::Outrun(seen) => {
                    tracing::warn!(
                        seen,
                        generation,
                        "others know a later start of this replica; starting again above it"
                    );
                    seen
                }
            };
            generation = next_generation(seen.max(generation), self.transport.unix_ms());
            self.metrics.restarts.inc();
            self.transport.renew(generation);
        }
    }

    /// One life of the gossip task.
    async fn live(&mut self, generation: u64) -> Ended {
        let facts = self.facts.borrow_and_update().clone();
        // Each fact will take one version. The judge must know before a peer can.
        self.transport.own_version(facts.len() as u64);
        let initial = facts
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        let door = Door {
            transport: self.transport.clone(),
            waiting: self.waiting.clone(),
            metrics: self.metrics.clone(),
            #[cfg(debug_assertions)]
            tripped: self.tripped.clone(),
        };
        let handle = match spawn_chitchat(self.config(generation), initial, &door).await {
            Ok(handle) => handle,
            Err(error) => return Ended::Failed(error.to_string()),
        };
        self.alive.send_replace(true);
        let ended = self.attend(&handle, generation).await;
        // Bounded: a task that hangs must not hang us.
        let _ = handle.initiate_shutdown();
        let ending = handle.termination_watcher();
        if timeout(STOP_WITHIN, ending).await.is_err() {
            handle.abort();
        }
        ended
    }

    async fn attend(&mut self, handle: &ChitchatHandle, generation: u64) -> Ended {
        let mut termination = std::pin::pin!(handle.termination_watcher());
        let mut round = tokio::time::interval(ROUND);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut again = Again::new(Instant::now());
        loop {
            tokio::select! {
                result = &mut termination => {
                    let problem = result.err().map_or_else(|| "it stopped".to_owned(), |error| error.to_string());
                    return Ended::Failed(problem);
                }
                () = self.stop.cancelled() => return Ended::Stopped,
                Ok(()) = self.seen.changed() => {
                    let seen = *self.seen.borrow_and_update();
                    if seen >= generation {
                        return Ended::Outrun(seen);
                    }
                }
                Ok(()) = self.facts.changed() => self.publish(handle).await,
                Ok(()) = self.held.changed() => again.is_outdone = true,
                () = sleep_until(again.due()) => {
                    self.write_again(handle).await;
                    again.written(Instant::now());
                }
                Some(address) = self.to_greet.recv() => {
                    // An error means that the task has ended, which the first branch sees.
                    let _ = handle.gossip(address);
                }
                _ = round.tick() => self.look(handle).await,
            }
        }
    }

    async fn publish(&mut self, handle: &ChitchatHandle) {
        let facts = self.facts.borrow_and_update().clone();
        let chitchat = handle.chitchat();
        let mut chitchat = chitchat.lock().await;
        let own = chitchat.self_node_state();
        for (name, value) in facts {
            own.set(name, value);
        }
        // Still under the lock: no peer has seen this version yet.
        self.transport.own_version(own.max_version());
    }

    /// Every fact once more, in versions above those of before and those that peers hold; those without a value, too.
    async fn write_again(&mut self, handle: &ChitchatHandle) {
        let facts = self.facts.borrow().clone();
        let (generation, held) = *self.held.borrow();
        let chitchat = handle.chitchat();
        let mut chitchat = chitchat.lock().await;
        let own = chitchat.self_node_state();
        if generation == own.chitchat_id().generation_id && held > own.max_version() {
            own.set_max_version(held);
        }
        for name in fact::ALL {
            // The same value alone would leave it at its version.
            if own.contains_key(name) {
                own.delete(name);
            }
            own.set(name, facts.get(name).map_or("", String::as_str));
        }
        // Still under the lock: no peer has seen this version yet.
        self.transport.own_version(own.max_version());
    }

    async fn look(&mut self, handle: &ChitchatHandle) {
        let chitchat = handle.chitchat();
        let chitchat = chitchat.lock().await;
        let own = chitchat.self_chitchat_id();
        let live = chitchat.live_nodes().cloned().collect();
        let live = self.stillness.judge(live, Instant::now().into_std());
        let others = chitchat
            .node_states()
            .iter()
            .filter(|(node, _)| *node != own);
        let seen = others
            .filter_map(|(node, state)| sighting(node, state, live.contains(node)))
            .collect();
        self.sightings.send_replace(seen);
    }

    fn config(&self, generation: u64) -> ChitchatConfig {
        let address = self.transport.address();
        ChitchatConfig {
            chitchat_id: ChitchatId::new(self.replica.as_str(), generation, address),
            cluster_id: self.cluster.clone(),
            gossip_interval: ROUND,
            listen_addr: address,
            // The transport asks the seeds; see `transport/seeds.rs`.
            seed_nodes: Vec::new(),
            failure_detector_config: FailureDetectorConfig {
                phi_threshold: 8.0,
                sampling_window_size: 200,
                // Longer gaps are outages, not a rhythm to learn.
                max_interval: 10 * ROUND,
                initial_interval: 2 * ROUND,
                dead_node_grace_period: DEAD_NODE_GRACE,
            },
            marked_for_deletion_grace_period: KEY_GRACE,
            catchup_callback: None,
            extra_liveness_predicate: None,
        }
    }
}

fn sighting(node: &ChitchatId, state: &NodeState, live: bool) -> Option<SeenReplica> {
    Some(SeenReplica {
        id: node.node_id.parse().ok()?,
        generation: node.generation_id,
        address: node.gossip_advertise_addr,
        live,
        facts: state
            .key_values()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    })
}

/// Distinguishes a replica that stood still (a stopped process, a suspended machine, a starved one) from peers
/// that fell silent. To chitchat both look alike, and on waking it would hold everybody for dead:
/// replicas that were alive before stay so until there was time to receive from them.
///
/// Local health, as in Lifeguard (Dadgar, Phillips, Currey 2018, arXiv:1707.00788).
#[derive(Default)]
struct Stillness {
    looked: Option<std::time::Instant>,
    /// The replicas that were alive before this one stood still, and until when that counts.
    before: HashSet<ChitchatId>,
    until: Option<std::time::Instant>,
    /// The replicas that were alive at the last look.
    live: HashSet<ChitchatId>,
}

impl Stillness {
    /// The replicas to be seen as alive, given those that chitchat sees as alive. Called each round.
    fn judge(
        &mut self,
        heard: HashSet<ChitchatId>,
        now: std::time::Instant,
    ) -> HashSet<ChitchatId> {
        let still = self.looked.replace(now).map_or(Duration::ZERO, |looked| {
            now.saturating_duration_since(looked)
        });
        if still >= STOOD_STILL {
            tracing::warn!(
                ?still,
                "this replica stood still; its peers get time to be heard again"
            );
            self.before = std::mem::take(&mut self.live);
            self.until = Some(now + HEARD_AGAIN_WITHIN);
        }
        self.live = heard;
        if self.until.is_some_and(|until| now < until) {
            self.live.extend(self.before.iter().cloned());
        } else {
            self.until = None;
            self.before.clear();
        }
        self.live.clone()
    }
}

/// What chitchat takes for its network.
#[derive(Clone)]
struct Door {
    transport: Transport,
    waiting: Inbox,
    metrics: Metrics,
    #[cfg(debug_assertions)]
    tripped: Arc<AtomicBool>,
}

#[async_trait]
impl GossipTransport for Door {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl Socket for Door {
    /// Only enqueues: chitchat's loop waits for it, and an unreachable peer would stop its heart.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        self.transport.send_gossip(to, message.serialize_to_vec());
        Ok(())
    }

    /// Called once in each turn of chitchat's loop, and dropped whenever another branch is ready.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        self.metrics.rounds.inc();
        #[cfg(debug_assertions)]
        assert!(!self.tripped.swap(false, Ordering::Relaxed), "provoked");
        let mut waiting = self.waiting.lock().await;
        loop {
            let Some((from, bytes)) = waiting.recv().await else {
                anyhow::bail!("the agent is gone");
            };
            match ChitchatMessage::deserialize(&mut &bytes[..]) {
                Ok(message) => return Ok((from, message)),
                Err(error) => {
                    tracing::error!(%error, "the judge passed what chitchat cannot read");
                    self.metrics.dropped("unreadable");
                }
            }
        }
    }
}

/// Messages waiting for chitchat.
const INBOX: usize = 256;
const GREETINGS: usize = 64;
/// Dead replicas stay in every digest for half of this; a crash loop must not fill them.
const DEAD_NODE_GRACE: Duration = Duration::from_secs(60);
const KEY_GRACE: Duration = Duration::from_secs(15 * 60);
/// A round that comes so late means that this replica stood still: five rounds, and half of what it
/// takes chitchat to hold somebody for dead.
const STOOD_STILL: Duration = Duration::from_secs(1);
/// Time to connect and to receive two heartbeats.
const HEARD_AGAIN_WITHIN: Duration = Duration::from_secs(2);
const RESTART_PAUSE: Duration = Duration::from_millis(200);
const STOP_WITHIN: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_now_or_above_all_seen() {
        let now = 1_700_000_000_000;
        assert_eq!(next_generation(0, now), now);
        assert_eq!(next_generation(now + 1_000_000, now), now + 1_000_001);
        assert_eq!(next_generation(u64::MAX, now), u64::MAX);
        assert!(is_plausible_generation(now + 1_000_000, now));
        assert!(!is_plausible_generation(u64::MAX, now));
    }

    #[test]
    fn who_stood_still_gives_its_peers_time() {
        let peer = |port| ChitchatId::new("r", 1, ([127, 0, 0, 1], port).into());
        let all: HashSet<_> = [peer(1), peer(2)].into();
        let begun = Instant::now().into_std();
        let mut stillness = Stillness::default();
        let at = |ms| begun + Duration::from_millis(ms);
        assert_eq!(stillness.judge(all.clone(), at(0)), all);
        assert_eq!(stillness.judge(HashSet::new(), at(200)), HashSet::new());
        assert_eq!(stillness.judge(all.clone(), at(400)), all);
        // Thirty seconds later nobody was heard; one is heard soon, the other never.
        assert_eq!(stillness.judge(HashSet::new(), at(30_400)), all);
        assert_eq!(stillness.judge([peer(1)].into(), at(31_000)), all);
        assert_eq!(stillness.judge([peer(1)].into(), at(31_800)), all);
        assert_eq!(
            stillness.judge([peer(1)].into(), at(32_400)),
            [peer(1)].into()
        );
        // Another stillness meanwhile gives nobody a life who had none.
        assert_eq!(
            stillness.judge(HashSet::new(), at(40_000)),
            [peer(1)].into()
        );
    }
}
